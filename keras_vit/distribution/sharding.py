"""Batches that several devices can split evenly."""

import itertools

import keras
import numpy as np


def pad_batches(batches, multiple):
    """Pads batches whose size is not a multiple of the number of devices.

    Batches of `(images, labels, weights)` are padded with rows of weight 0.
    Batches without weights cannot be padded: every image of them counts.

    Args:
        batches: A `tf.data.Dataset`, a `keras.utils.PyDataset` or an iterator.
        multiple: Integer. Number of devices.

    Returns:
        Batches of the same kind.

    Raises:
        ValueError: if a batch cannot be split and has no weights. Of a
            `tf.data.Dataset`, it is a TensorFlow error when the batch is read.
    """
    if multiple == 1:
        return batches
    if _is_tf_dataset(batches):
        return _pad_tf_dataset(batches, multiple)
    if isinstance(batches, keras.utils.PyDataset):
        return _Padded(batches, multiple)
    return (pad_batch(batch, multiple) for batch in batches)


def pad_batch(batch, multiple):
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


def _uneven(multiple):
    return (
        f"A batch must be a multiple of {multiple} images, which {multiple} "
        "devices split evenly, or have weights: (images, labels, weights) is "
        "padded with images of weight 0."
    )


class _Padded(keras.utils.PyDataset):
    def __init__(self, batches, multiple):
        super().__init__()
        self.batches, self.multiple = batches, multiple
        if hasattr(batches, "shapes"):  # see `to_tf_dataset`
            self.shapes = batches.shapes

    @property
    def num_batches(self):
        return self.batches.num_batches

    def __getitem__(self, index):
        return pad_batch(self.batches[index], self.multiple)

    def on_epoch_begin(self):
        self.batches.on_epoch_begin()

    def on_epoch_end(self):
        self.batches.on_epoch_end()


def _pad_tf_dataset(batches, multiple):
    import tensorflow as tf

    def pad(*batch):
        count = tf.shape(tf.nest.flatten(batch)[0])[0]
        missing = -count % multiple
        if len(batch) < 3:
            even = tf.debugging.assert_equal(missing, 0, _uneven(multiple))
            with tf.control_dependencies([even]):
                return tf.nest.map_structure(tf.identity, batch)
        images, labels, weights = (
            tf.concat([column, tf.repeat(column[:1], missing, axis=0)], 0)
            for column in batch
        )
        zeros = tf.zeros_like(weights[count:])
        return images, labels, tf.concat([weights[:count], zeros], 0)

    # The images of a batch may be a dict of crops.
    size = tf.nest.flatten(batches.element_spec)[0].shape[0]
    if size is not None and size % multiple == 0:
        return batches
    return batches.map(pad)


def without_autotune(dataset):
    """Returns a `tf.data.Dataset` whose autotuning is off.

    TensorFlow tunes a dataset in a thread that sleeps until a time of the wall
    clock, and closing the dataset waits for that thread. If the clock is set
    back in between, the program hangs until then: two of three runs did, with
    TensorFlow 2.21.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def to_tf_dataset(batches):
    """Returns batches as a `tf.data.Dataset` whose autotuning is off.

    Keras itself would turn a `keras.utils.PyDataset` into one that is tuned.

    Under a strategy of TensorFlow, `model.fit` reads the first batch for its
    shapes, and then starts again from the beginning. With an iterator, which
    cannot start again, batches would be lost.

    Args:
        batches: A `tf.data.Dataset` or a `keras.utils.PyDataset`. If the
            batches of the latter differ in shape, its attribute `shapes` has
            the shape of each column without the batch, with None for sizes
            that differ.

    Raises:
        TypeError: if `batches` can be read only once.
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


def _from_py_dataset(batches):
    import tensorflow as tf

    length = batches.num_batches  # None if there is no end
    columns = [np.asarray(column) for column in batches[0]]
    # Of batches of images that differ in size.
    shapes = getattr(batches, "shapes", [x.shape[1:] for x in columns])

    def generate():
        indices = itertools.count() if length is None else range(length)
        return (tuple(batches[index]) for index in indices)

    signature = tuple(
        tf.TensorSpec((None, *shape), column.dtype)
        for shape, column in zip(shapes, columns, strict=True)
    )
    dataset = tf.data.Dataset.from_generator(
        generate, output_signature=signature
    )
    cardinality = tf.data.INFINITE_CARDINALITY if length is None else length
    return dataset.apply(tf.data.experimental.assert_cardinality(cardinality))


def _is_tf_dataset(batches):
    # `isinstance` would import TensorFlow, also under JAX and PyTorch.
    return hasattr(batches, "element_spec")
