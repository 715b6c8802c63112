"""One file from one address, going on where a broken try left off."""

import contextlib
import errno
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request

from keras_vit._logging import logger
from keras_vit._version import __version__
from keras_vit.downloads import _progress

TIMEOUT = 30  # seconds without a byte
WAITS = (1, 4)  # seconds before the second and the third try
_CHUNK = 1 << 20
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # may be gone next time


class Broken(OSError):
    """What may go better at the next try."""


def download(url, path):
    """Downloads a file.

    What has arrived stays at `path` when the connection breaks, and the next
    call goes on from there if the server still has the same file.

    Args:
        url: String, http:// or https://.
        path: `pathlib.Path` in an existing folder.

    Raises:
        OSError: if it could not be had; the message says why. With `errno`
            ENOSPC, the disk is full.
        ValueError: if there is a web page in the file's place.
    """
    for wait in (*WAITS, None):
        try:
            with _told_plainly(url):
                return _once(url, path)
        except Broken as error:
            if "answered 416" in str(error):
                remove(path)  # there is more than the server has
            if wait is None:
                raise
            time.sleep(wait)


def _once(url, path):
    headers = {"User-Agent": f"keras_vit/{__version__}"}
    there, validator = _left_off(url, path)
    if there:
        headers["Range"] = f"bytes={there}-"
        headers["If-Range"] = validator
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        if response.headers.get_content_type() == "text/html":
            raise ValueError("it gave a web page instead of the file")
        goes_on = response.status == 206 and response.headers.get(
            "Content-Range", ""
        ).startswith(f"bytes {there}-")
        if response.status == 206 and not goes_on:
            _note(path).unlink(missing_ok=True)
            raise Broken("it sent another part of the file than asked for")
        there = there if goes_on else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else there + int(length)
        _raise_if_full(path, (total or 0) - there)
        if not goes_on:
            remove(path)  # or, killed here, the next would go on from it
        _remember(url, path, response.headers)
        received = _receive(response, path, "ab" if goes_on else "wb", total)
    if total is not None and received < total:
        raise Broken(f"it broke off after {received} of {total} bytes")
    _note(path).unlink(missing_ok=True)


def _receive(response, path, mode, total):
    """Writes what comes; returns the file's size."""
    with (
        open(path, mode) as file,
        _progress.bar(path.name, file.tell(), total) as advance,
    ):
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            advance(len(chunk))
        return file.tell()


@contextlib.contextmanager
def _told_plainly(url):
    """Turns the many errors of a download into three."""
    try:
        yield
    except urllib.error.HTTPError as error:
        kind = Broken if error.code in (*_PASSING, 416) else OSError
        raise kind(f"it answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise Broken(f"no answer within {TIMEOUT} s") from error
        if isinstance(error.reason, ConnectionResetError):
            raise Broken("the connection was reset") from error
        host = urllib.request.urlparse(url).netloc
        raise OSError(f"{host} cannot be reached ({error.reason})") from error
    except TimeoutError as error:
        raise Broken(f"nothing came for {TIMEOUT} s") from error
    except (ConnectionError, http.client.HTTPException) as error:
        raise Broken(f"the connection broke ({error!r})") from error


def _raise_if_full(path, needed):
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB free",
            str(path.parent),
        )


def _note(path):
    """Says which file the part at `path` is of."""
    return path.with_name(path.name + ".part")


def _left_off(url, path):
    """Returns `(bytes there, the server's name for this version)`."""
    try:
        note = json.loads(_note(path).read_text())
        if note["url"] == url and note["validator"]:
            return path.stat().st_size, note["validator"]
    except (OSError, ValueError, KeyError):
        pass
    return 0, None


def _remember(url, path, headers):
    # A weak ETag (W/) does not promise the same bytes.
    tag = headers.get("ETag") or ""
    validator = headers.get("Last-Modified") if tag[:2] in ("", "W/") else tag
    _note(path).write_text(json.dumps({"url": url, "validator": validator}))


def say(text):
    """Logs what is shown unless it is turned off, as progress bars are."""
    logger.warning(text)


def remove(path):
    """Removes a part and its note."""
    for file in (path, _note(path)):
        with contextlib.suppress(OSError):
            os.unlink(file)
