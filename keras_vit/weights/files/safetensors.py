"""Reader and writer of .safetensors files, by the library of that name."""

import pathlib

import numpy as np

from keras_vit.weights.files import archives, progress
from keras_vit.weights.files.archives import NamedArrays, Read

# Integers that are no weights: the numbers of the tokens in old files of
# transformers, and the counters of batch norms.
INTEGERS = (".position_ids", ".num_batches_tracked")
# NumPy has these types; integers are read, as a file may hold them with a model.
_TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


def read_safetensors(path: pathlib.Path) -> Read:
    import safetensors  # here, as it is not needed for other file types

    arrays, problems = {}, {}
    kind, errors = "a .safetensors file", (safetensors.SafetensorError,)
    with (
        archives.parsing(kind, path, errors),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        keys, size = list(file.keys()), path.stat().st_size
        for key in progress.track(keys, f"reading {path.name}", size):
            dtype = file.get_slice(key).get_dtype()
            if dtype in _TYPES:
                arrays[key] = file.get_tensor(key)
            else:
                problems[key] = f"type {dtype}, expected floats"
    return arrays, problems


def write_safetensors(items: NamedArrays, path: pathlib.Path) -> None:
    import safetensors.numpy

    # The library writes an array's memory as it is and ignores its strides.
    arrays = {key: np.require(array, None, "C") for key, array in items}
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
