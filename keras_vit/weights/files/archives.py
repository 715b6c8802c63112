"""Checks and errors shared by the readers of all checkpoint files."""

import contextlib
import errno
import json
import lzma
import math
import pathlib
import pickle
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeAlias

from keras_vit.utils.text import printable
from keras_vit.utils.types import Array

NamedArrays: TypeAlias = Iterable[tuple[str, Array]]
# The arrays of a file, and what is wrong with its other entries, by key.
Read: TypeAlias = tuple[dict[str, Array], dict[str, str]]

MAX_EXTRA_BYTES = 2**26
MAX_MEMBERS = 2**16  # a checkpoint has one or two for each array
COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Exceptions that parsers raise for damaged files. MemoryError is not included,
# nor are exceptions that indicate a bug of this package (KeyError, TypeError,
# ...).
PARSE_ERRORS = (
    EOFError,
    ValueError,
    RuntimeError,  # encrypted members (zipfile); RecursionError
    OverflowError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)


def is_archive(path: pathlib.Path) -> bool:
    """Returns whether a file ends as a zip archive does."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # it has several disks
        return True


@contextlib.contextmanager
def open_archive(
    path: pathlib.Path, methods: Collection[int] = COMPRESSION_METHODS
) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive for reading, after checking its members and the size
    that they claim to unpack to.

    A caller that allows LZMA must read such members in chunks of at most 4 KiB,
    because `zipfile` does not limit the size of the output when it decompresses
    a chunk.
    """
    with zipfile.ZipFile(path) as archive:
        names, total, size = set(), 0, path.stat().st_size
        if len(archive.infolist()) > MAX_MEMBERS:
            raise ValueError(f"it holds more than {MAX_MEMBERS:,} files")
        for member in archive.infolist():
            name = member.filename
            parts = pathlib.PurePosixPath(name.replace("\\", "/")).parts
            problems = {
                "and holds it twice": name in names,
                "a path outside of the archive": ".." in parts or parts[:1] == ("/",),
                "a link": stat.S_ISLNK(member.external_attr >> 16),
                "which is encrypted": member.flag_bits & 1,
                "compressed by a method that is not supported": (
                    member.compress_type not in methods
                ),
                # `zipfile` allocates it.
                f"of {member.compress_size:,} bytes, more than it has": (
                    member.compress_size > size
                ),
            }
            for problem, is_found in problems.items():
                if is_found:
                    raise ValueError(f"it holds {name!r}, {problem}")
            names.add(name)
            total += member.file_size
        check_size(total, size)
        yield archive


def size_limit(size: int) -> int:
    """Returns the most bytes that a file of `size` bytes may unpack to: 4 times
    as many, plus 64 MiB.

    Weights hardly compress, so an archive that claims more is a zip bomb.
    """
    return 4 * size + MAX_EXTRA_BYTES


def check_size(claimed: int, size: int) -> None:
    """Raises a `ValueError` if a file claims too many bytes of contents for its
    size."""
    if claimed > size_limit(size):
        raise ValueError(
            f"it has {size:,} bytes and claims to hold {claimed:,}; weights "
            "hardly compress, and it is not unpacked"
        )


def check_shape(shape: Collection[int], itemsize: int, size: int) -> None:
    """Raises a `ValueError` unless an array of a shape takes `size` bytes."""
    if any(n < 0 for n in shape) or math.prod(shape) * itemsize != size:
        raise ValueError(
            f"its shape {tuple(shape)} does not fit the {size:,} bytes that are stored"
        )


@contextlib.contextmanager
def parsing(
    kind: str,
    path: pathlib.Path,
    errors: tuple[type[Exception], ...] = PARSE_ERRORS,
) -> Iterator[None]:
    """Converts exceptions raised for a damaged file to a `ValueError`.

    `MemoryError`, disk errors and exceptions that indicate a bug of this
    package are raised unchanged.
    """
    try:
        yield
    except errors as error:
        raise format_error(f"{kind} ({printable(error)})", path) from error
    except OSError as error:
        # For damaged files, zipfile may seek to a negative offset (EINVAL), and
        # h5py raises OSError without an errno.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise format_error(f"{kind} ({printable(error)})", path) from error


def format_error(kind: str, path: pathlib.Path) -> ValueError:
    """Returns the `ValueError` for a file that is not of the expected type."""
    with open(path, "rb") as file:
        start = file.read(256).lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        why = (
            "It is a web page (HTML), perhaps the one that describes the file. "
            "Download the file itself, from the address behind the page's "
            "download button."
        )
    elif start.startswith(b"version https://git-lfs"):
        why = (
            "It is a pointer of Git LFS, which names the file's bytes. Run "
            "`git lfs pull`, or download the file from its page."
        )
    else:
        why = (
            "It may have been cut off while downloading, or be damaged, or be "
            "of another kind."
        )
    return ValueError(f"{str(path)!r} is not {kind}. {why}")


def read_members(path: pathlib.Path, names: Collection[str]) -> list[bytes]:
    """Returns the contents of members of a zip archive."""
    with open_archive(path) as archive:
        missing = set(names) - set(archive.namelist())
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        return [archive.read(name) for name in names]


def parse_json(text: str | bytes) -> Any:
    """Returns the content of a JSON file, in which no key may occur twice."""

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"the key {name!r} is there twice")
            found[name] = value
        return found

    return json.loads(text, object_pairs_hook=to_dict)
