"""Batches of any data set, as NumPy arrays."""

import itertools

import keras
import numpy as np


def take(batches, count):
    """Returns the columns of the first batches, stacked."""
    rows = [
        [np.asarray(x) for x in keras.tree.flatten(batch)]
        for batch in itertools.islice(batches, count)
    ]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def examples(batches):
    """Returns images and labels, without those of weight 0."""
    images, labels, *weights = (
        np.concatenate([np.asarray(x) for x in column])
        for column in zip(*batches, strict=True)
    )
    return [x[weights[0] > 0] if weights else x for x in (images, labels)]


def check_order(train, count=7, processes=2):
    """Checks that a batch depends on the seed and its number alone, also in a
    run that resumes, and in each of several processes; returns the batches.

    Args:
        train: Function of `seed`, `start` and `shard` that returns batches.
        count: Integer. Number of batches to compare.
        processes: Integer. 1 where a process mixes only its own images.
    """
    whole = take(train(seed=3), count)
    shards = [
        take(train(seed=3, start=count - 2, shard=(i, processes)), 2)
        for i in range(processes)
    ]
    for x, *parts in zip(whole, *shards, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts, 1), x[-2:])
    other = take(train(seed=4), 1)
    assert not np.array_equal(other[0], whole[0][:1])
    return whole
