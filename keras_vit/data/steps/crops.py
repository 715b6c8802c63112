"""The crops and sizes of images in published code.

Each step here decodes the image and returns float pixels in [0, 255] of shape
`(height, width, channels)`.

The published code makes squares. For other rectangles each side of an
intermediate size is scaled like the side of a square, and an image that is then cropped
is resized so that it just covers that intermediate size.

big_vision casts back to uint8 after each resize (`pp/ops_image.py`), which
drops the fraction; vit_jax and BiT do not. Functions that both use take
`integers`, whether to do so.
"""

import functools
import pathlib
from typing import Any, TypeAlias

import numpy as np

from keras_vit.data.decoding import (
    decode,
    read_pixels,
    sample_crop_window,
    sample_resized_crop_window,
    tf,
)
from keras_vit.data.steps.base import Example, Seed, check_alone, step
from keras_vit.utils import checks
from keras_vit.utils.images import to_pixels
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, Tensor

# An integer, the height and width, or both.
Size: TypeAlias = int | tuple[int, int]


def _size(size: Size) -> tuple[int, int]:
    return checks.positive_pair("image_size", size)


def _decoded(example: Example, window: Any = None) -> Tensor:
    check_alone(example)
    return decode(example["image"], example["channels"], window)


def _cropped(example: Example, pixels: Tensor, size: Size) -> Example:
    shape = (*_size(size), example["channels"])
    return example | {"image": tf.ensure_shape(tf.cast(pixels, tf.float32), shape)}


def as_integers(pixels: Tensor) -> Tensor:
    """Returns float pixels after a cast to uint8, as floats."""
    return tf.floor(tf.clip_by_value(pixels, 0, 255))


@step
def inception_crop(
    example: Example, seed: Seed, size: Size, *, integers: bool = False
) -> Example:
    """Takes a random crop of 5% to 100% of the area, resized without antialiasing."""
    window = functools.partial(sample_crop_window, seed=seed)
    pixels = tf.image.resize(_decoded(example, window), _size(size))
    return _cropped(example, as_integers(pixels) if integers else pixels, size)


