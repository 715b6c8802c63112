"""Helpers that the readers of all checkpoint files share."""

import contextlib
import errno
import lzma
import math
import pathlib
import pickle
import stat
import struct
import zipfile
import zlib

# A file may hold 4 times its size plus 64 MiB. Weights hardly compress, so an
# archive that claims more is a zip bomb.
MAX_EXPANSION_RATIO = 4
MAX_EXTRA_BYTES = 2**26
COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
METHODS_WITH_LZMA = (*COMPRESSION_METHODS, zipfile.ZIP_LZMA)
# What parsers raise for a damaged file. MemoryError is not among them, nor is
# what a bug of this package would raise (KeyError, TypeError, ...).
PARSE_ERRORS = (
    EOFError,
    ValueError,
    RuntimeError,  # zipfile, of encrypted members; RecursionError
    OverflowError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)


@contextlib.contextmanager
def open_archive(path, methods=COMPRESSION_METHODS):
    """Open a zip archive for reading after checking its members.

    Args:
        path: `pathlib.Path` of the archive.
        methods: Compression methods that members may have. Of LZMA, a caller
            must read 4 KiB at a time, because `zipfile` unpacks all of what it
            is asked for, whatever size it has then.

    Yields:
        A `zipfile.ZipFile`.

    Raises:
        ValueError: if a member is a duplicate, encrypted, a link, compressed
            by another method, or lies outside of the archive; or if all
            members together are too large for the file.
        zipfile.BadZipFile: or another of `PARSE_ERRORS`, for a damaged file.
    """
    with zipfile.ZipFile(path) as archive:
        names, total = set(), 0
        for member in archive.infolist():
            problem = _problem_of(member, names, methods)
            if problem:
                raise ValueError(f"it holds {member.filename!r}, {problem}")
            names.add(member.filename)
            total += member.file_size
        check_size(total, path.stat().st_size)
        yield archive


def _problem_of(member, names, methods):
    """Return what is wrong with a member of an archive, or None."""
    parts = pathlib.PurePosixPath(member.filename.replace("\\", "/")).parts
    if member.filename in names:
        return "and holds it twice"
    if ".." in parts or parts[:1] == ("/",):
        return "a path outside of the archive"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "a link"
    if member.flag_bits & 1:
        return "which is encrypted"
    if member.compress_type not in methods:
        return "compressed by a method that is not supported"
    return None


def check_size(claimed, size):
    """Raise a `ValueError` if a file claims to hold too much for its size.

    Args:
        claimed: Integer. Bytes of all that the file claims to hold.
        size: Integer. Bytes of the file.
    """
    if claimed > MAX_EXPANSION_RATIO * size + MAX_EXTRA_BYTES:
        raise ValueError(
            f"it has {size:,} bytes and claims to hold {claimed:,}; weights "
            "hardly compress, and it is not unpacked"
        )


def check_shape(shape, itemsize, size):
    """Raise a `ValueError` unless an array of a shape has `size` bytes."""
    if any(n < 0 for n in shape) or math.prod(shape) * itemsize != size:
        raise ValueError(
            f"its shape {tuple(shape)} does not fit the {size:,} bytes that "
            "are stored"
        )


@contextlib.contextmanager
def parsing(kind, path, errors=PARSE_ERRORS):
    """Turn what a parser raises for a damaged file into one `ValueError`.

    A lack of memory, errors of the disk and bugs of this package pass
    unchanged.

    Args:
        kind: String. What the file should be, with its article.
        path: `pathlib.Path` of the file.
        errors: Tuple of exception classes that mean a damaged file.
    """
    try:
        yield
    except errors as error:
        raise format_error(f"{kind} ({error})", path) from error
    except OSError as error:
        # zipfile seeks before the start of a damaged file, and h5py raises
        # OSError without an errno for what is no valid HDF5.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise format_error(f"{kind} ({error})", path) from error


def format_error(kind, path):
    """Return the `ValueError` for a file of another type than its suffix."""
    with open(path, "rb") as file:
        start = file.read(256).lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        why = (
            "It is a web page (HTML), perhaps the one that describes the file. "
            "Download the file itself, from the address behind the page's "
            "download button."
        )
    else:
        why = (
            "It may have been cut off while downloading, or be damaged, or be "
            "of another kind."
        )
    return ValueError(f"{str(path)!r} is not {kind}. {why}")


def reject_duplicate_keys(pairs):
    """Return the dict of a JSON object; the `object_pairs_hook` of `json`.

    Raises:
        ValueError: if two pairs have the same key.
    """
    found = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is there twice")
        found[name] = value
    return found
