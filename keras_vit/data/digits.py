"""Handwritten digits, in NumPy: they do not need TensorFlow."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit._program import require
from keras_vit._types import Array
from keras_vit._types import Dataset
from keras_vit.data import mixing
from keras_vit.data._pipeline import listed_source
from keras_vit.data.arrays import image_reader
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.dataset import PipelineOptions
from keras_vit.data.dataset import local_evaluation_rows
from keras_vit.data.protocols import height_and_width
from keras_vit.data.splits import holdout_split
from keras_vit.data.splits import stratified_split
from keras_vit.layers.resampling import resampling_matrix

BACKGROUND = -1.0
ENLARGED = 32  # pixels; the size from which random crops are cut
# Limits of `random_affine`, in both directions. With smaller ones a small model
# memorises 1,438 images; with larger ones digits look like other digits.
MAX_ROTATION = np.deg2rad(15)
MAX_LOG_SCALE = 0.15
MAX_SHIFT = 1 / 10  # as a fraction of the image


def digits(holdout: float = 0.0) -> ImageDataset:
    """Returns scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    images, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 8 - 1  # 0 .. 16
    labels = labels.astype("int32")
    train, test = stratified_split(labels)
    train, validation = holdout_split(train, labels, holdout)
    return ImageDataset(
        name="digits",
        class_names=tuple("0123456789"),
        channels=1,
        image_size=8,
        num_train=len(train),
        num_test=len(test),
        num_validation=len(validation),
        source=Digits(
            images,
            labels,
            {"train": train, "validation": validation, "test": test},
        ),
    )


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images of digits, and the indices of the images of each split."""

    images: np.ndarray
    labels: np.ndarray
    splits: dict

    def train(self, data: ImageDataset, options: PipelineOptions) -> Any:
        if options.augment != "none":
            raise ValueError(
                "Digits are augmented by rotation, scaling and translation "
                f"only: use --augment none. Received: {options.augment!r}"
            )
        if options.erase.probability:
            raise ValueError(
                "Digits have no random erasing: use erase=0. Received: "
                f"{options.erase}"
            )
        if options.crops is not None:
            return self._train_crops(data, options)
        images, labels = self._split_arrays("train", options)
        return train_batches(images, labels, options)

    def _train_crops(
        self, data: ImageDataset, options: PipelineOptions
    ) -> Dataset:
        """Returns batches of random crops, by TensorFlow."""
        # A crop begins and ends with whole pixels: of 8 x 8 there are few.
        pixels = resize(self.images, ENLARGED)
        # From [-1, 1] to [0, 255]; the pipeline scales them back.
        pixels = ((pixels + 1) * 127.5).astype("float32")
        names = [f"digits[{i}]" for i in range(len(pixels))]
        source = listed_source(
            names,
            self.labels,
            self.splits,
            image_reader(lambda i: pixels[i], np.dtype("float32"), 1),
            contents=np.arange(len(pixels)),
        )
        return source.train(dataclasses.replace(data, source=source), options)

    def sample(self, split: str, total: int, chosen: Array) -> "Digits":
        splits = {**self.splits, split: self.splits[split][chosen]}
        return dataclasses.replace(self, splits=splits)

    def class_counts(self, data: ImageDataset) -> Array:
        return np.bincount(self.labels[self.splits["train"]], minlength=10)

    def evaluation_batches(
        self,
        data: ImageDataset,
        split: str,
        total: int,
        options: PipelineOptions,
    ) -> "EvaluationBatches":
        return EvaluationBatches(*self._split_arrays(split, options), options)

    def _split_arrays(
        self, split: str, options: PipelineOptions
    ) -> tuple[Array, Array]:
        if options.protocol != "simple" or options.mode != "tf":
            raise ValueError(
                "Digits are grey, and are not cropped: use --protocol "
                f"simple and mode 'tf'. Received: {options.protocol!r} and "
                f"{options.mode!r}"
            )
        index = self.splits[split]
        images = resize(self.images[index], options.image_size)
        return images, encode_digit_labels(self.labels[index], options)


def encode_digit_labels(labels: Array, options: PipelineOptions) -> Array:
    one_hot = options.one_hot or options.uses_mixing
    return np.eye(10, dtype="float32")[labels] if one_hot else labels


def train_batches(
    images: Array, labels: Array, options: PipelineOptions
) -> keras.utils.PyDataset:
    """Returns endless batches of shuffled, slightly distorted images.

    All batches are full: if the images end within a batch, it continues with
    the next pass over them. Images are never flipped, as a flipped digit is
    no digit.

    Returns:
        A `keras.utils.PyDataset`, which can be read several times.
    """
    return _TrainBatches(images, labels, options)


class _TrainBatches(keras.utils.PyDataset):
    num_batches = None  # endless

    def __init__(
        self, images: Array, labels: Array, options: PipelineOptions
    ) -> None:
        super().__init__()
        self.images, self.labels, self.options = images, labels, options
        # The number of a whole batch, and the batch.
        self._last: tuple[int | None, tuple[Array, ...]] = (None, ())

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        number, micro_batch = divmod(index, self.options.micro_batches)
        last, batch = self._last
        if last != number:
            batch = self._batch(self.options.start + number)
            self._last = (number, batch)
        size = self.options.micro_batch_size
        rows = slice(micro_batch * size, (micro_batch + 1) * size)
        return tuple(x[rows] for x in batch)

    @property
    def shapes(self) -> list[tuple[int | None, ...]]:
        """The shapes of the columns, without the batch; None for any size."""
        shapes = [x.shape[1:] for x in self[0]]
        if self.options.patch_sizes is not None:
            shapes[0] = (None, None, shapes[0][-1])
        return shapes

    def _batch(self, number: int) -> tuple[Array, ...]:
        """Returns this process's rows of a batch."""
        images, *others = self._distorted(number)
        patch_sizes = self.options.patch_sizes
        if patch_sizes is not None:
            size = patch_sizes.choose(self.options.seed, number)
            images = patch_sizes.resize(images, size)
        return images, *others

    def _distorted(self, number: int) -> tuple[Array, ...]:
        options = self.options
        chosen = batch_indices(
            len(self.images), number * options.batch_size, options
        )
        # The whole batch is distorted, so that an image is the same on any
        # number of processes.
        rng = np.random.default_rng((options.seed, 1, number))
        images = random_affine(self.images[chosen], rng)
        rows = slice(options.local_rows.start, options.local_rows.stop)
        batch = images[rows], self.labels[chosen][rows]
        if options.class_weights is not None:
            labels = batch[1].argmax(-1) if batch[1].ndim > 1 else batch[1]
            weights = np.asarray(options.class_weights, "float32")
            return *batch, weights[labels]
        if not options.uses_mixing:
            return batch

        def sample(name: str, p: float | None) -> np.float32:
            return np.float32(rng.beta(p, p) if p else rng.uniform())

        return mixing.mix(np, *batch, options, sample)


