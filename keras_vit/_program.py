"""Helpers that the command lines share. Imports no Keras."""

import ast
import importlib
import sys
import warnings

from keras_vit import _logging
from keras_vit._logging import logger


def run_program(run, arguments):
    """Call `run(arguments)` and return a program's exit status.

    Errors that users can cause, and warnings, are printed as one line each.

    Returns:
        What `run` returns; 1 after an error; 130 after Ctrl-C.
    """
    _logging.show()
    escape_unprintable_output()
    warnings.showwarning = _show
    try:
        return run(arguments)
    except (ValueError, OSError, ImportError) as error:
        logger.error("error: %s", error)
        return 1
    except MemoryError as error:
        logger.error(
            "error: out of memory%s. Close other programs, or use a machine "
            "with more memory.",
            f" ({error})" if str(error) else "",
        )
        return 1
    except KeyboardInterrupt:
        logger.error("\nerror: interrupted")
        return 130


def escape_unprintable_output():
    """Have stdout and stderr escape file names that are no valid text."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not in notebooks
            stream.reconfigure(errors="backslashreplace")


def printable(name):
    """Return a file name as text, with invalid bytes escaped."""
    return str(name).encode(errors="backslashreplace").decode()


def plot_label(name, longest=None):
    """Return a name for matplotlib: shortened, and never a formula."""
    name = printable(name)
    if longest and len(name) > longest:
        name = name[: longest - 1] + "…"
    return name.replace("$", r"\$")


def _show(message, category, *where):
    logger.warning("warning: %s", message)


# Packages that are installed under another name than they are imported.
_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "keras_cv": "keras-cv",
    "tensorflow_datasets": "tensorflow-datasets",
}


def require(module, extra):
    """Import a module of an optional dependency.

    Args:
        module: String. Name of the module.
        extra: String. Name of the extra of this package that installs it.

    Raises:
        ImportError: with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f"This needs {name}, which cannot be imported ({error}). Install "
            f"it with: pip install {_DISTRIBUTIONS.get(name, name)}. All that "
            "such programs need: in a clone of the repository, pip install "
            f'".[{extra}]"'
        ) from error


def parse_setting(text):
    """Return `(name, value)` of "name=value".

    The value is a Python literal, or else a string.
    """
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--set takes name=value. Received: {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word, such as gelu
