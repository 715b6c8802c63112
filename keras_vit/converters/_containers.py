"""One container a pair of functions: `.npz`, `.safetensors` and PyTorch's.

Nothing in a file is ever run: pickled objects are refused. A reader returns
`(arrays, problems)`, so that one error can name all of a file's.
"""

import json
import zipfile

import ml_dtypes
import numpy as np

from keras_vit.converters._progress import track

_NESTS = ("model", "state_dict", "teacher")
_SAFETENSORS = {  # what the format calls its types
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
}


def read_npz(path):
    if not zipfile.is_zipfile(path):
        raise not_a("n .npz file (a zip archive of arrays)", path)
    arrays, problems = {}, []
    try:
        archive = np.load(path, allow_pickle=False)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise not_a(f"n .npz file ({error})", path) from None
    with archive:
        title = f"reading {path.name}"
        for key in track(archive.files, title, path.stat().st_size):
            try:
                array = archive[key]
            except Exception as error:  # NumPy's kinds differ by what is broken
                problems.append(f"{key}: {error}")
                continue
            if not isinstance(array, np.ndarray):
                problems.append(f"{key}: not an array")
                continue
            # NumPy has no name for bfloat16 and reads two bytes (big_vision).
            if array.dtype == np.dtype("V2"):
                array = array.view(ml_dtypes.bfloat16)
            arrays[key] = array
    return arrays, problems


def write_npz(arrays, path):
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for key, array in _taken(arrays, path):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def read_safetensors(path):
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path), []
    except (SafetensorError, ValueError, KeyError) as error:
        raise not_a(f" .safetensors file ({error})", path) from None


def write_safetensors(arrays, path):
    """The package's own `save_file` holds everything twice over; the format
    is a length, a header in JSON and the bytes one after the other."""
    header, start = {"__metadata__": {"format": "pt"}}, 0
    # Wide types first, so that every array lies at a multiple of its width.
    arrays = dict(
        sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    )
    for key, array in arrays.items():
        header[key] = {
            "dtype": _SAFETENSORS[str(array.dtype)],
            "shape": array.shape,
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in _taken(arrays, path):
            flat = np.ascontiguousarray(array).reshape(-1)
            file.write(flat.view(np.uint8))


def read_torch(path):
    torch = _torch("Reading", path)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, by what is broken
        reason = str(error).strip().split("\n")[0]
        raise not_a(f" PyTorch file of plain weights ({reason})", path) from (
            None
        )
    for name in _NESTS:
        nested = tensors.get(name) if isinstance(tensors, dict) else None
        if isinstance(nested, dict):
            tensors = nested
            break
    if not isinstance(tensors, dict):
        raise not_a(" PyTorch file of named weights", path)
    arrays, problems = {}, []
    for key, tensor in tensors.items():
        if not isinstance(key, str):
            problems.append(f"{key!r}: a name that is no text")
        elif not isinstance(tensor, torch.Tensor):
            problems.append(f"{key}: {type(tensor).__name__}, not a tensor")
        elif tensor.layout != torch.strided or tensor.is_quantized:
            problems.append(f"{key}: a sparse or quantized tensor")
        elif tensor.dtype == torch.bfloat16:
            bits = tensor.detach().contiguous().view(torch.int16).numpy()
            arrays[key] = bits.view(ml_dtypes.bfloat16)
        else:
            arrays[key] = tensor.detach().numpy()
    return arrays, problems


def write_torch(arrays, path):
    torch = _torch("Writing", path)
    tensors = {}
    for key, array in _taken(arrays, path):
        # PyTorch wants to own what it saves, row by row.
        array = np.require(array, requirements="CW")
        if array.dtype == ml_dtypes.bfloat16:
            bits = torch.from_numpy(array.view(np.int16))
            tensors[key] = bits.view(torch.bfloat16)
        else:
            tensors[key] = torch.from_numpy(array)
        del array
    torch.save(tensors, path)


def not_a(kind, path):
    """Returns the error of a file that is of another kind than its name."""
    with open(path, "rb") as file:
        start = file.read(256).lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        why = (
            "It is a web page: the address gave a page about the file, or an "
            "error. Download the file itself."
        )
    else:
        why = (
            "It may have been cut off while downloading, or be of another kind."
        )
    return ValueError(f"{str(path)!r} is not a{kind}. {why}")


def _torch(doing, path):
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{doing} {str(path)!r} needs PyTorch: pip install "
            '"keras-vit-models[convert]"'
        ) from error
    return torch


def _taken(arrays, path):
    """Yields the items, and lets go of each: memory shrinks on the way."""
    size = sum(array.nbytes for array in arrays.values())
    for key in track(list(arrays), f"writing {path.suffix[1:]}", size):
        yield key, arrays.pop(key)
