import numpy as np

from keras_vit.evaluation._checks import labels_of
from keras_vit.evaluation._checks import scores_of

_AT_ONCE = 2**24  # similarities, 134 MB in float64


def nearest_neighbours(
    features, labels, classes, test_features, k=20, temperature=0.07
):
    """Classifies by the labels of the k most similar images.

    As in "Emerging Properties in Self-Supervised Vision Transformers",
    Appendix F.1 (https://arxiv.org/abs/2104.14294): similarity is the cosine
    of the features, and a neighbour's vote is exp(similarity / temperature).

    Args:
        features: Array of shape `(images, columns)`.
        labels: Array of shape `(images,)` of integers in [0, classes).
        classes: Integer. Number of classes.
        test_features: Array of shape `(test images, columns)`.
        k: Integer from 1 to the number of images.
        temperature: Float above 0, or None: all votes count the same.

    Returns:
        Array of shape `(test images, classes)`: shares of the votes.

    Raises:
        ValueError: if shapes do not fit, or a value is out of range.
    """
    x = _directions(features, "features")
    labels = labels_of(labels, len(x), classes)
    test = _directions(test_features, "test_features")
    if test.shape[1] != x.shape[1]:
        raise ValueError(
            f"`test_features` must have {x.shape[1]} columns, as `features`. "
            f"Received: {test.shape[1]}"
        )
    if not 1 <= k <= len(x):
        raise ValueError(
            f"`k` must be from 1 to {len(x)}, the number of images. Received: "
            f"{k}"
        )
    if temperature is not None and not temperature > 0:
        raise ValueError(
            f"`temperature` must be above 0, or None. Received: {temperature}"
        )
    votes = np.zeros((len(test), classes))
    at_once = max(1, _AT_ONCE // len(x))
    for start in range(0, len(test), at_once):
        similar = test[start : start + at_once] @ x.T
        nearest = np.argpartition(-similar, k - 1, axis=1)[:, :k]
        similar = np.take_along_axis(similar, nearest, axis=1)
        if temperature is None:
            weights = np.ones_like(similar)
        else:  # the best at 1: shares are the same, and nothing overflows
            best = similar.max(axis=1, keepdims=True)
            weights = np.exp((similar - best) / temperature)
        rows = np.arange(start, start + len(similar))[:, None]
        np.add.at(votes, (rows, labels[nearest]), weights)
    return votes / votes.sum(axis=1, keepdims=True)


def _directions(features, name):
    features = scores_of(features, name).astype(np.float64)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    if not lengths.all():
        raise ValueError(
            f"`{name}` must not have rows of zeros, which have no direction. "
            f"Received: {np.sum(lengths == 0)} of {len(features)}"
        )
    return features / lengths
