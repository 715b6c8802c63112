"""Cache of downloaded files, which are verified on every use."""

import errno
import hashlib
import os
import pathlib
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO

from keras_vit._version import __version__
from keras_vit.utils.downloads import hub
from keras_vit.utils.logging import logger
from keras_vit.utils.types import StrPath

TIMEOUT = 30  # seconds without data
# Errors of the disk or the folder: another source would not help.
_UNWRITABLE = (
    errno.EACCES,
    errno.EEXIST,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)


@dataclass(frozen=True)
class Source:
    """URL and digest of a file.

    Args:
        address: String. URL: `https://...`, `http://...` or
            `hf://owner/name/file`.
        digest: String. Name of the algorithm, and hexadecimal digest of the file or its
            beginning: `"sha256:a1311bcf"`, `"md5:..."`. `""` if unknown.
    """

    address: str
    digest: str = ""

    @property
    def name(self) -> str:
        """Name of the file, without folders."""
        # Unescape first, as %2F is a separator too.
        path = urllib.parse.unquote(self.address.partition("?")[0])
        name = path.replace("\\", "/").rpartition("/")[2]
        if name in ("", ".", "..") or "\0" in name:
            raise ValueError(
                "The address of a file must end in its name. Received: "
                f"{self.address!r}"
            )
        return name


def cache_dir() -> pathlib.Path:
    """Returns the `pathlib.Path` of the folder of downloaded files.

    It is `$KERAS_VIT_HOME` if that is set, otherwise the folder `keras_vit`
    in `$KERAS_HOME`, which defaults to `~/.keras`.
    """
    folder = os.environ.get("KERAS_VIT_HOME")
    if folder:
        return pathlib.Path(folder).expanduser()
    keras_home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(keras_home).expanduser() / "keras_vit"


def fetch_if_remote(path: StrPath) -> StrPath:
    """Downloads a file or folder if `path` is a URL.

    Args:
        path: A local path, or a URL: `"https://..."`, `"http://..."`,
            `"gs://bucket/..."`, `"hf://owner/name"` (a folder) or
            `"hf://owner/name/file"`. A digest to verify a file against can be
            appended: `"https://...#sha256:a1311bcf"`. Without a digest, the configs
            next to a file in a repository are downloaded, too.

    Returns:
        The path of the download; a local path is returned unchanged.

    Raises:
        OSError: if it could not be downloaded.
        ValueError: if the URL or the digest is malformed.
    """
    schemes = ("hf://", "https://", "http://", "gs://")
    if not isinstance(path, str) or not path.startswith(schemes):
        return path
    address, _, digest = path.partition("#")
    digest = digest.lower()
    if digest and not re.fullmatch(r"(sha256|md5):[0-9a-f]{8,}", digest):
        raise ValueError(
            "A digest after an address is #sha256:... or #md5:..., with 8 hex "
            f"digits or more. Received: {path!r}"
        )
    if address.startswith("gs://"):
        address = "https://storage.googleapis.com/" + address[5:]
    if address.startswith("hf://") and not (digest and hub.parse(address)[2]):
        if digest:
            raise ValueError(
                "A digest is for one file: append the file's name to the "
                f"repository's. Received: {path!r}"
            )
        return hub.download_repository(address, cache_dir() / "hub")
    # Different addresses may end in the same name.
    unique = hashlib.sha256(address.encode()).hexdigest()[:16]
    folder = cache_dir() / "addresses" / unique
    return fetch(folder, (Source(address, digest),), label=address)[0]


Check = Callable[[pathlib.Path, Source], object]


def fetch(
    folder: StrPath,
    sources: tuple[Source, ...],
    check: Check | None = None,
    label: str = "The file",
) -> tuple[pathlib.Path, Source]:
    """Returns a cached file and its source, downloading it if necessary.

    The sources are tried in order. A file is verified by its source's digest and by
    `check`, which raises a `ValueError` if the file is not the expected one: a download
    before it is moved into the folder, and a cached file, which the user may have put
    there, on every call. Only one process at a time downloads into a folder; others
    wait and use its file. Messages describe the file by `label`.

    Raises:
        OSError: if no source provides the file, the cached file is not the
            expected one, or the folder is not writable. The message lists all
            attempts and the remedy.
    """
    from filelock import FileLock

    folder = pathlib.Path(folder)
    cached = _cached(folder, sources, check)
    if cached is not None:
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            # Another process may have downloaded it in the meantime.
            cached = _cached(folder, sources, check)
            return cached or _download(folder, sources, check, label)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise OSError(
            error.errno,
            f"{label} cannot be saved ({error.strerror}). Free some space, or "
            "set KERAS_VIT_HOME to another folder, one that is writable",
            str(folder),
        ) from error


