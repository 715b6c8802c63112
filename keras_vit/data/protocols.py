"""How the published code crops and resizes an image.

Each function here takes an encoded image, a seed (two integers, unused where
nothing is random), the final size, `(height, width)`, and the number of
channels. It returns float pixels in [0, 255] of shape `(height, width,
channels)`. The pipeline flips and normalizes them afterwards.

The published code makes squares. For other rectangles each side of an
intermediate size is scaled like the side of a square, and an image of which a
part is taken is resized so that it just covers that intermediate size.

big_vision casts back to uint8 after each resize (`pp/ops_image.py`), which
drops the fraction; vit_jax and BiT do not. Functions that both use take
`integers`, whether to do so.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from keras_vit.data._decode import (
    decode,
    sample_crop_window,
    sample_resized_crop_window,
    tf,
)
from keras_vit.utils import checks
from keras_vit.utils.types import Tensor

# Data sets of images smaller than this are treated like CIFAR. The limit of
# 96 x 96 pixels is that of BiT-HyperRule.
SMALL = 96


def height_and_width(
    size: int | tuple[int, ...] | list[int],
) -> tuple[int, int]:
    """Returns an image size, an integer or `(height, width)`, as a pair of
    positive integers; raises a `ValueError` for others."""
    return checks.positive_pair("image_size", size)


def size_text(image_size: int | tuple[int, ...] | list[int]) -> str:
    """Returns an image size as text, such as "64"
    or, if height and width differ, "64x48"."""
    height, width = height_and_width(image_size)
    return str(height) if height == width else f"{height}x{width}"


def parse_image_size(
    value: Any, name: str = "image_size"
) -> int | tuple[int, int] | None:
    """Returns an image size, such as 64, "64" or "64x48", as an
    integer or, if they differ, `(height, width)`; raises a `ValueError` if it
    is no size."""
    if value is None:
        return None
    sides = value if isinstance(value, tuple | list) else str(value).split("x")
    try:
        height, width = (
            2 * [int(n) for n in sides] if len(sides) == 1 else map(int, sides)
        )
    except ValueError:
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(
            f"{name} must be 1 or more, such as 64, or height x width, such as "
            f"64x48. Received: {value}"
        )
    return height if height == width else (height, width)


def as_integers(pixels: Tensor) -> Tensor:
    """Returns float pixels after a cast to uint8, as floats."""
    return tf.floor(tf.clip_by_value(pixels, 0, 255))


def inception_crop(
    encoded: Tensor,
    seed: Tensor,
    size: tuple[int, int],
    channels: int,
    *,
    integers: bool = False,
) -> Tensor:
    """A random crop of 5% to 100% of the area, resized without antialiasing."""
    window = functools.partial(sample_crop_window, seed=seed)
    pixels = tf.image.resize(decode(encoded, channels, window), size)
    return as_integers(pixels) if integers else pixels


def resize_and_crop(
    encoded: Tensor,
    seed: Tensor,
    size: tuple[int, int],
    channels: int,
    *,
    ratio: float,
    shorter_side: bool,
    random: bool,
) -> Tensor:
    """Resized to `ratio` times the size, either to a square or by its shorter
    side, and cropped at random or at the center."""
    larger = round(size[0] * ratio), round(size[1] * ratio)
    pixels = decode(encoded, channels)
    if shorter_side:
        pixels = resize_shorter_side(pixels, larger)
    else:
        pixels = tf.image.resize(pixels, larger)
    if random:
        shape = (*size, channels)
        return tf.image.stateless_random_crop(pixels, shape, seed)
    top, left = tf.unstack((tf.shape(pixels)[:2] - size) // 2)
    # big_vision crops integers.
    return as_integers(pixels)[top : top + size[0], left : left + size[1]]


def resize_shorter_side(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Resizes the smaller side to `size` as big_vision's `resize_small` does.

    By area, keeping the aspect, to integers in [0, 255]. An image covers a
    `size` of `(height, width)`, and one of its sides has this length.
    """
    sides = tf.cast(tf.shape(pixels)[:2], tf.float32)
    sides = tf.round(sides * tf.reduce_max(size / sides))
    sides = tf.cast(sides, tf.int32)
    return as_integers(tf.image.resize(pixels, sides, method="area"))


def resize(
    encoded: Tensor,
    seed: Tensor,
    size: tuple[int, int],
    channels: int,
    *,
    antialias: bool = False,
) -> Tensor:
    """The whole image, without keeping its aspect ratio."""
    return tf.image.resize(decode(encoded, channels), size, antialias=antialias)