def batch_indices(count: int, first: int, options: PipelineOptions) -> Array:
    """Returns the indices of the images of one batch, of which the first is the
    image `first` of the run."""
    positions = np.arange(first, first + options.batch_size)
    epochs = positions // count
    orders = {
        epoch: np.random.default_rng((options.seed, 0, epoch)).permutation(
            count
        )
        for epoch in np.unique(epochs)
    }
    return np.array(
        [orders[e][p % count] for e, p in zip(epochs, positions, strict=True)]
    )


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


class EvaluationBatches(keras.utils.PyDataset):
    """Batches of this process's images, each once and in order."""

    def __init__(
        self, images: Array, labels: Array, options: PipelineOptions
    ) -> None:
        super().__init__()
        rows, self.count, self.weight = local_evaluation_rows(
            len(images), options
        )
        rows = slice(rows.start, rows.stop)
        self.images, self.labels = images[rows], labels[rows]
        self.batch_size, self.pads = len(options.local_rows), options.pads

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        images, labels = self.images[rows], self.labels[rows]
        weights = np.full(len(images), self.weight, "float32")
        missing = self.batch_size - len(images) if self.pads else 0
        return tuple(
            np.pad(x, ((0, missing), *((0, 0),) * (x.ndim - 1)))
            for x in (images, labels, weights)
        )


def resize(images: Array, size: int | tuple[int, int]) -> Array:
    """Resizes images `(count, height, width, channels)` bilinearly (pixel
    centres, no antialiasing)."""
    size = height_and_width(size)
    if size == images.shape[1:3]:
        return images
    down, right = (
        resampling_matrix(old, new, "bilinear").astype(images.dtype)
        for old, new in zip(images.shape[1:3], size, strict=True)
    )
    return np.einsum("yh,xw,bhwc->byxc", down, right, images)
