"""Classifiers on frozen features, in float64: ridge regression, linear probes and
nearest neighbors."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.data import ImageDataset
from keras_vit.evaluation.classifiers import feature_model
from keras_vit.evaluation.predict import predict_splits
from keras_vit.evaluation.scores import check_labels, check_scores
from keras_vit.utils import checks
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, ArrayLike
from keras_vit.utils.warnings import warn

# Constants of big_vision's evaluators/fewshot_lsr.py. The bias is the weight of
# a constant column; as its value is large, the penalty hardly affects the bias.
_BIAS_COLUMN = 100.0
_STD_EPSILON = 1e-5
_L2 = 2.0**10

_MAX_LISTED = 5  # classes listed in a warning
_SCORES_PER_CHUNK = 2**25  # 268 MB in float64


def few_shot(
    features: ArrayLike,
    labels: ArrayLike,
    shots: int | Sequence[int] = (1, 5, 10, 25),
    seeds: int | Sequence[int] = 3,
    *,
    test_features: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    l2: float | Sequence[float] = _L2,
    class_names: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Measures the few-shot accuracy of frozen features.

    For each seed, the images of each class are shuffled, and `ridge` is fitted
    to the first `shots` of them in closed form. This follows "An Image is Worth
    16x16 Words", Section 4.1 (https://arxiv.org/abs/2010.11929), and
    big_vision's `fewshot_lsr.py`.

    Args:
        features: Array of shape `(images, columns)`, such as the output of
            `feature_extractor(model, "pre_logits")`.
        labels: Array of shape `(images,)` of integers.
        shots: Integer or list of integers. Number of training images per
            class. If a class has fewer, all its images are used, with a
            warning.
        seeds: Integer, the number of seeds; or a list of seeds.
        test_features: Array of shape `(test images, columns)` to evaluate on.
            None to evaluate on the images of `features` that are not used
            for training.
        test_labels: Array of shape `(test images,)` of integers; None if
            `test_features` is None.
        l2: Float above 0, or a list of floats, each of which is evaluated.
            The penalty of `ridge`; big_vision reports results for the
            default, 2^10.
        class_names: Sequence of strings, one per class, for warnings. None to
            show numbers.

    Returns:
        A list of dicts, one for each combination of `shots` and `l2`:

        - `shots`, `l2`: the values of the arguments;
        - `images`: number of training images;
        - `accuracies`: one per seed;
        - `accuracy`, `std`: their mean and standard deviation;
        - `per_class`: accuracy averaged over classes, then over seeds.

    Raises:
        ValueError: if shapes do not match, a value is out of range, there is
            only one class, or no image is left to evaluate on.
    """
    features = check_scores(features, "features")
    labels = check_labels(labels, len(features))
    holds_out = test_features is None
    if holds_out != (test_labels is None):
        raise ValueError("Give `test_features` and `test_labels`, or neither.")
    test_x, test_y = features, labels
    if test_features is not None and test_labels is not None:
        test_x = check_scores(test_features, "test_features")
        test_y = check_labels(test_labels, len(test_x), name="test_labels")
    classes = int(max(labels.max(), test_y.max())) + 1
    shots = _distinct("shots", shots, checks.positive_int)
    penalties = _distinct("l2", l2, checks.positive_float)
    if isinstance(seeds, int):
        seeds = range(checks.positive_int("seeds", seeds))
    names = range(classes) if class_names is None else class_names
    _check_counts(labels, test_y, classes, max(shots), names)
    found = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        order = [
            rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)
        ]
        for count in shots:
            chosen = np.concatenate([members[:count] for members in order])
            tested = np.ones(len(test_x), bool)
            if holds_out:
                tested[chosen] = False
            if not tested.any():
                raise ValueError(
                    f"No image is left to evaluate on with {count} shots: give "
                    "`test_features` and `test_labels`, or fewer shots."
                )
            solve = ridge_solver(features[chosen], labels[chosen], classes)
            y = test_y[tested]
            for penalty in penalties:
                best = solve(penalty).scores(test_x[tested]).argmax(axis=1)
                right = best == y
                by_class = [right[y == label].mean() for label in np.unique(y)]
                row = len(chosen), float(right.mean()), np.mean(by_class)
                found.setdefault((count, penalty), []).append(row)
    results = []
    for (count, penalty), rows in found.items():
        images, accuracies, by_class = zip(*rows, strict=True)
        results.append(
            {
                "shots": count,
                "l2": penalty,
                "images": images[0],
                "accuracies": list(accuracies),
                "accuracy": float(np.mean(accuracies)),
                "std": float(np.std(accuracies)),
                "per_class": float(np.mean(by_class)),
            }
        )
    return results


def few_shot_of_model(
    model: keras.Model,
    data: ImageDataset,
    options: dict[str, Any],
    shots: int,
    seeds: int,
) -> dict[str, Any]:
    """Returns the row of `few_shot` for a model's features; `options` are the arguments
    of `ImageDataset.batches`."""
    x, y, test_x, test_y = predict_splits(feature_model(model), data, options)
    (row,) = few_shot(
        x,
        y,
        shots,
        seeds,
        test_features=test_x,
        test_labels=test_y,
        class_names=data.class_names,
    )
    return row


