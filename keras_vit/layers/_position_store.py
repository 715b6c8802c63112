"""Learned positions in Keras's files: with their grid, for any other."""

import numpy as np
from keras import ops


def save(layer, store):
    """Writes `layer.stored()`, and the grid that it is for."""
    tables = layer.stored()
    for name, table in tables.items():
        store[name] = np.asarray(ops.convert_to_numpy(table))
    if tables:
        store["grid_size"] = np.asarray(layer.built_grid)


def load(layer, store, what):
    """Reads what `save` wrote, fitted to the layer's own grid.

    Raises:
        ValueError: if the file has other arrays than the layer; `what` says
            what the layer is.
    """
    tables = layer.stored()
    found = set(store.keys()) - {"grid_size"}
    if found != set(tables):
        raise ValueError(
            f"The layer {layer.name!r} has {what} and learns "
            f"{_listed(tables)}. The file's positions have {_listed(found)}."
        )
    if not tables:
        return
    grid = tuple(int(n) for n in store["grid_size"])
    arrays = {name: np.asarray(store[name]) for name in tables}
    for name, array in layer.fit(arrays, grid).items():
        tables[name].assign(array)


def _listed(names):
    return ", ".join(map(repr, sorted(names))) or "nothing"
