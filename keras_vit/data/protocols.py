"""How the published code turns a picture into a square of pixels.

Each function here takes the final size and the number of channels and returns
a function of an encoded image and a seed (two integers, unused where nothing
is random), which gives float pixels in [0, 255] of shape `(size, size,
channels)`. Mirroring and scaling are the pipeline's (`_tf_batches.py`).
TensorFlow is imported when a function is made.

big_vision casts back to uint8 after each resize (`pp/ops_image.py`), which
drops the fraction; vit_jax and BiT do not. Functions that both use take
`integers`, whether to do so.
"""

import dataclasses
import functools
from collections.abc import Callable

from keras_vit.data._decode import decode
from keras_vit.data._decode import decode_random_area
from keras_vit.data._decode import random_resized_window
from keras_vit.data._decode import tensorflow

# Data sets of images smaller than this are treated like CIFAR: the rule is
# BiT-HyperRule's, 96 x 96.
SMALL = 96


def as_integers(pixels):
    """Returns what a cast to uint8 leaves of float pixels, as floats."""
    tf = tensorflow()
    return tf.floor(tf.clip_by_value(pixels, 0, 255))


def inception(size, channels, *, integers=False):
    """A random part of 5% to 100% of the area, resized without antialiasing."""
    tf = tensorflow()

    def train(encoded, seed):
        part = decode_random_area(encoded, channels, seed)
        pixels = tf.image.resize(part, (size, size))
        return as_integers(pixels) if integers else pixels

    return train


def resize_and_crop(size, channels, *, ratio):
    """Resized to a larger square, of which a random part is taken."""
    tf = tensorflow()
    larger = round(size * ratio)

    def train(encoded, seed):
        pixels = tf.image.resize(decode(encoded, channels), (larger, larger))
        return tf.image.stateless_random_crop(
            pixels, (size, size, channels), seed
        )

    return train


def small_side_and_crop(size, channels, *, ratio):
    """The same, where only the smaller side gets that size."""
    tf = tensorflow()

    def train(encoded, seed):
        pixels = resize_small(decode(encoded, channels), round(size * ratio))
        return tf.image.stateless_random_crop(
            pixels, (size, size, channels), seed
        )

    return train


def small_side_and_centre(size, channels, *, ratio):
    """The middle of what `small_side_and_crop` takes a random part of."""

    def test(encoded, seed=None):
        pixels = resize_small(decode(encoded, channels), round(size * ratio))
        return centre(pixels, size)

    return test


def resize_and_centre(size, channels, *, ratio):
    """The whole image in a larger square, of which the middle is taken."""
    tf = tensorflow()
    larger = round(size * ratio)

    def test(encoded, seed=None):
        pixels = tf.image.resize(decode(encoded, channels), (larger, larger))
        return centre(as_integers(pixels), size)

    return test


def centre(pixels, size):
    """Returns the middle of an image, `size` pixels high and wide."""
    shape = tensorflow().shape(pixels)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return pixels[top : top + size, left : left + size]


def resize_small(pixels, size):
    """Resizes the smaller side to `size` as big_vision's `resize_small` does.

    By area, keeping the aspect, to integers in [0, 255].
    """
    tf = tensorflow()
    sides = tf.cast(tf.shape(pixels)[:2], tf.float32)
    sides = tf.round(sides * (size / tf.reduce_min(sides)))
    sides = tf.cast(sides, tf.int32)
    return as_integers(tf.image.resize(pixels, sides, method="area"))


def resize(size, channels, *, antialias=False):
    """The whole image, whatever its aspect."""
    tf = tensorflow()

    def test(encoded, seed=None):
        pixels = decode(encoded, channels)
        return tf.image.resize(pixels, (size, size), antialias=antialias)

    return test


def shift(size, channels):
    """The whole image, moved by up to an eighth; its edges are mirrored."""
    tf = tensorflow()
    most = size // 8
    padding = ((most, most), (most, most), (0, 0))
    whole = resize(size, channels, antialias=True)

    def train(encoded, seed):
        pixels = tf.pad(whole(encoded), padding, mode="REFLECT")
        return tf.image.stateless_random_crop(
            pixels, (size, size, channels), seed
        )

    return train


