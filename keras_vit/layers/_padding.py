"""Padding as the ResNets' codes have it, shared by convolution and pooling."""

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _patch_grid


def pad(x, kernel_size, strides, padding, value=0.0):
    """Returns images (B, H, W, C) padded, and the padding that is left to do.

    The rest is "valid", or "same" where it costs no copy or the size is known
    only while the graph runs. Padding here keeps PyTorch's memory in the order
    in which it computes; its own "same" does not.

    Args:
        x: Images.
        kernel_size: `(rows, columns)`.
        strides: `(rows, columns)`.
        padding: "same", "symmetric" (half a kernel on each side) or "valid".
        value: Float. What is added.
    """
    if padding == "valid":
        return x, "valid"
    if padding == "symmetric":
        sides = [((size - 1) // 2, size // 2) for size in kernel_size]
    else:
        size = _patch_grid.size_of(x, 1, 2)
        if not all(isinstance(n, int) for n in size):
            return x, "same"
        sides = [
            _same(*axis)
            for axis in zip(size, kernel_size, strides, strict=True)
        ]
    if not any(map(sum, sides)):
        return x, "valid"
    even = all(before == after for before, after in sides)
    if even and strides == (1, 1) and value == 0:
        return x, "same"
    return ops.pad(x, [(0, 0), *sides, (0, 0)], constant_values=value), "valid"


def _same(size, kernel, stride):
    """TensorFlow's (before, after): the odd one comes after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def channels_last(operation, x, *arguments, **options):
    """Calls `ops.conv` or `ops.max_pool` on images with channels last.

    With PyTorch, Keras would copy the images into another order, and the
    convolution back: turned here, they stay where they are.
    """
    if keras.config.backend() != "torch":
        return operation(x, *arguments, data_format="channels_last", **options)
    x = ops.transpose(x, (0, 3, 1, 2))
    x = operation(x, *arguments, data_format="channels_first", **options)
    return ops.transpose(x, (0, 2, 3, 1))


def output_shape(layer, shape, kernel_size, strides, valid=False):
    """Returns `(batch, height, width)` after a strided window.

    SAME and symmetric padding differ in where they put the zeros, and not in
    the size that comes out.
    """
    letters = "(batch, height, width, channels)"
    _checks.rank(layer, shape, 4, letters)
    if valid:
        shape = (
            shape[0],
            *(
                None if size is None else size - kernel + 1
                for size, kernel in zip(shape[1:3], kernel_size, strict=True)
            ),
        )
    return (
        shape[0],
        *(
            None if size is None else -(-size // stride)
            for size, stride in zip(shape[1:3], strides, strict=True)
        ),
    )
