"""Metrics of classifiers on NumPy arrays: accuracy, calibration, confusion."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.utils import checks
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, ArrayLike, StrPath

# Rounding error of a sum of probabilities in half precision.
_SUM_TOLERANCE = 1e-3


def accuracy(scores: ArrayLike, labels: ArrayLike, k: int = 1) -> float:
    """Returns the top-k accuracy.

    Args:
        scores: Array of shape `(images, classes)`: logits or probabilities.
            If scores are equal, the class with the lower index ranks higher,
            as in `argmax`.
        labels: Array of shape `(images,)` of integers in [0, classes).
        k: Integer. Number of classes with the highest scores among which the label must
            be.

    Returns:
        A float in [0, 1].

    Raises:
        ValueError: if shapes do not match, a score is not finite, or a label or
            `k` is out of range.
    """
    scores = check_scores(scores)
    labels = check_labels(labels, *scores.shape)
    most = scores.shape[1]
    checks.require(0 < k <= most, "k", k, f"an integer from 1 to {most}")
    # The order is that of `argmax`. By scikit-learn's top-k accuracy the last of
    # equal scores wins, so that top-1 would be another number.
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(scores.shape[1]) < labels[:, None]
    rank = np.sum((scores > own) | ((scores == own) & before), axis=1)
    return float(np.mean(rank < k))


def softmax(logits: ArrayLike) -> Array:
    """Returns the softmax of each row, in float64.

    Args:
        logits: Array of shape `(images, classes)`.

    Returns:
        Array of the same shape whose rows sum to 1.
    """
    # By NumPy, since predictions of a model would else need SciPy.
    logits = check_scores(logits, "logits").astype(np.float64)
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def sigmoid(logits: ArrayLike) -> Array:
    """Returns the sigmoid of each logit, in float64.

    Args:
        logits: Array of shape `(images, classes)`.

    Returns:
        Array of the same shape with values in [0, 1].
    """
    logits = check_scores(logits, "logits").astype(np.float64)
    # exp does not overflow: its argument is not positive.
    exp = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1, exp) / (1 + exp)


def real_accuracy(scores: ArrayLike, labels: Any) -> float:
    """Returns the accuracy on ImageNet's reassessed labels (ReaL).

    An image counts as correct if its top class is one of its labels. Images
    without labels are ignored, as in google-research/reassessed-imagenet. The
    metric is from "Are we done with ImageNet?"
    (https://arxiv.org/abs/2006.07159).

    Args:
        scores: Array of shape `(images, classes)`: logits or probabilities.
        labels: List with one list of classes per image, which may be empty;
            or array or tensor of shape `(images, classes)`, positive where a
            class applies.

    Returns:
        A float in [0, 1].

    Raises:
        ValueError: if shapes do not match, a label is out of range, or no image
            has a label.
    """
    scores = check_scores(scores)
    correct = _multi_hot(labels, *scores.shape)
    labeled = correct.any(axis=1)
    best = scores.argmax(axis=1)
    return float(correct[np.arange(len(best)), best][labeled].mean())


def _multi_hot(labels: Any, images: int, classes: int) -> Array:
    """Returns labels of any kind as booleans of shape `(images, classes)`."""
    if not hasattr(labels, "shape") or labels.dtype == object:
        rows = [np.asarray(members) for members in labels]
        labels = np.zeros((len(rows), classes), bool)
        # They may be rows of zeros and ones.
        ambiguous = classes == 2 and all(row.shape == (2,) for row in rows)
        for hot, row in zip(labels, rows, strict=True):
            integers = not row.size or (row.ndim == 1 and row.dtype.kind in "iu")
            if (
                ambiguous
                or not integers
                or not set(row.tolist()) <= set(range(classes))
                or len(set(row.tolist())) < row.size
            ):
                raise ValueError(
                    "Each list of `labels` must hold different integers from "
                    f"0 to {classes - 1}; rows of zeros and ones must be an "
                    f"array. Received: {row.tolist()}"
                )
            hot[row.astype(int)] = True
    labels = np.asarray(labels)
    if labels.shape != (images, classes) or np.isnan(labels).any():
        raise ValueError(
            f"`labels` must be numbers of shape {(images, classes)}, that of "
            f"the scores. Received: shape {labels.shape}, with "
            f"{np.isnan(labels).sum()} NaN"
        )
    if not (labels > 0).any():
        raise ValueError("None of the images has a label.")
    return labels > 0


def average_precisions(scores: ArrayLike, labels: Any) -> list[float | None]:
    """Returns the average precision of each class.

    It is the sum over all thresholds of the precision times the increase of the recall,
    without interpolation, as in scikit-learn's `average_precision_score`.

    Args:
        scores: Array of shape `(images, classes)`: logits or probabilities.
        labels: As in `real_accuracy`.

    Returns:
        List with one float in [0, 1] per class, or None for a class without positives.
    """
    scores = check_scores(scores)
    correct = _multi_hot(labels, *scores.shape)
    average_precision = require("sklearn.metrics").average_precision_score
    return [
        float(average_precision(positive, column)) if positive.any() else None
        for column, positive in zip(scores.T, correct.T, strict=True)
    ]


def mean_average_precision(scores: ArrayLike, labels: Any) -> float:
    """Returns the mean of the average precisions of the classes.

    Args:
        scores: As in `average_precisions`.
        labels: As in `average_precisions`.

    Returns:
        A float in [0, 1]. Classes without positives are ignored.

    Raises:
        ValueError: as in `real_accuracy`.

    Example:

    ```python
    scores = [[2.0, -1.0], [1.0, 3.0], [0.0, 2.0]]
    labels = [[0], [1], [0, 1]]  # the classes of each image
    # 0.9167, the mean of 5/6 and 1
    keras_vit.evaluation.mean_average_precision(scores, labels)
    ```
    """
    found = [value for value in average_precisions(scores, labels) if value is not None]
    return float(np.mean(found))


def load_real_labels(path: StrPath) -> list[list[int]]:
    """Reads the ReaL labels of ImageNet's validation images.

    Args:
        path: String or path of `real.json`, from
            https://github.com/google-research/reassessed-imagenet.

    Returns:
        A list with one list of integers per image, in the order of the images' names,
        beginning with ILSVRC2012_val_00000001.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file has another format.
    """
    path = pathlib.Path(path).expanduser()
    try:
        labels = json.loads(path.read_text())
    except (ValueError, RecursionError):
        labels = None
    if not isinstance(labels, list) or not all(
        isinstance(members, list) and all(type(x) is int for x in members)
        for members in labels or [None]
    ):
        raise ValueError(
            f"{str(path)!r} must hold a list with one list of class numbers "
            "for each validation image, [[65], [], [795, 970], ...], in JSON."
        )
    return labels


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, bins: int = 15
) -> list[dict[str, Any]]:
    """Computes a reliability diagram: accuracy by confidence.

    Images are sorted into bins of equal width by the probability of their top
    class, as in "On Calibration of Modern Neural Networks", Section 2
    (https://arxiv.org/abs/1706.04599).

    Args:
        probabilities: Array of shape `(images, classes)` whose rows sum to 1
            (see `softmax`).
        labels: Array of shape `(images,)` of integers in [0, classes).
        bins: Integer. Number of bins. Bin i of n is the interval
            (i / n, (i + 1) / n].

    Returns:
        A list with one dict per bin: its bounds `lower` and `upper`, the
        number of `images`, their mean `confidence` (the probability of the
        top class) and their `accuracy`, both None for an empty bin.
    """
    probabilities = check_scores(probabilities, "probabilities")
    labels = check_labels(labels, *probabilities.shape)
    bins = checks.positive_int("bins", bins)
    sums = probabilities.sum(axis=1, dtype=np.float64)
    if probabilities.min() < 0 or np.abs(sums - 1).max() > _SUM_TOLERANCE:
        raise ValueError(
            "`probabilities` must be 0 or more and sum to 1 in every row; for "
            "logits, use keras_vit.evaluation.softmax(logits). Received: "
            f"values from {probabilities.min():g}, sums from {sums.min():g} "
            f"to {sums.max():g}"
        )
    confidence = probabilities.max(axis=1).astype(np.float64)
    correct = probabilities.argmax(axis=1) == labels
    edges = np.arange(bins + 1) / bins
    # Intervals are closed on the right; the first also on the left.
    bin_index = np.clip(np.searchsorted(edges, confidence) - 1, 0, bins - 1)
    counts = np.bincount(bin_index, minlength=bins)

    def mean(values: Array, index: int) -> float | None:
        return float(values[bin_index == index].mean()) if counts[index] else None

    return [
        {
            "lower": float(edges[index]),
            "upper": float(edges[index + 1]),
            "images": int(counts[index]),
            "confidence": mean(confidence, index),
            "accuracy": mean(correct, index),
        }
        for index in range(bins)
    ]


def calibration_error(
    probabilities: ArrayLike, labels: ArrayLike, bins: int = 15
) -> float:
    """Returns the expected calibration error.

    It is the absolute difference of confidence and accuracy, averaged over the
    bins of `reliability` weighted by their number of images.

    Args:
        probabilities: As in `reliability`.
        labels: As in `reliability`.
        bins: As in `reliability`. The error depends on it, so it should be reported
            too.

    Returns:
        A float in [0, 1].
    """
    rows = [r for r in reliability(probabilities, labels, bins) if r["images"]]
    total = sum(row["images"] for row in rows)
    return sum(
        row["images"] / total * abs(row["confidence"] - row["accuracy"]) for row in rows
    )


def confusion_matrix(
    predicted: ArrayLike,
    labels: ArrayLike,
    classes: int,
    ignore: int | None = None,
) -> Array:
    """Counts images, or pixels, by true and predicted class.

    Args:
        predicted: Array of integers in [0, classes), of shape `(images,)`, or
            of the shape of masks.
        labels: Array of the same shape, of integers in [0, classes).
        classes: Integer. Number of classes.
        ignore: Integer. Label of pixels that are not counted, such as 255; None to
            count all pixels.

    Returns:
        Integers of shape `(classes, classes)`: rows are true classes, columns
        predicted classes.
    """
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    if predicted.shape != labels.shape:
        raise ValueError(
            "`predicted` and `labels` must have one shape. Received: "
            f"{predicted.shape} and {labels.shape}"
        )
    predicted, labels = predicted.ravel(), labels.ravel()
    if ignore is not None:
        counted = labels != ignore
        predicted, labels = predicted[counted], labels[counted]
    labels = check_labels(labels, len(labels), classes)
    predicted = check_labels(predicted, len(labels), classes, "predicted")
    # scikit-learn takes four times as long for 22 million pixels, and refuses an
    # image whose pixels are all ignored.
    pairs = np.bincount(labels * classes + predicted, minlength=classes**2)
    return pairs.reshape(classes, classes)


def mean_iou(confusion: ArrayLike) -> tuple[float, Array]:
    """Computes the intersection over union of each class, and their mean.

    It is the number of pixels of a class that are predicted as this class, divided by
    the number of pixels that are of this class or predicted as it. First count the
    pixels of all images in one matrix: averaging the values of single images gives
    another result.

    Args:
        confusion: The output of `confusion_matrix`, or a sum of them.

    Returns:
        The mean over the classes that occur or are predicted, a float, and an array
        with the value of each class, NaN for classes that neither occur nor are
        predicted.

    Raises:
        ValueError: if the matrix is not square, or empty.

    Example:

    >>> confusion = 0
    >>> for image, mask in zip(images, masks):
    ...     predicted = model.predict(image[None])[0].argmax(-1)
    ...     confusion = confusion + keras_vit.evaluation.confusion_matrix(
    ...         predicted, mask, 21, ignore=255)
    >>> mean, by_class = keras_vit.evaluation.mean_iou(confusion)
    """
    confusion = np.asarray(confusion, "float64")  # float32 has 24 bits
    square = confusion.ndim == 2 and len(set(confusion.shape)) == 1
    if not square or not confusion.any():
        raise ValueError(
            "`confusion` must be of shape (classes, classes) and count one "
            f"pixel or more. Received: shape {confusion.shape}, with "
            f"{confusion.sum():g} pixels. Give images with pixels of a class "
            "that is not ignored."
        )
    both = np.diag(confusion)
    either = confusion.sum(0) + confusion.sum(1) - both
    iou = np.divide(both, either, np.full_like(both, np.nan), where=either > 0)
    return float(np.nanmean(iou)), iou


def per_class(
    confusion: ArrayLike | tuple[Array, Array],
    class_names: Sequence[str],
) -> list[dict[str, Any]]:
    """Computes the accuracy and precision of each class.

    Args:
        confusion: The output of `confusion_matrix`, or a tuple of its first two
            arguments: NumPy arrays of predicted and true classes, of shape `(images,)`.
            The tuple saves memory, since the matrix of 21,843 classes takes 3.8 GB.
        class_names: List of strings, one per class.

    Returns:
        A list with one dict per class:

        - `class`: its name;
        - `images`: number of images;
        - `right`: number of correct predictions;
        - `accuracy`: `right / images`, also called recall;
        - `precision`: `right` divided by the number of predictions;
        - `mistaken_for`: the wrong class that is predicted most often;
        - `times`: how often it is predicted.

        Undefined values, such as the accuracy of a class without images, are
        None.
    """
    classes = len(class_names)
    # A tuple of other sequences holds the rows of a matrix.
    if isinstance(confusion, tuple) and isinstance(confusion[0], np.ndarray):
        chosen, labels = (
            check_labels(x, np.size(confusion[1]), classes, name)
            for x, name in zip(confusion, ("predicted", "labels"), strict=True)
        )
        pairs, times = np.unique(labels * classes + chosen, return_counts=True)
        labels, chosen = np.divmod(pairs, classes)
    else:
        confusion = np.asarray(confusion)
        if confusion.shape != (classes, classes):
            raise ValueError(
                f"`confusion` must have a row and a column for each of the "
                f"{classes} classes. Received: shape {confusion.shape}"
            )
        labels, chosen = np.nonzero(confusion)
        times = confusion[labels, chosen]
    # A matrix that was divided by the numbers of images has fractions.
    dtype = np.result_type(times, int)
    images, predicted = (
        np.bincount(x, times, classes).astype(dtype) for x in (labels, chosen)
    )
    right, mistakes = np.zeros((2, classes), dtype)
    others = np.zeros(classes, int)
    same = labels == chosen
    right[labels[same]] = times[same]
    # The last assignment to a class counts: its most frequent wrong class, and
    # the first of several.
    for i in np.lexsort((-chosen, times)):
        if not same[i]:
            others[labels[i]], mistakes[labels[i]] = chosen[i], times[i]
    return [
        {
            "class": name,
            "images": int(images[i]),
            "right": int(right[i]),
            "accuracy": float(right[i] / images[i]) if images[i] else None,
            "precision": (float(right[i] / predicted[i]) if predicted[i] else None),
            "mistaken_for": class_names[others[i]] if mistakes[i] else None,
            "times": int(mistakes[i]),
        }
        for i, name in enumerate(class_names)
    ]


def check_scores(scores: ArrayLike, name: str = "scores") -> Array:
    """Returns scores or features as a finite array `(images, columns)`."""
    array = np.asarray(scores)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu":
        raise ValueError(
            f"`{name}` must be numbers of shape (images, columns), at least "
            f"one of each. Received: shape {array.shape}, {array.dtype}"
        )
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ValueError(
            f"`{name}` must be finite. Received: NaN or infinity for "
            f"{bad.size} of {len(array)} images, the first at index {bad[0]}. "
            "Look for them in the model's inputs and weights."
        )
    return array


def check_labels(
    labels: ArrayLike,
    count: int,
    classes: int | None = None,
    name: str = "labels",
) -> Array:
    """Returns `count` labels in [0, classes) as an int64 array."""
    array = np.asarray(labels)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must be {count} integers, one per image. Received: "
            f"shape {array.shape}, {array.dtype}"
        )
    highest = np.inf if classes is None else classes - 1
    if count and not (0 <= array.min() and array.max() <= highest):
        raise ValueError(
            f"`{name}` must be from 0 to {highest}. Received: {array.min()} "
            f"to {array.max()}"
        )
    return array.astype(np.int64)
