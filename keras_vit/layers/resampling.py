"""Resampling of position embeddings to another grid of patches.

Every published method is linear and separable, so it consists of two small
matrices (new, old), one for the rows and one for the columns. NumPy computes
them in float64 if the sizes are integers; the backend computes them in float32
if a size is known only when the graph runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_vit.layers._utils import axis_sizes, is_static
from keras_vit.utils.types import Array, Tensor

# Each format names its method in `checkpoints/formats`, in `arguments`.
# name: (interpolation kernel, align_corners, antialias, offset, square), with
# the code that uses it. If the grid changes, the scale is old / (new + offset);
# with `square`, the new grid is the top left part of one of its longer side.
RESAMPLINGS = {
    # vit_jax and big_vision: scipy.ndimage.zoom(order=1) equals it
    "bilinear_align_corners": ("linear", True, False, 0, False),
    # timm's reader of .npz files; only `resampling=` chooses it
    "bilinear": ("linear", False, False, 0, False),
    # Hugging Face's ViT, DeiT and DINOv2 without registers, MAE
    "bicubic": ("cubic", False, False, 0, False),
    # timm, DINOv2 with registers
    "bicubic_antialias": ("cubic", False, True, 0, False),
    # torchvision
    "bicubic_align_corners": ("cubic", True, False, 0, False),
    # Pillow's BILINEAR; for images (`ImagePreprocessing`)
    "bilinear_antialias": ("linear", False, True, 0, False),
    # Meta's own DINOv2 without registers
    "bicubic_offset": ("cubic", False, False, 0.1, False),
    # timm's NaFlexVit whose positions preserve the aspect, and C-RADIO
    "bicubic_antialias_square": ("cubic", False, True, 0, True),
    "bilinear_square": ("linear", False, False, 0, True),
    "bilinear_align_corners_square": ("linear", True, False, 0, True),
}


def resample(grid: Tensor, size: Sequence[Any], method: str, xp: Any = ops) -> Tensor:
    """Resamples a grid of vectors, `(rows, columns, channels)`, to another
    number of rows and columns, which may be scalar tensors; `xp` is
    `keras.ops`, or `numpy` for NumPy arrays."""
    rows, columns = resampling_matrices(grid.shape[:2], size, method)
    dtype = grid.dtype
    rows, columns = xp.array(rows, dtype), xp.array(columns, dtype)
    # H W new, h w old, d channels
    grid = xp.einsum("Hh,hwd->Hwd", rows, grid)
    return xp.einsum("Ww,Hwd->HWd", columns, grid)


def resample_maps(maps: Tensor, size: Sequence[Any]) -> Tensor:
    """Resamples a batch of feature maps, `(batch, rows, columns, channels)`,
    bilinearly, without antialiasing.

    Pixels, not their centers, are aligned at the borders, as in PyTorch's
    `interpolate(mode="bilinear", align_corners=False)`.
    """
    rows, columns = (
        ops.cast(_bilinear_matrix(old, new), maps.dtype)
        for old, new in zip(axis_sizes(maps, 1, 2), size, strict=True)
    )
    # B batch, H W new, h w old, d channels
    maps = ops.einsum("Hh,bhwd->bHwd", rows, maps)
    return ops.einsum("Ww,bHwd->bHWd", columns, maps)


def _bilinear_matrix(old: Any, new: Any) -> Tensor:
    """Returns an array (new, old), or a tensor if a size is one."""
    if is_static((old, new)):
        xp, scale, last = np, old / new, old - 1
    else:
        xp, scale = ops, ops.cast(old, "float32") / ops.cast(new, "float32")
        last = ops.cast(old - 1, "float32")
    center = (xp.arange(new, dtype="float32") + 0.5) * scale - 0.5
    center = xp.clip(center, 0, last)
    taps = xp.arange(old, dtype="float32")
    return xp.maximum(1 - xp.abs(center[:, None] - taps), 0)


def resample_embedding(
    embedding: Array,
    source_grid: tuple[int, int],
    target_grid: Sequence[Any],
    method: str,
    num_prefix_tokens: int,
) -> Array:
    """Resamples learned position embeddings, `(1, num_prefix_tokens + rows *
    columns, hidden_size)`, to another grid, with NumPy."""
    if tuple(source_grid) == tuple(target_grid):
        return embedding
    prefix, patches = np.split(embedding[0], [num_prefix_tokens])
    grid = patches.reshape(*source_grid, -1).astype("float64")
    patches = resample(grid, target_grid, method, xp=np)
    patches = patches.reshape(-1, grid.shape[-1])
    return np.concatenate([prefix, patches])[None].astype(embedding.dtype)


def resample_patch_kernel(
    kernel: Array, size: Sequence[Any], method: str = "bicubic_antialias"
) -> Array:
    """Resizes the kernel of a patch embedding, `(rows, columns, channels,
    filters)`, to another patch size.

    If R resizes an image of the old patch size to the new one, the new kernel
    is the pseudo-inverse of R applied to the old one: of all kernels, the one
    whose products with resized patches are closest to the old products. R is
    one matrix for the rows and one for the columns, and the pseudo-inverse of
    their Kronecker product is that of their pseudo-inverses.

    From "FlexiViT: One Model for All Patch Sizes", Section 3.4
    (https://arxiv.org/abs/2212.08013), as in timm's `resample_patch_embed`.
    """
    if tuple(kernel.shape[:2]) == tuple(size):
        return kernel
    rows, columns = (
        np.linalg.pinv(resampling_matrix(old, new, method))
        for old, new in zip(kernel.shape[:2], size, strict=True)
    )
    # h w old, H W new, c channels, f filters
    resized = np.einsum("hH,hwcf->Hwcf", rows, kernel.astype("float64"))
    resized = np.einsum("wW,Hwcf->HWcf", columns, resized)
    return resized.astype(kernel.dtype)


def resample_offsets(
    offsets: Tensor,
    source_grid: tuple[int, int],
    target_grid: Sequence[Any],
    method: str,
    xp: Any,
) -> Tensor:
    """Resamples the embeddings of 1-D offsets between patches, `(2 * rows *
    columns - 1, channels)` with the most negative first, to another grid.

    Patches are numbered in row-major order, so the 1-D offset of two patches is
    `down * columns + right`, where `right` may be negative: it stands for one
    or two 2-D offsets `(down, right)`. The embeddings are arranged by 2-D
    offset, resampled, and converted back to 1-D offsets: where two 2-D offsets
    have the same 1-D offset, as the mean weighted by the number of pairs of
    patches that have each.
    """
    rows, columns = source_grid
    if is_static(target_grid) and tuple(target_grid) == tuple(source_grid):
        return offsets
    dtype, channels = offsets.dtype, offsets.shape[-1]
    if xp is np:
        offsets = offsets.astype("float64")
    down, right = np.arange(1 - rows, rows), np.arange(1 - columns, columns)
    index = down[:, None] * columns + right + rows * columns - 1
    steps = xp.reshape(
        xp.take(offsets, index.ravel(), axis=0), (*index.shape, channels)
    )
    steps = resample(steps, tuple(2 * n - 1 for n in target_grid), method, xp)
    steps = xp.reshape(steps, (-1, channels))

    rows, columns = target_grid
    index_xp = np if is_static(target_grid) else ops
    offset = index_xp.arange(1 - rows * columns, rows * columns, dtype="int32")
    down, right = offset // columns, offset % columns
    total = weights = 0
    for y, x in ((down, right), (down + 1, right - columns)):
        num_pairs = index_xp.maximum(rows - index_xp.abs(y), 0) * (
            columns - index_xp.abs(x)
        )
        row = index_xp.clip(y + rows - 1, 0, 2 * rows - 2)
        column = index_xp.maximum(x + columns - 1, 0)
        index = row * (2 * columns - 1) + column
        if xp is ops:
            num_pairs = ops.cast(num_pairs, steps.dtype)
        total = total + xp.take(steps, index, axis=0) * num_pairs[:, None]
        weights = weights + num_pairs
    resampled = total / weights[:, None]
    return resampled.astype(dtype) if xp is np else resampled


def resampling_matrix(
    old: Any, new: Any, method: str, offset: Any = 0, index: Any = None
) -> Tensor:
    """Returns the matrix (new, old) that resamples one axis: a float64 NumPy array if
    both sizes are integers, otherwise a float32 tensor. The scale is old / (new +
    offset). With a tensor `index` (...), only the rows of these indices are returned,
    (..., old), and `new` may be as many sizes."""
    kernel, align_corners, antialias, *_ = RESAMPLINGS[method]
    if is_static((old, new)):
        xp, dtype, size, length = np, "float64", old, np.float64(new)
    else:
        xp, dtype, length = ops, "float32", ops.cast(new, "float32")
        size = ops.cast(old, dtype) if ops.is_tensor(old) else old
    if index is None:
        index = xp.arange(new, dtype=dtype)
    else:
        index = ops.cast(index, dtype)
    # The distance from tap t is |(i + s) * size - (t + s) * length| / length.
    # Products of integers are exact in float32, unlike a difference of ratios.
    shift = 0.5
    if align_corners:
        shift, size, length = 0, size - 1, xp.maximum(length - 1, 1)
    else:
        length = length + offset
    # With antialiasing, the kernel is wider when shrinking, and there are no
    # taps beyond the border. Without it, two taps beyond each border repeat the
    # value at the border.
    num_border_taps = 0 if antialias else 2
    taps = xp.arange(-num_border_taps, old + num_border_taps, dtype=dtype)
    center = xp.expand_dims((index + shift) * size, -1)
    step = xp.expand_dims(length, -1)
    distance = xp.abs(center - (taps + shift) * step) / step
    if antialias:
        distance = distance / xp.maximum(size / step, 1)
    weights = _KERNELS[kernel](distance, -0.5 if antialias else -0.75, xp)
    if antialias:
        return weights / xp.sum(weights, axis=-1, keepdims=True)
    if isinstance(old, int) and old == 1:
        return xp.sum(weights, axis=-1, keepdims=True)
    first = xp.sum(weights[..., :3], axis=-1, keepdims=True)
    last = xp.sum(weights[..., -3:], axis=-1, keepdims=True)
    return xp.concatenate([first, weights[..., 3:-3], last], axis=-1)


def resampling_matrices(
    old: Sequence[int],
    new: Sequence[Any],
    method: str,
    indices: Sequence[Any] | None = None,
) -> list[Tensor]:
    """Returns the matrices that resample the rows and the columns of a grid; `indices`
    are as in `resampling_matrix`."""
    *_, offset, square = RESAMPLINGS[method]
    sizes = new
    if not is_static(new):
        is_other = ops.logical_or(new[0] != old[0], new[1] != old[1])
        offset = offset and offset * ops.cast(is_other, "float32")
        if square:
            side = ops.maximum(*new)
            sizes = [ops.where(is_other, side, n) for n in new]
    elif tuple(old) == tuple(new):
        offset = 0
    elif square:
        sizes = [max(new)] * 2
    matrices = [
        resampling_matrix(n, size, method, offset, index)
        for n, size, index in zip(old, sizes, indices or (None, None), strict=True)
    ]
    if indices:
        return matrices
    return [x[:n] for x, n in zip(matrices, new, strict=True)]


def _linear(x: Any, a: float, xp: Any) -> Tensor:
    return xp.maximum(1 - x, 0)


def _cubic(x: Any, a: float, xp: Any) -> Tensor:
    """Computes Keys' cubic convolution kernel.

    PyTorch uses a = -0.75, and -0.5 with antialiasing.
    """
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return xp.where(x < 1, near, xp.where(x < 2, far, xp.zeros_like(x)))


_KERNELS = {"linear": _linear, "cubic": _cubic}
