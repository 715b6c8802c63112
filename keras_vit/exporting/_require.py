"""Modules that only some formats need."""

import importlib


def require(module):
    """Imports a module that only exporting needs.

    Raises:
        ImportError: in one line that says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This needs {module.split('.')[0]}, which cannot be imported "
            f"({error}). Install it with: pip install "
            '"keras-vit-models[export]"'
        ) from error
