"""One container a pair of functions: `.npz`, `.safetensors` and PyTorch's.

Nothing in a file is ever run: pickled objects are refused. A reader returns
`(arrays, problems)`, so that one error can name all of a file's.
"""

import contextlib
import errno
import json
import math
import zipfile

import ml_dtypes
import numpy as np

from keras_vit.checkpoints import _archives
from keras_vit.checkpoints._progress import track

_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_LONGEST_HEADER = 10**8  # bytes; as the format's own library has it
_SAFETENSORS = {  # what the format calls its types
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
}


# What else is in such files, so that an error can say so.
_UNUSED = {
    **{f"int{8 * size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    "bool": "BOOL",
}


def read_npz(path):
    if not zipfile.is_zipfile(path):
        raise not_a("n .npz file (a zip archive of arrays)", path)
    arrays, problems = {}, []
    with (
        naming_damage("n .npz file", path),
        _archives.opened(path, _archives.SMALL) as archive,
    ):
        title, size = f"reading {path.name}", path.stat().st_size
        for member in track(archive.infolist(), title, size):
            key = member.filename.removesuffix(".npy")
            try:
                if key in arrays:
                    raise ValueError("is there twice")
                with archive.open(member) as file:
                    arrays[key] = _array_of(file, member)
            except _archives.DAMAGED as error:
                problems.append(f"{key}: {error}")
    return arrays, problems


def _array_of(file, member):
    """Returns the array in a .npy file, a member of an archive."""
    size = member.file_size
    version = np.lib.format.read_magic(file)
    if version not in _NPY_HEADERS:
        raise ValueError(f"an .npy header of version {version}")
    try:
        shape, fortran, dtype = _NPY_HEADERS[version](file)
    except Exception as error:
        # NumPy has Python parse the text, of 10,000 characters at most: also
        # a MemoryError is one of the parser, of text nested too deeply.
        raise ValueError(f"a broken .npy header ({error})") from error
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded: they hold code")
    if dtype.subdtype or dtype.names:
        raise ValueError(f"type {dtype}, expected floats")
    # Before any memory is asked for.
    raise_unless_fits(shape, dtype.itemsize, size - file.tell())
    step = _archives.STEP if member.compress_type == zipfile.ZIP_LZMA else 2**20
    array = _archives.fill(file, size - file.tell(), step).view(dtype)
    # NumPy has no name for bfloat16 and reads two bytes (big_vision).
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def raise_unless_fits(shape, itemsize, size):
    """Raises a `ValueError` unless an array of a shape has so many bytes."""
    whole = all(type(n) is int and n >= 0 for n in shape)
    if not whole or math.prod(shape) * itemsize != size:
        raise ValueError(
            f"its shape {tuple(shape)} does not fit the {size:,} bytes that "
            "are there"
        )


def write_npz(arrays, path, dtype=None):
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for key, array in _converted(arrays, path, dtype):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def read_safetensors(path):
    with (
        naming_damage(" .safetensors file", path),
        open(path, "rb") as file,
    ):
        header = _safetensors_header(file, path.stat().st_size)
        return _tensors(file, header)


def _safetensors_header(file, size):
    """Returns what the header says of each array, in the order of the bytes."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
    header = json.loads(file.read(length).decode(), object_pairs_hook=unique)
    if not isinstance(header, dict):
        raise ValueError("a header that is no dict")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(
        isinstance(note, str) for note in notes.values()
    ):
        raise ValueError("__metadata__ that is no text")
    for key, fact in header.items():
        if not isinstance(fact, dict) or not (
            _numbers(fact.get("shape"))
            and _numbers(fact.get("data_offsets"))
            and len(fact["data_offsets"]) == 2
        ):
            raise ValueError(f"{key}: no shape or place")
    header = dict(sorted(header.items(), key=lambda i: i[1]["data_offsets"]))
    end = 0
    for key, fact in header.items():
        start, stop = fact["data_offsets"]
        if start != end or stop < start:
            raise ValueError(f"{key}: bytes {start} to {stop}, after {end}")
        end = stop
    if end != size - 8 - length:
        raise ValueError(f"{size - 8 - length:,} bytes of arrays, not {end:,}")
    return header


def _tensors(file, header):
    types = {name: np.dtype(dtype) for dtype, name in _SAFETENSORS.items()}
    types |= {name: np.dtype(dtype) for dtype, name in _UNUSED.items()}
    arrays, problems = {}, []
    for key, fact in header.items():
        start, stop = fact["data_offsets"]
        data = _archives.fill(file, stop - start)
        dtype = types.get(str(fact.get("dtype")))
        if dtype is None:
            problems.append(f"{key}: type {fact.get('dtype')}, expected floats")
            continue
        try:
            raise_unless_fits(fact["shape"], dtype.itemsize, stop - start)
        except ValueError as error:
            problems.append(f"{key}: {error}")
            continue
        arrays[key] = data.view(dtype).reshape(fact["shape"])
    return arrays, problems


def _numbers(values):
    return isinstance(values, list) and all(
        type(n) is int and 0 <= n < 2**63 for n in values
    )


def unique(pairs):
    """Makes a dict of JSON's pairs, of which none may be another's."""
    found = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def write_safetensors(arrays, path, dtype=None):
    """The package's own `save_file` holds everything twice over; the format
    is a length, a header in JSON and the bytes one after the other."""
    header, start = {"__metadata__": {"format": "pt"}}, 0
    # Wide types first, so that every array lies at a multiple of its width.
    arrays = dict(
        sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    )
    for key, array in arrays.items():
        stored = dtype or array.dtype
        size = array.size * stored.itemsize
        header[key] = {
            "dtype": _SAFETENSORS[str(stored)],
            "shape": array.shape,
            "data_offsets": [start, start + size],
        }
        start += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in _converted(arrays, path, dtype):
            flat = np.ascontiguousarray(array).reshape(-1)
            file.write(flat.view(np.uint8))


def write_torch(arrays, path, dtype=None):
    torch = _torch(path)
    tensors = {}
    for key, array in _converted(arrays, path, dtype):
        # PyTorch wants to own what it saves, row by row.
        array = np.require(array, requirements="CW")
        if array.dtype == ml_dtypes.bfloat16:
            bits = torch.from_numpy(array.view(np.int16))
            tensors[key] = bits.view(torch.bfloat16)
        else:
            tensors[key] = torch.from_numpy(array)
    torch.save(tensors, path)


@contextlib.contextmanager
def naming_damage(kind, path):
    """Turns what a parser raises for a damaged file into one `ValueError`.

    Running out of memory, and errors of the disk, are no damage of the file:
    they pass.

    Args:
        kind: String. What the file should be, as in `not_a`.
        path: Path of the file.
    """
    try:
        yield
    except _archives.DAMAGED as error:
        raise not_a(f"{kind} ({error})", path) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # seeking before the file's start
            raise
        raise not_a(f"{kind} ({error})", path) from error


def not_a(kind, path):
    """Returns the error of a file that is of another kind than its name."""
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
    return ValueError(f"{str(path)!r} is not a{kind}. {why}")


def _torch(path):
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"Writing {str(path)!r} needs PyTorch, which cannot be imported "
            f"({error}). Install it with: pip install torch. Files that end "
            "in .npz or .safetensors need nothing."
        ) from error
    return torch


def _converted(arrays, path, dtype):
    """Yields the items one by one in the type to be written."""
    size = sum(array.nbytes for array in arrays.values())
    for key in track(list(arrays), f"writing {path.suffix[1:]}", size):
        array = arrays[key]
        yield key, array if dtype is None else array.astype(dtype, copy=False)
