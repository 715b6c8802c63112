"""A run's output folder: nothing is lost by accident, no file is half."""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess

import keras

from keras_vit._logging import logger
from keras_vit._version import __version__

CHECKPOINTS = "checkpoints"
SWEEP = "sweep"
# Written last: a folder that has it is that of a run that is done.
DONE = "config.json"
_TEMPORARY = re.compile(
    r"\.(best|config|curves|metrics|model|predictions|step-\d{8})-\d+\.\w+"
)
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
            f"{str(existing)!r} is read-only, or another user's. Choose "
            f"another {flag}."
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
    for place in (folder, folder / CHECKPOINTS):
        for path in place.glob(".*"):
            # What a killed run was about to write; see `replacing`.
            if _TEMPORARY.fullmatch(path.name):
                path.unlink()


@contextlib.contextmanager
def claimed(folder, hosts):
    """Makes a folder this run's own in its body.

    The lock is the system's: it ends with the process, however that ends, and
    leaves no file behind. A file system without locks is trusted.

    Args:
        folder: Path; it is made if it does not exist.
        hosts: A `Strategy`. The first of its hosts takes the lock, and all
            raise if it cannot.

    Raises:
        ValueError: if another process trains there.
    """
    lock, taken, made = None, False, not folder.exists()
    if hosts.first:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        taken = _is_taken(lock)
    try:
        if any(hosts.gather(int(taken))):
            raise ValueError(
                f"Another run is writing to {str(folder)!r} at the moment. "
                "Wait for it, stop it, or choose another --output."
            )
        yield
    finally:
        if lock is not None:
            os.close(lock)
            if made:  # and nothing came of it
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _is_taken(lock):
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


@contextlib.contextmanager
def not_fatal(what):
    """Logs that something could not be written, and continues.

    Gives a list that is not empty in the end if it was.
    """
    written = []
    try:
        yield written
        written.append(what)
    except OSError as error:
        logger.warning("%s could not be written: %s", what, error)


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write to, which takes the place of `path` at the end.

    If the body fails, `path` is as it was. Its folder is made if need be.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
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