def _distinct(name: str, values: ArrayLike, check: Callable) -> list:
    """Returns checked values as a list without duplicates."""
    values = np.ravel(values).tolist()
    return list(dict.fromkeys(check(name, value) for value in values))


def _check_counts(
    labels: Array,
    test_labels: Array,
    classes: int,
    max_shots: int,
    names: Sequence[int | str],
) -> None:
    """Raises for a single class, and warns of classes with few images."""
    counts = np.bincount(labels, minlength=classes)
    if np.count_nonzero(counts) < 2:
        raise ValueError(
            f"`labels` must have two classes or more. Received: only class {labels[0]}"
        )
    tested = np.bincount(test_labels, minlength=classes) > 0
    for few, text in (
        (tested & (counts == 0), "have test images and no training images"),
        (
            (counts > 0) & (counts < max_shots),
            f"have fewer than {max_shots} images, all of which are used",
        ),
    ):
        if few.any():
            some = np.flatnonzero(few)[:_MAX_LISTED]
            shown = ", ".join(str(names[i]) for i in some)
            warn(f"{few.sum()} classes {text}, such as {shown}.")


@dataclasses.dataclass(frozen=True)
class Linear:
    """Linear classifier on standardized features.

    Attributes:
        mean: Array of shape `(columns,)`, subtracted from features.
        deviation: Array of shape `(columns,)`, by which features are divided.
        kernel: Array of shape `(columns, classes)`.
        bias: Array of shape `(classes,)`.
    """

    mean: Array
    deviation: Array
    kernel: Array
    bias: Array

    def scores(self, features: ArrayLike) -> Array:
        """Returns the scores of all classes.

        Args:
            features: Array of shape `(images, columns)`.

        Returns:
            Array of shape `(images, classes)`.

        Raises:
            ValueError: if the number of columns differs from training.
        """
        features = check_scores(features, "features")
        x = (features.astype(np.float64) - self.mean) / self.deviation
        return x @ self.kernel + self.bias


def ridge(
    features: ArrayLike, labels: ArrayLike, classes: int, l2: float = _L2
) -> Linear:
    """Fits a classifier by ridge regression to targets of -1 and 1.

    It follows "An Image is Worth 16x16 Words", Section 4.1 ("few-shot
    accuracies"), and big_vision's `fewshot_lsr.py`: features are standardized
    by their mean and their standard deviation + 1e-5, and the bias is the
    weight of a constant column of 100. The solution is computed in closed form
    from the covariance matrix of columns or the Gram matrix of images,
    whichever is smaller.

    Args:
        features: Array of shape `(images, columns)`.
        labels: Array of shape `(images,)` of integers in [0, classes). A
            class may have no images.
        classes: Integer. Number of classes.
        l2: Float above 0. Factor of the squared L2 norm of the weights.
    """
    return ridge_solver(features, labels, classes)(l2)


def ridge_solver(
    features: ArrayLike, labels: ArrayLike, classes: int
) -> Callable[[float], Linear]:
    """Returns a function that fits `ridge` for a value of `l2`.

    The eigendecomposition does not depend on `l2` and is computed once.
    """
    x, mean, deviation = _standardize(features)
    labels = check_labels(labels, len(x), classes)
    x = np.pad(x, ((0, 0), (0, 1)), constant_values=_BIAS_COLUMN)
    y = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    if x.shape[0] > x.shape[1]:  # (X'X + l2)^-1 X'Y
        values, left = np.linalg.eigh(x.T @ x)
        right = left.T @ (x.T @ y)
    else:  # X' (XX' + l2)^-1 Y, which is equal
        values, vectors = np.linalg.eigh(x @ x.T)
        left, right = x.T @ vectors, vectors.T @ y

    def solve(l2: float) -> Linear:
        weights = (left / (values + checks.positive_float("l2", l2))) @ right
        return Linear(mean, deviation, weights[:-1], weights[-1] * _BIAS_COLUMN)

    return solve


