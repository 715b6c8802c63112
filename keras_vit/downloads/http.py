"""Resumable download of one URL."""

import contextlib
import errno
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request

from keras_vit._version import __version__

TIMEOUT = 30  # seconds without data
RETRY_DELAYS = (1, 4)  # seconds before the second and the third attempt
RETRYABLE_STATUS = (408, 425, 429, 500, 502, 503, 504)
CHUNK_SIZE = 1 << 20


class TransientDownloadError(OSError):
    """Raised for an error that may not recur if the download is retried."""


def download(url, path):
    """Downloads a file.

    If the connection breaks, the part of the file that was received is kept at
    `path`, and another attempt or call resumes the download if the file on the
    server has not changed.

    Args:
        url: String. URL with `http://` or `https://`.
        path: `pathlib.Path` of the file to write, in an existing folder.

    Raises:
        OSError: if the download failed; with `errno` ENOSPC if the disk is
            full.
        ValueError: if the server sent a web page instead of a file.
    """
    for delay in (*RETRY_DELAYS, None):
        try:
            with _translate_errors(url):
                return _attempt(url, path)
        except TransientDownloadError as error:
            if "answered 416" in str(error):
                remove(path)  # the part is longer than the server's file
            if delay is None:
                raise
            time.sleep(delay)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https, and from http also to http."""

    def redirect_request(self, request, file, code, text, headers, url):
        if url.startswith("https://") or (
            url.startswith("http://") and request.type == "http"
        ):
            return super().redirect_request(
                request, file, code, text, headers, url
            )
        raise OSError(
            f"the server redirects to {url!r}, which is not https. Download "
            "the file by other means if you trust that address"
        )


def _attempt(url, path):
    headers = {"User-Agent": f"keras_vit/{__version__}"}
    resume_offset, validator = _resume_state(url, path)
    if resume_offset:
        headers["Range"] = f"bytes={resume_offset}-"
        headers["If-Range"] = validator
    request = urllib.request.Request(url, headers=headers)
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(request, timeout=TIMEOUT) as response:
        if response.headers.get_content_type() == "text/html":
            raise ValueError("the server sent a web page instead of the file")
        resumed = response.status == 206 and response.headers.get(
            "Content-Range", ""
        ).startswith(f"bytes {resume_offset}-")
        if response.status == 206 and not resumed:
            _resume_path(path).unlink(missing_ok=True)
            raise TransientDownloadError("the server sent another range")
        offset = resume_offset if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else offset + int(length)
        _check_disk_space(path, (total or 0) - offset)
        if not resumed:
            # Before writing the new resume state: a process killed in between
            # must not leave an old part with the new state.
            remove(path)
        _write_resume_state(url, path, response.headers)
        received = _receive(response, path, "ab" if resumed else "wb", total)
    if total is not None and received < total:
        raise TransientDownloadError(
            f"the connection ended after {received} of {total} bytes"
        )
    _resume_path(path).unlink(missing_ok=True)


def _receive(response, path, mode, total):
    """Writes the response's body to a file.

    Args:
        response: The response of the server.
        path: `pathlib.Path` of the file.
        mode: String. `"ab"` to resume a download, or `"wb"`.
        total: Integer. Expected size of the file in bytes, or None.

    Returns:
        Integer. Size of the file in bytes.
    """
    with (
        open(path, mode) as file,
        _progress_bar(path.name, file.tell(), total) as advance,
    ):
        while chunk := response.read(CHUNK_SIZE):
            file.write(chunk)
            advance(len(chunk))
        return file.tell()


@contextlib.contextmanager
def _translate_errors(url):
    """Converts errors to `TransientDownloadError` or `OSError`."""
    transient = TransientDownloadError
    try:
        yield
    except urllib.error.HTTPError as error:
        is_transient = error.code in (*RETRYABLE_STATUS, 416)
        kind = transient if is_transient else OSError
        raise kind(
            f"the server answered {error.code} {error.reason}"
        ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise transient(f"no answer within {TIMEOUT} s") from error
        if isinstance(error.reason, ConnectionResetError):
            raise transient("the connection was reset") from error
        host = urllib.request.urlparse(url).netloc
        raise OSError(f"{host} cannot be reached ({error.reason})") from error
    except TimeoutError as error:
        raise transient(f"no data for {TIMEOUT} s") from error
    except (ConnectionError, http.client.HTTPException) as error:
        raise transient(f"the connection broke ({error!r})") from error


def _check_disk_space(path, needed):
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB free",
            str(path.parent),
        )


def _resume_path(path):
    return path.with_name(path.name + ".part")


def _resume_state(url, path):
    """Returns `(number of bytes received, validator)` of a partial download.

    The validator is the server's identifier of the file's version (`If-Range`).
    Returns `(0, None)` if the download cannot be resumed.
    """
    try:
        state = json.loads(_resume_path(path).read_text())
        if state["url"] == url and state["validator"]:
            return path.stat().st_size, state["validator"]
    except (OSError, ValueError, KeyError):
        pass
    return 0, None


def _write_resume_state(url, path, headers):
    # A weak ETag (W/) does not guarantee the same bytes.
    tag = headers.get("ETag") or ""
    validator = headers.get("Last-Modified") if tag[:2] in ("", "W/") else tag
    state = {"url": url, "validator": validator}
    _resume_path(path).write_text(json.dumps(state))


def remove(path):
    """Removes a partial download and its resume state."""
    for file in (path, _resume_path(path)):
        with contextlib.suppress(OSError):
            os.unlink(file)


@contextlib.contextmanager
def _progress_bar(name, received, total):
    """Shows a progress bar on a terminal or in a notebook.

    Args:
        name: String. Description next to the bar.
        received: Integer. Number of bytes that were received before.
        total: Integer. Size of the file in bytes; None if unknown.

    Yields:
        Function that advances the bar by a number of bytes.
    """
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:  # a dependency of Keras, which may not be installed
        yield lambda count: None
        return
    console = Console(stderr=True)
    columns = (
        "{task.description}",
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    visible = console.is_terminal or console.is_jupyter
    with progress.Progress(
        *columns, console=console, disable=not visible
    ) as bar:
        task = bar.add_task(name, total=total, completed=received)
        yield lambda count: bar.advance(task, count)
