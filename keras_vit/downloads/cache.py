"""Cache of downloaded files, which are verified by their digests."""

import contextlib
import datetime
import errno
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import urllib.parse
from dataclasses import dataclass

from keras_vit._logging import logger
from keras_vit.downloads import http
from keras_vit.downloads import hub

_UNWRITABLE_ERRNOS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOTDIR,
)


@dataclass(frozen=True)
class Source:
    """URL of a file, and its digest.

    Args:
        address: String. URL: `https://...`, `http://...` or
            `hf://owner/name/file`.
        digest: String. Hexadecimal digest of the file, or the beginning of it,
            after the name of the algorithm: `"sha256:a1311bcf"`, `"md5:..."`.
            `""` if unknown.
    """

    address: str
    digest: str = ""

    @property
    def name(self):
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


def cache_dir():
    """Returns the `pathlib.Path` of the folder of downloaded files.

    It is `$KERAS_VIT_HOME` if that is set, otherwise the folder `keras_vit`
    in `$KERAS_HOME`, which defaults to `~/.keras`.
    """
    folder = os.environ.get("KERAS_VIT_HOME")
    if folder:
        return pathlib.Path(folder).expanduser()
    keras_home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(keras_home).expanduser() / "keras_vit"


def is_url(path):
    """Returns whether `path` is a URL to download from."""
    schemes = ("hf://", "https://", "http://", "gs://")
    return isinstance(path, str) and path.startswith(schemes)


def fetch_if_remote(path):
    """Downloads a file or folder if `path` is a URL.

    Args:
        path: A local path, or a URL: `"https://..."`, `"http://..."`,
            `"gs://bucket/..."`, `"hf://owner/name"` (a folder) or
            `"hf://owner/name/file"`. A digest to verify a file against can be
            appended: `"https://...#sha256:a1311bcf"`.

    Returns:
        The path of the download; a local path is returned unchanged.

    Raises:
        OSError: if it could not be downloaded.
        ValueError: if the URL or the digest is malformed.
    """
    if not is_url(path):
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
    if address.startswith("hf://") and hub.parse(address)[2] is None:
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


def fetch(folder, sources, check=None, label="The file"):
    """Returns `(path, source)` of a cached file, downloading it if necessary.

    A download is verified before it is moved into `folder`. Its SHA-256, size
    and modification time are recorded next to it. As long as size and time are
    unchanged, the file is not read again; otherwise its SHA-256 must equal the
    recorded one. A file that the user put into the folder is verified in the
    same way at its first use. Only one process at a time downloads into a
    folder; others wait and use its file.

    Args:
        folder: Path of the folder; created if it does not exist.
        sources: Tuple of `Source`s of the same file, in order of preference.
        check: Function of a path and a `Source` that raises a `ValueError` if
            the file is not as expected; or None.
        label: String. Description of the file in messages.

    Raises:
        OSError: if no source provides the file, the cached file has changed
            or is not the expected one, or the folder is not writable. The
            message lists all attempts and the remedy.
    """
    folder = pathlib.Path(folder)
    cached = _cached(folder, sources, check)
    if cached is not None:
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            # Another process may have downloaded it in the meantime.
            cached = _cached(folder, sources, check)
            return cached or _download(folder, sources, check, label)
    except OSError as error:
        if error.errno not in _UNWRITABLE_ERRNOS:
            raise
        raise OSError(
            f"{label} cannot be saved: the folder {str(folder)!r} is not "
            f"writable ({error.strerror}). Set KERAS_VIT_HOME to one that is."
        ) from error


