import numpy as np

from keras_vit.evaluation._checks import labels_of
from keras_vit.evaluation._checks import scores_of

ROUNDING = 1e-3  # of probabilities in half precision, together


def reliability(probabilities, labels, bins=15):
    """Compares how sure a classifier is with how often it is right.

    "On Calibration of Modern Neural Networks", Section 2
    (https://arxiv.org/abs/1706.04599): images are put into bins of equal
    width by the probability of their best class.

    Args:
        probabilities: Array of shape `(images, classes)`, rows that sum to 1
            (see `softmax`).
        labels: Array of shape `(images,)` of integers.
        bins: Integer. Bin i of n is the interval (i / n, (i + 1) / n].

    Returns:
        A list of one dict a bin: `lower`, `upper`, `images`, and the means
        `confidence` and `accuracy`, which are None without images.

    Raises:
        ValueError: if shapes do not fit, or rows are no probabilities.
    """
    probabilities = scores_of(probabilities, "probabilities")
    labels = labels_of(labels, *probabilities.shape)
    if bins < 1:
        raise ValueError(f"`bins` must be 1 or more. Received: {bins}")
    sums = probabilities.sum(axis=1, dtype=np.float64)
    if probabilities.min() < 0 or np.abs(sums - 1).max() > ROUNDING:
        raise ValueError(
            "`probabilities` must be 0 or more and sum to 1 in every row; of "
            "logits, take keras_vit.evaluation.softmax(logits). Received: "
            f"values from {probabilities.min():g}, sums from {sums.min():g} "
            f"to {sums.max():g}"
        )
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    edges = np.arange(bins + 1) / bins
    # Right-closed; nothing is below the first edge or above the last.
    place = np.clip(np.searchsorted(edges, confidence) - 1, 0, bins - 1)
    rows = []
    for index in range(bins):
        inside = place == index
        some = bool(inside.any())
        rows.append(
            {
                "lower": float(edges[index]),
                "upper": float(edges[index + 1]),
                "images": int(inside.sum()),
                "confidence": float(confidence[inside].mean())
                if some
                else None,
                "accuracy": float(right[inside].mean()) if some else None,
            }
        )
    return rows


def calibration_error(probabilities, labels, bins=15):
    """Returns the expected calibration error: the mean distance between
    confidence and accuracy in the bins of `reliability`, weighted by their
    images.

    Args:
        probabilities, labels, bins: As in `reliability`.

    Returns:
        A float in [0, 1]. It depends on `bins`: give their number with it.
    """
    rows = [r for r in reliability(probabilities, labels, bins) if r["images"]]
    total = sum(row["images"] for row in rows)
    return sum(
        row["images"] / total * abs(row["confidence"] - row["accuracy"])
        for row in rows
    )
