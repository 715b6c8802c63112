"""Zip archives, which .npz, .keras and PyTorch's files are.

Nothing is unpacked to disk, and no more into memory than the file's size
allows for.
"""

import contextlib
import lzma
import pathlib
import stat
import struct
import zipfile
import zlib

import numpy as np

# A file may hold so many times its size, and so many bytes more: zeros
# compress well, and what claims more is a bomb.
_TIMES, _SPARE = 4, 2**26
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
SMALL = (*_METHODS, zipfile.ZIP_LZMA)  # for who reads in steps of 4 KiB,
STEP = 2**12  # since zipfile unpacks all of a step, whatever comes of it
# What the parsers of these files raise if a file is damaged. MemoryError is
# not among them, nor is what a mistake in this package would raise.
DAMAGED = (
    EOFError,
    ValueError,
    RuntimeError,  # zipfile's of encrypted members; RecursionError
    OverflowError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)


@contextlib.contextmanager
def opened(path, methods=_METHODS):
    """Gives the `zipfile.ZipFile`, whose members are what they claim to be.

    Raises:
        ValueError: if a member is there twice, is compressed in another way
            than these files are, is encrypted, would lie elsewhere or is a
            link; or if all of them are too large for the file.
        zipfile.BadZipFile: or another of `DAMAGED`, if it is none.
    """
    with zipfile.ZipFile(path) as archive:
        raise_unless_plain(path, archive.infolist(), methods)
        yield archive


def raise_unless_plain(path, members, methods=_METHODS):
    """Raises the `ValueError` of `opened`."""
    names, total = set(), 0
    for member in members:
        why = _problem(member, names, methods)
        if why:
            raise ValueError(f"it holds {member.filename!r}, {why}")
        names.add(member.filename)
        total += member.file_size
    size = path.stat().st_size
    if total > _TIMES * size + _SPARE:
        raise ValueError(
            f"it has {size:,} bytes and claims to hold {total:,}; checkpoints "
            "hardly compress, and it is not unpacked"
        )


def _problem(member, names, methods):
    """What is wrong with a member; None if nothing is."""
    parts = pathlib.PurePosixPath(member.filename.replace("\\", "/")).parts
    if member.filename in names:
        return "and holds it twice"
    if ".." in parts or parts[:1] == ("/",):
        return "a place outside of it"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "a link"
    if member.flag_bits & 1:
        return "which is encrypted"
    if member.compress_type not in methods:
        return "compressed in a way that none of these files is"
    return None


def fill(file, size, step=2**20):
    """Returns an array of the next `size` bytes of a file, `step` at a time.

    Raises:
        EOFError: if there are fewer.
    """
    # Backends can take what starts at 64 bytes without a copy.
    memory, done = np.empty(size + 64, np.uint8), 0
    buffer = memory[-memory.ctypes.data % 64 :][:size]
    while done < size:
        chunk = file.read(min(step, size - done))
        if not chunk:
            raise EOFError(f"{size - done:,} bytes are missing")
        buffer[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    return buffer