def _cached(folder, sources, check):
    """Returns `(path, source)` of a file in the cache, or None."""
    for name in dict.fromkeys(source.name for source in sources):
        path = folder / name
        if not path.is_file():
            continue
        record, stamp = _read_record(path), _stamp(path)
        if record is None:
            digest = digest_of(path)
            source = _identify_manual_file(path, sources, check, digest)
            with contextlib.suppress(OSError):  # the folder may be read-only
                _write_record(path, digest, source, stamp)
            return path, source
        unchanged = record["stamp"] == stamp
        digest = record["sha256"] if unchanged else digest_of(path)
        if record["sha256"] != digest:
            raise OSError(
                f"{str(path)!r} has changed since it was downloaded: its "
                f"sha256 is {digest}, expected {record['sha256']}. To download "
                "it again, or to put another file in its place, delete it and "
                f"{_record_path(path).name}."
            )
        for source in sources:
            if record["source"] not in (source.address, None):
                continue
            # The source's digest may have been unknown when it was downloaded.
            if not unchanged or record["digest"] != source.digest:
                try:
                    _verify(path, source, None, digest)
                except ValueError as error:
                    raise OSError(
                        f"{str(path)!r} cannot be used: {error}."
                    ) from error
                with contextlib.suppress(OSError):
                    _write_record(path, digest, source, stamp)
            return path, source
        # Downloaded from a URL that is no longer among the sources.
        return path, _identify_manual_file(path, sources, check, digest)
    return None


def _identify_manual_file(path, sources, check, digest):
    """Returns the source that a file put into the cache by the user matches.

    Raises:
        OSError: if it matches none.
    """
    failures = {}
    for source in sources:
        if source.name == path.name:
            try:
                _verify(path, source, check, digest)
                return source
            except ValueError as error:
                failures[str(error)] = None
    raise OSError(
        f"{str(path)!r} was not downloaded by keras_vit and is not the "
        f"expected file: {'; or '.join(failures)}. Replace it, or delete it "
        "to have it downloaded."
    )


def _download(folder, sources, check, label):
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
                part = pathlib.Path(part)
            else:
                http.download(source.address, part)
            digest, stamp = digest_of(part), _stamp(part)
            _verify(part, source, check, digest)
        except (ValueError, OSError, ImportError) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                shutil.rmtree(parts, ignore_errors=True)
                raise OSError(
                    errno.ENOSPC,
                    f"{label} does not fit on the disk ({error.strerror}). "
                    "Free some space, or set KERAS_VIT_HOME to another folder",
                    str(folder),
                ) from error
            if isinstance(error, ValueError):
                http.remove(part)  # a wrong file must not be resumed
            reason = str(error).replace(str(part), source.name)
            failures.append(f"  {source.address}\n    {reason}")
            continue
        path = folder / source.name
        _write_record(path, digest, source, stamp)
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


def _verify(path, source, check, sha256):
    """Raises a `ValueError` if a file fails its source's digest or `check`.

    Args:
        path: `pathlib.Path` of the file.
        source: Its `Source`.
        check: As in `fetch`.
        sha256: String. SHA-256 of the file.
    """
    algorithm, _, expected = source.digest.partition(":")
    if expected:
        digest = sha256
        if algorithm != "sha256":
            digest = digest_of(path, algorithm)
        if not digest.startswith(expected):
            raise ValueError(
                f"its {algorithm} is {digest}, expected {expected}: it is "
                "damaged, or was changed"
            )
    if check is not None:
        check(path, source)


def digest_of(path, algorithm="sha256"):
    """Returns the digest of a file as a hexadecimal string."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _record_path(path):
    return path.with_name(path.name + ".json")


def _stamp(path):
    """Returns size and modification time, which show if a file has changed."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _write_record(path, digest, source, stamp):
    """Records the digest of a file in the cache.

    Args:
        path: Path of the file.
        digest: String. Its SHA-256.
        source: The `Source` that it was verified against.
        stamp: `_stamp(path)` of the file with this digest.
    """
    record = {
        "sha256": digest,
        "source": source.address,
        "date": datetime.date.today().isoformat(),
        "checked": source.digest,
        "size": stamp[0],
        "mtime_ns": stamp[1],
    }
    # Written atomically, since other processes may read it.
    final = _record_path(path)
    temporary = final.with_name(f"{final.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_text(json.dumps(record, indent=2))
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read_record(path):
    try:
        record = json.loads(_record_path(path).read_text())
        return {
            "sha256": record["sha256"],
            "source": record.get("source"),
            "digest": record.get("checked"),
            "stamp": [record.get("size"), record.get("mtime_ns")],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _lock(folder):
    from filelock import FileLock
    from filelock import Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        logger.warning(f"Another process is downloading to {folder}; waiting.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
