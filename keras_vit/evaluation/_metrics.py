import numpy as np

from keras_vit.evaluation._checks import labels_of
from keras_vit.evaluation._checks import scores_of


def accuracy(scores, labels, k=1):
    """Returns the share of images whose label is among the k best classes.

    Args:
        scores: Array of shape `(images, classes)`: logits or probabilities.
            Of equal scores, the class of the lower index is the better one,
            as for `argmax`.
        labels: Array of shape `(images,)` of integers in [0, classes).
        k: Integer from 1 to the number of classes.

    Returns:
        A float in [0, 1].

    Raises:
        ValueError: if shapes do not fit, a score is not finite, or a label or
            `k` is out of range.
    """
    scores = scores_of(scores)
    labels = labels_of(labels, *scores.shape)
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(
            f"`k` must be from 1 to {scores.shape[1]}, the number of classes. "
            f"Received: {k}"
        )
    right = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(scores.shape[1]) < labels[:, None]
    rank = np.sum((scores > right) | ((scores == right) & before), axis=1)
    return float(np.mean(rank < k))


def softmax(logits):
    """Returns probabilities, in float64."""
    logits = scores_of(logits, "logits").astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
