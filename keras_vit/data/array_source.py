"""Batches that NumPy makes, without TensorFlow: of digits, and of masks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

import keras
import numpy as np

from keras_vit.data import mixing
from keras_vit.data.dataset import ImageDataset, PipelineOptions, local_evaluation_rows
from keras_vit.utils.types import Array

# Images and labels: classes, rows of one-hot labels, or masks.
_Pair: TypeAlias = tuple[Array, Array]
# Returns this process's rows of a batch: of the indices of the images of the
# whole batch, the position of its first image in the run, and the generator of
# the batch.
_MakeBatch: TypeAlias = Callable[[Array, int, np.random.Generator], _Pair]


@dataclasses.dataclass(frozen=True)
class ArraySource:
    """Images and labels, or masks, that NumPy makes."""

    # Returns an image and its label, of a split and an index.
    example: Callable[[str, int], _Pair]
    # Returns the images and labels of a split, the options and indices; with
    # the other arguments of `_MakeBatch`, does what that does.
    batch: Callable[..., _Pair]
    # The options that must have their defaults.
    refuses: tuple[str, ...]
    # The classes of the training images; None for masks.
    labels: Array | None = None
    # Returns the dataset that random crops are taken of, by TensorFlow.
    crops: Callable[[], ImageDataset] | None = None

    def train(
        self, data: ImageDataset, options: PipelineOptions
    ) -> keras.utils.PyDataset:
        """Returns endless batches `(images, labels)`."""
        options.refuse(self.refuses, repr(data.name))
        if options.crops is not None and self.crops is not None:
            enlarged = self.crops()
            return enlarged.source.train(enlarged, options)
        make = functools.partial(self.batch, "train", options)
        return TrainBatches(make, data.num_train, options)

    def evaluation_batches(
        self,
        data: ImageDataset,
        split: str,
        total: int,
        options: PipelineOptions,
    ) -> keras.utils.PyDataset:
        """Returns batches of the images of a split, each image once."""
        options.refuse(self.refuses, repr(data.name))
        make = functools.partial(self.batch, split, options)
        return _EvaluationBatches(make, total, options, data)

    def class_counts(self, data: ImageDataset) -> Array:
        if self.labels is None:
            raise ValueError(
                f"{data.name!r} has a class for each pixel, not for each "
                "image: count the pixels of its masks, `data.read(split, i)`."
            )
        return np.bincount(self.labels, minlength=len(data.class_names))

    def sample(self, split: str, total: int, chosen: Array) -> "ArraySource":
        """Returns a source to evaluate on, of which a split has some images."""

        def batch(name: str, options: PipelineOptions, rows: Array) -> _Pair:
            rows = chosen[rows] if name == split else rows
            return self.batch(name, options, rows)

        labels = self.labels
        if split == "train" and labels is not None:
            labels = labels[chosen]
        return dataclasses.replace(self, batch=batch, labels=labels)


class TrainBatches(keras.utils.PyDataset):
    """Endless batches of shuffled images, which can be read several times.

    All batches are full: if the images end within a batch, it continues with
    the next pass over them.
    """

    num_batches = None  # endless

    def __init__(self, make: _MakeBatch, count: int, options: PipelineOptions) -> None:
        super().__init__()
        self.make, self.count, self.options = make, count, options
        # The number of a whole batch, and the batch.
        self._last: tuple[int | None, tuple[Array, ...]] = (None, ())

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        number, micro_batch = divmod(index, self.options.micro_batches)
        last, batch = self._last  # once, as Keras may read in several threads
        if last != number:
            batch = self._batch(self.options.start + number)
            self._last = number, batch
        size = self.options.micro_batch_size
        rows = slice(micro_batch * size, (micro_batch + 1) * size)
        return tuple(x[rows] for x in batch)

    def _batch(self, number: int) -> tuple[Array, ...]:
        """Returns this process's rows of a batch."""
        options = self.options
        first = number * options.batch_size
        rng = np.random.default_rng((options.seed, 1, number))
        positions = np.arange(first, first + options.batch_size)
        orders = {
            epoch: np.random.default_rng((options.seed, 0, epoch)).permutation(
                self.count
            )
            for epoch in np.unique(positions // self.count)
        }
        chosen = np.array([orders[p // self.count][p % self.count] for p in positions])
        images, labels = self.make(chosen, first, rng)
        others = [labels]
        if options.class_weights is not None:
            classes = labels.argmax(-1) if labels.ndim > 1 else labels
            weights = np.asarray(options.class_weights, "float32")
            others.append(weights[classes])
        if options.uses_mixing:

            def sample(name: str, p: float | None) -> np.float32:
                return np.float32(rng.beta(p, p) if p else rng.uniform())

            images, *others = mixing.mix(np, images, labels, options, sample)
        if options.transform is not None:
            images = options.transform(number, images)
        return images, *others


class _EvaluationBatches(keras.utils.PyDataset):
    """Batches of this process's images, each once and in order."""

    def __init__(
        self,
        make: Callable[[Array], _Pair],
        total: int,
        options: PipelineOptions,
        data: ImageDataset,
    ) -> None:
        super().__init__()
        self.make, self.data = make, data
        self.batch_size, self.pads = len(options.local_rows), options.pads
        rows, self.count, self.weight = local_evaluation_rows(total, options)
        self.rows = np.asarray(rows, int)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        rows = self.rows[index * self.batch_size :][: self.batch_size]
        images, labels = self.make(rows)
        if images.shape[-1] < self.data.channels:  # gray, for a model of colors
            images = np.repeat(images, self.data.channels, axis=-1)
        missing = self.batch_size - len(rows) if self.pads else 0
        ignore = self.data.ignore

        def padded(x: Array, fill: int) -> Array:
            widths = ((0, missing), *((0, 0),) * (x.ndim - 1))
            return np.pad(x, widths, constant_values=fill)

        images, labels = padded(images, 0), padded(labels, ignore or 0)
        if ignore is None:
            weights = np.full(len(rows), self.weight, "float32")
            return images, labels, padded(weights, 0)
        if not self.pads:
            return images, labels
        # Keras averages a batch over the pixels that are not ignored, and
        # counts it as often as it has images, padding included.
        weight = self.weight * len(rows) / self.batch_size
        return images, labels, np.full((len(images), 1, 1), weight, "float32")
