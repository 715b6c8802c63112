"""Reading and writing of the arrays in files of all types.

Each reader returns `(arrays, problems)`, so that one error can list everything
that is wrong with a file. Keras files, which contain more than arrays, are read
by `keras.py`.
"""

import os
import pathlib
import re
from collections.abc import Callable, Collection

import numpy as np

from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, StrPath
from keras_vit.weights.files import hdf5, npz, progress, safetensors, torch
from keras_vit.weights.files.archives import Read
from keras_vit.weights.files.configs import read_json
from keras_vit.weights.files.paths import SUFFIXES, atomic_write, existing_path

# The weights of a preset of keras-hub: of its backbone, and of its head.
PRESET_FILES = ("model.weights.h5", "task.weights.h5")
# An adapter of PEFT, which is merged with the weights of another file.
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
# NumPy's other float types (longdouble) cannot be stored by all file types.
FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")
MAX_REPORTED = 20  # problems in one error
# Arrays that may have no values: those of models without registers.
MAY_BE_EMPTY = (
    "embeddings.register_tokens",
    "dinov2_with_registers.embeddings.register_tokens",
)
# What all keys begin with if torch.compile, DistributedDataParallel or a
# training program's own module holds the model.
_WRAPPERS = re.compile(r"((_orig_mod|module|model|net|backbone|vit)\.)*")
FILE_TYPES = {  # suffix: (reader, writer)
    ".npz": (npz.read_npz, npz.write_npz),
    ".safetensors": (
        safetensors.read_safetensors,
        safetensors.write_safetensors,
    ),
    **dict.fromkeys((".pth", ".pt", ".bin"), (torch.read_torch, torch.write_torch)),
}


def read(
    path: StrPath, finite: bool = True, empty: Collection[str] = MAY_BE_EMPTY
) -> dict[str, Array]:
    """Reads the arrays of a checkpoint, under their keys.

    The path is that of a .npz, .safetensors, .pth, .pt or .bin file, of the
    index of a sharded one (.index.json), or of a folder of Hugging Face's or of
    keras-hub's. Prefixes that wrappers give to all keys are removed. All values
    must be finite if `finite` is True, and only the arrays whose keys are in
    `empty` may have none.
    """
    path = weights_file(path)
    if path.name.endswith(".index.json"):
        arrays, problems = _read_shards(path)
    elif path.name == PRESET_FILES[0]:
        arrays, problems = _read_preset(path.parent)
    else:
        arrays, problems = _reader(path)(path)
    integers = safetensors.INTEGERS
    arrays = {k: a for k, a in arrays.items() if not k.endswith(integers)}
    wrappers = [match[0] for match in map(_WRAPPERS.match, arrays) if match]
    start = os.path.commonprefix(wrappers).rfind(".") + 1
    arrays = {key[start:]: array for key, array in arrays.items()}
    check_arrays(path, arrays, problems, finite, empty)
    return arrays


def write(
    arrays: dict[str, Array],
    path: StrPath,
    overwrite: bool = False,
    dtype: np.dtype | None = None,
) -> None:
    """Writes arrays to a file of the type that its suffix names, completely or
    not at all."""
    path = pathlib.Path(path).expanduser()
    writer = hdf5.write_layers
    if path.name not in PRESET_FILES:
        writer = FILE_TYPES[path.suffix][1]
    size = sum(array.nbytes for array in arrays.values())
    with atomic_write(path, overwrite) as temporary:
        items = list(arrays.items())
        items = progress.track(items, f"writing {path.suffix[1:]}", size)
        converted = (
            (key, array if dtype is None else array.astype(dtype, copy=False))
            for key, array in items
        )
        writer(converted, pathlib.Path(temporary))


