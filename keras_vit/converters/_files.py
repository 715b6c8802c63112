"""Reading and writing the files that checkpoints come in.

Nothing in a file is ever run: pickled objects are refused.
"""

import contextlib
import json
import lzma
import os
import pathlib
import tempfile
import zipfile
import zlib

import ml_dtypes
import numpy as np

_TORCH = (".pth", ".pt", ".bin")
_NESTS = ("model", "state_dict", "teacher")
_BROKEN = (  # what a damaged archive raises, by how it is compressed
    ValueError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
SUFFIXES = (".npz", ".safetensors", *_TORCH)


def read(path):
    """Returns the arrays of a checkpoint, `{key: array}`.

    Args:
        path: A file that ends in .npz, .safetensors, .pth, .pt or .bin, the
            index of a sharded one (.index.json), or a Hugging Face folder.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or holds what is not an array of
            finite floats.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A checkpoint is given by its path. Received: {path!r}"
        )
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. Give the path of a checkpoint: "
            f"{', '.join(SUFFIXES)}, or a folder of Hugging Face's."
        )
    if path.is_dir():
        path = _weights_of_folder(path)
    if path.name.endswith(".index.json"):
        arrays, problems = _read_shards(path)
    else:
        arrays, problems = _reader(path)(path)
    _raise_unless_usable(path, arrays, problems)
    return arrays


def read_config(path):
    """Returns the config.json in or beside a checkpoint; {} without one."""
    path = pathlib.Path(path).expanduser()
    path = (path if path.is_dir() else path.parent) / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not valid JSON: {error}") from None
    return config if isinstance(config, dict) else {}


def _reader(path):
    if path.suffix == ".npz":
        return _read_npz
    if path.suffix == ".safetensors":
        return _read_safetensors
    if path.suffix in _TORCH:
        return _read_torch
    hint = ""
    if path.suffix == ".keras":
        hint = ". A .keras file is a whole model: keras.models.load_model"
    raise ValueError(
        f"The file's name must end in {', '.join(SUFFIXES)}. Received: "
        f"{str(path)!r}{hint}"
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


def _read_npz(path):
    if not zipfile.is_zipfile(path):
        raise _not_a("n .npz file (a zip archive of arrays)", path)
    arrays, problems = {}, []
    with np.load(path, allow_pickle=False) as archive:
        for key in archive.files:
            try:
                array = archive[key]
            except _BROKEN as error:
                problems.append(f"{key}: {error}")
                continue
            # NumPy has no name for bfloat16 and reads two bytes (big_vision).
            if array.dtype == np.dtype("V2"):
                array = array.view(ml_dtypes.bfloat16)
            arrays[key] = array
    return arrays, problems


def _read_safetensors(path):
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path), []
    except (SafetensorError, ValueError) as error:
        raise _not_a(f" .safetensors file ({error})", path) from None


def _read_torch(path):
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"Reading {str(path)!r} needs PyTorch: pip install "
            '"keras-vit-models[convert]"'
        ) from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, by what is broken
        reason = str(error).strip().split("\n")[0]
        raise _not_a(f" PyTorch file of plain weights ({reason})", path) from (
            None
        )
    for name in _NESTS:
        nested = tensors.get(name) if isinstance(tensors, dict) else None
        if isinstance(nested, dict):
            tensors = nested
            break
    if not isinstance(tensors, dict):
        raise _not_a(" PyTorch file of named weights", path)
    arrays, problems = {}, []
    for key, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            problems.append(f"{key}: {type(tensor).__name__}, not a tensor")
        elif tensor.dtype == torch.bfloat16:
            bits = tensor.detach().contiguous().view(torch.int16).numpy()
            arrays[key] = bits.view(ml_dtypes.bfloat16)
        else:
            arrays[key] = tensor.detach().numpy()
    return arrays, problems


def _read_shards(path):
    index = json.loads(path.read_text())
    arrays, problems = {}, []
    shards = sorted(set(index.get("weight_map", {}).values()))
    if not shards:
        raise ValueError(f"{str(path)!r} names no shards in 'weight_map'.")
    for name in shards:
        # A shard lies beside its index: nothing else is ever opened.
        if pathlib.Path(name).name != name:
            raise ValueError(f"{str(path)!r} names a shard elsewhere: {name!r}")
        if not (path.parent / name).is_file():
            raise FileNotFoundError(
                f"{str(path)!r} names the shard {name!r}, which is not there."
            )
        found, wrong = _reader(path.parent / name)(path.parent / name)
        arrays.update(found)
        problems += wrong
    absent = index["weight_map"].keys() - arrays.keys()
    return arrays, [*problems, *(f"{key}: in no shard" for key in absent)]


def _not_a(kind, path):
    return ValueError(
        f"{str(path)!r} is not a{kind}. It may have been cut off while "
        "downloading, or be of another kind."
    )


def _raise_unless_usable(path, arrays, problems):
    for key, array in arrays.items():
        if not (
            np.issubdtype(array.dtype, np.floating)
            or array.dtype == ml_dtypes.bfloat16
        ):
            problems.append(f"{key}: type {array.dtype}, expected floats")
        elif not np.isfinite(array).all():
            problems.append(f"{key}: not all values are finite")
    if problems:
        raise ValueError(
            f"{str(path)!r} holds arrays that cannot be used:\n"
            + "\n".join(f"  {line}" for line in problems)
        )


def write(arrays, path, overwrite=False):
    """Writes arrays to a file, whole or not at all.

    Args:
        arrays: Dict of keys to arrays.
        path: A path that ends in one of `SUFFIXES`.
        overwrite: Boolean. Whether an existing file may be replaced.

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
        if path.suffix == ".npz":
            with open(temporary, "wb") as file:
                np.savez(file, **arrays)
        elif path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            contiguous = {k: np.ascontiguousarray(a) for k, a in arrays.items()}
            save_file(contiguous, temporary, metadata={"format": "pt"})
        else:
            _write_torch(arrays, temporary)


def _write_torch(arrays, path):
    import torch

    tensors = {}
    for key, array in arrays.items():
        array = np.array(array)  # a copy that PyTorch may own
        if array.dtype == ml_dtypes.bfloat16:
            bits = torch.from_numpy(array.view(np.int16))
            tensors[key] = bits.view(torch.bfloat16)
        else:
            tensors[key] = torch.from_numpy(array)
    torch.save(tensors, path)


@contextlib.contextmanager
def replacing(path, overwrite=False):
    """Gives a path to write to, which takes the place of `path` at the end.

    If the body fails, `path` is as it was.
    """
    path = pathlib.Path(path).expanduser()
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} exists. Choose another name, or pass "
            "`overwrite=True`."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(path.parent)!r} to write {path.name!r} "
            "in. Make it first."
        )
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    try:
        yield temporary
        # mkstemp makes files that only their owner reads.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
