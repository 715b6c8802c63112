"""Fitting stored position embeddings to another grid of patches."""

import numpy as np
from keras import ops

from keras_vit.layers.resampling import resample


def known(size):
    """Whether a size is known now, and not only while the graph runs."""
    return all(isinstance(n, int) for n in size)


def fit_embedding(embedding, old, new, method, num_prefix_tokens):
    """Resamples stored position embeddings to another grid, in NumPy.

    Args:
        embedding: Array of shape `(1, num_prefix_tokens + rows * columns,
            hidden_size)` for the grid `old`.
        old: `(rows, columns)` of the array.
        new: The wanted `(rows, columns)`.
        method: A key of `RESAMPLINGS`.
        num_prefix_tokens: Integer. Rows to keep as they are.

    Returns:
        The array for the grid `new`, of the same type; unchanged if the grid
        is.
    """
    length = num_prefix_tokens + old[0] * old[1]
    if embedding.shape[:2] != (1, length):
        raise ValueError(
            f"Position embeddings of {num_prefix_tokens} prefix tokens and a "
            f"grid of {old[0]} x {old[1]} patches have the shape (1, {length}, "
            f"hidden_size). Received: {embedding.shape}"
        )
    if tuple(old) == tuple(new):
        return embedding
    prefix, patches = np.split(embedding[0], [num_prefix_tokens])
    grid = patches.reshape(*old, -1).astype("float64")
    patches = resample(grid, new, method, xp=np).reshape(-1, grid.shape[-1])
    return np.concatenate([prefix, patches])[None].astype(embedding.dtype)


def fit_axis(table, new, method, xp):
    """Resamples the embeddings of rows, or of columns, to another number.

    Args:
        table: Array of shape `(old, channels)`.
        new: The wanted number: an integer, or a scalar tensor.
        method: A key of `RESAMPLINGS`.
        xp: `keras.ops` or `numpy`.
    """
    if isinstance(new, int) and new == table.shape[0]:
        return table
    dtype = table.dtype
    if xp is np:
        table = table.astype("float64")
    table = resample(table[:, None], (new, 1), method, xp)[:, 0]
    return table.astype(dtype) if xp is np else table


def fit_offsets(offsets, old, new, method, xp):
    """Resamples the embeddings of 1-dimensional offsets to another grid.

    Patches are counted row by row, so an offset stands for one or two steps
    in the plane: `down * columns + right` with `right` of either sign. The
    table is laid out by such steps, resampled as a picture of them, and read
    back: where two steps have one offset, as the mean over all pairs of
    patches that are so far apart.

    Args:
        offsets: Array of shape `(2 * rows * columns - 1, channels)` for the
            grid `old`, the most negative offset first.
        old: `(rows, columns)` of the array.
        new: The wanted `(rows, columns)`: integers, or scalar tensors.
        method: A key of `RESAMPLINGS`.
        xp: `keras.ops` or `numpy`.

    Raises:
        ValueError: if the array is not for that grid.
    """
    if offsets.shape[0] != 2 * old[0] * old[1] - 1:
        raise ValueError(
            f"A grid of {old[0]} x {old[1]} patches has "
            f"{2 * old[0] * old[1] - 1} offsets. Received: "
            f"{tuple(offsets.shape)}"
        )
    if known(new) and tuple(new) == tuple(old):
        return offsets
    dtype, channels = offsets.dtype, offsets.shape[-1]
    if xp is np:
        offsets = offsets.astype("float64")
    rows, columns = old
    down, right = np.arange(1 - rows, rows), np.arange(1 - columns, columns)
    index = down[:, None] * columns + right + rows * columns - 1
    steps = xp.reshape(
        xp.take(offsets, index.ravel(), axis=0), (*index.shape, channels)
    )
    steps = resample(steps, tuple(2 * n - 1 for n in new), method, xp)
    steps = xp.reshape(steps, (-1, channels))

    rows, columns = new
    at = np if known(new) else ops
    offset = at.arange(1 - rows * columns, rows * columns, dtype="int32")
    down, right = offset // columns, offset % columns
    total = weights = 0
    for y, x in ((down, right), (down + 1, right - columns)):
        pairs = at.maximum(rows - at.abs(y), 0) * (columns - at.abs(x))
        row = at.clip(y + rows - 1, 0, 2 * rows - 2)
        index = row * (2 * columns - 1) + at.maximum(x + columns - 1, 0)
        pairs = xp.cast(pairs, steps.dtype) if xp is ops else pairs
        total = total + xp.take(steps, index, axis=0) * pairs[:, None]
        weights = weights + pairs
    fitted = total / weights[:, None]
    return fitted.astype(dtype) if xp is np else fitted
