"""Output folder of a run.

Finished runs are not overwritten unless requested, only one process writes to a
folder at a time, and files are written atomically.
"""

import contextlib
import csv
import dataclasses
import itertools
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from keras_vit import __version__
from keras_vit.distribution.strategy import Strategy
from keras_vit.training.state_files import check_same_run as check_same_run
from keras_vit.utils.files import atomic_write
from keras_vit.utils.types import StrPath

CHECKPOINTS = "checkpoints"
SWEEP = "sweep"
LOG = "log.txt"
COMPARISON = "comparison"
# This file is written last: a folder with it is that of a finished run.
DONE = "config.json"
# What runs write.
FILES = (
    *("model.keras", "model.npz", "metrics.csv"),
    *("curves.png", "predictions.png", "config.json"),
)
# Some runs write these instead of others of `FILES`.
MORE_FILES = (
    *("encoder.keras", "encoder.npz", "model.weights.h5"),
    *("per_class.csv", "confusion.png", "mistakes.csv", "mistakes.png"),
    *("segmentation.png", "iou.csv"),
    *("detection.png", "coco.json"),
)
_TEMPORARY = re.compile(
    r"\.(best|coco|config|curves|iou|metrics|model|predictions|segmentation|step-\d{8})-\d+\.\w+"
)
# Environment variables that affect a run, which are recorded with its results.
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


def check_output(folder: StrPath, overwrite: bool) -> pathlib.Path:
    """Checks that a run can write to a folder, without writing to it.

    The folder may be that of an interrupted run, which then resumes.
    """
    if "://" in str(folder):
        raise ValueError(
            f"--output {str(folder)!r} is an address: give a folder of this machine, "
            "such as one where the bucket is mounted."
        )
    folder = pathlib.Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {str(folder)!r} is a file, not a folder.")
    begun = any((folder / name).is_dir() for name in (CHECKPOINTS, SWEEP, COMPARISON))
    finished = (folder / DONE).exists()
    used = folder.is_dir() and any(folder.iterdir())
    if used and (finished or not begun) and not overwrite:
        state, further = "is not empty", ""
        if finished:
            state = "contains a finished run"
            further = (
                f" (with --weights {folder} --keep-head, `keras-vit train` trains "
                "its model further; without --keep-head, it learns other classes)"
            )
        raise ValueError(
            f"The output folder {str(folder)!r} {state}. Choose another --output"
            f"{further}, or give --overwrite, which deletes what an earlier run wrote "
            "and begins again."
        )
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(
            f"The output folder {str(folder)!r} cannot be written, because "
            f"{str(existing)!r} is read-only: choose another --output."
        )
    return folder


def results_folder(output: str | None, default: str, overwrite: bool) -> pathlib.Path:
    """Returns the folder `output`, which `check_output` checks; without it, the
    default, or the first of default-2, default-3, ... that is not used, so that a
    command never fails the second time."""
    if output is not None or overwrite:
        return check_output(output or default, overwrite)
    numbered = (f"{default}-{number}" for number in itertools.count(2))
    for name in itertools.chain([default], numbered):
        folder = pathlib.Path(name)
        if not folder.is_dir() or not any(folder.iterdir()):
            return check_output(folder, overwrite)
    raise AssertionError("There is always another number.")


def prepare_output(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Creates the output folder and removes the files of an earlier run with
    these names.

    Without this, an interrupted run could leave its first metrics in the same
    folder as the model of an earlier run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for place in (folder, folder / CHECKPOINTS):
        for path in place.glob(".*"):
            # Temporary files of a killed process; see `atomic_write`.
            if _TEMPORARY.fullmatch(path.name):
                path.unlink()


@contextlib.contextmanager
def exclusive_lock(folder: pathlib.Path, strategy: Strategy) -> Iterator[None]:
    """Locks a folder, which is created, within a context, so that no other run
    writes to it; the first process takes the lock, and all processes raise a
    `ValueError` if it cannot.

    The operating system releases the lock when the process ends for any reason,
    and no lock file is left. On file systems without locks, nothing is checked.
    """
    lock, taken, made = None, False, not folder.exists()
    if strategy.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        taken = _is_taken(lock)
    try:
        if any(strategy.gather(int(taken))):
            raise ValueError(
                f"Another run is writing to {str(folder)!r} at the moment. "
                "Wait for it, stop it, or choose another --output."
            )
        yield
    finally:
        if lock is not None:
            os.close(lock)
            if made:  # the folder is removed if it is still empty
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _is_taken(lock: int) -> bool:
    try:
        import fcntl

        # The system removes this lock with its process: a killed run leaves none.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


def save_json(values: Any, path: pathlib.Path) -> None:
    """Writes a dict to a JSON file atomically."""
    with atomic_write(path) as temporary:
        # Options may be dataclasses.
        text = json.dumps(values, indent=2, default=dataclasses.asdict)
        temporary.write_text(text + "\n")


def save_csv(
    rows: list[dict[str, Any]],
    path: pathlib.Path,
    columns: Iterable[str] | None = None,
) -> None:
    """Writes dicts to a CSV file atomically; by default, the columns are those of all
    rows, each of which may lack some."""
    with (
        atomic_write(path) as temporary,
        open(temporary, "w", newline="", errors="backslashreplace") as file,
    ):
        found = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, list(columns or found))
        writer.writeheader()
        writer.writerows(rows)


def versions() -> dict[str, str | None]:
    """Returns the versions of the packages that a run depends on, and the name
    of the backend."""
    backend = keras.backend.backend()
    return {
        "backend": backend,
        backend: sys.modules[backend].__version__,
        "keras": keras.__version__,
        "keras_vit": __version__,
        "python": platform.python_version(),
    }


def program_info(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what files of results say about the program: its settings, its
    command and the versions of packages."""
    program, *flags = sys.argv
    if program.startswith("keras-vit "):  # the command, and what it runs
        program, *flags = [*program.split(), *flags]
    return {
        "config": settings,
        "command": shlex.join([program, *flags]),
        "versions": versions(),
    }


def environment_info() -> dict[str, Any]:
    """Returns metadata of a run: the git commit of the working directory, if
    there is one, and environment variables."""
    git = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit, changed = (
            subprocess.check_output(
                ["git", *arguments],
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=20,
            ).strip()
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
        git = {"commit": commit, "changed": bool(changed)}
    found = {n: os.environ[n] for n in _ENVIRONMENT if n in os.environ}
    return {"git": git, "environment": found}