def linear_probe(
    features: ArrayLike,
    labels: ArrayLike,
    classes: int,
    l2: float = 1e-3,
    balanced: bool = False,
    steps: int = 1000,
) -> Linear:
    """Fits a classifier by softmax regression to frozen features.

    L-BFGS minimizes the mean cross-entropy plus `l2 / 2` times the sum of the
    squared weights, without the bias. Features are standardized.

    Args:
        features: Array of shape `(images, columns)`.
        labels: Array of shape `(images,)` of integers in [0, classes). A
            class without images is never predicted.
        classes: Integer. Number of classes.
        l2: Float above 0. Weight of the penalty.
        balanced: Boolean. Whether all classes have the same weight in the
            loss, whatever their number of images.
        steps: Integer. Maximum number of updates. If they do not suffice, a
            warning is issued.

    Returns:
        A `Linear`. Apply `softmax` to its scores for probabilities.
    """
    x, mean, deviation = _standardize(features)
    labels = check_labels(labels, len(x), classes)
    l2 = checks.positive_float("l2", l2)
    counts = np.bincount(labels, minlength=classes)
    weights = np.full(len(x), 1 / len(x))
    if balanced:
        weights = 1 / (counts[labels] * np.count_nonzero(counts))
    columns = x.shape[1]
    chunk_size = max(1, _SCORES_PER_CHUNK // classes)

    def loss(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(columns + 1, classes)
        value = l2 / 2 * np.sum(w[:-1] ** 2)
        gradient = np.zeros_like(w)
        gradient[:-1] = l2 * w[:-1]
        # In chunks, as there are four arrays of the size of the scores.
        for start in range(0, len(x), chunk_size):
            chunk = slice(start, start + chunk_size)
            rows = np.arange(len(labels[chunk]))
            logits = x[chunk] @ w[:-1] + w[-1]
            logits -= logits.max(axis=1, keepdims=True)
            exp = np.exp(logits)
            sums = exp.sum(axis=1)
            log_probability = logits[rows, labels[chunk]] - np.log(sums)
            value -= weights[chunk] @ log_probability
            exp *= (weights[chunk] / sums)[:, None]
            error = exp
            error[rows, labels[chunk]] -= weights[chunk]
            gradient[:-1] += x[chunk].T @ error
            gradient[-1] += error.sum(axis=0)
        return value, gradient.ravel()

    # The gradient alone decides when to stop. At 1e-8, scores of different
    # implementations differ by 1e-5; at 1e-6, they would by 1e-3.
    found = require("scipy.optimize").minimize(
        loss,
        np.zeros((columns + 1) * classes),
        method="L-BFGS-B",
        jac=True,
        options={
            "maxiter": steps,
            "maxfun": 20 * steps,
            "gtol": 1e-8,
            "ftol": 0,
        },
    )
    if np.abs(found.jac).max() > 1e-6:
        warn(
            f"The linear probe did not converge in {steps} steps: raise "
            "`steps` or `l2`.",
        )
    w = found.x.reshape(columns + 1, classes)
    return Linear(mean, deviation, w[:-1], w[-1])


def _standardize(features: ArrayLike) -> tuple[Array, Array, Array]:
    """Returns standardized features, their mean and their deviation."""
    # One copy in float64 is modified in place: a million images with 768
    # features take 6 GB.
    x = np.array(check_scores(features, "features"), np.float64)
    mean = x.mean(axis=0)
    x -= mean
    deviation = np.sqrt(np.einsum("ij,ij->j", x, x) / len(x))
    deviation += _STD_EPSILON
    x /= deviation
    return x, mean, deviation


def nearest_neighbors(
    features: ArrayLike,
    labels: ArrayLike,
    classes: int,
    test_features: ArrayLike,
    k: int = 20,
    temperature: float | None = 0.07,
) -> Array:
    """Classifies images by the labels of their k nearest neighbors.

    The method is that of "Emerging Properties in Self-Supervised Vision
    Transformers", Appendix F.1 (https://arxiv.org/abs/2104.14294): the
    similarity is the cosine of the features, and the vote of a neighbor has
    the weight exp(similarity / temperature).

    Args:
        features: Array of shape `(images, columns)`.
        labels: Array of shape `(images,)` of integers in [0, classes).
        classes: Integer. Number of classes.
        test_features: Array of shape `(test images, columns)`.
        k: Integer from 1 to the number of images. Number of neighbors.
        temperature: Float above 0, or None for equal weights.

    Returns:
        Array of shape `(test images, classes)`: fractions of the votes, which
        sum to 1 for each image.
    """
    x = _directions(features, "features")
    labels = check_labels(labels, len(x), classes)
    test = _directions(test_features, "test_features")
    scale = np.inf  # of equal weights
    if temperature is not None:
        scale = checks.positive_float("temperature", temperature)

    def weights(distances: Array) -> Array:
        # Relative to the nearest, so that not all weights become 0.
        nearest = distances.min(axis=1, keepdims=True)
        return np.exp((nearest - distances) / scale)

    neighbors = require("sklearn.neighbors")
    classifier = neighbors.KNeighborsClassifier(
        k, weights=weights, metric="cosine"
    ).fit(x, labels)
    votes = np.zeros((len(test), classes))
    votes[:, classifier.classes_] = classifier.predict_proba(test)
    return votes


def _directions(features: ArrayLike, name: str) -> Array:
    """Returns features in float64, none of which is a vector of zeros."""
    features = check_scores(features, name).astype(np.float64)
    zeros = np.count_nonzero(~features.any(axis=1))
    if zeros:
        raise ValueError(
            f"`{name}` must not have rows of zeros, which have no cosine. "
            f"Received: {zeros} of {len(features)}"
        )
    return features
