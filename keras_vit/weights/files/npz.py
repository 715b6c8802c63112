"""Reader and writer of .npz files, without pickled objects."""

import pathlib
import zipfile
from typing import IO

import ml_dtypes
import numpy as np

from keras_vit.utils.types import Array
from keras_vit.weights.files import archives, progress
from keras_vit.weights.files.archives import NamedArrays, Read

METHODS = (*archives.COMPRESSION_METHODS, zipfile.ZIP_LZMA)


def read_npz(path: pathlib.Path) -> Read:
    arrays, problems = {}, {}
    with (
        archives.parsing("an .npz file (a zip archive of arrays)", path),
        archives.open_archive(path, METHODS) as archive,
    ):
        size = path.stat().st_size
        for member in progress.track(archive.infolist(), f"reading {path.name}", size):
            key = member.filename.removesuffix(".npy")
            try:
                if key in arrays:
                    raise ValueError("is there twice")
                arrays[key] = _read_npy(archive, member)
            except archives.PARSE_ERRORS as error:
                problems[key] = str(error)
    return arrays, problems


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        shape, dtype = _read_npy_header(file)
        if dtype.names or dtype.subdtype:
            raise ValueError(f"type {dtype}, expected floats")
        if not dtype.hasobject:  # `read_array` refuses objects
            # Checked before NumPy allocates memory for the shape.
            stored = member.file_size - file.tell()
            archives.check_shape(shape, dtype.itemsize, stored)
    with archive.open(member) as file:
        if member.compress_type == zipfile.ZIP_LZMA:
            file = _SmallReads(file)
        array = np.lib.format.read_array(file, allow_pickle=False)
    # big_vision writes bfloat16, which NumPy reads as two raw bytes.
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


class _SmallReads:
    """Wraps a file so that a read returns at most 4 KiB; NumPy reads on."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def read(self, size: int = 2**12) -> bytes:
        return self.file.read(min(size, 2**12))


def _read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Returns `(shape, dtype)` from the header of an .npy file."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an .npy header of version {version}")
    try:
        shape, _, dtype = readers[version](file)
    except Exception as error:
        # NumPy parses the header, of at most 10,000 characters, as a Python
        # literal. This can raise many exceptions; for deep nesting, even
        # MemoryError.
        raise ValueError(f"a broken .npy header ({error})") from error
    return shape, dtype


def write_npz(items: NamedArrays, path: pathlib.Path) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for key, array in items:
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
