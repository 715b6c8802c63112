"""Steps of images in memory, in NumPy, where TensorFlow is not installed."""

import functools

import numpy as np

from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.layers.resampling import resampling_matrix
from keras_vit.utils import checks
from keras_vit.utils.types import Array


@functools.lru_cache(256)
def _matrix(old: int, new: int) -> Array:
    return np.asarray(resampling_matrix(old, new, "bilinear_antialias"), "float32")


@step
def resize_array(
    example: Example,
    seed: Seed,
    size: int | tuple[int, int],
    *,
    translate: bool = False,
) -> Example:
    """The whole image, without keeping its aspect, resized bilinearly with
    antialiasing; with `translate` moved at random by up to an eighth, with reflected
    edges."""
    image = np.asarray(example["image"], "float32")
    height, width = checks.positive_pair("image_size", size)
    rows, columns, channels = image.shape
    if (rows, columns) != (height, width):
        image = _matrix(rows, height) @ image.reshape(rows, -1)
        image = _matrix(columns, width) @ image.reshape(height, columns, channels)
    if translate:
        down, right = height // 8, width // 8
        edges = ((down, down), (right, right), (0, 0))
        top, left = seed.integers((2 * down + 1, 2 * right + 1))
        image = np.pad(image, edges, mode="reflect")
        image = image[top : top + height, left : left + width]
    return example | {"image": image}
