"""RandAugment as "How to train your ViT?" used it, and AugReg's levels.

The definition is that of the TPU code of RandAugment
(https://arxiv.org/abs/1909.13719), which big_vision took over: 16 operations
on uint8 images, each with a magnitude of 0 to 10 or more, random signs, and
gray for pixels from outside the image. keras-cv has only three of these operations with
equal results: AutoContrast, Posterization and Solarization, each a line of code.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.data.decoding import tf
from keras_vit.utils import checks
from keras_vit.utils.types import Tensor

# Level: number of operations per image, their magnitude, and the p of mixup's
# Beta(p, p) at this level. ("How to train your ViT?", big_vision/configs)
_PUBLISHED = {
    "none": (0, 0, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}
SCALED = "-scaled"
# The published code cuts out and translates by a fixed number of pixels,
# whatever the size of the image. That suits the 224 pixels of AugReg, but 100
# pixels are more than the whole of a CIFAR image. The "-scaled" levels are not
# published: they scale both numbers with the size of the image.
AUGREG = _PUBLISHED | {
    f"{name}{SCALED}": numbers for name, numbers in _PUBLISHED.items() if numbers[1] > 0
}
GRAY = 128
PUBLISHED_SIZE = 224
CUTOUT, TRANSLATE = 40, 100


def rand_augment(
    level: str, size: int | tuple[int, int]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function of an image and a seed that augments the image.

    Args:
        level: Key of `AUGREG`.
        size: Integer, the height and width of the images; or
            `(height, width)`.

    Returns:
        A function of a uint8 tensor of shape `(height, width, 3)` and a seed,
        an integer tensor of shape `(2,)`; it returns a tensor like the first.
        Only the operations that are sampled are computed.
    """
    size = checks.positive_pair("image_size", size)
    count, magnitude, _ = AUGREG[level]
    known = []
    if count:
        scaled = level.endswith(SCALED)
        known = list(operations(magnitude, size, scaled).values())
    split = tf.random.experimental.stateless_split

    def apply_random_op(image: Tensor, seed: Tensor) -> Tensor:
        which, seed = tf.unstack(split(seed, 2))
        index = tf.random.stateless_uniform((), which, 0, len(known), tf.int32)
        branches = [lambda f=f: f(image, seed) for f in known]
        image = tf.switch_case(index, branches)
        return tf.ensure_shape(image, (*size, 3))

    def augment(image: Tensor, seed: Tensor) -> Tensor:
        if count:
            for one in tf.unstack(split(seed, count)):
                image = apply_random_op(image, one)
        return image

    return augment


