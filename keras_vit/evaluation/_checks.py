"""What every measure asks of its arguments."""

import numpy as np


def scores_of(scores, name="scores"):
    """Returns `(images, columns)` of floats, or raises."""
    array = np.asarray(scores)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu":
        raise ValueError(
            f"`{name}` must be numbers of shape (images, columns), at least "
            f"one of each. Received: shape {array.shape}, {array.dtype}"
        )
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ValueError(
            f"`{name}` must be finite. Received: NaN or infinity for "
            f"{bad.size} of {len(array)} images, the first at index {bad[0]}. "
            "Look for them in the model's inputs and weights."
        )
    return array


def labels_of(labels, count, classes=None, name="labels"):
    """Returns `count` integers in [0, classes), or raises."""
    array = np.asarray(labels)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must be {count} integers, one an image. Received: "
            f"shape {array.shape}, {array.dtype}"
        )
    highest = np.inf if classes is None else classes - 1
    if count and not (0 <= array.min() and array.max() <= highest):
        raise ValueError(
            f"`{name}` must be from 0 to "
            + (f"{highest}. " if classes is not None else "above. ")
            + f"Received: {array.min()} to {array.max()}"
        )
    return array.astype(np.int64)
