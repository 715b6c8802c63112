"""Classifiers of frozen features, in float64: ridge regression, linear probes
and nearest neighbours."""

import dataclasses

import numpy as np

from keras_vit._warnings import warn
from keras_vit.evaluation.metrics import check_labels
from keras_vit.evaluation.metrics import check_scores

# Constants of big_vision's evaluators/fewshot_lsr.py. The bias is the weight of
# a constant column; as its value is large, the penalty hardly affects the bias.
_BIAS_COLUMN = 100.0
_STD_EPSILON = 1e-5
_L2 = 2.0**10

_MAX_LISTED = 5  # classes listed in a warning
_SCORES_PER_CHUNK = 2**25  # 268 MB in float64
_SIMILARITIES_PER_CHUNK = 2**24  # 134 MB in float64


def few_shot(
    features,
    labels,
    shots=(1, 5, 10, 25),
    seeds=3,
    *,
    test_features=None,
    test_labels=None,
    l2=_L2,
):
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
    if not holds_out:
        test_x = check_scores(test_features, "test_features")
        test_y = check_labels(test_labels, len(test_x), name="test_labels")
    classes = int(max(labels.max(), test_y.max())) + 1
    shots = _check_numbers("shots", shots, int)
    penalties = _check_numbers("l2", l2, float)
    seeds = range(seeds) if isinstance(seeds, int) else list(seeds)
    if not len(seeds):
        raise ValueError("`seeds` must be 1 or more. Received: none")
    _check_counts(labels, test_y, classes, max(shots))
    found = {}
    for seed in seeds:
        order = _shuffle_by_class(labels, classes, seed)
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
            for penalty in penalties:
                best = solve(penalty).scores(test_x[tested]).argmax(axis=1)
                results = _accuracies(best == test_y[tested], test_y[tested])
                row = (len(chosen), *results)
                found.setdefault((count, penalty), []).append(row)
    return [_summary(*key, rows) for key, rows in found.items()]


def _shuffle_by_class(labels, classes, seed):
    rng = np.random.default_rng(seed)
    return [
        rng.permutation(np.flatnonzero(labels == label))
        for label in range(classes)
    ]


def _accuracies(correct, labels):
    """Returns the accuracy over images, and the mean accuracy of classes."""
    counts = np.bincount(labels)
    num_correct = np.bincount(labels, weights=correct)
    present = counts > 0
    return correct.mean(), np.mean(num_correct[present] / counts[present])


def _summary(shots, l2, rows):
    images, accuracies, per_class = zip(*rows, strict=True)
    return {
        "shots": shots,
        "l2": l2,
        "images": images[0],
        "accuracies": [float(value) for value in accuracies],
        "accuracy": float(np.mean(accuracies)),
        "std": float(np.std(accuracies)),
        "per_class": float(np.mean(per_class)),
    }


def _check_numbers(name, values, dtype):
    values = np.ravel(values).tolist()
    minimum = 1 if dtype is int else 0
    if not values or not all(
        isinstance(value, (dtype, int)) and value >= minimum and value < np.inf
        for value in values
    ):
        raise ValueError(
            f"`{name}` must be numbers of at least {minimum}. Received: "
            f"{values}"
        )
    return [dtype(value) for value in dict.fromkeys(values)]


def _check_counts(labels, test_labels, classes, max_shots):
    counts = np.bincount(labels, minlength=classes)
    if np.count_nonzero(counts) < 2:
        raise ValueError(
            "`labels` must have two classes or more. Received: only class "
            f"{labels[0]}"
        )
    tested = np.bincount(test_labels, minlength=classes) > 0
    missing = np.flatnonzero((counts == 0) & tested)
    if missing.size:
        warn(
            f"{missing.size} classes have test images and no training "
            f"images, so that all of them count as wrong: {_some(missing)}.",
        )
    few = np.flatnonzero((counts > 0) & (counts < max_shots))
    if few.size:
        warn(
            f"{few.size} classes have fewer than {max_shots} images, and "
            f"train on all of them: {_some(few)}.",
        )


def _some(numbers):
    shown = ", ".join(map(str, numbers[:_MAX_LISTED]))
    more = len(numbers) - _MAX_LISTED
    return shown + (f" and {more} more" if more > 0 else "")


