"""A dataset of images with a class for each pixel, in NumPy."""

import concurrent.futures
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._program import require
from keras_vit._types import Array
from keras_vit.data.array_source import ArraySource
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.dataset import PipelineOptions
from keras_vit.preprocessing import preprocess_input

_THREADS = min(8, os.cpu_count() or 1)


def masked_dataset(
    read: Callable[[str, int], tuple[Array, Array]],
    channels: int,
    ignore: int,
    **fields: Any,
) -> ImageDataset:
    """Returns the `ImageDataset` of images and masks that `read` returns, of
    "train" or "test" and an index: a uint8 image `(height, width, channels)`
    and an integer mask `(height, width)`."""

    def stack(
        one: Callable[[int], tuple[Array, Array]],
        indices: Sequence[int] | Array,
        options: PipelineOptions,
    ) -> tuple[Array, Array]:
        shape = (len(indices), *options.image_size)
        images = np.zeros((*shape, channels), "float32")
        masks = np.zeros(shape, "int32")
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
            for i, pair in enumerate(threads.map(one, map(int, indices))):
                images[i], masks[i] = pair
        return np.asarray(preprocess_input(images, options.mode)), masks

    def augmented(
        options: PipelineOptions,
    ) -> Callable[[Array, int, np.random.Generator], tuple[Array, Array]]:
        def make(
            chosen: Array, first: int, rng: np.random.Generator
        ) -> tuple[Array, Array]:
            def one(row: int) -> tuple[Array, Array]:
                return random_crop(
                    *read("train", int(chosen[row])),
                    options.image_size,
                    # An image is the same on any number of processes.
                    np.random.default_rng((options.seed, 1, first + row)),
                    2.0 if options.scale is None else options.scale,
                    options.flip,
                    ignore,
                )

            return stack(one, options.local_rows, options)

        return make

    def plain(
        split: str, options: PipelineOptions
    ) -> Callable[[Array], tuple[Array, Array]]:
        size = options.image_size

        def one(index: int) -> tuple[Array, Array]:
            image, mask = read(split, index)
            return resize_image(image, size), resize_mask(mask, size)

        return lambda rows: stack(one, rows, options)

    return ImageDataset(
        channels=channels,
        ignore=ignore,
        source=ArraySource(
            example=read,
            augmented=augmented,
            plain=plain,
            refuses=(
                *("protocol", "augment", "mixup", "cutmix", "erase"),
                *("one_hot", "class_weights", "crops", "patch_sizes"),
            ),
        ),
        **fields,
    )


def random_crop(
    image: Array,
    mask: Array,
    size: tuple[int, int],
    rng: np.random.Generator,
    scale: float,
    flip: bool,
    ignore: int,
) -> tuple[Array, Array]:
    """Scales, crops and flips an image `(height, width, channels)` and its mask
    randomly.

    The short side of the image becomes that of the crop times a factor between
    `1 / scale` and `scale`; where the image is padded, the mask is `ignore`.
    """
    factor = np.exp(rng.uniform(-1, 1) * np.log(scale))
    factor *= min(size) / min(mask.shape)
    height, width = (max(1, round(n * factor)) for n in mask.shape)
    scaled = height, width
    image, mask = resize_image(image, scaled), resize_mask(mask, scaled)
    missing = [max(0, n - old) for n, old in zip(size, scaled, strict=True)]
    if any(missing):
        pad = [(n // 2, n - n // 2) for n in missing]
        image = np.pad(image, (*pad, (0, 0)), constant_values=127)
        mask = np.pad(mask, pad, constant_values=ignore)
    top, left = (
        rng.integers(old - n + 1)
        for n, old in zip(size, mask.shape, strict=True)
    )
    window = slice(top, top + size[0]), slice(left, left + size[1])
    image, mask = image[window], mask[window]
    if flip and rng.random() < 0.5:
        image, mask = image[:, ::-1], mask[:, ::-1]
    return image, mask


def resize_image(image: Array, size: tuple[int, int]) -> Array:
    """Resizes a uint8 image bilinearly, with antialiasing."""
    if image.shape[:2] == tuple(size):
        return image
    pillow = require("PIL.Image")
    grey = image.shape[-1] == 1
    resized = pillow.fromarray(image[..., 0] if grey else image).resize(
        size[::-1], pillow.Resampling.BILINEAR
    )
    return np.asarray(resized).reshape(*size, image.shape[-1])


def resize_mask(mask: Array, size: tuple[int, int]) -> Array:
    """Resizes a mask to the nearest pixels."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]
