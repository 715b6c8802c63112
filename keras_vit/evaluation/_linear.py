"""Linear classifiers on frozen features, in float64."""

import dataclasses

import numpy as np

from keras_vit._warnings import warn
from keras_vit.evaluation._checks import labels_of
from keras_vit.evaluation._checks import scores_of

# Of big_vision's few-shot evaluator (evaluators/fewshot_lsr.py): a column so
# large that its weight, the bias, is hardly held back.
BIAS_COLUMN = 100.0
SMALLEST_DEVIATION = 1e-5  # added to each
L2 = 2.0**10
_SCORES_AT_ONCE = 2**25  # 268 MB in float64


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear classifier of features that are standardised first.

    Attributes:
        mean, deviation: Arrays of shape `(columns,)`.
        kernel: Array of shape `(columns, classes)`.
        bias: Array of shape `(classes,)`.
    """

    mean: np.ndarray
    deviation: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray

    def scores(self, features):
        """Returns an array of shape `(images, classes)`."""
        features = scores_of(features, "features")
        if features.shape[1] != len(self.mean):
            raise ValueError(
                f"`features` must have {len(self.mean)} columns, as those that "
                f"this was fitted to. Received: {features.shape[1]}"
            )
        x = (features.astype(np.float64) - self.mean) / self.deviation
        return x @ self.kernel + self.bias


def ridge(features, labels, classes, l2=L2):
    """Fits least squares to targets of -1 and 1, with a penalty on weights.

    "An Image is Worth 16x16 Words", Section 4.1 ("few-shot accuracies"), in
    the form of big_vision's `fewshot_lsr.py`: features are standardised with
    their own mean and deviation + 1e-5, and the bias is the weight of a column
    of 100. Solved in closed form, by the smaller of two matrices: that of
    columns or that of images.

    Args:
        features: Array of shape `(images, columns)`.
        labels: Array of shape `(images,)` of integers in [0, classes). A
            class may have none.
        classes: Integer. Number of classes.
        l2: Float above 0. The penalty.

    Returns:
        A `Linear`.

    Raises:
        ValueError: if shapes do not fit, or a value is out of range.
    """
    return ridge_solver(features, labels, classes)(l2)


def ridge_solver(features, labels, classes):
    """Returns a function of `l2`; what does not depend on it is done once."""
    x, mean, deviation = _standardised(features)
    labels = labels_of(labels, len(x), classes)
    x = np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS_COLUMN)
    y = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    if x.shape[0] > x.shape[1]:  # (X'X + l2)^-1 X'Y
        values, left = np.linalg.eigh(x.T @ x)
        right = left.T @ (x.T @ y)
    else:  # X' (XX' + l2)^-1 Y, the same
        values, vectors = np.linalg.eigh(x @ x.T)
        left, right = x.T @ vectors, vectors.T @ y

    def solve(l2):
        if not 0 < l2 < np.inf:
            raise ValueError(f"`l2` must be above 0. Received: {l2}")
        weights = (left / (values + l2)) @ right
        return Linear(mean, deviation, weights[:-1], weights[-1] * BIAS_COLUMN)

    return solve


def linear_probe(
    features, labels, classes, l2=1e-3, balanced=False, steps=1000
):
    """Fits softmax regression to frozen features.

    Minimises the mean cross-entropy plus `l2 / 2` times the sum of the squared
    weights (without the bias) of standardised features, by L-BFGS.

    Args:
        features: Array of shape `(images, columns)`.
        labels: Array of shape `(images,)` of integers in [0, classes). A
            class without images is never predicted where others are.
        classes: Integer. Number of classes.
        l2: Float above 0.
        balanced: Boolean. Whether every class counts as much as any other,
            however many images it has.
        steps: Integer. Largest number of updates; a warning says if they did
            not suffice.

    Returns:
        A `Linear`; `softmax` makes probabilities of its scores.

    Raises:
        ValueError: if shapes do not fit, or a value is out of range.
    """
    x, mean, deviation = _standardised(features)
    labels = labels_of(labels, len(x), classes)
    if not 0 < l2 < np.inf:
        raise ValueError(f"`l2` must be above 0. Received: {l2}")
    counts = np.bincount(labels, minlength=classes)
    weights = np.full(len(x), 1 / len(x))
    if balanced:
        weights = 1 / (counts[labels] * np.count_nonzero(counts))
    columns = x.shape[1]
    at_once = max(1, _SCORES_AT_ONCE // classes)

    def loss(flat):
        w = flat.reshape(columns + 1, classes)
        value = l2 / 2 * np.sum(w[:-1] ** 2)
        slope = np.zeros_like(w)
        slope[:-1] = l2 * w[:-1]
        # Of the scores of all images there would be four copies in memory.
        for start in range(0, len(x), at_once):
            part = slice(start, start + at_once)
            rows = np.arange(len(labels[part]))
            logits = x[part] @ w[:-1] + w[-1]
            logits -= logits.max(axis=1, keepdims=True)
            powers = np.exp(logits)
            sums = powers.sum(axis=1)
            likely = logits[rows, labels[part]] - np.log(sums)
            value -= weights[part] @ likely
            powers *= (weights[part] / sums)[:, None]
            powers[rows, labels[part]] -= weights[part]
            slope[:-1] += x[part].T @ powers
            slope[-1] += powers.sum(axis=0)
        return value, slope.ravel()

    flat, done = _lbfgs(loss, np.zeros((columns + 1) * classes), steps)
    if not done:
        warn(
            f"The linear probe was still changing after {steps} steps: raise "
            "`steps` or `l2`.",
        )
    w = flat.reshape(columns + 1, classes)
    return Linear(mean, deviation, w[:-1], w[-1])


def _standardised(features):
    # One copy in float64, changed in place: of a million images with 768
    # features each, it takes 6 GB.
    x = np.array(scores_of(features, "features"), np.float64)
    mean = x.mean(axis=0)
    x -= mean
    deviation = np.sqrt(np.einsum("ij,ij->j", x, x) / len(x))
    deviation += SMALLEST_DEVIATION
    x /= deviation
    return x, mean, deviation


def _lbfgs(function, point, steps, memory=10, tolerance=1e-6):
    """Minimises a smooth convex function, "Numerical Optimization", Alg. 7.4.

    Args:
        function: Of a vector; returns its value and its slope.

    Returns:
        The last point, and whether its slope is at most `tolerance`.
    """
    value, slope = function(point)
    pairs = []  # of steps and changes of slope, newest last
    for _ in range(steps):
        if np.abs(slope).max() <= tolerance:
            return point, True
        direction = -_two_loops(slope, pairs)
        downhill, length = slope @ direction, 1.0
        while True:  # Armijo's rule
            new = point + length * direction
            new_value, new_slope = function(new)
            if new_value <= value + 1e-4 * length * downhill:
                break
            length /= 2
            if length < 1e-12:  # float64 resolves no lower value
                return point, np.abs(slope).max() <= 100 * tolerance
        pair = new - point, new_slope - slope
        if pair[0] @ pair[1] > 0:
            pairs = [*pairs[1 - memory :], pair]
        point, value, slope = new, new_value, new_slope
    return point, np.abs(slope).max() <= tolerance


def _two_loops(vector, pairs):
    """The slope times an approximate inverse of the second derivatives."""
    vector, shares = vector.copy(), []
    for step, change in reversed(pairs):
        shares.append(step @ vector / (step @ change))
        vector -= shares[-1] * change
    if pairs:
        step, change = pairs[-1]
        vector *= step @ change / (change @ change)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        vector += (share - change @ vector / (step @ change)) * step
    return vector
