"""The geometry of cutting an image into patches, shared by the two layers
that do it and by the models."""

import keras
from keras import ops


def size_of(x, *axes):
    """Returns the sizes of axes: integers, or tensors where TensorFlow knows
    them only while the graph runs.

    PyTorch always knows, but hands out tensors while it traces for an export;
    taken as integers they become constants of the exported model.
    """
    shape = ops.shape(x)
    sizes = tuple(shape[axis] for axis in axes)
    if keras.config.backend() == "torch":
        sizes = tuple(int(size) for size in sizes)
    return sizes


def grid_size(image_size, patch_size, pad_to_patch=False):
    """Returns `(rows, columns)` of patches; None where a size is unknown.

    Raises:
        ValueError: if the patch does not divide a known size and
            `pad_to_patch` is False.
    """
    if not pad_to_patch:
        _raise_unless_divides(image_size, patch_size)
    return tuple(
        None if size is None else -(-size // patch)
        for size, patch in zip(image_size, patch_size, strict=True)
    )


def fit(images, patch_size, pad_to_patch, channels=None):
    """Returns images (B, H, W, C) whose sizes the patch divides.

    Zeros are added at the bottom and at the right where `pad_to_patch` allows
    it. Sizes that are known only while the graph runs (TensorFlow, with an
    input of unknown size) are checked by a reshape that fails: a strided
    convolution would drop the last rows and columns without a word.

    TensorFlow also forgets the number of channels once it has traced images
    of another one, so a layer that knows it gives `channels`.
    """
    channels = channels or images.shape[-1]
    height, width = size_of(images, 1, 2)
    if pad_to_patch:
        for axis, (size, patch) in enumerate(
            zip((height, width), patch_size, strict=True), start=1
        ):
            missing = (-size) % patch
            if not isinstance(missing, int) or missing:
                shape = list(ops.shape(images))
                shape[axis] = missing
                zeros = ops.zeros(shape, dtype=images.dtype)
                images = ops.concatenate([images, zeros], axis=axis)
        return images
    if isinstance(height, int) and isinstance(width, int):
        _raise_unless_divides((height, width), patch_size)
        return images
    rows, columns = height // patch_size[0], width // patch_size[1]
    size = (rows * patch_size[0], columns * patch_size[1])
    # With a free batch size the reshape could share out pixels anew.
    shape = (ops.shape(images)[0], *size, channels)
    return ops.reshape(images, shape)


def _raise_unless_divides(image_size, patch_size):
    for size, patch in zip(image_size, patch_size, strict=True):
        if size is not None and (size % patch or size <= 0):
            below, above = size // patch * patch, -(-size // patch) * patch
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"A patch of {patch_size[0]} x {patch_size[1]} pixels does "
                f"not divide an image of {image_size[0]} x {image_size[1]}: "
                f"{size} is not a multiple of {patch}. Resize the image "
                f"({near} would work in place of {size}), choose another "
                f"`patch_size`, or set `pad_to_patch=True` to add zeros at "
                f"the bottom and at the right."
            )
