"""A run's output folder: nothing is lost by accident, no file is half."""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess

import keras

from keras_vit._version import __version__

CHECKPOINTS = "checkpoints"
SWEEP = "sweep"
# Written last: a folder that has it is that of a run that is done.
DONE = "config.json"
# What decides, besides the flags, how a run goes.
_ENVIRONMENT = (
    "KERAS_BACKEND",
    "KERAS_DISTRIBUTION_JOB_ADDRESSES",
    "KERAS_DISTRIBUTION_NUM_PROCESSES",
    "KERAS_DISTRIBUTION_PROCESS_ID",
    "TF_CONFIG",
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)


def check_output(folder, overwrite, flag="--output"):
    """Returns the folder as a path; writes nothing.

    A folder that a run was interrupted in may be gone on with.

    Raises:
        ValueError: if it is a file, holds something else and `overwrite` is
            False, or cannot be written.
    """
    folder = pathlib.Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{flag} {str(folder)!r} is a file, not a folder.")
    begun = any((folder / name).is_dir() for name in (CHECKPOINTS, SWEEP))
    unfinished = begun and not (folder / DONE).exists()
    used = folder.is_dir() and any(folder.iterdir()) and not unfinished
    if used and not overwrite:
        raise ValueError(
            f"The output folder {str(folder)!r} is not empty. Choose another "
            f"{flag}, or replace what an earlier run wrote with --overwrite."
        )
    existing = next(
        p for p in (folder, *folder.absolute().parents) if p.exists()
    )
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(
            f"The output folder {str(folder)!r} cannot be written: "
            f"no permission in {str(existing)!r}. Choose another {flag}."
        )
    return folder


def open_output(folder, names):
    """Makes the folder and removes files of an earlier run.

    An interrupted run then never leaves its first rows beside the model of
    the run before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write to, which takes the place of `path` at the end.

    If the body fails, `path` is as it was.
    """
    path = pathlib.Path(path)
    # The ending stays: writers choose the format by it.
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save_json(facts, path):
    """Writes a dict as JSON, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(facts, indent=2) + "\n")


def versions():
    """Returns what a run was made with: `{name: version}`."""
    backend = keras.backend.backend()
    return {
        "backend": backend,
        backend: _installed(backend),
        "keras": keras.__version__,
        "keras_vit": __version__,
        "python": platform.python_version(),
    }


def circumstances():
    """Returns what else makes a run: the code's commit and the environment."""
    return {
        "git": _git(),
        "environment": {
            name: os.environ[name]
            for name in _ENVIRONMENT
            if name in os.environ
        },
    }


def _git():
    """The commit of the working folder, and whether files differ from it."""

    def ask(*arguments):
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout.strip()

    try:
        return {
            "commit": ask("rev-parse", "HEAD"),
            "changed": bool(ask("status", "--porcelain")),
        }
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or no repository


def _installed(backend):
    # TensorFlow has several distributions, such as tensorflow-cpu.
    for name in importlib.metadata.packages_distributions().get(backend, ()):
        if name.startswith(backend):
            return importlib.metadata.version(name)
    return None
