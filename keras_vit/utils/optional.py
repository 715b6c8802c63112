"""Imports of optional dependencies."""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

# Module name: package name, where they differ.
_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
}


def require(module: str, extra: str = "recipes", more: Sequence[str] = ()) -> Any:
    """Imports a module of an optional dependency, which an extra of this
    package installs; a message names those of `more` that are missing too."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        absent = [x for x in more if x != name and not importlib.util.find_spec(x)]
        names = [name, *absent]
        raise ImportError(
            f"This needs {' and '.join(names)}, which cannot be imported ({error}). "
            "Install with: pip install "
            f"{' '.join(_DISTRIBUTIONS.get(x, x) for x in names)}. The extra "
            f"{extra!r} of keras-vit-models has all that such programs need: in a "
            f'clone of the repository, pip install ".[{extra}]"'
        ) from error