@dataclasses.dataclass(frozen=True)
class Linear:
    """Linear classifier of standardised features.

    Attributes:
        mean: Array of shape `(columns,)`, subtracted from features.
        deviation: Array of shape `(columns,)`, by which they are divided.
        kernel: Array of shape `(columns, classes)`.
        bias: Array of shape `(classes,)`.
    """

    mean: np.ndarray
    deviation: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray

    def scores(self, features):
        """Returns the scores of all classes.

        Args:
            features: Array of shape `(images, columns)`.

        Returns:
            Array of shape `(images, classes)`.

        Raises:
            ValueError: if the number of columns differs from training.
        """
        features = check_scores(features, "features")
        if features.shape[1] != len(self.mean):
            raise ValueError(
                f"`features` must have {len(self.mean)} columns, as in "
                f"training. Received: {features.shape[1]}"
            )
        x = (features.astype(np.float64) - self.mean) / self.deviation
        return x @ self.kernel + self.bias


def ridge(features, labels, classes, l2=_L2):
    """Fits a classifier by ridge regression to targets of -1 and 1.

    It follows "An Image is Worth 16x16 Words", Section 4.1 ("few-shot
    accuracies"), and big_vision's `fewshot_lsr.py`: features are standardised
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

    Returns:
        A `Linear`.

    Raises:
        ValueError: if shapes do not match, or a value is out of range.
    """
    return ridge_solver(features, labels, classes)(l2)


def ridge_solver(features, labels, classes):
    """Returns a function that fits `ridge` for a value of `l2`.

    The eigendecomposition does not depend on `l2` and is computed once.

    Args:
        features: As in `ridge`.
        labels: As in `ridge`.
        classes: As in `ridge`.

    Returns:
        A function of `l2` that returns a `Linear`.
    """
    x, mean, deviation = _standardise(features)
    labels = check_labels(labels, len(x), classes)
    x = np.pad(x, ((0, 0), (0, 1)), constant_values=_BIAS_COLUMN)
    y = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    if x.shape[0] > x.shape[1]:  # (X'X + l2)^-1 X'Y
        values, left = np.linalg.eigh(x.T @ x)
        right = left.T @ (x.T @ y)
    else:  # X' (XX' + l2)^-1 Y, which is equal
        values, vectors = np.linalg.eigh(x @ x.T)
        left, right = x.T @ vectors, vectors.T @ y

    def solve(l2):
        if not 0 < l2 < np.inf:
            raise ValueError(f"`l2` must be above 0. Received: {l2}")
        weights = (left / (values + l2)) @ right
        return Linear(mean, deviation, weights[:-1], weights[-1] * _BIAS_COLUMN)

    return solve