def check_arrays(
    path: StrPath,
    arrays: dict[str, Array],
    problems: Collection[str] = (),
    finite: bool = True,
    empty: Collection[str] = (),
) -> None:
    """Raises one `ValueError` that lists every array that cannot be used."""
    problems = list(problems)
    for key, array in arrays.items():
        if not key.isprintable():
            problems.append(f"{key!r}: a key with unprintable characters")
        elif str(array.dtype) not in FLOAT_TYPES and key != safetensors.OPENAI_SIZE:
            problems.append(f"{key}: type {array.dtype}, expected floats")
        elif not array.size and key not in empty:
            problems.append(f"{key}: no values, its shape is {array.shape}")
        elif finite and not np.isfinite(array).all():
            problems.append(f"{key}: not all values are finite")
    if problems:
        more = len(problems) - MAX_REPORTED
        lines = [*problems[:MAX_REPORTED], *([f"and {more} more"] * (more > 0))]
        raise ValueError(
            f"{str(path)!r} holds arrays that cannot be used:\n"
            + "\n".join(f"  {printable(line)}" for line in lines)
        )


def _reader(path: pathlib.Path) -> Callable[[pathlib.Path], Read]:
    if path.name.endswith(".pth.tar"):  # facebookresearch/moco-v3
        return torch.read_torch
    if path.suffix in FILE_TYPES:
        return FILE_TYPES[path.suffix][0]
    exported = (
        " Exported models cannot be read back: give the model from which it "
        "was exported."
        if path.suffix in (".onnx", ".xml", ".tflite", ".pt2")
        else ""
    )
    raise ValueError(
        f"The file's name must end in {', '.join(SUFFIXES)}, .keras or "
        f".weights.h5. Received: {str(path)!r}.{exported}"
    )


def weights_file(path: StrPath) -> pathlib.Path:
    """Returns the path of a file, or of the weights in a folder."""
    path = existing_path(path)
    return _weights_in_folder(path) if path.is_dir() else path


def _weights_in_folder(folder: pathlib.Path) -> pathlib.Path:
    names = [
        name + suffix
        for suffix in ("", ".index.json")
        for name in ("model.safetensors", "pytorch_model.bin")
    ]
    names += ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    names += [PRESET_FILES[0], *ADAPTER_FILES]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    models = sorted(str(path.parent) for path in folder.glob("*/model.keras"))
    remedy = ""
    if (folder / "checkpoints").is_dir():
        remedy = (
            " It is of a training run that has not ended: repeat the command "
            "of the training, which resumes it and writes model.keras."
        )
    elif models:
        more = f" and {len(models) - 5} more" if len(models) > 5 else ""
        listed = ", ".join(models[:5])
        remedy = f" Give a folder in it that has one: {listed}{more}."
    raise FileNotFoundError(
        f"The folder {str(folder)!r} has no weights: expected one of "
        f"{', '.join(names)}, or model.keras.{remedy}"
    )


def _read_preset(folder: pathlib.Path) -> Read:
    """Reads both files of a preset of keras-hub; keys of the second begin with
    "task/"."""
    arrays, problems = hdf5.read_layers(folder / PRESET_FILES[0])
    task = folder / PRESET_FILES[1]
    if task.is_file():
        found, wrong = hdf5.read_layers(task)
        arrays |= {f"task/{key}": array for key, array in found.items()}
        problems += wrong
    return arrays, problems


def _read_shards(path: pathlib.Path) -> Read:
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ValueError(f"{str(path)!r} names no shards in 'weight_map'.")
    arrays, problems, shard_of = {}, [], {}
    for name in sorted(set(map(str, index.values()))):
        # Only files in the index's folder are opened.
        if pathlib.PurePath(name).name != name or "\\" in name:
            raise ValueError(
                f"{str(path)!r} names a shard outside of its folder: {name!r}"
            )
        shard = path.parent / name
        if not os.path.isfile(shard):  # False for invalid names too
            raise FileNotFoundError(
                f"{str(path)!r} names the shard {name!r}, which is not there."
            )
        found, wrong = _reader(shard)(shard)
        problems += wrong
        problems += [
            f"{key}: in {shard_of[key]} and in {name}"
            for key in sorted(found.keys() & arrays.keys())
        ]
        arrays.update(found)
        shard_of.update(dict.fromkeys(found, name))
    for key in sorted(index):
        if key not in shard_of:
            problems.append(f"{key}: in no shard")
        elif shard_of[key] != index[key]:
            problems.append(f"{key}: in {shard_of[key]}, not in {index[key]}")
    return arrays, problems
