"""Files of the state of a training: `model.fit` can continue from one of them."""

import json
import os
import textwrap
from typing import Any

import keras
import numpy as np

from keras_vit.utils.files import atomic_write
from keras_vit.utils.types import Array, StrPath


class Diverged(ArithmeticError):
    """Raised when the loss or a weight is NaN or infinite."""


def collect_state(model: keras.Model) -> dict[str, Any]:
    """Returns the variables of a compiled model and of its optimizer by name, except
    those that are read again from another file."""
    others = {id(x) for x in getattr(model, "reloaded_variables", ())}
    groups = {
        "model": [x for x in model.variables if id(x) not in others],
        "optimizer": model.optimizer.variables,
    }
    return {
        f"{group}/{i}": variable
        for group, variables in groups.items()
        for i, variable in enumerate(variables)
    }


def to_arrays(state: dict[str, Any]) -> dict[str, Array]:
    """Returns the values of `collect_state` as NumPy arrays for `write_state`.

    It raises `Diverged` if one is NaN or infinite: a step can make weights
    infinite while the loss, which was computed before it, is still finite.
    """
    arrays = {}
    for name, variable in state.items():
        array = np.asarray(keras.ops.convert_to_numpy(variable))
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype == "bfloat16":  # not a dtype of .npz; float32 is exact
            array = array.astype("float32")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Diverged(
                f"A value of {name} is no longer finite. The last good checkpoint is "
                "kept. Lower the learning rate, or lengthen the warm-up."
            )
        arrays[name] = array
    return arrays


def write_state(path: StrPath, arrays: dict[str, Array], note: dict[str, Any]) -> None:
    # The names of the arrays are stored too, because a zip archive has no
    # checksum of its list of members.
    text = json.dumps({**note, "names": list(arrays)}).encode()
    named: dict[str, Any] = {"note": np.frombuffer(text, np.uint8), **arrays}
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **named)
        file.flush()
        os.fsync(file.fileno())  # a power failure could leave an empty file


def read_state(path: StrPath) -> tuple[dict[str, Array], dict[str, Any]]:
    """Returns the arrays and the note in a file of `write_state`, whose
    checksums it verifies."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    note = json.loads(arrays.pop("note").tobytes())
    if note.pop("names") != list(arrays):
        raise ValueError("some of its arrays are missing")
    return arrays, note


def check_same_run(
    path: StrPath, found: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Raises a `ValueError` if the fingerprint in a file, which was read from JSON,
    differs from that of the current run."""
    expected = json.loads(json.dumps(expected))
    changes = []
    for name in sorted(found.keys() | expected.keys()):
        was, now = found.get(name), expected.get(name)
        if was == now or not (was or now or name in found.keys() & expected.keys()):
            continue  # a setting that is newer than the run is off in it
        changes.append(_change(name, was, now))
    if changes:
        raise ValueError(
            f"{str(path)!r} is of another run: {'; '.join(changes)}. To resume it, "
            "restore these images and settings; or begin a new run, in an empty folder "
            "or with `overwrite=True`."
        )


def _change(name: str, was: Any, now: Any) -> str:
    """Returns how a value changed, or what a list, such as that of a thousand
    class names, lost and gained."""
    verbs = "was", "is"
    if isinstance(was, list) and isinstance(now, list):
        parts = [x for x in was if x not in now], [x for x in now if x not in was]
        if any(parts):
            verbs, (was, now) = ("lost", "gained"), parts
    old, new = (textwrap.shorten(repr(value), 200) for value in (was, now))
    return f"{name} {verbs[0]} {old} and {verbs[1]} {new}"
