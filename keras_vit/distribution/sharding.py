"""Batches of one host, as several devices take them."""

import itertools

import keras
import numpy as np


def divisible(batches, parts):
    """Returns batches that `parts` devices of a host can split evenly.

    JAX splits nothing else. Batches of `(images, labels, weights)` are filled
    up with images of weight 0; others that do not divide are an error.

    Args:
        batches: A `tf.data.Dataset`, a `keras.utils.PyDataset` or an iterator.
        parts: Integer.
    """
    if parts == 1:
        return batches
    if isinstance(batches, keras.utils.PyDataset):
        return _Divisible(batches, parts)
    if _is_dataset(batches):
        return _divisible_dataset(batches, parts)
    return (fill(batch, parts) for batch in batches)


def fill(batch, parts):
    """Fills a batch up to a multiple of `parts`, with weight 0."""
    rest = -len(batch[0]) % parts
    if not rest:
        return batch
    if len(batch) < 3:
        raise ValueError(_uneven(len(batch[0]), parts))
    # The first example again: an image like any other, which counts nothing.
    images, labels, weights = (
        np.concatenate([part, np.repeat(part[:1], rest, axis=0)])
        for part in batch
    )
    weights[-rest:] = 0
    return images, labels, weights


def _uneven(count, parts):
    return (
        f"A batch of {count} images cannot be split evenly over {parts} "
        "devices. Give (images, labels, weights), which is filled up with "
        f"images of weight 0, or batches of a multiple of {parts}."
    )


class _Divisible(keras.utils.PyDataset):
    def __init__(self, batches, parts):
        super().__init__()
        self.batches, self.parts = batches, parts

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return fill(self.batches[index], self.parts)

    def on_epoch_end(self):
        self.batches.on_epoch_end()


def _divisible_dataset(batches, parts):
    import tensorflow as tf

    def filled(*batch):
        count = tf.shape(batch[0])[0]
        rest = -count % parts
        if len(batch) < 3:
            even = tf.debugging.assert_equal(rest, 0, _uneven("N", parts))
            with tf.control_dependencies([even]):
                return tuple(tf.identity(part) for part in batch)
        images, labels, weights = (
            tf.concat([part, tf.repeat(part[:1], rest, axis=0)], 0)
            for part in batch
        )
        mask = tf.cast(tf.range(count + rest) < count, weights.dtype)
        return images, labels, weights * mask

    first = batches.element_spec[0].shape[0]
    if first is not None and first % parts == 0:
        return batches
    return batches.map(filled)


def steady(dataset):
    """Returns a `tf.data.Dataset` that does not tune itself.

    The thread that would do so waits until a time by the clock: for years if
    that was put back, and whoever ends the dataset waits for the thread. (With
    TensorFlow 2.21, two of three runs hung.)
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def steadily(batches):
    """Returns batches as TensorFlow reads them on one device; Keras would
    make a dataset of them that tunes itself."""
    dataset, _ = _as_dataset(batches)
    if not _is_dataset(batches) and hasattr(batches, "__len__"):
        import tensorflow as tf

        whole = tf.data.experimental.assert_cardinality(len(batches))
        dataset = dataset.apply(whole)
    return steady(dataset.prefetch(2))


def per_replica(batches, strategy, parts):
    """Returns a host's batches for a `tf.distribute.Strategy`.

    `model.fit` would take them for all hosts', and split them once more.

    Args:
        batches: As for `divisible`; of equal size but the last.
        strategy: A `tf.distribute.Strategy`.
        parts: Integer. Devices of this host.
    """
    dataset, count = _as_dataset(batches)
    if count % parts:
        raise ValueError(_uneven(count, parts))
    if _is_dataset(batches):
        steps, endless = int(dataset.cardinality()), False
    elif hasattr(batches, "__len__"):
        steps, endless = len(batches), False
    else:
        steps, endless = -1, True  # tf.data.INFINITE_CARDINALITY
    dataset = steady(dataset.rebatch(count // parts).prefetch(2))
    # The context would tell what `parts` is already made of.
    shared = strategy.distribute_datasets_from_function(lambda _: dataset)
    return _for_fit(shared, dataset.element_spec, endless, steps)


def _for_fit(shared, spec, endless, steps):
    """Makes a distributed dataset one that `model.fit` reads rightly.

    Where it ends, TensorFlow goes on with empty batches, whose loss of 0 Keras
    counts in the mean, unless it knows the number of steps.

    Keras takes a first batch for its shapes and throws it away; with several
    hosts it fails at that. It gets the shapes instead. What cannot be read
    twice has one iterator for all calls of `fit`: each new one would lose the
    batches that the one before had fetched ahead.
    """

    class Shared(type(shared)):
        @property
        def cardinality(self):
            return steps

        def __iter__(self):
            if not (endless and hasattr(self, "_only")):
                self._only = _peeked(super().__iter__(), spec)
            return self._only

    # Keras asks for TensorFlow's own class, which nobody else can construct.
    shared.__class__ = Shared
    return shared


def _peeked(iterator, spec):
    class Peeked(type(iterator)):
        def __next__(self):  # training has `get_next`
            return spec

    iterator.__class__ = Peeked
    return iterator


def _as_dataset(batches):
    """Returns the batches and how many images the first one has."""
    import tensorflow as tf

    if _is_dataset(batches):
        count = batches.element_spec[0].shape[0]
        if count is None:
            count = len(next(iter(batches))[0])
        return batches, count
    if isinstance(batches, keras.utils.PyDataset):
        first = batches[0]

        def elements():
            return (tuple(batches[i]) for i in range(len(batches)))

    else:
        # What can be read once, and is not to lose its first batch.
        batches = iter(batches)
        first = next(batches)
        chain = itertools.chain([first], batches)

        def elements():
            return (tuple(batch) for batch in chain)

    signature = tuple(
        tf.TensorSpec((None, *np.shape(part)[1:]), np.asarray(part).dtype)
        for part in first
    )
    dataset = tf.data.Dataset.from_generator(
        elements, output_signature=signature
    )
    return dataset, len(first[0])


def _is_dataset(batches):
    # Without importing TensorFlow where nobody has.
    return hasattr(batches, "element_spec")
