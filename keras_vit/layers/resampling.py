"""Resampling of position embeddings: each way is one small matrix an axis.

Every published way of fitting position embeddings to another grid is linear
and separable, so it is a matrix (new, old) for the rows and one for the
columns. The matrices are computed here, by NumPy in float64 where the sizes
are known and by the backend where a size is known only while the graph runs.
"""

import numpy as np
from keras import ops

# name: (kernel, align_corners, antialias, offset), and whose it is. The offset
# is added to the new size before the scale is taken, if the grid changes.
RESAMPLINGS = {
    # vit_jax and big_vision: scipy.ndimage.zoom(order=1) equals it
    "bilinear_align_corners": ("linear", True, False, 0),
    # timm's reader of .npz files
    "bilinear": ("linear", False, False, 0),
    # Hugging Face's ViT, DeiT and DINOv2 without registers, MAE
    "bicubic": ("cubic", False, False, 0),
    # timm, DINOv2 with registers
    "bicubic_antialias": ("cubic", False, True, 0),
    # torchvision
    "bicubic_align_corners": ("cubic", True, False, 0),
    # Meta's own DINOv2 without registers
    "bicubic_offset": ("cubic", False, False, 0.1),
}


def resample(grid, size, method, xp=ops):
    """Returns position embeddings for another grid.

    Args:
        grid: Array of shape `(rows, columns, channels)`.
        size: The wanted `(rows, columns)`: integers, or scalar tensors.
        method: A key of `RESAMPLINGS`.
        xp: `keras.ops`, or `numpy` to stay out of the backend.

    Returns:
        Array of shape `(*size, channels)` of the grid's type.
    """
    *_, offset = RESAMPLINGS[method]
    if offset:
        offset = offset * _changes(grid.shape[:2], size)
    rows, columns = (
        resampling_matrix(old, new, method, offset)
        for old, new in zip(grid.shape[:2], size, strict=True)
    )
    dtype = grid.dtype
    rows, columns = xp.array(rows, dtype), xp.array(columns, dtype)
    # H W new, h w old, d channels
    grid = xp.einsum("Hh,hwd->Hwd", rows, grid)
    return xp.einsum("Ww,Hwd->HWd", columns, grid)


def _changes(old, new):
    """1 if a grid changes, else 0: a number, or a tensor."""
    if all(isinstance(size, int) for size in new):
        return int(tuple(old) != tuple(new))
    unequal = ops.logical_or(new[0] != old[0], new[1] != old[1])
    return ops.cast(unequal, "float32")


def resampling_matrix(old, new, method, offset=0):
    """Returns the matrix (new, old) that resamples one axis.

    It is a NumPy array if `new` is an integer, else a tensor. The offset is
    added to the new size before the scale is taken.
    """
    kernel, align_corners, antialias, _ = RESAMPLINGS[method]
    if isinstance(new, int):
        xp, dtype, length = np, "float64", np.float64(new)
    else:
        xp, dtype, length = ops, "float32", ops.cast(new, "float32")
    index = xp.arange(new, dtype=dtype)
    if align_corners:
        scale = (old - 1) / xp.maximum(length - 1, 1)
        centre = index * scale
    else:
        scale = old / (length + offset)
        centre = (index + 0.5) * scale - 0.5
    # Antialiasing widens the kernel when shrinking and drops what lies
    # outside; without it two taps beyond each border repeat the border.
    width = xp.maximum(scale, 1) if antialias else 1
    beyond = 0 if antialias else 2
    taps = xp.arange(-beyond, old + beyond, dtype=dtype)
    distance = xp.abs(centre[:, None] - taps[None, :]) / width
    weights = _KERNELS[kernel](distance, -0.5 if antialias else -0.75, xp)
    if antialias:
        return weights / xp.sum(weights, axis=1, keepdims=True)
    if old == 1:
        return xp.sum(weights, axis=1, keepdims=True)
    first = xp.sum(weights[:, :3], axis=1, keepdims=True)
    last = xp.sum(weights[:, -3:], axis=1, keepdims=True)
    return xp.concatenate([first, weights[:, 3:-3], last], axis=1)


def _linear(x, a, xp):
    return xp.maximum(1 - x, 0)


def _cubic(x, a, xp):
    """Keys' cubic convolution. PyTorch has a = -0.75, and -0.5 where it
    antialiases."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return xp.where(x < 1, near, xp.where(x < 2, far, xp.zeros_like(x)))


_KERNELS = {"linear": _linear, "cubic": _cubic}
