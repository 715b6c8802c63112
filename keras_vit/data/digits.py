"""Handwritten digits, in NumPy: they do not need TensorFlow."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.data.array_source import ArraySource
from keras_vit.data.arrays import from_arrays
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.short_way import Lists, labels_of
from keras_vit.data.splits import stratified_split
from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.layers.resampling import resampling_matrix
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils import checks
from keras_vit.utils.scaling import ModeLike, as_mode
from keras_vit.utils.types import Array

BACKGROUND = -1.0
ENLARGED = 32  # pixels; the size from which random crops are cut
# Limits of `random_affine`, in both directions. With smaller ones a small model
# memorizes 1,438 images; with larger ones digits look like other digits.
MAX_ROTATION = np.deg2rad(15)
MAX_LOG_SCALE = 0.15
MAX_SHIFT = 1 / 10  # as a fraction of the image


def read_digits() -> tuple[Array, Array]:
    """Returns the digits of scikit-learn's `load_digits`, as an array of shape
    `(1797, 8, 8, 1)` with integers from 0 to 16, and their labels, without
    scikit-learn, whose import takes longer than all else about them.

    Source: E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*,
    UCI Machine Learning Repository, 1998, CC BY 4.0,
    https://archive.ics.uci.edu/dataset/80.
    """
    with np.load(pathlib.Path(__file__).with_name("digits.npz")) as file:
        return file["images"][..., None], file["labels"].astype("int64")


def digits(holdout: float = 0.0) -> ImageDataset:
    """Returns scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    images, labels = read_digits()
    images = images.astype("float32") / 8 - 1  # 0 .. 16
    labels = labels.astype("int32")
    train, test = stratified_split(labels)
    kept, held_out = stratified_split(labels[train], holdout, seed=1)
    train, validation = train[kept], train[held_out]
    splits = {"train": train, "validation": validation, "test": test}

    def crops(options: dict[str, Any]) -> Any:
        if "crops" not in options:
            return None
        # A crop begins and ends with whole pixels: of 8 x 8 there are few.
        # From [-1, 1] to [0, 255]; the pipeline scales them back.
        pixels = ((resize(images, ENLARGED) + 1) * 127.5).astype("float32")
        pairs = [(pixels[index], labels[index]) for index in (train, test)]
        return from_arrays(*pairs[0], pairs[1], name="digits").source

    return ImageDataset(
        name="digits",
        class_names=tuple("0123456789"),
        channels=1,
        image_size=8,
        num_train=len(train),
        num_test=len(test),
        num_validation=len(validation),
        can_flip=False,
        max_value=16,
        source=ArraySource(
            example=lambda split, i: (
                images[splits[split][i]],
                labels[splits[split][i]],
            ),
            steps=_steps,
            labels=labels[train],
            by_tensorflow=crops,
        ),
    )


def _steps(
    data: ImageDataset,
    training: bool,
    *,
    image_size: int | tuple[int, int],
    mode: ModeLike = "tf",
    flip: bool = False,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    one_hot: bool = False,
    class_weights: Sequence[float] | None = None,
) -> Lists:
    """The steps of digits, as those of `short_way`. Digits are never flipped, as a
    flipped digit is not a digit."""
    labels, batch = labels_of(data, mixup, cutmix, one_hot, class_weights)
    enlarged = enlarge(checks.positive_pair("image_size", image_size))
    finish = scale_digits(as_mode(mode))
    if training:  # of whole batches, which take less time than image by image
        return [], [enlarged, distort(), finish, *labels, *batch]
    return [enlarged, finish, *labels], batch


@functools.cache
def _enlarged(image: bytes, size: tuple[int, int]) -> Array:
    return resize(np.frombuffer(image, "float32").reshape(1, 8, 8, 1), size)[0]


@step
def enlarge(example: Example, seed: Seed, size: tuple[int, int]) -> Example:
    """Digits of 8 x 8 pixels, one or a batch, in another size, computed once."""
    image = example["image"]
    if image.ndim == 4:
        return example | {
            "image": np.stack([_enlarged(x.tobytes(), size) for x in image])
        }
    return example | {"image": _enlarged(image.tobytes(), size)}


@step
def scale_digits(example: Example, seed: Seed, mode: ModeLike) -> Example:
    """Digits, with values in [-1, 1], as `preprocess_input` scales pixels."""
    if mode == "tf":
        return example
    pixels = np.clip((example["image"] + 1) * 127.5, 0, 255)
    return example | {"image": preprocess_input(pixels, mode)}


@step
def distort(example: Example, seed: Seed) -> Example:
    """The rows of a batch, each image rotated, scaled and translated slightly; the
    random numbers are those of the whole batch, so that an image is the same on any
    number of processes."""
    batching = example["batching"]
    rows = np.array(batching.local_rows)
    image = random_affine(example["image"], seed, batching.batch_size, rows)
    return example | {"image": image}


def random_affine(
    images: Array, rng: np.random.Generator, total: int, rows: Array
) -> Array:
    """Rotates, scales and translates every image slightly; `images` are some rows of
    a batch of `total` ones."""
    count, height, width = images.shape[:3]
    angle = rng.uniform(-MAX_ROTATION, MAX_ROTATION, total)[rows]
    stretch = np.exp(rng.uniform(-MAX_LOG_SCALE, MAX_LOG_SCALE, (2, total))[:, rows])
    move = rng.uniform(-MAX_SHIFT, MAX_SHIFT, (2, total))[:, rows]
    move = move * [[height], [width]]
    y, x = np.indices((height, width))
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    # Where each pixel comes from: (count, height, width), in a frame of
    # background that is as wide as the longer side of the image.
    longer = max(height, width)
    frame = ((0, 0), (longer, longer), (longer, longer), (0, 0))
    padded = np.pad(images, frame, constant_values=BACKGROUND)
    middle_y, middle_x = (longer + (side - 1) / 2 for side in (height, width))
    stretch, move = stretch[..., None, None], move[..., None, None]
    from_y = (cos * y - sin * x) * stretch[0] + move[0] + middle_y
    from_x = (sin * y + cos * x) * stretch[1] + move[1] + middle_x
    top, left = from_y.astype(int), from_x.astype(int)
    down, right = from_y - top, from_x - left  # in [0, 1)
    index = np.arange(count)[:, None, None]

    def corner(dy: int, dx: int, weight: Array) -> Array:
        return padded[index, top + dy, left + dx] * weight[..., None]

    return (
        corner(0, 0, (1 - down) * (1 - right))
        + corner(0, 1, (1 - down) * right)
        + corner(1, 0, down * (1 - right))
        + corner(1, 1, down * right)
    ).astype(images.dtype)


def resize(images: Array, size: int | tuple[int, int]) -> Array:
    """Resizes images `(count, height, width, channels)` bilinearly (pixel
    centers, no antialiasing)."""
    size = checks.positive_pair("image_size", size)
    if size == images.shape[1:3]:
        return images
    down, right = (
        resampling_matrix(old, new, "bilinear").astype(images.dtype)
        for old, new in zip(images.shape[1:3], size, strict=True)
    )
    return np.einsum("yh,xw,bhwc->byxc", down, right, images)
