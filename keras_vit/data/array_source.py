"""Batches made with NumPy, without TensorFlow: for digits, masks, boxes and files
without labels."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.data import short_way
from keras_vit.data.dataset import Batching, ImageDataset
from keras_vit.data.labels import warn_similar_names
from keras_vit.data.steps.base import Example, StepFunction, call, run_on_arrays
from keras_vit.utils.types import Array

_THREADS = min(8, os.cpu_count() or 1)


@dataclasses.dataclass(frozen=True)
class ArraySource:
    """Images and labels, masks or boxes, as NumPy arrays."""

    # Returns an image and its label, mask or boxes, of a split and an index.
    example: Callable[[str, int], tuple[Array, Array]]
    # The function of `short_way` that makes the steps.
    steps: short_way.Builder
    # "label", "mask" or "boxes": the key in an example of what belongs to an image.
    kind: str = "label"
    # The classes of the training images; None for masks, boxes and files.
    labels: Array | None = None
    # Returns the source of the images that TensorFlow makes for options, or None.
    by_tensorflow: Callable[[dict[str, Any]], Any] = lambda options: None

    def of(self, options: dict[str, Any]) -> Any:
        """Returns the source of the images that options are for."""
        return self.by_tensorflow(options) or self

    def builder(self, options: dict[str, Any]) -> short_way.Builder:
        """Returns the function that makes the steps of these images."""
        other = self.by_tensorflow(options)
        return other.builder(options) if other else self.steps

    def train(
        self,
        data: ImageDataset,
        steps: Sequence[StepFunction | None],
        batch_steps: Sequence[StepFunction | None],
        batching: Batching,
    ) -> keras.utils.PyDataset:
        """Returns endless batches `(images, labels)`."""
        return _TrainBatches(self, data, steps, batch_steps, batching)

    def evaluation_batches(
        self,
        data: ImageDataset,
        split: str,
        total: int,
        steps: Sequence[StepFunction | None],
        batching: Batching,
    ) -> keras.utils.PyDataset:
        """Returns batches of the images of a split, each image once."""
        return _EvaluationBatches(self, data, split, total, steps, batching)

    def read(
        self,
        data: ImageDataset,
        split: str,
        indices: Sequence[int],
        steps: Sequence[StepFunction | None],
        keys: Iterable[tuple[int, ...]],
    ) -> Example:
        """Returns a batch of images after the steps; `keys` seed the random numbers of
        each image."""
        fixed = {"channels": data.channels, "ignore": data.ignore}

        def one(index: int, key: tuple[int, ...]) -> Example:
            image, label = self.example(split, index)
            example = {"image": image, self.kind: label, **fixed}
            return run_on_arrays(steps, example, key)

        if self.labels is not None:  # arrays, which take less time than a thread
            examples = list(map(one, indices, keys))
        else:
            with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
                examples = list(threads.map(one, indices, keys))
        names = examples[0].keys() - fixed
        return {name: np.stack([each[name] for each in examples]) for name in names}

    def columns(self, batch: Example) -> tuple[Array, ...]:
        """Returns the images, the labels and, if there are any, the weights."""
        names = ("image", self.kind, "weight")
        return tuple(batch[name] for name in names if name in batch)

    def class_counts(self, data: ImageDataset) -> Array:
        if self.labels is None:
            raise ValueError(
                f"{data.name!r} has a class for each pixel, not for each "
                "image: count the pixels of its masks, `data.read(split, i)`."
            )
        if self.labels.ndim == 2:
            return self.labels.sum(0, dtype="int64")
        return np.bincount(self.labels, minlength=len(data.class_names))

    def sample(self, split: str, total: int, chosen: Array) -> "ArraySource":
        """Returns a source to evaluate on, with some of the images of a split."""

        def example(name: str, index: int) -> tuple[Array, Array]:
            return self.example(name, int(chosen[index]) if name == split else index)

        def by_tensorflow(options: dict[str, Any]) -> Any:
            other = self.by_tensorflow(options)
            return other and other.sample(split, total, chosen)

        labels = self.labels
        if split == "train" and labels is not None:
            labels = labels[chosen]
        return dataclasses.replace(
            self, example=example, labels=labels, by_tensorflow=by_tensorflow
        )


def scaled_dataset(
    read: Callable[[str, int], tuple[Array, Array]], kind: str, **fields: Any
) -> ImageDataset:
    """Returns the `ImageDataset` of images with masks or boxes, the `kind`. `read`
    takes "train" or "test" and an index, and returns a uint8 image `(height, width,
    channels)` and an integer mask `(height, width)` or boxes."""
    warn_similar_names(fields["class_names"])
    source = ArraySource(read, short_way.images_with_places, kind)
    return ImageDataset(source=source, **fields)


class _TrainBatches(keras.utils.PyDataset):
    """Endless batches of shuffled images, which can be read several times.

    All batches are full: if the images end within a batch, it continues with
    the next pass over them.
    """

    num_batches = None  # endless

    def __init__(
        self,
        source: ArraySource,
        data: ImageDataset,
        steps: Sequence[StepFunction | None],
        batch_steps: Sequence[StepFunction | None],
        batching: Batching,
    ) -> None:
        super().__init__()
        self.source, self.data = source, data
        self.steps, self.batch_steps, self.batching = steps, batch_steps, batching
        # The number of a whole batch, and the batch.
        self._last: tuple[int | None, tuple[Array, ...]] = (None, ())

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        number, micro_batch = divmod(index, self.batching.micro_batches)
        last, batch = self._last  # once, as Keras may read in several threads
        if last != number:
            batch = self._batch(self.batching.start + number)
            self._last = number, batch
        size = self.batching.micro_batch_size
        rows = slice(micro_batch * size, (micro_batch + 1) * size)
        return tuple(x[rows] for x in batch)

    def _batch(self, number: int) -> tuple[Array, ...]:
        """Returns this process's rows of a batch."""
        seed, rows = self.batching.seed, self.batching.local_rows
        first, count = number * self.batching.batch_size, self.data.num_train
        orders = {
            epoch: np.random.default_rng((seed, 0, epoch)).permutation(count)
            for epoch in {(first + row) // count for row in rows}
        }
        positions = [first + row for row in rows]
        chosen = [int(orders[p // count][p % count]) for p in positions]
        # An image is the same on any number of processes.
        keys = [(seed, 1, position) for position in positions]
        batch = self.source.read(self.data, "train", chosen, self.steps, keys)
        batch["batching"] = self.batching
        rng = np.random.default_rng((seed, 1, number))
        for place, function in enumerate(self.batch_steps):
            batch = call(function, place, batch, rng)
        return self.source.columns(batch)


class _EvaluationBatches(keras.utils.PyDataset):
    """Batches of this process's images, each once and in order."""

    def __init__(
        self,
        source: ArraySource,
        data: ImageDataset,
        split: str,
        total: int,
        steps: Sequence[StepFunction | None],
        batching: Batching,
    ) -> None:
        super().__init__()
        self.source, self.data, self.split, self.steps = source, data, split, steps
        self.batch_size, self.pads = len(batching.local_rows), batching.pads
        self.rows, self.count, self.weight = batching.evaluation_rows(total)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        rows = self.rows[index * self.batch_size :][: self.batch_size]
        # A process may have no images in the last batch: one gives the shapes.
        some = rows or range(1)
        keys = ((0, 2, row) for row in some)
        batch = self.source.read(self.data, self.split, some, self.steps, keys)
        images, labels = (x[: len(rows)] for x in self.source.columns(batch)[:2])
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
