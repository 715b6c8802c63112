"""Imports of optional dependencies."""

import importlib
from typing import Any

# Module name: package name, where they differ.
_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
}


def require(module: str, extra: str = "recipes") -> Any:
    """Imports a module of an optional dependency, which an extra of this
    package installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f"This needs {name}, which cannot be imported ({error}). Install "
            f"it with: pip install {_DISTRIBUTIONS.get(name, name)}. The extra "
            f"{extra!r} of keras-vit-models has all that such programs need: in a "
            f'clone of the repository, pip install ".[{extra}]"'
        ) from error