def linear_probe(
    features, labels, classes, l2=1e-3, balanced=False, steps=1000
):
    """Fits a classifier by softmax regression to frozen features.

    L-BFGS minimises the mean cross-entropy plus `l2 / 2` times the sum of the
    squared weights, without the bias. Features are standardised.

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

    Raises:
        ValueError: if shapes do not match, or a value is out of range.
    """
    x, mean, deviation = _standardise(features)
    labels = check_labels(labels, len(x), classes)
    if not 0 < l2 < np.inf:
        raise ValueError(f"`l2` must be above 0. Received: {l2}")
    counts = np.bincount(labels, minlength=classes)
    weights = np.full(len(x), 1 / len(x))
    if balanced:
        weights = 1 / (counts[labels] * np.count_nonzero(counts))
    columns = x.shape[1]
    chunk_size = max(1, _SCORES_PER_CHUNK // classes)

    def loss(flat):
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

    flat, converged = _lbfgs(loss, np.zeros((columns + 1) * classes), steps)
    if not converged:
        warn(
            f"The linear probe did not converge in {steps} steps: raise "
            "`steps` or `l2`.",
        )
    w = flat.reshape(columns + 1, classes)
    return Linear(mean, deviation, w[:-1], w[-1])


def _standardise(features):
    # One copy in float64 is modified in place: a million images with 768
    # features take 6 GB.
    x = np.array(check_scores(features, "features"), np.float64)
    mean = x.mean(axis=0)
    x -= mean
    deviation = np.sqrt(np.einsum("ij,ij->j", x, x) / len(x))
    deviation += _STD_EPSILON
    x /= deviation
    return x, mean, deviation


def _lbfgs(function, point, steps, memory=10, tolerance=1e-6):
    """Minimises a smooth convex function by L-BFGS.

    From "Numerical Optimization" by Nocedal and Wright, Chapter 7.

    Args:
        function: Function of a vector that returns its value and gradient.
        point: Vector. The initial point.
        steps: Integer. Maximum number of updates.
        memory: Integer. Number of past updates that approximate the Hessian.
        tolerance: Float. Maximum of the absolute gradient at convergence.

    Returns:
        The last point, and whether the algorithm converged.
    """
    value, gradient = function(point)
    pairs = []  # differences of points and of gradients, newest last
    for _ in range(steps):
        if np.abs(gradient).max() <= tolerance:
            return point, True
        direction = -_inverse_hessian_product(gradient, pairs)
        derivative, length = gradient @ direction, 1.0
        while True:  # backtracking line search by Armijo's rule
            new = point + length * direction
            new_value, new_gradient = function(new)
            if new_value <= value + 1e-4 * length * derivative:
                break
            length /= 2
            if length < 1e-12:  # no lower value in float64
                return point, np.abs(gradient).max() <= 100 * tolerance
        pair = new - point, new_gradient - gradient
        if pair[0] @ pair[1] > 0:
            pairs = [*pairs[1 - memory :], pair]
        point, value, gradient = new, new_value, new_gradient
    return point, np.abs(gradient).max() <= tolerance


def _inverse_hessian_product(vector, pairs):
    """Multiplies a vector by the approximate inverse Hessian.

    From "Numerical Optimization" by Nocedal and Wright, Algorithm 7.4.
    """
    vector, alphas = vector.copy(), []
    for step, change in reversed(pairs):
        alphas.append(step @ vector / (step @ change))
        vector -= alphas[-1] * change
    if pairs:
        step, change = pairs[-1]
        vector *= step @ change / (change @ change)
    for (step, change), alpha in zip(pairs, reversed(alphas), strict=True):
        vector += (alpha - change @ vector / (step @ change)) * step
    return vector


def nearest_neighbours(
    features, labels, classes, test_features, k=20, temperature=0.07
):
    """Classifies images by the labels of their k nearest neighbours.

    The method is that of "Emerging Properties in Self-Supervised Vision
    Transformers", Appendix F.1 (https://arxiv.org/abs/2104.14294): the
    similarity is the cosine of the features, and the vote of a neighbour has
    the weight exp(similarity / temperature).

    Args:
        features: Array of shape `(images, columns)`.
        labels: Array of shape `(images,)` of integers in [0, classes).
        classes: Integer. Number of classes.
        test_features: Array of shape `(test images, columns)`.
        k: Integer from 1 to the number of images. Number of neighbours.
        temperature: Float above 0, or None for equal weights.

    Returns:
        Array of shape `(test images, classes)`: fractions of the votes, which
        sum to 1 for each image.

    Raises:
        ValueError: if shapes do not match, or a value is out of range.
    """
    x = _normalise(features, "features")
    labels = check_labels(labels, len(x), classes)
    test = _normalise(test_features, "test_features")
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
    chunk_size = max(1, _SIMILARITIES_PER_CHUNK // len(x))
    for start in range(0, len(test), chunk_size):
        similar = test[start : start + chunk_size] @ x.T
        nearest = np.argpartition(-similar, k - 1, axis=1)[:, :k]
        similar = np.take_along_axis(similar, nearest, axis=1)
        if temperature is None:
            weights = np.ones_like(similar)
        else:  # relative to the nearest, so that nothing overflows
            best = similar.max(axis=1, keepdims=True)
            weights = np.exp((similar - best) / temperature)
        rows = np.arange(start, start + len(similar))[:, None]
        np.add.at(votes, (rows, labels[nearest]), weights)
    return votes / votes.sum(axis=1, keepdims=True)


def _normalise(features, name):
    features = check_scores(features, name).astype(np.float64)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    if not norms.all():
        raise ValueError(
            f"`{name}` must not have rows of zeros, which have no cosine. "
            f"Received: {np.sum(norms == 0)} of {len(features)}"
        )
    return features / norms