@step
def resize_and_crop(
    example: Example,
    seed: Seed,
    size: Size,
    *,
    ratio: float,
    shorter_side: bool = False,
    random: bool = False,
) -> Example:
    """Resizes to `ratio` times the size, either to a square or by the shorter side, and
    crops at random or at the center."""
    height, width = _size(size)
    larger = round(height * ratio), round(width * ratio)
    pixels = _decoded(example)
    if shorter_side:
        pixels = resize_shorter_side(pixels, larger)
    else:
        pixels = tf.image.resize(pixels, larger)
    if random:
        shape = (height, width, example["channels"])
        pixels = tf.image.stateless_random_crop(pixels, shape, seed)
        return _cropped(example, pixels, size)
    top, left = tf.unstack((tf.shape(pixels)[:2] - (height, width)) // 2)
    # big_vision crops integers.
    pixels = as_integers(pixels)[top : top + height, left : left + width]
    return _cropped(example, pixels, size)


def resize_shorter_side(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Resizes the smaller side to `size` as big_vision's `resize_small` does.

    It resizes by area, keeps the aspect ratio and returns integers in [0, 255]. An
    image covers a `size` of `(height, width)`, and one of its sides has this length.
    """
    sides = tf.cast(tf.shape(pixels)[:2], tf.float32)
    sides = tf.round(sides * tf.reduce_max(size / sides))
    sides = tf.cast(sides, tf.int32)
    return as_integers(tf.image.resize(pixels, sides, method="area"))


@functools.lru_cache(256)
def _matrix(old: int, new: int, antialias: bool) -> tuple[Array, Array]:
    """Returns the matrix that resamples an axis bilinearly, and what of the axis it
    uses. It is made as TensorFlow makes it, with the rounding of float32."""
    rows, taps = np.arange(new), np.arange(old, dtype="float32")
    centers = (rows + np.float32(0.5)).astype("float32")
    if antialias:
        step = 1 / (np.float32(new) / np.float32(old))
        distance = taps + np.float32(0.5) - (centers * step)[:, None]
        matrix = np.maximum(1 - np.abs(distance * (1 / np.maximum(step, 1))), 0)
        matrix /= matrix.sum(1, keepdims=True)
    else:
        at = centers * (np.float32(old) / np.float32(new)) - np.float32(0.5)
        low, part = np.floor(at).astype(int), at - np.floor(at)
        matrix = np.zeros((new, old), "float32")
        matrix[rows, np.maximum(low, 0)] = 1 - part
        matrix[rows, np.minimum(low + 1, old - 1)] += part
    used = np.flatnonzero(matrix.any(0))
    return matrix[:, used].astype("float32"), used


def _resized(example: Example, size: tuple[int, int], antialias: bool) -> Array:
    """Returns an array, or the pixels of a file, after what `tf.image.resize` does,
    in NumPy."""
    check_alone(example)
    image = example["image"]
    if isinstance(image, pathlib.Path):
        image = read_pixels(image, example["channels"])
    rows, columns, channels = image.shape
    vertical, used = _matrix(rows, size[0], antialias)
    # Without antialiasing, most rows of a photograph are not used.
    image = image[used].astype("float32").reshape(-1, columns * channels)
    image = (vertical @ image).reshape(-1, columns, channels)
    horizontal, used = _matrix(columns, size[1], antialias)
    return horizontal @ image[:, used]


@step
def resize(
    example: Example, seed: Seed, size: Size, *, antialias: bool = False
) -> Example:
    """Resizes the whole image, without keeping its aspect ratio."""
    if isinstance(example["image"], np.ndarray | pathlib.Path):
        return example | {"image": _resized(example, _size(size), antialias)}
    pixels = tf.image.resize(_decoded(example), _size(size), antialias=antialias)
    return _cropped(example, pixels, size)


@step
def random_translation(example: Example, seed: Seed, size: Size) -> Example:
    """Translates the whole image by up to an eighth, with reflected edges."""
    height, width = _size(size)
    if isinstance(example["image"], np.ndarray):
        edges = (2 * [height // 8], 2 * [width // 8], (0, 0))
        image = _resized(example, (height, width), True)
        top, left = seed.integers(np.array(edges[:2])[:, 0] * 2 + 1)
        image = np.pad(image, edges, mode="reflect")
        return example | {"image": image[top : top + height, left : left + width]}
    pixels = tf.image.resize(_decoded(example), (height, width), antialias=True)
    padding = (2 * [height // 8], 2 * [width // 8], (0, 0))
    pixels = tf.pad(pixels, padding, mode="REFLECT")
    shape = (height, width, example["channels"])
    pixels = tf.image.stateless_random_crop(pixels, shape, seed)
    return _cropped(example, pixels, size)


@step
def random_resized_crop(
    example: Example,
    seed: Seed,
    size: Size,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    method: str = "bicubic",
) -> Example:
    """Applies torchvision's `RandomResizedCrop` of a Pillow image."""
    window = functools.partial(sample_resized_crop_window, seed=seed, scale=scale)
    pixels = resize_like_pillow(_decoded(example, window), _size(size), method)
    return _cropped(example, pixels, size)


@step
def bicubic_center_crop(
    example: Example,
    seed: Seed,
    size: Size,
    *,
    ratio_above_224: float = 256 / 224,
    crop_pct: float | None = None,
) -> Example:
    """Applies torchvision's bicubic `Resize` of the smaller side and `CenterCrop`.

    Up to 224 pixels, the smaller side is resized to 256 / 224 times the size of the
    crop; above, to `ratio_above_224` times. With timm's `crop_pct`, it is the size of
    the crop divided by it.
    """
    height, width = _size(size)
    small = [
        side * 256 // 224 if side <= 224 else int(side * ratio_above_224)
        for side in (height, width)
    ]
    if crop_pct:
        small = [int(side / crop_pct) for side in (height, width)]
    if isinstance(example["image"], pathlib.Path):
        check_alone(example)
        pixels = read_pixels(example["image"], example["channels"])
        rows, columns = pixels.shape[:2]
        i = 0 if small[0] * columns >= small[1] * rows else 1
        sides = [small[i] * side // (rows, columns)[i] for side in (rows, columns)]
        pillow = require("PIL.Image")
        image = pillow.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        image = image.resize(sides[::-1], pillow.Resampling.BICUBIC)
        top, left = round((sides[0] - height) / 2), round((sides[1] - width) / 2)
        image = image.crop((left, top, left + width, top + height))
        return example | {"image": np.float32(to_pixels(image, example["channels"]))}
    pixels = _decoded(example)
    sides = tf.shape(pixels)[:2]
    # The image covers `small`, and one of its sides has this length.
    i = tf.where(small[0] * sides[1] >= small[1] * sides[0], 0, 1)
    sides = tf.constant(small)[i] * sides // sides[i]
    larger = resize_like_pillow(pixels, sides, "bicubic")
    # `tf.round` and Python's `round` take halves to the even integer.
    start = tf.round(tf.cast(sides - (height, width), tf.float32) / 2)
    top, left = tf.unstack(tf.cast(start, tf.int32))
    pixels = larger[top : top + height, left : left + width]
    return _cropped(example, pixels, size)


def resize_like_pillow(pixels: Tensor, sides: Any, method: str) -> Tensor:
    """Resizes with antialiasing, within one gray level of Pillow, which
    rounds to uint8 after the columns and after the rows."""
    for sides_of_pass in ((tf.shape(pixels)[0], sides[1]), sides):
        pixels = tf.image.resize(pixels, sides_of_pass, method, antialias=True)
        pixels = tf.round(tf.clip_by_value(pixels, 0, 255))
    return pixels
