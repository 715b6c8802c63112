"""What `import keras_vit` needs, looked for before Keras is imported: where
it is missing, Keras ends in a page of calls that names another module."""

import difflib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import sys

# As in pyproject.toml; a test compares them.
KERAS = (3, 15)
BACKENDS = ("jax", "tensorflow", "torch")
_KERAS_BACKENDS = (*BACKENDS, "numpy", "openvino")


def check():
    """Looks for Keras and for the backend that was chosen.

    Raises:
        ImportError: in one line that says what to install or to set.
    """
    _check_keras()
    if "keras" not in sys.modules:
        _check_backend(*_backend())


def _check_keras():
    wanted = ".".join(map(str, KERAS))
    try:
        version = importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return  # a nightly build, or none: then the import says so
    # A release candidate is "3.16rc1" or "3.16.0rc1".
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < KERAS:
        raise ImportError(
            f"keras_vit needs Keras {wanted} or newer, and this is Keras "
            f'{version}. Run: pip install -U "keras>={wanted}"'
        )


def _backend():
    """Returns the backend that Keras will take, and who says so."""
    name = os.environ.get("KERAS_BACKEND")
    if name:
        return name, "KERAS_BACKEND"
    folder = os.environ.get("KERAS_HOME") or "~/.keras"
    path = pathlib.Path(folder).expanduser() / "keras.json"
    try:
        name = json.loads(path.read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if name in (None, "tensorflow"):
        return "tensorflow", "Keras's default"
    return str(name), str(path)


def _check_backend(name, said_by):
    there = [backend for backend in BACKENDS if _is_there(backend)]
    if name not in _KERAS_BACKENDS:
        like = difflib.get_close_matches(name, BACKENDS, n=1)
        best = (like or there or BACKENDS)[0]
        raise ImportError(
            f"Keras has no backend {name!r} ({said_by}). keras_vit runs on "
            f"{', '.join(BACKENDS)}; installed: {', '.join(there) or 'none'}. "
            f"Set the environment variable KERAS_BACKEND={best} before Python "
            "starts."
        )
    if _is_there(name):
        return
    what = f"The backend {name!r} ({said_by}) is not installed"
    if there:
        raise ImportError(
            f"{what}. Installed: {', '.join(there)}. Set the environment "
            f"variable KERAS_BACKEND={there[0]} before Python starts, or run: "
            f"pip install {name}."
        )
    raise ImportError(
        f"{what}, and no other either. Run: pip install jax (or tensorflow, or "
        "torch), and set the environment variable KERAS_BACKEND=jax."
    )


def _is_there(module):
    # None in sys.modules forbids a module: tests do so.
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


check()