def random_resized_crop(size, channels, *, scale, method):
    """torchvision's `RandomResizedCrop` of a Pillow image."""
    window = functools.partial(random_resized_window, scale=scale)

    def train(encoded, seed):
        part = decode_random_area(encoded, channels, seed, window)
        return resize_like_pillow(part, (size, size), method)

    return train


def bicubic_centre(size, channels, *, ratio_above_224=256 / 224):
    """torchvision's `Resize` of the smaller side, bicubic, and `CenterCrop`.

    The smaller side gets 256 pixels for 224; above 224 pixels,
    `ratio_above_224` times the size.
    """
    tf = tensorflow()
    small = size * 256 // 224 if size <= 224 else int(size * ratio_above_224)

    def test(encoded, seed=None):
        pixels = decode(encoded, channels)
        sides = tf.shape(pixels)[:2]
        sides = small * sides // tf.reduce_min(sides)
        larger = resize_like_pillow(pixels, sides, "bicubic")
        # `tf.round` and Python's `round` take halves to the even integer.
        at = tf.round(tf.cast(sides - size, tf.float32) / 2)
        top, left = tf.unstack(tf.cast(at, tf.int32))
        return larger[top : top + size, left : left + size]

    return test


def resize_like_pillow(pixels, sides, method):
    """Resizes with antialiasing, within one grey level of Pillow, which
    rounds to uint8 after the columns and after the rows."""
    tf = tensorflow()
    for sides_of_pass in ((tf.shape(pixels)[0], sides[1]), sides):
        pixels = tf.image.resize(pixels, sides_of_pass, method, antialias=True)
        pixels = tf.round(tf.clip_by_value(pixels, 0, 255))
    return pixels


@dataclasses.dataclass(frozen=True)
class Protocol:
    train: Callable
    test: Callable
    train_small: Callable | None = None  # where it differs for small images

    def for_training(self, image_size):
        """What to train with, by the data set's image size (None: differs)."""
        small = image_size is not None and image_size < SMALL
        return self.train_small if small and self.train_small else self.train


_part = functools.partial

PROTOCOLS = {
    # What recipes did before they could choose: gentle, for small sets.
    "simple": Protocol(train=shift, test=_part(resize, antialias=True)),
    # Where a label would not outlive cropping: VTAB's structured tasks.
    "whole": Protocol(train=resize, test=resize),
    # vit_jax/input_pipeline.py, the released code of the paper
    "vit_jax": Protocol(train=inception, test=resize),
    # big_vision/configs/transfer.py: 448 and 384 pixels
    "big_vision": Protocol(
        train=_part(inception, integers=True),
        train_small=_part(small_side_and_crop, ratio=448 / 384),
        test=_part(small_side_and_centre, ratio=448 / 384),
    ),
    # big_vision/configs/vit_i21k.py, vit_i1k.py, bit_i1k.py: 256 and 224 pixels
    "pretrain": Protocol(
        train=_part(inception, integers=True),
        test=_part(small_side_and_centre, ratio=256 / 224),
    ),
    # big_vision/configs/common_fewshot.py: 256 and 224 pixels, aspect not kept
    "few-shot": Protocol(
        train=_part(resize_and_centre, ratio=256 / 224),
        test=_part(resize_and_centre, ratio=256 / 224),
    ),
    # BiT-HyperRule, "Big Transfer" Section 3.3: (512, 480) or (160, 128)
    "bit-hyperrule": Protocol(
        train=_part(resize_and_crop, ratio=512 / 480),
        train_small=_part(resize_and_crop, ratio=160 / 128),
        test=resize,
    ),
    # facebookresearch/mae, main_pretrain.py, and its util/datasets.py
    "mae": Protocol(
        train=_part(random_resized_crop, scale=(0.2, 1.0), method="bicubic"),
        test=_part(bicubic_centre, ratio_above_224=1.0),
    ),
    # microsoft/SimMIM, data/data_simmim.py, and its data_finetune.py
    "simmim": Protocol(
        train=_part(random_resized_crop, scale=(0.67, 1.0), method="bilinear"),
        test=bicubic_centre,
    ),
}
