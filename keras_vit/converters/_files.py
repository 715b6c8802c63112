"""Reading and writing the files that checkpoints come in."""

import os
import pathlib
import tempfile
import zipfile

import numpy as np


def read(path):
    """Returns the arrays of an `.npz` file, `{key: array}`.

    Nothing in the file is run: pickled objects are refused.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an `.npz` file, or holds what is not an
            array of finite floats.
    """
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. Give the path of an .npz file "
            "in the layout of google-research/vision_transformer."
        )
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(
            f"{str(path)!r} is not an .npz file (a zip archive of arrays). "
            "It may have been cut off while downloading, or be of another "
            "kind."
        )
    arrays, problems = {}, []
    with np.load(path, allow_pickle=False) as archive:
        for key in archive.files:
            try:
                array = archive[key]
            except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
                problems.append(f"{key}: {error}")
                continue
            if not np.issubdtype(array.dtype, np.floating):
                problems.append(f"{key}: type {array.dtype}, expected floats")
            elif not np.isfinite(array).all():
                problems.append(f"{key}: not all values are finite")
            arrays[key] = array
    if problems:
        raise ValueError(
            f"{str(path)!r} holds arrays that cannot be used:\n"
            + "\n".join(f"  {line}" for line in problems)
        )
    return arrays


def write(arrays, path, overwrite=False):
    """Writes arrays to an `.npz` file, whole or not at all.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
    """
    path = pathlib.Path(path).expanduser()
    if path.suffix != ".npz":
        raise ValueError(
            f"The file's name must end in .npz. Received: {str(path)!r}"
        )
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} exists. Choose another name, or pass "
            "`overwrite=True`."
        )
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        # mkstemp makes files that only their owner reads.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
