"""Padding as the ResNets' codes have it, shared by convolution and pooling."""

from keras import ops

from keras_vit.layers import _checks


def pad(x, kernel_size, value=0.0):
    """Returns images (B, H, W, C) with half a kernel more on each side."""
    sides = [((size - 1) // 2, size // 2) for size in kernel_size]
    if not any(map(sum, sides)):
        return x
    return ops.pad(x, [(0, 0), *sides, (0, 0)], constant_values=value)


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
