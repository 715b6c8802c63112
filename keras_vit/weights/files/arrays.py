"""Reading and writing of the arrays in files of all types.

Each reader returns `(arrays, problems)`, two dicts by key, so that one error can
list everything that is wrong with a file. Keras files, which contain more than
arrays, are read by `keras.py`.
"""

import os
import pathlib
import re
from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, StrPath
from keras_vit.weights.files import archives, hdf5, npz, progress, safetensors, torch
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
# Arrays that may have no values: those of models without registers, and of a YOLOS of
# one block.
_MAY_BE_EMPTY = ("embeddings.register_tokens", "encoder.mid_position_embeddings")
# A file of several, of which an index names the arrays.
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})(\.\w+)")
# A part of the arrays that PyTorch writes on several devices.
_PART = ".distcp"
_JOIN_PARTS = (
    "The arrays are in parts that PyTorch has written on several devices. Join them by "
    "torch.distributed.checkpoint.format_utils.dcp_to_torch_save(FOLDER, PATH), and "
    "give PATH."
)
FILE_TYPES = {  # suffix: (reader, writer)
    ".npz": (npz.read_npz, npz.write_npz),
    ".safetensors": (
        safetensors.read_safetensors,
        safetensors.write_safetensors,
    ),
    **dict.fromkeys((".pth", ".pt", ".bin"), (torch.read_torch, torch.write_torch)),
}


def read(path: StrPath, finite: bool = True) -> dict[str, Array]:
    """Reads the arrays of a checkpoint, under their keys.

    The path is that of a file of arrays, whose first bytes decide on its type, of
    the index of a sharded one (.index.json), or of a folder of Hugging Face's or
    of keras-hub's. All values must be finite if `finite` is True.
    """
    arrays, problems = read_all(path)
    check_arrays(path, arrays, problems, finite)
    return arrays


def read_all(path: StrPath) -> Read:
    """Reads all arrays of a checkpoint, as `read`, before they are checked."""
    path = weights_file(path)
    if path.name.endswith(".index.json"):
        arrays, problems = _read_shards(path)
    elif path.name == PRESET_FILES[0]:
        arrays, problems = _read_preset(path.parent)
    elif index := _index_of(path):
        arrays, problems = _read_shards(index)
    else:
        arrays, problems = _reader(path)(path)
    if not (arrays or problems):
        raise ValueError(f"{str(path)!r} holds no arrays. Give a file of weights.")
    counters = safetensors.INTEGERS
    return {k: a for k, a in arrays.items() if not k.endswith(counters)}, problems


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
    problems: Mapping[str, str] | None = None,
    finite: bool = True,
) -> None:
    """Raises one `ValueError` that lists every array that cannot be used, with
    the `problems` by key that its reader found."""
    wrong = [f"{key}: {problem}" for key, problem in (problems or {}).items()]
    for key, array in arrays.items():
        if not key.isprintable():
            wrong.append(f"{key!r}: a key with unprintable characters")
        elif str(array.dtype) not in FLOAT_TYPES:
            wrong.append(f"{key}: type {array.dtype}, expected floats")
        elif not array.size and not key.endswith(_MAY_BE_EMPTY):
            wrong.append(f"{key}: no values, its shape is {array.shape}")
        elif finite and not np.isfinite(array).all():
            wrong.append(f"{key}: not all values are finite")
    if wrong:
        more = len(wrong) - MAX_REPORTED
        lines = [*wrong[:MAX_REPORTED], *([f"and {more} more"] * (more > 0))]
        raise ValueError(
            f"{str(path)!r} holds entries that cannot be used as weights. Give another "
            "file of the model, such as that of an earlier step of its training:\n"
            + "\n".join(f"  {printable(line)}" for line in lines)
        )


def _reader(path: pathlib.Path) -> Callable[[pathlib.Path], Read]:
    """Returns the function that reads a file, by its first bytes or else by its
    name."""
    if path.suffix == _PART:
        raise ValueError(f"{str(path)!r} is not a whole model. {_JOIN_PARTS}")
    kind = _suffix_by_content(path) or path.suffix.lower()
    if kind in FILE_TYPES:
        return FILE_TYPES[kind][0]
    if kind in (".keras", ".weights.h5"):
        raise ValueError(
            f"{str(path)!r} is a Keras file by its content, but not by its name. "
            f"Rename it to {path.stem + kind!r}."
        )
    if kind in (".onnx", ".xml", ".tflite", ".pt2"):
        raise ValueError(
            f"{str(path)!r} is an exported model, which cannot be read back. Give "
            "the model from which it was exported."
        )
    kinds = f"weights ({', '.join(SUFFIXES)}, .keras or .weights.h5)"
    raise archives.format_error(f"a file of {kinds} by its content or name", path)


def _suffix_by_content(path: pathlib.Path) -> str | None:
    """Returns the suffix of files that begin as a file does, or None."""
    with path.open("rb") as file:
        start = file.read(9)
    if archives.is_archive(path):
        try:
            with archives.open_archive(path, npz.METHODS) as archive:
                names = archive.namelist()
        except archives.PARSE_ERRORS:  # the reader says what is wrong
            names = []
        for suffix, end in ((".npz", ".npy"), (".keras", ".h5"), (".pth", ".pkl")):
            if any(name.endswith(end) for name in names):
                return suffix
        return None
    for suffix, begins in (
        (".safetensors", start[8:] == b"{"),
        (".weights.h5", start.startswith(b"\x89HDF")),
        (".pth", start.startswith(b"\x80")),  # a pickle
    ):
        if begins:
            return suffix
    return None


def _index_of(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the index of a set of files, if a file is one of them."""
    match = _SHARD.fullmatch(path.name)
    if match is None or int(match[2]) == 1:
        return None
    index = path.with_name(f"{match[1]}{match[3]}.index.json")
    if not index.is_file():
        raise ValueError(
            f"{str(path)!r} is one of the {int(match[2])} files of a model, and "
            f"{index.name!r}, which names them, is not in its folder. Download the "
            "whole folder and give its path."
        )
    return index


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
    inside = [f"*/{name}" for name in (*names, "model.keras")]
    inside += [f"*{suffix}" for suffix in SUFFIXES]
    models = sorted({path for name in inside for path in folder.glob(name)})
    for path in models:
        _index_of(path)  # which raises an error if there is none
    if (folder / "checkpoints").is_dir():
        raise FileNotFoundError(
            f"The folder {str(folder)!r} has no weights yet: its training run has not "
            "ended. Repeat the command of the training, which resumes it and writes "
            "model.keras."
        )
    remedy = ""
    if any(folder.glob(f"*{_PART}")):
        remedy = f" {_JOIN_PARTS}"
    elif models:
        more = f" and {len(models) - 5} more" if len(models) > 5 else ""
        listed = ", ".join(map(str, models[:5]))
        remedy = f" Give the path of one of these: {listed}{more}."
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
        problems |= {f"task/{key}": problem for key, problem in wrong.items()}
    return arrays, problems


def _read_shards(path: pathlib.Path) -> Read:
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ValueError(f"{str(path)!r} names no shards in 'weight_map'.")
    arrays, problems, shard_of = {}, {}, {}
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
        problems |= wrong
        problems |= {
            key: f"in {shard_of[key]} and in {name}"
            for key in sorted(found.keys() & arrays.keys())
        }
        arrays.update(found)
        shard_of.update(dict.fromkeys(found, name))
    for key in sorted(index):
        if key not in shard_of:
            problems.setdefault(key, "in no shard")
        elif shard_of[key] != index[key]:
            problems[key] = f"in {shard_of[key]}, not in {index[key]}"
    return arrays, problems
