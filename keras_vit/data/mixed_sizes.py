"""Images at their aspect: their patches, in batches of several sizes."""

import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit import _checks
from keras_vit._types import Array
from keras_vit._types import Tensor
from keras_vit.data._decode import decode
from keras_vit.data._decode import sample_crop_window
from keras_vit.data._decode import tf

# How an image is cropped for training, by the protocol of `ImageDataset`; the
# whole image is taken for evaluation.
_WHOLE, _RANDOM = ("simple", "whole"), ("vit_jax", "big_vision", "pretrain")


@dataclasses.dataclass(frozen=True)
class TokenBudget:
    """Images that keep their aspect, resized to at most a number of patches.

    Pass one as `image_size` to the methods of `ImageDataset`, whose batches are
    then for a model of `keras_vit.mixed_sizes`: the images of a batch are
    `(patches, coordinates, valid)`, padded to `max_tokens` patches.

    An image is resized, with antialiasing, to the largest size of whole patches
    at about its aspect that has at most `max_tokens` of them, as NaFlex does in
    "SigLIP 2", Section 2.4.2 (https://arxiv.org/abs/2502.14786); small images
    are enlarged. For training, the protocols "simple" and "whole" take the
    whole image, and "vit_jax", "big_vision" and "pretrain" a random crop of 5%
    to 100% of its area, whose aspect is kept. For evaluation, all of these take
    the whole image.

    Attributes:
        max_tokens: Integer. Number of patches of an image, at most.
        patch_size: Integer or `(rows, columns)`, in pixels. That of the model.

    Raises:
        ValueError: if an argument is no positive integer.

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
        _checks.positive_int("max_tokens", self.max_tokens)
        size = _checks.positive_pair("patch_size", self.patch_size)
        object.__setattr__(self, "patch_size", size)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the size to which an image is resized, in pixels.

        Args:
            height: Integer. Height of the image.
            width: Integer. Width of the image.

        Returns:
            `(height, width)`, multiples of those of a patch.
        """
        # The bisection of transformers and timm, whose last digits decide.
        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            scale = (low + high) / 2
            if math.prod(self._grid(height, width, scale)) <= self.max_tokens:
                low = scale
            else:
                high = scale
        rows, columns = self._grid(height, width, low)
        return rows * self.patch_size[0], columns * self.patch_size[1]

    def _grid(self, height: int, width: int, scale: float) -> tuple[int, ...]:
        return tuple(
            max(1, math.ceil(side * scale / patch))
            for side, patch in zip(
                (height, width), self.patch_size, strict=True
            )
        )

    def check(self, protocol: str) -> None:
        """Raises a `ValueError` for a protocol that makes images of one
        size."""
        if protocol not in (*_WHOLE, *_RANDOM):
            known = ", ".join((*_WHOLE, *_RANDOM))
            raise ValueError(
                "The --protocol of images that keep their aspect must be one "
                f"of {known}. Received: {protocol}"
            )

    def cutter(self, protocol: str, training: bool) -> Callable[..., Tensor]:
        """Returns the function that decodes, crops and resizes an image, as
        those of `PROTOCOLS`."""
        return functools.partial(
            self._cut, random=training and protocol in _RANDOM
        )

    def _cut(
        self,
        encoded: Tensor,
        seed: Tensor,
        size: Any,
        channels: int,
        *,
        random: bool,
    ) -> Tensor:
        window = functools.partial(sample_crop_window, seed=seed)
        pixels = decode(encoded, channels, window if random else None)

        def size_of(shape: Array) -> Array:
            return np.array(self.image_size(int(shape[0]), int(shape[1])), "i4")

        size = tf.numpy_function(size_of, [tf.shape(pixels)], tf.int32)
        size = tf.ensure_shape(size, (2,))
        return tf.image.resize(pixels, size, antialias=True)

    def pack(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the patches, the coordinates and the validity of one image,
        as `pack_images`, in a function that `tf.data` maps."""
        p, q = self.patch_size
        channels, length = pixels.shape[-1], self.max_tokens
        rows, columns = tf.unstack(tf.shape(pixels)[:2] // (p, q))
        x = tf.reshape(pixels, (rows, p, columns, q, channels))
        x = tf.transpose(x, (0, 2, 1, 3, 4))
        x = tf.reshape(x, (rows * columns, p * q * channels))
        x = tf.pad(x, ((0, length - rows * columns), (0, 0)))
        patches = tf.ensure_shape(x, (length, p * q * channels))
        index = tf.range(length)
        valid = index < rows * columns
        places = tf.stack([index // columns, index % columns], axis=-1)
        return patches, tf.where(valid[:, None], places, 0), valid


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
    >>> patches, coordinates, valid = keras_vit.data.pack_images(photos, 16)
    >>> patches.shape
    (2, 140, 768)
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
