"""What programs share; plain Python."""

import ast
import importlib
import sys
import warnings

from keras_vit import _logging
from keras_vit._logging import logger


def status(run, arguments):
    """Runs a program and returns its exit status: 0 done, 1 refused.

    What users can cause, and warnings, are said in a line each.
    """
    _logging.show()
    print_any_name()
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


def print_any_name():
    """Names that are no text are no reason to fail while printing them."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a notebook's has not
            stream.reconfigure(errors="backslashreplace")


def printable(name):
    """Returns a name as text: those of files may hold any bytes."""
    return str(name).encode(errors="backslashreplace").decode()


def label(name, longest=None):
    """Returns a name as matplotlib is to draw it: short, and no formula."""
    name = printable(name)
    if longest and len(name) > longest:
        name = name[: longest - 1] + "…"
    return name.replace("$", r"\$")


def _show(message, category, *where):
    logger.warning("warning: %s", message)


# Where the name to install is another than that to import.
_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "keras_cv": "keras-cv",
    "tensorflow_datasets": "tensorflow-datasets",
}


def require(module, extra):
    """Imports a module that only those need who installed an extra.

    Raises:
        ImportError: in one line that says how to install it.
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


def setting(text):
    """Reads `name=value`, where the value is one of Python's or a word."""
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--set takes name=value. Received: {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word, such as gelu
