"""Paths that are read from, and atomic writing to them."""

import contextlib
import os
import pathlib
import re
import secrets
from collections.abc import Iterable, Iterator

from keras_vit.utils.downloads import fetch_if_remote
from keras_vit.utils.types import StrPath

# The names of files of arrays end in one of these.
SUFFIXES = (".npz", ".safetensors", ".pth", ".pt", ".bin")


def locate(path: StrPath) -> pathlib.Path:
    """Returns the path of an existing file or folder of weights: of a recipe's
    run folder, that of its model; of a URL, that of the download."""
    path = existing_path(fetch_if_remote(path))
    model = path / "model.keras"
    return model if model.is_file() else path


def existing_path(path: StrPath) -> pathlib.Path:
    """Returns the path of an existing file or folder."""
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        # timm's "hf-hub:" and "local-dir:" are not read here.
        prefix, _, name = str(path).rpartition(":")
        hint = (
            ""
            if path.suffix
            else " Released weights have names such as 'ViTB16/imagenet21k', which are "
            "those of keras_vit.ViTB16(weights='imagenet21k') (list_weights())."
        )
        if prefix == "local-dir":
            hint = f" Give a folder without a prefix: {name!r}."
        elif path.suffix not in SUFFIXES and re.fullmatch(r"[\w-]+/[\w.-]+", name):
            hint = f" A repository of the Hugging Face hub is 'hf://{name}'."
        elif re.fullmatch(r"(vit|deit|flexivit)\w+\.\w+", name):
            hint = f" timm's weights of this name are 'hf://timm/{name}'."
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. Give the path of a checkpoint: "
            f"{', '.join(SUFFIXES)}, .keras or .weights.h5, or a folder of timm, "
            f"transformers or keras-hub.{hint}"
        )
    if not (path.is_file() or path.is_dir()):
        raise ValueError(f"{str(path)!r} is not a file, but a pipe or a device.")
    return path


def check_new_files(
    folder: pathlib.Path, names: Iterable[str], overwrite: bool
) -> None:
    """Raises a `FileExistsError` if a folder has one of the files already."""
    existing = [name for name in names if (folder / name).exists()]
    if existing and not overwrite:
        raise FileExistsError(
            f"{str(folder)!r} already has {', '.join(existing)}. Choose "
            "another folder, or pass `overwrite=True`."
        )


def check_new(path: pathlib.Path, overwrite: bool) -> None:
    """Raises an `OSError` if a path is not new, or its folder is missing."""
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} exists. Choose another name, or pass `overwrite=True`."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(path.parent)!r} to write {path.name!r} "
            "in. Make it first."
        )


@contextlib.contextmanager
def atomic_write(path: StrPath, overwrite: bool = False) -> Iterator[str]:
    """Yields the path of a temporary file, which replaces `path` at the end of
    the `with` block unless an exception is raised in it."""
    path = pathlib.Path(path).expanduser()
    check_new(path, overwrite)
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
