"""A dataset of images with a class for each pixel, in NumPy."""

import concurrent.futures
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_vit.data.array_source import ArraySource
from keras_vit.data.dataset import ImageDataset, PipelineOptions
from keras_vit.data.labels import warn_similar_names
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array

_THREADS = min(8, os.cpu_count() or 1)


class Crop(NamedTuple):
    """How an image is scaled, padded, cut and flipped, in this order."""

    scaled: tuple[int, ...]  # height and width
    pad: tuple[tuple[int, int], ...]
    first: tuple[int, ...]  # row and column
    flip: bool


def masked_dataset(
    read: Callable[[str, int], tuple[Array, Array]],
    channels: int,
    ignore: int,
    **fields: Any,
) -> ImageDataset:
    """Returns the `ImageDataset` of images and masks that `read` returns, of
    "train" or "test" and an index: a uint8 image `(height, width, channels)`
    and an integer mask `(height, width)`."""

    def change(mask: Array, crop: Crop, size: tuple[int, int]) -> Array:
        return cut(resize_mask(mask, crop.scaled), crop, size, ignore)

    return cropped_dataset(read, change, channels, ignore=ignore, **fields)


def cropped_dataset(
    read: Callable[[str, int], tuple[Array, Array]],
    change: Callable[[Array, Crop, tuple[int, int]], Array],
    channels: int,
    **fields: Any,
) -> ImageDataset:
    """Returns the `ImageDataset` of images and labels that `read` returns,
    which are scaled, cropped and flipped randomly to train on.

    `change` returns the label of an image of some size, given that of the whole
    image and a `Crop`.
    """

    def batch(
        split: str,
        options: PipelineOptions,
        indices: Array,
        first: int = 0,
        rng: np.random.Generator | None = None,
    ) -> tuple[Array, Array]:
        size, rows = options.image_size, options.local_rows
        scale = 2.0 if options.scale is None else options.scale
        trains = rng is not None
        if trains:
            indices = indices[rows.start : rows.stop]

        def one(place: int, index: int) -> tuple[Array, Array]:
            image, label = read(split, index)
            crop = Crop(size, ((0, 0), (0, 0)), (0, 0), False)
            if trains:
                # An image is the same on any number of processes.
                key = (options.seed, 1, first + rows[place])
                crop = draw_crop(
                    image.shape[:2],
                    size,
                    np.random.default_rng(key),
                    scale,
                    options.flip,
                )
            image = cut(resize_image(image, crop.scaled), crop, size, 127)
            return image, change(label, crop, size)

        # A process may have no images in the last batch: one gives the shapes.
        count, some = len(indices), list(map(int, indices)) or [0]
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
            pairs = threads.map(one, range(len(some)), some)
            images, labels = map(np.stack, zip(*pairs, strict=True))
        images = preprocess_input(images[:count], options.mode)
        return np.asarray(images), labels[:count]

    warn_similar_names(fields["class_names"])
    return ImageDataset(
        channels=channels,
        source=ArraySource(
            example=read,
            batch=batch,
            refuses=(
                *("protocol", "augment", "mixup", "cutmix", "erase"),
                *("one_hot", "class_weights", "crops"),
            ),
        ),
        **fields,
    )


def draw_crop(
    shape: tuple[int, ...],
    size: tuple[int, int],
    rng: np.random.Generator,
    scale: float,
    flip: bool,
) -> Crop:
    """Draws how an image of some height and width becomes one of `size`.

    The short side of the image becomes that of the crop times a factor between
    `1 / scale` and `scale`, and is padded where it is smaller.
    """
    factor = np.exp(rng.uniform(-1, 1) * np.log(scale))
    factor *= min(size) / min(shape)
    scaled = tuple(max(1, round(n * factor)) for n in shape)
    missing = [max(0, n - old) for n, old in zip(size, scaled, strict=True)]
    first = tuple(
        int(rng.integers(max(old, n) - n + 1))
        for n, old in zip(size, scaled, strict=True)
    )
    return Crop(
        scaled,
        tuple((n // 2, n - n // 2) for n in missing),
        first,
        bool(flip and rng.random() < 0.5),
    )


def cut(image: Array, crop: Crop, size: tuple[int, int], fill: int) -> Array:
    """Pads, cuts and flips an image or a mask that is scaled already."""
    pad = (*crop.pad, (0, 0))[: image.ndim]
    if any(map(any, pad)):
        image = np.pad(image, pad, constant_values=fill)
    rows, columns = (
        slice(first, first + n) for first, n in zip(crop.first, size, strict=True)
    )
    image = image[rows, columns]
    return image[:, ::-1] if crop.flip else image


def resize_image(image: Array, size: tuple[int, ...]) -> Array:
    """Resizes a uint8 image bilinearly, with antialiasing."""
    if image.shape[:2] == tuple(size):
        return image
    pillow = require("PIL.Image")
    gray = image.shape[-1] == 1
    resized = pillow.fromarray(image[..., 0] if gray else image).resize(
        size[::-1], pillow.Resampling.BILINEAR
    )
    return np.asarray(resized).reshape(*size, image.shape[-1])


def resize_mask(mask: Array, size: tuple[int, ...]) -> Array:
    """Resizes a mask to the nearest pixels."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]
