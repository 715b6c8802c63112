"""Readers and writers of checkpoint files.

`.npz` files are read by NumPy without pickled objects, `.safetensors` files by
the safetensors library, and PyTorch files by `torch_files.py`. Keras files,
which contain more than arrays, are read by `keras_files.py`. Each reader
returns `(arrays, problems)`, so that one error can list everything that is
wrong with a file.
"""

import contextlib
import json
import os
import pathlib
import re
import secrets
import sys
import zipfile
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import IO
from typing import TypeAlias
from typing import TypeVar

import ml_dtypes
import numpy as np

from keras_vit._program import printable
from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import StrPath
from keras_vit.checkpoints import _archives
from keras_vit.checkpoints import hdf5
from keras_vit.checkpoints import torch_files

Item = TypeVar("Item")
Path = TypeVar("Path")
Items: TypeAlias = Iterable[tuple[str, Array]]
# The arrays of a file, and descriptions of what else it holds.
Read: TypeAlias = tuple[dict[str, Array], list[str]]

MAX_JSON_BYTES = 2**26  # parsed JSON takes several times as much memory
# The weights of a preset of keras-hub: of its backbone, and of its head.
PRESET_FILES = ("model.weights.h5", "task.weights.h5")
# NumPy's other float types (longdouble) cannot be stored by all file types.
FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")
_POSITION_IDS = ".position_ids"
MAX_REPORTED = 20  # problems in one error
MIN_TRACKED_BYTES = 1e8  # smaller files need no progress bar


# Arrays that may have no values: transformers' DINOv3 without registers.
MAY_BE_EMPTY = ("embeddings.register_tokens",)


def read(
    path: StrPath, finite: bool = True, empty: Collection[str] = MAY_BE_EMPTY
) -> dict[str, Array]:
    """Reads the arrays of a checkpoint, under their keys.

    The path is that of a .npz, .safetensors, .pth, .pt or .bin file, of the
    index of a sharded one (.index.json), or of a folder of Hugging Face's or of
    keras-hub's. All values must be finite if `finite` is True, and only the
    arrays whose keys are in `empty` may have none.
    """
    path = existing_path(path)
    if path.is_dir():
        path = _weights_in_folder(path)
    if path.name.endswith(".index.json"):
        arrays, problems = _read_shards(path)
    elif path.name == PRESET_FILES[0]:
        arrays, problems = _read_preset(path.parent)
    else:
        arrays, problems = _reader(path)(path)
    # Old files of transformers contain the numbers of the tokens, as integers.
    arrays = {k: a for k, a in arrays.items() if not k.endswith(_POSITION_IDS)}
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
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"The file's name must end in {', '.join(SUFFIXES)}. Received: "
            f"{str(path)!r}"
        )
    writer = FILE_TYPES[path.suffix][1]
    with atomic_write(path, overwrite) as temporary:
        writer(_converted(arrays, path, dtype), pathlib.Path(temporary))


def existing_path(path: StrPath) -> pathlib.Path:
    """Returns the path of an existing file or folder."""
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A checkpoint is given by its path. Received: {path!r}. Save a "
            "model that you have in Python first, such as by model.save."
        )
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        by_name = (
            ""
            if path.suffix
            else " Released weights by name are an argument of a model, "
            f"keras_vit.ViTB16(weights={str(path)!r}) (list_weights())."
        )
        if path.suffix not in SUFFIXES and (
            re.fullmatch(r"[\w-]+/[\w.-]+", str(path))
        ):
            by_name = f" A repository of the Hugging Face hub is 'hf://{path}'."
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. Give the path of a checkpoint: "
            f"{', '.join(SUFFIXES)}, .keras or .weights.h5, or a folder of "
            f"Hugging Face's or keras-hub's.{by_name}"
        )
    if not (path.is_file() or path.is_dir()):
        raise ValueError(f"{str(path)!r} is no file, but a pipe or a device.")
    return path


def resolve_run_folder(path: Path) -> Path | str:
    """Returns the path of the model in a recipe's run folder, else `path`."""
    if isinstance(path, (str, os.PathLike)):
        model = pathlib.Path(path).expanduser() / "model.keras"
        if model.is_file():
            return str(model)
    return path


def read_config(path: StrPath, name: str = "config.json") -> Config:
    """Returns the contents of config.json in a folder, or next to a file; {} if
    there is none."""
    path = pathlib.Path(path).expanduser()
    path = (path if path.is_dir() else path.parent) / name
    try:
        return read_json(path)
    except FileNotFoundError:
        return {}


def class_names_of(config: Config, classes: int | None) -> list[str] | None:
    """Returns the class names in a config.json of a training run, of
    transformers or of timm, or None if there are none or another number of
    them.

    The names that transformers gives to classes without one, such as "LABEL_0",
    are returned, too.
    """
    data, by_index = config.get("data"), config.get("id2label")
    names = data.get("class_names") if isinstance(data, dict) else None
    if names is None and isinstance(by_index, dict):
        keys = [str(index) for index in range(classes or 0)]
        names = [by_index[key] for key in keys if key in by_index]
        names = names if len(by_index) == len(names) else None
    elif names is None:
        names = config.get("label_names")
    if not isinstance(names, list) or not names or len(names) != classes:
        return None
    return list(map(printable, names))


