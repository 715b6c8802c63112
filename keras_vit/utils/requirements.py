"""Checks of Keras's version and backend, before Keras is imported.

Without them, a missing backend causes a long traceback about another module.
"""

import difflib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import sys

KERAS = (3, 15, 1)  # as in pyproject.toml
BACKENDS = ("jax", "tensorflow", "torch")
_KERAS_BACKENDS = (*BACKENDS, "numpy", "openvino")


def check() -> None:
    """Raises an ImportError that says what to install or to set, if needed."""
    _check_keras()
    if "keras" not in sys.modules:
        _check_backend(*_configured_backend())


def _check_keras() -> None:
    try:
        version = importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return  # keras-nightly, or not installed: importing it fails later
    # Release candidates are named "3.16rc1" or "3.16.0rc1".
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < KERAS:
        required = ".".join(map(str, KERAS))
        raise ImportError(
            f"keras_vit needs Keras {required} or newer, and this is Keras "
            f'{version}. Run: pip install -U "keras>={required}"'
        )


def _configured_backend() -> tuple[str, str]:
    """Returns the backend that Keras will use, and where it is configured."""
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


def _check_backend(name: str, source: str) -> None:
    if name in _KERAS_BACKENDS and _is_installed(name):
        return
    installed = [backend for backend in BACKENDS if _is_installed(backend)]
    known = name in _KERAS_BACKENDS
    close = [] if known else difflib.get_close_matches(name, BACKENDS, n=1)
    choice = (close or installed or BACKENDS)[0]
    raise ImportError(
        f"Keras has no backend {name!r} ({source}) "
        + ("here: it is not installed. " if known else "at all. ")
        + f"Installed: {', '.join(installed) or 'none'}. Set the environment "
        f"variable KERAS_BACKEND={choice} before Python starts"
        + ("." if choice in installed else f", and run: pip install {choice}")
    )


def _is_installed(module: str) -> bool:
    # A module that is None in sys.modules cannot be imported.
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


check()
