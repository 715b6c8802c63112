import numpy as np

from keras_vit.training._data import TEST_SHARE


def split(labels, share=TEST_SHARE, seed=0):
    """Splits, by default 80 to 20, within every class, always the same way.

    Args:
        labels: Array of integers. Every class has at least two examples.
        share: Float. That of the second part; 0 for none.
        seed: Integer. Another one splits otherwise.

    Returns:
        Sorted arrays of the training and of the test indices.
    """
    labels = np.asarray(labels)
    if not share:
        return np.arange(len(labels)), np.empty(0, int)
    rng = np.random.default_rng(seed)
    test = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        # One or more on either side, whatever the share.
        count = min(max(1, round(share * len(members))), len(members) - 1)
        test.append(members[:count])
    test = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test), test


def hold_out(train, labels, share):
    """Splits training indices once more, into those to train on and dev."""
    train = np.asarray(train)
    kept, dev = split(np.asarray(labels)[train], share, seed=1)
    return train[kept], train[dev]
