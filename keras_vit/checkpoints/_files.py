"""Reading and writing the files that checkpoints come in.

Nothing in a file is ever run: pickled objects are refused.
"""

import contextlib
import json
import os
import pathlib
import secrets

import numpy as np

from keras_vit.checkpoints import _containers
from keras_vit.checkpoints import _torch_files

_CONTAINERS = {  # ending: reader, writer
    ".npz": (_containers.read_npz, _containers.write_npz),
    ".safetensors": (
        _containers.read_safetensors,
        _containers.write_safetensors,
    ),
    **dict.fromkeys(
        (".pth", ".pt", ".bin"),
        (_torch_files.read_torch, _containers.write_torch),
    ),
}
SUFFIXES = tuple(_CONTAINERS)
_LONGEST_JSON = 2**26  # bytes; Python makes many times as many of them
# NumPy has more kinds of floats, which no container can be written with.
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_SHOWN = 20  # problems in one error


def read(path, finite=True):
    """Returns the arrays of a checkpoint, `{key: array}`.

    Args:
        path: A file that ends in .npz, .safetensors, .pth, .pt or .bin, the
            index of a sharded one (.index.json), or a Hugging Face folder.
        finite: Boolean. Whether every value must be finite, as for a model.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or holds what is not an array of
            (finite) floats.
    """
    path = existing(path)
    if path.is_dir():
        path = _weights_of_folder(path)
    if path.name.endswith(".index.json"):
        arrays, problems = _read_shards(path)
    else:
        arrays, problems = _reader(path)(path)
    raise_unless_usable(path, arrays, problems, finite)
    return arrays


def existing(path):
    """Returns a `pathlib.Path` to what is there.

    Raises:
        FileNotFoundError: if nothing is.
        ValueError: if it is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A checkpoint is given by its path. Received: {path!r}"
        )
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        by_name = (
            ""
            if path.suffix
            else " Released weights by name are an argument of a model, "
            f"keras_vit.ViTB16(weights={str(path)!r}) (list_weights())."
        )
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. Give the path of a checkpoint: "
            f"{', '.join(SUFFIXES)}, .keras or .weights.h5, or a folder of "
            f"Hugging Face's.{by_name}"
        )
    if not (path.is_file() or path.is_dir()):
        raise ValueError(f"{str(path)!r} is no file, but a pipe or a device.")
    return path


def of_run(path):
    """Returns the model in the folder of a recipe's run, or what is given."""
    if isinstance(path, (str, os.PathLike)):
        model = pathlib.Path(path).expanduser() / "model.keras"
        if model.is_file():
            return str(model)
    return path


def read_config(path, name="config.json"):
    """Returns the config.json in or beside a checkpoint; {} without one."""
    path = pathlib.Path(path).expanduser()
    path = (path if path.is_dir() else path.parent) / name
    try:
        return read_json(path)
    except FileNotFoundError:
        return {}


def read_json(path):
    """Returns the dict in a JSON file; {} if it holds something else."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{str(path)!r} is no file.")
    try:
        if path.stat().st_size > _LONGEST_JSON:
            raise ValueError(f"it has more than {_LONGEST_JSON:,} bytes")
        content = json.loads(
            path.read_text(encoding="utf-8"),
            object_pairs_hook=_containers.unique,
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _reader(path):
    if path.suffix in _CONTAINERS:
        return _CONTAINERS[path.suffix][0]
    raise ValueError(
        f"The file's name must end in {', '.join(SUFFIXES)}, .keras or "
        f".weights.h5. Received: {str(path)!r}"
    )


def _weights_of_folder(folder):
    names = [
        name + suffix
        for suffix in ("", ".index.json")
        for name in ("model.safetensors", "pytorch_model.bin")
    ]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"The folder {str(folder)!r} has no weights: expected one of "
        f"{', '.join(names)}."
    )


def _read_shards(path):
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ValueError(f"{str(path)!r} names no shards in 'weight_map'.")
    arrays, problems, place = {}, [], {}
    for name in sorted(set(map(str, index.values()))):
        # A shard lies beside its index: nothing else is ever opened.
        if pathlib.PurePath(name).name != name or "\\" in name:
            raise ValueError(f"{str(path)!r} names a shard elsewhere: {name!r}")
        shard = path.parent / name
        if not os.path.isfile(shard):  # nor is a name that cannot be one
            raise FileNotFoundError(
                f"{str(path)!r} names the shard {name!r}, which is not there."
            )
        found, wrong = _reader(shard)(shard)
        problems += wrong
        problems += [
            f"{key}: in {place[key]} and in {name}"
            for key in sorted(found.keys() & arrays.keys())
        ]
        arrays.update(found)
        place.update(dict.fromkeys(found, name))
    for key in sorted(index):
        if key not in place:
            problems.append(f"{key}: in no shard")
        elif place[key] != index[key]:
            problems.append(f"{key}: in {place[key]}, not in {index[key]}")
    return arrays, problems


def raise_unless_usable(path, arrays, problems=(), finite=True):
    """Raises one ValueError that names every array that is none of floats."""
    problems = list(problems)
    for key, array in arrays.items():
        if not key.isprintable():
            problems.append(f"{key!r}: a name that is no plain text")
        elif str(array.dtype) not in _FLOATS:
            problems.append(f"{key}: type {array.dtype}, expected floats")
        elif not array.size:
            problems.append(f"{key}: no values, its shape is {array.shape}")
        elif finite and not np.isfinite(array).all():
            problems.append(f"{key}: not all values are finite")
    if problems:
        more = len(problems) - _SHOWN
        lines = [*problems[:_SHOWN], *([f"and {more} more"] * (more > 0))]
        raise ValueError(
            f"{str(path)!r} holds arrays that cannot be used:\n"
            + "\n".join(f"  {line}" for line in lines)
        )


def write(arrays, path, overwrite=False, dtype=None):
    """Writes arrays to a file, whole or not at all.

    Args:
        arrays: Dict of keys to arrays.
        path: A path that ends in one of `SUFFIXES`.
        overwrite: Boolean. Whether an existing file may be replaced.
        dtype: `numpy.dtype` to write all arrays in; None keeps theirs.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
        ValueError: if the name ends otherwise.
    """
    path = pathlib.Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"The file's name must end in {', '.join(SUFFIXES)}. Received: "
            f"{str(path)!r}"
        )
    with replacing(path, overwrite) as temporary:
        _CONTAINERS[path.suffix][1](arrays, pathlib.Path(temporary), dtype)


@contextlib.contextmanager
def replacing(path, overwrite=False):
    """Gives a path to write to, which takes the place of `path` at the end.

    If the body fails, `path` is as it was.
    """
    path = pathlib.Path(path).expanduser()
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} exists. Choose another name, or pass "
            "`overwrite=True` (`--overwrite` on the command line)."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(path.parent)!r} to write {path.name!r} "
            "in. Make it first."
        )
    temporary = str(path.parent / f"tmp{secrets.token_hex(8)}{path.name}")
    # Not by tempfile, whose files only their owner reads. The system applies
    # the umask to this mode; a process can only ask for its umask by changing
    # it, which files that other threads make would notice.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(temporary, flags, 0o666))
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
