"""Where an exported model goes: a file, or a folder that is a SavedModel."""

import contextlib
import os
import pathlib
import shutil

_MARK = "saved_model.pb"


def check_target(target, is_folder, overwrite):
    """Says what would stop writing, before any work.

    Raises:
        ValueError: if the target exists and may not be replaced, or cannot be
            written.
    """
    target = pathlib.Path(target)
    kind = "folder" if is_folder else "file"
    if target.exists() and target.is_dir() != is_folder:
        raise ValueError(
            f"TARGET {str(target)!r} exists and is not a {kind}, which this "
            "format is."
        )
    if target.exists() and not overwrite:
        raise ValueError(
            f"TARGET {str(target)!r} exists. Choose another name, or replace "
            "it with --overwrite."
        )
    if target.is_dir() and any(target.iterdir()):
        if not (target / _MARK).is_file():
            raise ValueError(
                f"The folder {str(target)!r} holds something else than a "
                "SavedModel, and --overwrite would delete it. Choose another "
                "TARGET."
            )
    if not target.absolute().parent.is_dir():
        raise ValueError(
            f"There is no folder {str(target.parent)!r} to write "
            f"{target.name!r} in. Make it first."
        )
    if not os.access(target.absolute().parent, os.W_OK | os.X_OK):
        raise ValueError(
            f"TARGET cannot be written: {str(target.absolute().parent)!r} is "
            "read-only, or another user's."
        )


@contextlib.contextmanager
def replacing(target):
    """Gives a path to write to, which takes the place of `target` at the end.

    If the body fails, `target` is as it was.
    """
    # The ending stays: writers choose the format by it.
    new, old = (
        target.with_name(f".{target.stem}-{os.getpid()}{part}{target.suffix}")
        for part in ("", "-old")
    )
    try:
        yield new
        if target.is_dir():  # which a folder cannot replace
            os.replace(target, old)
        try:
            os.replace(new, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    finally:
        for path in (new, old):
            _remove(path)


def bytes_of(path):
    """How much a file, or all files of a folder, hold."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
