"""A file from the first of several sources that gives it whole."""

import contextlib
import datetime
import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import urllib.parse
from dataclasses import dataclass

from keras_vit.downloads import _http
from keras_vit.downloads import _hub

_NO_PLACE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOTDIR,
)


@dataclass(frozen=True)
class Source:
    """Where a file can be had.

    Args:
        address: String: https://, http:// or hf://owner/name/file.
        digest: String. What is known of it, "sha256:a1311bcf" (its beginning
            is enough) or "md5:...".
    """

    address: str
    digest: str = ""

    @property
    def name(self):
        # First all escapes, then the last part: it names no other folder.
        path = urllib.parse.unquote(self.address.partition("?")[0])
        name = path.replace("\\", "/").rpartition("/")[2]
        if name in ("", ".", "..") or "\0" in name:
            raise ValueError(
                "The address of a file must end in its name. Received: "
                f"{self.address!r}"
            )
        return name


def fetch(folder, sources, check=None, what="The file"):
    """Returns `(path, source)` of a file, downloading it if it is not there.

    A file comes to `folder` whole and checked, or not at all. The SHA-256 that
    it then has is recorded next to the file, with size and modification time.
    As long as these two are the same the file is not read again; if one is
    another, the file's SHA-256 must still be the recorded one. A file put
    there by hand is checked in the same way when it is first used. One process
    at a time downloads into a folder; the others wait and take what it got.

    Args:
        folder: Path; it is made if it does not exist.
        sources: Tuple of `Source`s of the same thing, the best first.
        check: Function of a path and a `Source` that raises a `ValueError` if
            the file is not what it should be.
        what: String. What is wanted, for messages.

    Raises:
        OSError: if no source gives the file, or it was changed since. The
            message names all of them and says what to do by hand.
    """
    folder = pathlib.Path(folder)
    found = _kept(folder, sources, check)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            found = _kept(folder, sources, check)  # by the one we waited for
            return found or _download(folder, sources, check, what)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        raise OSError(
            f"{what} cannot be kept: the folder {str(folder)!r} cannot be "
            f"written to ({error.strerror}). Set KERAS_VIT_HOME to one that "
            "can."
        ) from error


def _kept(folder, sources, check):
    """Returns `(path, source)` of a file that is there already, or None."""
    for name in dict.fromkeys(source.name for source in sources):
        path = folder / name
        if not path.is_file():
            continue
        recorded, stamp = _recorded(path), _stamp(path)
        if recorded is None:
            digest = digest_of(path)
            source = _source_of(path, sources, check, digest)
            with contextlib.suppress(OSError):  # a folder only to read
                _record(path, digest, source, stamp)
            return path, source
        unchanged = recorded["stamp"] == stamp
        digest = recorded["sha256"] if unchanged else digest_of(path)
        if recorded["sha256"] != digest:
            raise OSError(
                f"{str(path)!r} is not what it was when it was downloaded: its "
                f"sha256 is {digest}, expected {recorded['sha256']}. Delete it "
                f"and {_record_path(path).name} to have it downloaded again, "
                "or to put another in its place."
            )
        for source in sources:
            if recorded["source"] not in (source.address, None):
                continue
            if not unchanged or recorded["checked"] != source.digest:
                # A digest can be known later than the file.
                _hold_to(path, source, digest)
                with contextlib.suppress(OSError):
                    _record(path, digest, source, stamp)
            return path, source
        # Kept from an address that has since gone from the table.
        return path, _source_of(path, sources, check, digest)
    return None


def _hold_to(path, source, digest):
    try:
        _check(path, source, None, digest)
    except ValueError as error:
        raise OSError(f"{str(path)!r} cannot be used: {error}.") from error


def _source_of(path, sources, check, digest):
    """Which source a file put there by hand is from; raises if from none."""
    refusals = {}
    for source in sources:
        if source.name == path.name:
            try:
                _check(path, source, check, digest)
                return source
            except ValueError as error:
                refusals[str(error)] = None
    raise OSError(
        f"{str(path)!r}, put there by hand, is not what it should be: "
        f"{'; or '.join(refusals)}. Replace it, or delete it to have it "
        "downloaded."
    )


def _download(folder, sources, check, what):
    refusals = []
    parts = folder / "parts"  # where a file can be moved from at once
    for i, source in enumerate(sources):
        _http.say(f"{what}: downloading {source.address}")
        part = parts / str(i) / source.name
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            if source.address.startswith("hf://"):
                got = _hub.download_file(source.address, part.parent)
                part = pathlib.Path(got)
            else:
                _http.download(source.address, part)
            digest, stamp = digest_of(part), _stamp(part)
            _check(part, source, check, digest)
        except (ValueError, OSError, ImportError) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                shutil.rmtree(parts, ignore_errors=True)
                raise _disk_full(error, folder, what) from error
            if isinstance(error, ValueError):
                _http.remove(part)  # going on from it would not mend it
            reason = str(error).replace(str(part), source.name)
            refusals.append(f"  {source.address}\n    {reason}")
            continue
        path = folder / source.name
        _record(path, digest, source, stamp)
        os.replace(part, path)
        shutil.rmtree(parts, ignore_errors=True)
        return path, source
    names = dict.fromkeys(source.name for source in sources)
    raise OSError(
        "\n".join(
            [
                f"{what} could not be downloaded. Tried:",
                *refusals,
                f"Without a network, put {' or '.join(names)} into the folder "
                f"{str(folder)!r} by hand, or give the path of a file instead "
                "of a name.",
            ]
        )
    )


def _check(path, source, check, sha256):
    """Raises a `ValueError` if a file is not what its source gives.

    Args:
        path: Path of the file.
        source: `Source`.
        check: As in `fetch`.
        sha256: String. The file's digest.
    """
    algorithm, _, known = source.digest.partition(":")
    if known:
        found = sha256
        if algorithm != "sha256":
            found = digest_of(path, algorithm)
        if not found.startswith(known):
            raise ValueError(
                f"its {algorithm} is {found}, expected {known}: it is "
                "damaged, or was changed"
            )
    if check is not None:
        check(path, source)


def digest_of(path, algorithm="sha256"):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _record_path(path):
    return path.with_name(path.name + ".json")


def _stamp(path):
    """What changes if a file does: its size and time of modification."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _record(path, digest, source, stamp):
    """Writes down what is known of a file.

    Args:
        path: Path of the file.
        digest: String. Its SHA-256.
        source: The `Source` that it is from, whose digest it has.
        stamp: What `_stamp` returned before the file was read for its digest.
    """
    record = {
        "sha256": digest,
        "source": source.address,
        "date": datetime.date.today().isoformat(),
        "checked": source.digest,
        "size": stamp[0],
        "mtime_ns": stamp[1],
    }
    # In one step, as other processes may read it.
    final = _record_path(path)
    temporary = final.with_name(f"{final.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_text(json.dumps(record, indent=2))
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _recorded(path):
    try:
        record = json.loads(_record_path(path).read_text())
        return {
            "sha256": record["sha256"],
            "source": record.get("source"),
            "checked": record.get("checked"),
            "stamp": [record.get("size"), record.get("mtime_ns")],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _one_at_a_time(folder):
    from filelock import FileLock
    from filelock import Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        _http.say(f"Another process is downloading to {folder}; waiting.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _disk_full(error, folder, what):
    return OSError(
        errno.ENOSPC,
        f"{what} does not fit on the disk ({error.strerror}). Make room, or "
        "set KERAS_VIT_HOME to a folder elsewhere",
        str(folder),
    )
