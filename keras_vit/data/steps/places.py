"""Random scales and crops of an image with its mask or boxes, in NumPy."""

from typing import NamedTuple

import numpy as np

from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.utils import checks
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array

# A box of which less remains in a crop is left out.
_LEAST_PART = 0.25


class Crop(NamedTuple):
    """How an image is scaled, padded, cut and flipped, in this order."""

    scaled: tuple[int, ...]  # height and width
    pad: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    first: tuple[int, ...] = (0, 0)  # row and column
    flip: bool = False


@step
def scale_crop(
    example: Example,
    seed: Seed,
    size: int | tuple[int, int],
    *,
    scale: float = 2.0,
    flip: bool = True,
) -> Example:
    """Scales an image with its mask or boxes at random, so that its short side is
    `size` times a factor from `1 / scale` to `scale`, crops it, and mirrors half of the
    images. Padding is gray and has no class."""
    size = checks.positive_pair("image_size", size)
    crop = draw_crop(example["image"].shape[:2], size, seed, scale, flip)
    return _apply(example, crop, size)


@step
def scale_whole(example: Example, seed: Seed, size: int | tuple[int, int]) -> Example:
    """Resizes an image with its mask or boxes, without keeping its aspect ratio."""
    size = checks.positive_pair("image_size", size)
    return _apply(example, Crop(size), size)


def _apply(example: Example, crop: Crop, size: tuple[int, int]) -> Example:
    image = resize_image(example["image"], crop.scaled)
    example = example | {"image": cut(image, crop, size, 127)}
    if "mask" in example:
        mask = resize_mask(example["mask"], crop.scaled)
        example["mask"] = cut(mask, crop, size, example["ignore"])
    if "boxes" in example:
        example["boxes"] = crop_boxes(example["boxes"], crop, size)
    return example


def draw_crop(
    shape: tuple[int, ...],
    size: tuple[int, int],
    rng: np.random.Generator,
    scale: float,
    flip: bool,
) -> Crop:
    """Samples how an image of some height and width becomes one of `size`.

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


def crop_boxes(label: Array, crop: Crop, size: tuple[int, int]) -> Array:
    """Returns the classes and boxes `(objects, 5)` of a crop, given those of
    the image that it is of."""
    scaled, new = (np.array(x[::-1], float) for x in (crop.scaled, size))
    offset = (np.array(crop.pad)[:, 0] - crop.first)[::-1]
    half = label[:, 3:] / 2
    first, last = ((label[:, 1:3] + sign * half) * scaled + offset for sign in (-1, 1))
    inside = np.clip([first, last], 0, new)
    area = (inside[1] - inside[0]).prod(1)
    kept = area >= _LEAST_PART * (last - first).prod(1)
    kept &= (area > 0) & (label[:, 0] != -1)
    first, last = inside / new
    center = (first + last) / 2
    if crop.flip:
        center[:, 0] = 1 - center[:, 0]
    found = np.concatenate([label[:, :1], center, last - first], 1)
    return np.where(kept[:, None], found, -1).astype("float32")
