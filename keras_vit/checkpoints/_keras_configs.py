"""What a .keras file would have Keras make, looked at before it does."""

import json
import pathlib

from keras_vit.checkpoints import _archives

# What makes a layer large, and what it may be whatever the arrays are.
_SIZED = ("units", "filters", "hidden_size", "mlp_dim", "num_heads")
_SIZED += ("head_size", "num_tokens", "shape", "input_shape", "grid_shape")
_SIZED += ("grid_size", "inputs_shape", "kernel_size", "groups")
_LARGEST = 2**17  # tokens of a large image, too


def raise_unless_ours(path, known, largest):
    """Raises a `ValueError` if what Keras would make from a .keras file is not
    of it and of us: Keras imports what a config names, and makes layers as
    large as it says.

    Args:
        path: Path of the file.
        known: Function that says whether a name is registered.
        largest: Integer. The largest axis of the file's arrays.
    """
    with _archives.opened(pathlib.Path(path)) as archive:
        content = json.loads(archive.read("config.json"))
    limit = max(largest, _LARGEST)
    for name, value in _values(content):
        if name == "module" and value is not None:
            root = str(value).partition(".")[0]
            if root not in ("keras", "keras_vit", "builtins"):
                raise ValueError(f"it names the module {value!r}")
        elif name == "registered_name" and isinstance(value, str):
            package, _, rest = value.partition(">")
            if rest and package != "keras_vit" and not known(value):
                raise ValueError(f"it names {value!r}, which is not registered")
        elif name in _SIZED and type(value) is int and value > limit:
            raise ValueError(f"{name}={value}, of arrays up to {largest}")


def _values(content, name=None):
    """Yields `(name, value)` of all that is in JSON; of a list's, its name."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _values(value, key)
    elif isinstance(content, list):
        for value in content:
            yield from _values(value, name)
    else:
        yield name, content