def random_translation(
    encoded: Tensor, seed: Tensor, size: tuple[int, int], channels: int
) -> Tensor:
    """The whole image, translated by up to an eighth, with reflected edges."""
    padding = (*((side // 8, side // 8) for side in size), (0, 0))
    pixels = resize(encoded, seed, size, channels, antialias=True)
    pixels = tf.pad(pixels, padding, mode="REFLECT")
    return tf.image.stateless_random_crop(pixels, (*size, channels), seed)


def random_resized_crop(
    encoded: Tensor,
    seed: Tensor,
    size: tuple[int, int],
    channels: int,
    *,
    scale: tuple[float, float],
    method: str,
) -> Tensor:
    """torchvision's `RandomResizedCrop` of a Pillow image."""
    window = functools.partial(sample_resized_crop_window, seed=seed, scale=scale)
    return resize_like_pillow(decode(encoded, channels, window), size, method)


def bicubic_center_crop(
    encoded: Tensor,
    seed: Tensor,
    size: tuple[int, int],
    channels: int,
    *,
    ratio_above_224: float = 256 / 224,
) -> Tensor:
    """torchvision's `Resize` of the smaller side, bicubic, and `CenterCrop`.

    The smaller side gets 256 pixels for 224; above 224 pixels,
    `ratio_above_224` times the size.
    """
    height, width = size
    small = [
        side * 256 // 224 if side <= 224 else int(side * ratio_above_224)
        for side in size
    ]
    pixels = decode(encoded, channels)
    sides = tf.shape(pixels)[:2]
    # The image covers `small`, and one of its sides has this length.
    i = tf.where(small[0] * sides[1] >= small[1] * sides[0], 0, 1)
    sides = tf.constant(small)[i] * sides // sides[i]
    larger = resize_like_pillow(pixels, sides, "bicubic")
    # `tf.round` and Python's `round` take halves to the even integer.
    start = tf.round(tf.cast(sides - size, tf.float32) / 2)
    top, left = tf.unstack(tf.cast(start, tf.int32))
    return larger[top : top + height, left : left + width]


def resize_like_pillow(pixels: Tensor, sides: Any, method: str) -> Tensor:
    """Resizes with antialiasing, within one gray level of Pillow, which
    rounds to uint8 after the columns and after the rows."""
    for sides_of_pass in ((tf.shape(pixels)[0], sides[1]), sides):
        pixels = tf.image.resize(pixels, sides_of_pass, method, antialias=True)
        pixels = tf.round(tf.clip_by_value(pixels, 0, 255))
    return pixels


@dataclasses.dataclass(frozen=True)
class Protocol:
    train: Callable
    test: Callable
    train_small: Callable | None = None  # if it differs for small images

    def for_training(self, image_size: int | None) -> Callable[..., Tensor]:
        """Returns the function for training on a dataset of this image size,
        None if images differ."""
        small = image_size is not None and image_size < SMALL
        return self.train_small if small and self.train_small else self.train


_FEW_SHOT = functools.partial(
    resize_and_crop, ratio=256 / 224, shorter_side=False, random=False
)
PROTOCOLS = {
    # Not published. A weak augmentation, for small datasets.
    "simple": Protocol(
        train=random_translation, test=functools.partial(resize, antialias=True)
    ),
    # For labels that cropping would change: VTAB's structured tasks.
    "whole": Protocol(train=resize, test=resize),
    # vit_jax/input_pipeline.py, the released code of the paper
    "vit_jax": Protocol(train=inception_crop, test=resize),
    # big_vision/configs/transfer.py: 448 and 384 pixels
    "big_vision": Protocol(
        train=functools.partial(inception_crop, integers=True),
        train_small=functools.partial(
            resize_and_crop, ratio=448 / 384, shorter_side=True, random=True
        ),
        test=functools.partial(
            resize_and_crop, ratio=448 / 384, shorter_side=True, random=False
        ),
    ),
    # big_vision/configs/vit_i21k.py, vit_i1k.py, bit_i1k.py: 256 and 224 pixels
    "pretrain": Protocol(
        train=functools.partial(inception_crop, integers=True),
        test=functools.partial(
            resize_and_crop, ratio=256 / 224, shorter_side=True, random=False
        ),
    ),
    # big_vision/configs/common_fewshot.py: 256 and 224 pixels, aspect not kept
    "few-shot": Protocol(train=_FEW_SHOT, test=_FEW_SHOT),
    # BiT-HyperRule, "Big Transfer" Section 3.3: (512, 480) or (160, 128)
    "bit-hyperrule": Protocol(
        train=functools.partial(
            resize_and_crop, ratio=512 / 480, shorter_side=False, random=True
        ),
        train_small=functools.partial(
            resize_and_crop, ratio=160 / 128, shorter_side=False, random=True
        ),
        test=resize,
    ),
    # facebookresearch/mae, main_pretrain.py, and its util/datasets.py
    "mae": Protocol(
        train=functools.partial(
            random_resized_crop, scale=(0.2, 1.0), method="bicubic"
        ),
        test=functools.partial(bicubic_center_crop, ratio_above_224=1.0),
    ),
    # facebookresearch/mae, main_finetune.py: `create_transform` of timm
    "mae-finetune": Protocol(
        train=functools.partial(
            random_resized_crop, scale=(0.08, 1.0), method="bicubic"
        ),
        test=functools.partial(bicubic_center_crop, ratio_above_224=1.0),
    ),
    # microsoft/SimMIM, data/data_simmim.py, and its data_finetune.py
    "simmim": Protocol(
        train=functools.partial(
            random_resized_crop, scale=(0.67, 1.0), method="bilinear"
        ),
        test=bicubic_center_crop,
    ),
}
