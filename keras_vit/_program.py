"""What programs share; plain Python."""

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


def require(module, extra):
    """Imports a module that only those need who installed an extra.

    Raises:
        ImportError: in one line that says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This needs {module.split('.')[0]}, which cannot be imported "
            f"({error}). Install it with: pip install "
            f'"keras-vit-models[{extra}]"'
        ) from error