def read_json(path: pathlib.Path) -> Config:
    """Returns the dict in a JSON file; {} if it contains another type."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{str(path)!r} is no file.")
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes")
        content = json.loads(
            path.read_text(encoding="utf-8"),
            object_pairs_hook=_archives.reject_duplicate_keys,
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}


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
        elif str(array.dtype) not in FLOAT_TYPES:
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


@contextlib.contextmanager
def atomic_write(path: StrPath, overwrite: bool = False) -> Iterator[str]:
    """Yields the path of a temporary file, which replaces `path` at the end of
    the `with` block unless an exception is raised in it."""
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
    # `tempfile` would create files that only their owner can read. With this
    # mode, the umask applies as for any new file.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(temporary, flags, 0o666))
    mode = os.stat(temporary).st_mode
    try:
        yield temporary
        os.chmod(temporary, mode)  # safetensors creates it as 0o600
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def track(
    items: Sequence[Item], title: str, size: float | None = None
) -> Iterable[Item]:
    """Returns an iterable of items that shows a progress bar on a terminal,
    unless their size in bytes is below `MIN_TRACKED_BYTES`."""
    if sys.stderr.isatty() and (size is None or size > MIN_TRACKED_BYTES):
        try:
            from rich.console import Console
            from rich.progress import track as bar
        except ImportError:
            pass
        else:
            console = Console(stderr=True)
            return bar(items, title, console=console, transient=True)
    return items


def _converted(
    arrays: dict[str, Array], path: pathlib.Path, dtype: np.dtype | None
) -> Items:
    """Yields `(key, array)`, with arrays converted to `dtype`."""
    size = sum(array.nbytes for array in arrays.values())
    for key in track(list(arrays), f"writing {path.suffix[1:]}", size):
        array = arrays[key]
        yield key, array if dtype is None else array.astype(dtype, copy=False)


def _reader(path: pathlib.Path) -> Callable[[pathlib.Path], Read]:
    if path.name.endswith(".pth.tar"):  # facebookresearch/moco-v3
        return torch_files.read_torch
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


def _weights_in_folder(folder: pathlib.Path) -> pathlib.Path:
    names = [
        name + suffix
        for suffix in ("", ".index.json")
        for name in ("model.safetensors", "pytorch_model.bin")
    ]
    names.append(PRESET_FILES[0])
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"The folder {str(folder)!r} has no weights: expected one of "
        f"{', '.join(names)}, or model.keras.{_what_to_do_instead(folder)}"
    )


def _what_to_do_instead(folder: pathlib.Path) -> str:
    if (folder / "checkpoints").is_dir():
        return (
            " It is of a training run that has not ended: repeat the command "
            "of the training, which resumes it and writes model.keras."
        )
    found = sorted(str(path.parent) for path in folder.glob("*/model.keras"))
    if not found:
        return ""
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f" Give a folder in it that has one: {', '.join(found[:5])}{more}."


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


def _read_npz(path: pathlib.Path) -> Read:
    kind = "an .npz file (a zip archive of arrays)"
    if not _archives.is_archive(path):
        raise _archives.format_error(kind, path)
    arrays, problems = {}, []
    with (
        _archives.parsing(kind, path),
        _archives.open_archive(path, _archives.METHODS_WITH_LZMA) as archive,
    ):
        size = path.stat().st_size
        for member in track(archive.infolist(), f"reading {path.name}", size):
            key = member.filename.removesuffix(".npy")
            try:
                if key in arrays:
                    raise ValueError("is there twice")
                arrays[key] = _read_npy(archive, member)
            except _archives.PARSE_ERRORS as error:
                problems.append(f"{key}: {error}")
    return arrays, problems


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        shape, dtype = _read_npy_header(file)
        if dtype.names or dtype.subdtype:
            raise ValueError(f"type {dtype}, expected floats")
        if not dtype.hasobject:  # `read_array` refuses objects
            # Checked before NumPy allocates memory for the shape.
            stored = member.file_size - file.tell()
            _archives.check_shape(shape, dtype.itemsize, stored)
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
    if version == (1, 0):
        read_header = np.lib.format.read_array_header_1_0
    elif version == (2, 0):
        read_header = np.lib.format.read_array_header_2_0
    else:
        raise ValueError(f"an .npy header of version {version}")
    try:
        shape, _, dtype = read_header(file)
    except Exception as error:
        # NumPy parses the header, of at most 10,000 characters, as a Python
        # literal. This can raise many exceptions; for deep nesting, even
        # MemoryError.
        raise ValueError(f"a broken .npy header ({error})") from error
    return shape, dtype


def _write_npz(items: Items, path: pathlib.Path) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for key, array in items:
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _read_safetensors(path: pathlib.Path) -> Read:
    import safetensors  # here, as it is not needed for other file types

    arrays, problems = {}, []
    kind, errors = "a .safetensors file", (safetensors.SafetensorError,)
    with (
        _archives.parsing(kind, path, errors),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        keys, size = list(file.keys()), path.stat().st_size
        for key in track(keys, f"reading {path.name}", size):
            dtype = file.get_slice(key).get_dtype()
            if dtype in ("F64", "F32", "F16", "BF16"):
                arrays[key] = file.get_tensor(key)
            elif not key.endswith(_POSITION_IDS):
                problems.append(f"{key!s}: type {dtype}, expected floats")
    return arrays, problems


def _write_safetensors(items: Items, path: pathlib.Path) -> None:
    import safetensors.numpy

    # The library writes an array's memory as it is and ignores its strides.
    arrays = {key: np.require(array, None, "C") for key, array in items}
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})


FILE_TYPES = {  # suffix: (reader, writer)
    ".npz": (_read_npz, _write_npz),
    ".safetensors": (_read_safetensors, _write_safetensors),
    ".pth": (torch_files.read_torch, torch_files.write_torch),
    ".pt": (torch_files.read_torch, torch_files.write_torch),
    ".bin": (torch_files.read_torch, torch_files.write_torch),
}
SUFFIXES = tuple(FILE_TYPES)
