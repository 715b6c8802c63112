"""Images as they are: their patches, in batches of several sizes."""

import math
from collections.abc import Sequence

import numpy as np

from keras_vit._types import Array


def pack_images(
    images: Sequence[Array],
    patch_size: int | tuple[int, int],
    length: int | None = None,
) -> list[Array]:
    """Returns the patches of images of several sizes, for a model of
    `keras_vit.mixed_sizes`.

    Args:
        images: Sequence of arrays of shape `(height, width, channels)`, with
            the values that the model takes (see `preprocess_input`). Heights
            and widths must be multiples of those of a patch.
        patch_size: Integer or `(rows, columns)`, in pixels.
        length: Integer. Number of patches to pad each image to; None for that
            of the largest image. JAX compiles a model for each length.

    Returns:
        `[patches, coordinates, valid]`: float32 of shape `(batch, length, rows
        * columns * channels)`, int32 of shape `(batch, length, 2)`, and
        booleans of shape `(batch, length)`, False for padding, which follows
        the patches.

    Raises:
        ValueError: if an image has another rank, the patch size does not
            divide it, or it has more patches than `length`.

    Example:

    >>> photos = [np.zeros((224, 160, 3)), np.zeros((96, 320, 3))]
    >>> [x.shape for x in keras_vit.data.pack_images(photos, 16)]
    [(2, 140, 768), (2, 140, 2), (2, 140)]
    """
    p, q = (patch_size,) * 2 if isinstance(patch_size, int) else patch_size
    shapes = [np.shape(image) for image in images]
    counts = [math.prod(shape[:2]) // (p * q) for shape in shapes]
    length = max(counts, default=0) if length is None else length
    for shape, count in zip(shapes, counts, strict=True):
        if (
            len(shape) != 3
            or shape[0] % p
            or shape[1] % q
            or not 0 < count <= length
        ):
            raise ValueError(
                "`images` must be of shape (height, width, channels), each of "
                f"1 to {length} whole patches of {p} x {q} pixels. Received: "
                f"an image of shape {shape}"
            )
    area = p * q * (shapes[0][-1] if shapes else 0)
    patches = np.zeros((len(images), length, area), "float32")
    coordinates = np.zeros((len(images), length, 2), "int32")
    valid = np.arange(length) < np.array(counts, int)[:, None]
    for i, (image, count) in enumerate(zip(images, counts, strict=True)):
        height, width, channels = image.shape
        x = np.reshape(image, (height // p, p, width // q, q, channels))
        patches[i, :count] = x.swapaxes(1, 2).reshape(count, -1)
        places = np.indices((height // p, width // q))
        coordinates[i, :count] = places.reshape(2, -1).T
    return [patches, coordinates, valid]
