"""The HDF5 tree in Keras's own files: a group a layer, named after its class,
which tells the layer's own name and numbers its arrays."""

import json

import ml_dtypes
import numpy as np

from keras_vit.checkpoints import _hdf5
from keras_vit.checkpoints.infer import DECODER

NOTES = "keras_vit"  # the attribute that our .weights.h5 files tell more in
# Layers that are neither dense nor a norm: the name of their array.
_OWN = {
    "class_token": "tokens",
    "distillation_token": "tokens",
    "register_tokens": "tokens",
    "mask_token": "tokens",
    "pooling": "probe",
    "scale_1": "gamma",
    "scale_2": "gamma",
}


def read(file):
    """Returns `({(layer, ..., number): array}, grid, notes)`."""
    root, arrays, grid = _hdf5.read(file), {}, None
    notes = json.loads(root.attributes.get(NOTES) or "{}")
    if not isinstance(notes, dict):
        raise ValueError(f"its attribute {NOTES!r} is not a dict")
    for start, keys, data, name in _arrays(root):
        if any(key.startswith("seed_generator") for key in keys):
            continue  # the state of a dropout, and no weight
        array = data.read()
        if data.attributes.get("dtype") == "bfloat16":  # HDF5 has no name
            array = array.view(ml_dtypes.bfloat16)
        if keys[-1] == "grid_size":
            grid = tuple(int(n) for n in array.ravel())
            if array.shape != (2,) or min(grid) < 1:
                raise ValueError(f"a grid of {grid}")
            continue
        path = start + "/".join((name, *keys[1:]))
        if path in arrays:
            raise ValueError(f"{path} is there twice")
        arrays[path] = array
    return arrays, grid, notes


def _arrays(root):
    """Yields what `_datasets` does, and what our paths begin with. A model of
    pre-training has trees of its encoder and decoder inside."""
    for start, place in (
        (DECODER, "decoder/layers"),
        ("", "layers"),
        ("", "encoder/layers"),
    ):
        group = root
        for part in place.split("/"):
            group = group.items.get(part) if _is_group(group) else None
        if _is_group(group):
            for found in _datasets(group):
                yield start, *found
        elif place == "layers" and "encoder" not in root.items:
            raise ValueError("it has no layers")


def _is_group(item):
    return isinstance(item, _hdf5.Group)


def _datasets(group, keys=(), name=None):
    """Yields `(keys, dataset, layer's name)` of a tree."""
    for key, item in group.items.items():
        if not _is_group(item):
            yield (*keys, key), item, name
        elif key == "vars":
            yield from _datasets(item, keys, name)
        else:
            variables = item.items.get("vars")
            own = None
            if _is_group(variables):
                own = variables.attributes.get("name")
            inner = str(own or key) if not keys else name
            yield from _datasets(item, (*keys, key), inner)


def named(key, arrays):
    """Our path of an array: Keras numbers a layer's arrays."""
    parent, _, number = key.rpartition("/")
    if number not in ("0", "1"):
        return key
    own = _OWN.get(parent.rpartition("/")[2])
    if own is not None:
        return f"{parent}/{own}"
    first = arrays.get(f"{parent}/0", np.zeros(1))
    names = ("gamma", "beta") if first.ndim == 1 else ("kernel", "bias")
    return f"{parent}/{names[int(number)]}"