def _cached(
    folder: pathlib.Path, sources: tuple[Source, ...], check: Check | None
) -> tuple[pathlib.Path, Source] | None:
    """Returns a file in the cache and the source whose file it is, if any."""
    failures = {}  # without repetitions
    for source in sources:
        path = folder / source.name
        if path.is_file():
            try:
                _verify(path, source, check)
                return path, source
            except ValueError as error:
                failures[f"{str(path)!r}: {error}"] = None
    if not failures:
        return None
    raise OSError(
        "A file in the cache is not the expected one: "
        f"{'; or '.join(failures)}. Replace it, or delete it to have it "
        "downloaded."
    )


def _download(
    folder: pathlib.Path,
    sources: tuple[Source, ...],
    check: Check | None,
    label: str,
) -> tuple[pathlib.Path, Source]:
    """Moves the file of the first source that provides it into a folder."""
    failures = []
    parts = folder / "parts"  # on the same file system: a move is atomic
    for i, source in enumerate(sources):
        # At level WARNING, so that it is shown by default.
        logger.warning(f"{label}: downloading {source.address}")
        part = parts / str(i) / source.name
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            if source.address.startswith("hf://"):
                part = hub.download_file(source.address, part.parent)
            else:
                _download_url(source.address, part)
            _verify(part, source, check)
        except (ValueError, OSError, HTTPException) as error:
            part.unlink(missing_ok=True)
            if getattr(error, "errno", None) in _UNWRITABLE:
                raise
            reason = str(error).replace(str(part), source.name)
            failures.append(f"  {source.address}\n    {reason}")
            continue
        path = folder / source.name
        os.replace(part, path)
        shutil.rmtree(parts, ignore_errors=True)
        return path, source
    names = " or ".join(dict.fromkeys(source.name for source in sources))
    raise OSError(
        "\n".join(
            [
                f"{label} could not be downloaded. Tried:",
                *failures,
                f"Without a network, put {names} into the folder "
                f"{str(folder)!r}, or give the path of a file instead of a "
                "name.",
            ]
        )
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https, and from http also to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.startswith(req.type):
            raise OSError(
                f"the server redirects to {newurl!r}, which is not https. "
                "Download the file by other means if you trust that address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download_url(url: str, path: pathlib.Path) -> None:
    """Downloads a file; a failure may leave a part of it."""
    from huggingface_hub.utils import tqdm

    agent = {"User-Agent": f"keras_vit/{__version__}"}
    request = urllib.request.Request(url, headers=agent)
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(request, timeout=TIMEOUT) as response:
        if response.headers.get_content_type() == "text/html":
            raise ValueError("the server sent a web page instead of the file")
        if response.status != 200:  # such as 202, for a file in preparation
            raise OSError(f"the server answered with {response.status}")
        size = int(response.headers.get("Content-Length", 0))
        with (
            open(path, "wb") as file,
            tqdm(
                desc=path.name,
                total=size or None,
                unit="B",
                unit_scale=True,
                disable=None,  # only on a terminal
            ) as bar,
        ):
            while chunk := response.read(1 << 16):
                file.write(chunk)
                bar.update(len(chunk))
        received = path.stat().st_size
    if received < size:
        raise OSError(f"the connection ended after {received} of {size} bytes")


def _verify(path: pathlib.Path, source: Source, check: Check | None) -> None:
    """Raises a `ValueError` if a file fails its source's digest or `check`."""
    algorithm, _, expected = source.digest.partition(":")
    if expected:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, algorithm).hexdigest()
        if not digest.startswith(expected):
            raise ValueError(
                f"its {algorithm} is {digest}, expected {expected}: it is "
                "damaged, or was changed"
            )
    if check is not None:
        check(path, source)
