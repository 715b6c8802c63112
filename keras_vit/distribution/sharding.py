"""Batches that several devices can split evenly."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.utils.types import Array, Dataset, Tensor


def pad_batches(batches: Any, multiple: int) -> Any:
    """Pads batches, of a `tf.data.Dataset`, a `keras.utils.PyDataset` or an
    iterator, to a multiple of the number of devices.

    Batches of `(images, labels, weights)` are padded with rows of weight 0. A batch
    without weights cannot be padded, as each of its images counts: this raises a
    `ValueError`, or TensorFlow's error when the batch of a `tf.data.Dataset` is read.
    """
    if multiple == 1:
        return batches
    if _is_tf_dataset(batches):
        return _pad_tf_dataset(batches, multiple)
    if isinstance(batches, keras.utils.PyDataset):
        return _Padded(batches, multiple)
    return (pad_batch(batch, multiple) for batch in batches)


def pad_batch(batch: Sequence[Array], multiple: int) -> Sequence[Array]:
    """Pads a batch of arrays to a multiple of the number of devices."""
    missing = -len(batch[0]) % multiple
    if not missing:
        return batch
    if len(batch) < 3:
        raise ValueError(
            f"{_uneven(multiple)} Received a batch of {len(batch[0])} images."
        )
    # The first example is repeated, as an image like any other.
    images, labels, weights = (
        np.concatenate([column, np.repeat(column[:1], missing, axis=0)])
        for column in batch
    )
    weights[-missing:] = 0
    return images, labels, weights


def _uneven(multiple: int) -> str:
    return (
        f"A batch must be a multiple of {multiple} images, which {multiple} "
        "devices split evenly, or have weights: (images, labels, weights) is "
        "padded with images of weight 0."
    )


class _Padded(keras.utils.PyDataset):
    def __init__(self, batches: Any, multiple: int) -> None:
        super().__init__()
        self.batches, self.multiple = batches, multiple

    @property
    def num_batches(self) -> int | None:
        return self.batches.num_batches

    def __getitem__(self, index: int) -> Sequence[Array]:
        return pad_batch(self.batches[index], self.multiple)

    def on_epoch_begin(self) -> None:
        self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.batches.on_epoch_end()


def _pad_tf_dataset(batches: Any, multiple: int) -> Dataset:
    import tensorflow as tf

    def pad(*batch: Tensor) -> Any:
        count = tf.shape(tf.nest.flatten(batch)[0])[0]
        missing = tf.math.floormod(-count, multiple)
        if len(batch) < 3:
            even = tf.debugging.assert_equal(missing, 0, _uneven(multiple))
            with tf.control_dependencies([even]):
                return tf.nest.map_structure(tf.identity, batch)
        # The images may be a tuple of patches, coordinates and validity.
        images, labels, weights = tf.nest.map_structure(
            lambda x: tf.concat([x, tf.repeat(x[:1], missing, axis=0)], 0),
            batch,
        )
        zeros = tf.zeros_like(weights[count:])
        return images, labels, tf.concat([weights[:count], zeros], 0)

    # The images of a batch may be a dict of crops.
    size = tf.nest.flatten(batches.element_spec)[0].shape[0]
    if size is not None and size % multiple == 0:
        return batches
    # No branch of `pad` depends on a tensor.
    return batches.map(tf.autograph.experimental.do_not_convert(pad))


def without_autotune(dataset: Dataset) -> Dataset:
    """Returns a `tf.data.Dataset` whose autotuning is off.

    TensorFlow tunes a dataset in a thread that sleeps until a time of the wall
    clock, and closing the dataset waits for that thread. If the clock is set back in
    between, the program hangs until that time, as two of three runs did with TensorFlow
    2.21.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def to_tf_dataset(batches: Any) -> Dataset:
    """Returns batches, of a `tf.data.Dataset` or a `keras.utils.PyDataset`, as
    a `tf.data.Dataset` whose autotuning is off.

    Keras itself would convert a `keras.utils.PyDataset` to a dataset that is tuned.
    Under a strategy of TensorFlow, `model.fit` reads the first batch for its shapes,
    and then starts again from the beginning: an iterator, which cannot start again,
    raises a `TypeError`.
    """
    if isinstance(batches, keras.utils.PyDataset):
        batches = _from_py_dataset(batches)
    elif not _is_tf_dataset(batches):
        raise TypeError(
            "`batches` must be a `tf.data.Dataset` or a "
            "`keras.utils.PyDataset`, which can be read several times. "
            f"Received: {batches!r}"
        )
    return without_autotune(batches.prefetch(2))


def _from_py_dataset(batches: Any) -> Dataset:
    import tensorflow as tf

    length = batches.num_batches  # None if there is no end

    def spec(column: Any) -> Any:
        column = np.asarray(column)
        return tf.TensorSpec((None, *column.shape[1:]), column.dtype)

    def generate() -> Iterator[tuple[Array, ...]]:
        indices = itertools.count() if length is None else range(length)
        return (tuple(batches[index]) for index in indices)

    signature = keras.tree.map_structure(spec, tuple(batches[0]))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    cardinality = tf.data.INFINITE_CARDINALITY if length is None else length
    return dataset.apply(tf.data.experimental.assert_cardinality(cardinality))


def _is_tf_dataset(batches: Any) -> bool:
    # `isinstance` would import TensorFlow, also under JAX and PyTorch.
    return hasattr(batches, "element_spec")
