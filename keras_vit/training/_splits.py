import numpy as np

from keras_vit.training._data import TEST_SHARE


def split(labels):
    """Splits 80 to 20 within every class, the same way every time.

    Args:
        labels: Array of integers. Every class has at least two examples.

    Returns:
        Sorted arrays of the training and of the test indices.
    """
    labels = np.asarray(labels)
    rng = np.random.default_rng(0)
    test = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        test.append(members[: max(1, round(TEST_SHARE * len(members)))])
    test = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test), test