def operations(
    magnitude: float, size: int | tuple[int, int], scaled: bool = False
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Returns the 16 operations by name, as functions of image and seed.

    The paper's range of the magnitude is 0 to 10, but AugReg uses more. With `scaled`,
    cutout and translation scale with `size`; the published numbers of pixels are for a
    size of 224.
    """
    size = checks.positive_pair("image_size", size)
    level = magnitude / 10
    # Of vertical and of horizontal distances.
    scale = (1, 1)
    if scaled:
        scale = size[0] / PUBLISHED_SIZE, size[1] / PUBLISHED_SIZE
    half_sides = [int(level * CUTOUT * factor) for factor in scale]
    enhance = level * 1.8 + 0.1
    most = min(int(level * 110), 255)
    # At least one bit: 0 would make images black, but TensorFlow's bit shift,
    # which the published code uses, keeps one.
    bits = min(max(1, int(level * 4)), 8)
    # The published code compares uint8 pixels with this integer, which
    # TensorFlow converts to uint8: thresholds of 256 and 512 (magnitudes 10
    # and 20) become 0, which inverts every pixel, and 384 becomes 128.
    threshold = int(level * 256) % 256

    def solarize_add(x: Tensor, seed: Tensor) -> Tensor:
        # In uint8, whose sums wrap around at 256. A product is many times
        # faster than `tf.where`.
        dark = tf.cast(x < GRAY, tf.uint8)
        return x + dark * (tf.minimum(x, 255 - most) + most - x)

    return {
        "AutoContrast": lambda x, seed: _autocontrast(x),
        "Posterize": lambda x, seed: x & (256 - 2 ** (8 - bits)),
        "Solarize": lambda x, seed: tf.where(x < threshold, x, 255 - x),
        "Equalize": lambda x, seed: _equalize(x),
        "Invert": lambda x, seed: 255 - x,
        "SolarizeAdd": solarize_add,
        "Color": lambda x, seed: _blend(tf.image.rgb_to_grayscale(x), x, enhance),
        # The published code computes the number of pixels divided by 256
        # instead of the image's mean gray. Published models are trained with
        # it.
        "Contrast": lambda x, seed: _blend(
            min(size[0] * size[1] // 256, 255), x, enhance
        ),
        "Brightness": lambda x, seed: _blend(0, x, enhance),
        "Sharpness": lambda x, seed: _blend(_blur(x), x, enhance),
        **{
            name: _affine_op(functools.partial(matrix, level, scale), size)
            for name, matrix in _MATRICES.items()
        },
        "Cutout": lambda x, seed: _cutout(x, seed, half_sides, size),
    }


def _rotation(
    level: float, scale: tuple[float, float], sign: int, size: tuple[int, int]
) -> tuple[tuple[float, float, float], ...]:
    """Returns the matrix of a rotation about the center of the image,
    `center_x` and `center_y`."""
    angle = sign * math.radians(level * 30)
    cos, sin = math.cos(angle), math.sin(angle)
    center_y, center_x = ((side - 1) / 2 for side in size)
    # center - rotated center. The last term is 0 for squares, for which the
    # others are rounded as in the published code.
    last = sin * (center_y - center_x)
    right = center_x * (1 - cos + sin) + last
    down = center_y * (1 - sin - cos) + last
    return (cos, -sin, right), (sin, cos, down)


# The new pixel at (x, y) is the old pixel at `matrix @ (x, y, 1)`.
_MATRICES = {
    "Rotate": _rotation,
    "ShearX": lambda level, scale, sign, size: (
        (1, sign * level * 0.3, 0),
        (0, 1, 0),
    ),
    "ShearY": lambda level, scale, sign, size: (
        (1, 0, 0),
        (sign * level * 0.3, 1, 0),
    ),
    "TranslateX": lambda level, scale, sign, size: (
        (1, 0, sign * level * TRANSLATE * scale[1]),
        (0, 1, 0),
    ),
    "TranslateY": lambda level, scale, sign, size: (
        (1, 0, 0),
        (0, 1, sign * level * TRANSLATE * scale[0]),
    ),
}


def _affine_op(
    matrix: Callable[..., Any], size: tuple[int, int]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns an operation that takes each pixel from the nearest source pixel.

    Pixels from outside the image are gray. There are two directions, so the
    indices of the source pixels are computed in advance, which takes a third of
    the time of `ImageProjectiveTransform`.
    """
    height, width = size
    y, x = np.indices(size)
    sources = []
    for sign in (1, -1):
        at = np.array(matrix(sign, size)) @ [
            x.ravel(),
            y.ravel(),
            [1] * x.size,
        ]
        at = np.floor(np.abs(at) + 0.5) * np.sign(at)  # halves away from 0
        inside = ((at >= 0) & (at < [[width], [height]])).all(0)
        # A gray pixel is appended after the last one.
        sources.append(np.where(inside, at[1] * width + at[0], height * width))
    sources = tf.constant(np.array(sources), tf.int32)

    def move(image: Tensor, seed: Tensor) -> Tensor:
        sign = tf.random.stateless_uniform((), seed, 0, 2, tf.int32)
        gray = tf.fill((1, 3), tf.constant(GRAY, tf.uint8))
        pixels = tf.concat([tf.reshape(image, (-1, 3)), gray], 0)
        return tf.reshape(tf.gather(pixels, sources[sign]), (*size, 3))

    return move


def _cutout(
    image: Tensor,
    seed: Tensor,
    half_sides: Sequence[int],
    size: tuple[int, int],
) -> Tensor:
    """Grays a rectangle of twice `half_sides`, cut off at the edges."""
    # Which positions are near a random one, of rows and of columns.
    near = []
    for i, (side, half) in enumerate(zip(size, half_sides, strict=True)):
        center = tf.random.stateless_uniform((2,), seed, 0, side, tf.int32)[i]
        places = tf.range(side)
        near.append((places >= center - half) & (places < center + half))
    square = (near[0][:, None] & near[1])[..., None]
    return tf.where(square, tf.constant(GRAY, tf.uint8), image)


def _blend(degenerate: Tensor | float, image: Tensor, factor: float) -> Tensor:
    """Blends: 0 returns `degenerate`, 1 the image, more extrapolates."""
    degenerate = tf.cast(degenerate, tf.float32)
    image = tf.cast(image, tf.float32)
    return _uint8(degenerate + factor * (image - degenerate))


def _uint8(x: Tensor) -> Tensor:
    return tf.cast(tf.clip_by_value(x, 0, 255), tf.uint8)


def _blur(image: Tensor) -> Tensor:
    """Returns weighted means with the 8 neighbors; edges do not change."""
    x = tf.cast(image, tf.float32)
    rows = x[:-2] + x[1:-1] + x[2:]
    square = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    smooth = _uint8((square + 4 * x[1:-1, 1:-1]) / 13)
    middle = tf.concat([image[1:-1, :1], smooth, image[1:-1, -1:]], 1)
    return tf.concat([image[:1], middle, image[-1:]], 0)


def _autocontrast(image: Tensor) -> Tensor:
    low, high = (
        tf.cast(end(image, (0, 1)), tf.float32)
        for end in (tf.reduce_min, tf.reduce_max)
    )
    scale = 255.0 / (high - low)
    # A lookup table of the 256 values is faster than the pixels.
    values = tf.range(256, dtype=tf.float32)[:, None]
    table = values * scale - low * scale
    table = tf.where(high > low, table, values)
    return _apply_lut(_uint8(tf.transpose(table)), _lut_indices(image))


def _equalize(image: Tensor) -> Tensor:
    """Equalizes the histogram of each channel, as Pillow does."""
    values = _lut_indices(image)
    counts = tf.math.bincount(tf.reshape(values, [-1]), minlength=768, maxlength=768)
    counts = tf.reshape(counts, (3, 256))
    below = tf.cumsum(counts, axis=1, exclusive=True)
    highest = tf.reduce_max(image, (0, 1))
    last = tf.gather(counts, tf.cast(highest, tf.int32), batch_dims=1)
    step = (tf.reduce_sum(counts, 1) - last)[:, None] // 255
    table = (below + step // 2) // tf.maximum(step, 1)
    table = tf.where(step == 0, tf.range(256), tf.minimum(table, 255))
    return _apply_lut(tf.cast(table, tf.uint8), values)


def _lut_indices(image: Tensor) -> Tensor:
    """Returns the index of each value in a table of 256 for each channel."""
    return tf.cast(image, tf.int32) + [0, 256, 512]


def _apply_lut(table: Tensor, values: Tensor) -> Tensor:
    return tf.gather(tf.reshape(table, [-1]), values)
