"""Handwritten digits, in NumPy: they do not need TensorFlow."""

import functools

import numpy as np

from keras_vit.data.array_source import ArraySource, TrainBatches
from keras_vit.data.arrays import from_arrays
from keras_vit.data.dataset import ImageDataset, PipelineOptions
from keras_vit.data.protocols import height_and_width
from keras_vit.data.splits import stratified_split
from keras_vit.layers.resampling import resampling_matrix
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array

BACKGROUND = -1.0
ENLARGED = 32  # pixels; the size from which random crops are cut
# Limits of `random_affine`, in both directions. With smaller ones a small model
# memorizes 1,438 images; with larger ones digits look like other digits.
MAX_ROTATION = np.deg2rad(15)
MAX_LOG_SCALE = 0.15
MAX_SHIFT = 1 / 10  # as a fraction of the image


def digits(holdout: float = 0.0) -> ImageDataset:
    """Returns scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    images, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 8 - 1  # 0 .. 16
    labels = labels.astype("int32")
    train, test = stratified_split(labels)
    kept, held_out = stratified_split(labels[train], holdout, seed=1)
    train, validation = train[kept], train[held_out]
    splits = {"train": train, "validation": validation, "test": test}

    @functools.cache
    def resized(split: str, size: tuple[int, int]) -> Array:
        return resize(images[splits[split]], size)

    def batch(
        split: str,
        options: PipelineOptions,
        rows: Array,
        first: int = 0,
        rng: np.random.Generator | None = None,
    ) -> tuple[Array, Array]:
        classes = labels[splits[split][rows]]
        if options.one_hot or options.uses_mixing:
            classes = np.eye(10, dtype="float32")[classes]
        pair = resized(split, options.image_size)[rows], classes
        found = pair if rng is None else _distorted(pair, options, rng)
        if options.mode == "tf":
            return found
        pixels = np.clip((found[0] + 1) * 127.5, 0, 255)
        return preprocess_input(pixels, options.mode), found[1]

    def crops() -> ImageDataset:
        # A crop begins and ends with whole pixels: of 8 x 8 there are few.
        # From [-1, 1] to [0, 255]; the pipeline scales them back.
        pixels = ((resize(images, ENLARGED) + 1) * 127.5).astype("float32")
        pairs = [(pixels[index], labels[index]) for index in (train, test)]
        return from_arrays(*pairs[0], pairs[1], name="digits")

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
            batch=batch,
            refuses=("protocol", "augment", "erase", "scale"),
            labels=labels[train],
            crops=crops,
        ),
    )


def train_batches(
    images: Array, labels: Array, options: PipelineOptions
) -> TrainBatches:
    """Returns endless batches of shuffled, slightly distorted images.

    Images are never flipped, as a flipped digit is no digit.

    Args:
        images: Float array `(count, height, width, channels)` in [-1, 1].
        labels: Integer array `(count,)`, or rows of one-hot labels.
        options: `PipelineOptions`.

    Returns:
        A `keras.utils.PyDataset`, which can be read several times.
    """
    return TrainBatches(
        lambda chosen, first, rng: _distorted(
            (images[chosen], labels[chosen]), options, rng
        ),
        len(images),
        options,
    )


def _distorted(
    pair: tuple[Array, Array],
    options: PipelineOptions,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Returns this process's rows of a batch, distorted.

    The whole batch is distorted, so that an image is the same on any number of
    processes.
    """
    rows = slice(options.local_rows.start, options.local_rows.stop)
    return random_affine(pair[0], rng)[rows], pair[1][rows]


def random_affine(images: Array, rng: np.random.Generator) -> Array:
    """Rotates, scales and translates every image slightly."""
    count, height, width = images.shape[:3]
    angle = rng.uniform(-MAX_ROTATION, MAX_ROTATION, count)
    stretch = np.exp(rng.uniform(-MAX_LOG_SCALE, MAX_LOG_SCALE, (2, count)))
    move = rng.uniform(-MAX_SHIFT, MAX_SHIFT, (2, count)) * [[height], [width]]
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
    size = height_and_width(size)
    if size == images.shape[1:3]:
        return images
    down, right = (
        resampling_matrix(old, new, "bilinear").astype(images.dtype)
        for old, new in zip(images.shape[1:3], size, strict=True)
    )
    return np.einsum("yh,xw,bhwc->byxc", down, right, images)
