"""Images that keep their aspect ratio: their patches, in batches of several sizes."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.data.decoding import decode, sample_crop_window, tf
from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.utils import checks
from keras_vit.utils.types import Array, Tensor

# Protocols that take the whole image, and those that crop it for training.
WHOLE, CROPPED = ("simple", "whole"), ("vit_jax", "big_vision", "pretrain")


@dataclasses.dataclass(frozen=True)
class TokenBudget:
    """Images that keep their aspect ratio, resized to a maximum number of patches.

    Pass one as `image_size` to the methods of `ImageDataset`, whose batches are
    then for a model of `keras_vit.mixed_sizes`: the images of a batch are
    `(patches, coordinates, valid)`, padded to `max_tokens` patches.

    An image is resized, with antialiasing, to the largest size that consists of at most
    `max_tokens` whole patches and has about its aspect ratio, as in NaFlex
    (https://arxiv.org/abs/2502.14786, Section 2.4.2); small images are enlarged. The
    whole image is used, except in training with the protocols "vit_jax", "big_vision"
    and "pretrain", which take a random crop of 5% to 100% of its area.

    Attributes:
        max_tokens: Integer. Maximum number of patches of an image.
        patch_size: Integer or `(rows, columns)`, in pixels, as in the model.

    Raises:
        ValueError: if an argument is not a positive integer.

    Example:

    >>> budget = keras_vit.data.TokenBudget(256, patch_size=14)
    >>> budget.image_size(480, 640)
    (196, 252)
    >>> batches = keras_vit.data.load_dataset("photos").train(
    ...     image_size=budget, batch_size=32)
    """

    max_tokens: int
    patch_size: Any  # an integer or a pair, which it becomes

    def __post_init__(self) -> None:
        checks.positive_int("max_tokens", self.max_tokens)
        size = checks.positive_pair("patch_size", self.patch_size)
        object.__setattr__(self, "patch_size", size)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the size to which an image is resized: `(height, width)` in
        pixels, multiples of those of a patch.

        Args:
            height, width: Integers. Size of the image, in pixels.
        """
        p, q = self.patch_size

        def grid(scale: float) -> tuple[int, int]:
            rows = max(1, math.ceil(height * scale / p))
            return rows, max(1, math.ceil(width * scale / q))

        # The bisection of transformers and timm, whose last digits decide.
        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            scale = (low + high) / 2
            if math.prod(grid(scale)) <= self.max_tokens:
                low = scale
            else:
                high = scale
        rows, columns = grid(low)
        return rows * p, columns * q


@step
def fit(
    example: Example, seed: Seed, budget: TokenBudget, crop: bool = False
) -> Example:
    """An image, or a random crop of 5% to 100% of its area, resized to as many
    patches as a `TokenBudget` has."""

    def size_of(height: Any, width: Any) -> Array:
        return np.array(budget.image_size(height, width), "int32")

    channels = example["channels"]
    window = functools.partial(sample_crop_window, seed=seed) if crop else None
    pixels = decode(example["image"], channels, window)
    sides = tf.unstack(tf.shape(pixels)[:2])
    size = tf.ensure_shape(tf.numpy_function(size_of, sides, tf.int32), (2,))
    pixels = tf.image.resize(pixels, size, antialias=True)
    return example | {"image": tf.ensure_shape(pixels, (None, None, channels))}


@step
def pack_patches(example: Example, seed: Seed, budget: TokenBudget) -> Example:
    """The patches of an image, as a model of `keras_vit.mixed_sizes` takes them."""
    image = pack(tf, example["image"], budget.patch_size, budget.max_tokens)
    return example | {"image": image}


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
        length: Integer. Number of patches to pad each image to; None for the number of
            patches of the largest image. JAX compiles a model for each length.

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
    >>> patches, coordinates, valid = keras_vit.data.pack_images(photos, 16)
    >>> patches.shape
    (2, 140, 768)
    """
    p, q = checks.positive_pair("patch_size", patch_size)
    shapes = [np.shape(image) for image in images]
    counts = [math.prod(shape[:2]) // (p * q) for shape in shapes]
    length = max(counts) if length is None else length
    for shape, count in zip(shapes, counts, strict=True):
        is_whole = len(shape) == 3 and not (shape[0] % p or shape[1] % q)
        if not is_whole or not 0 < count <= length:
            raise ValueError(
                "`images` must be of shape (height, width, channels), each of "
                f"1 to {length} whole patches of {p} x {q} pixels. Received: "
                f"an image of shape {shape}"
            )
    pixels = (np.asarray(image, "float32") for image in images)
    packed = [pack(np, x, (p, q), length) for x in pixels]
    return [np.stack(arrays) for arrays in zip(*packed, strict=True)]


def pack(
    xp: Any, pixels: Tensor, patch_size: tuple[int, int], length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the result of `pack_images` for one image; `xp` is `numpy`, or
    `tensorflow` in a function that `tf.data` maps."""
    p, q = patch_size
    rows, columns = xp.shape(pixels)[0] // p, xp.shape(pixels)[1] // q
    x = xp.reshape(pixels, (rows, p, columns, q, pixels.shape[-1]))
    x = xp.transpose(x, (0, 2, 1, 3, 4))
    area, count = p * q * pixels.shape[-1], rows * columns
    x = xp.pad(xp.reshape(x, (count, area)), ((0, length - count), (0, 0)))
    index = np.arange(length, dtype="int32")
    valid = index < count
    places = xp.stack([index // columns, index % columns], axis=-1)
    places = xp.where(valid[:, None], places, 0)
    return xp.reshape(x, (length, area)), places, valid
