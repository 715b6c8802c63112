import numpy as np

from keras_vit._warnings import warn
from keras_vit.evaluation._checks import labels_of
from keras_vit.evaluation._checks import scores_of
from keras_vit.evaluation._linear import L2
from keras_vit.evaluation._linear import ridge_solver

_SHOWN = 5


def few_shot(
    features,
    labels,
    shots=(1, 5, 10, 25),
    seeds=3,
    *,
    test_features=None,
    test_labels=None,
    l2=L2,
):
    """Measures how well a few images a class tell the classes apart.

    For every seed the images of each class are put in a random order; the
    first `shots` of them train `ridge`, in closed form. "An Image is Worth
    16x16 Words", Section 4.1, and big_vision's `fewshot_lsr.py`.

    Args:
        features: Array of shape `(images, columns)`: of a Vision Transformer
            what `feature_extractor(model, "pre_logits")` gives.
        labels: Array of shape `(images,)` of integers.
        shots: Integers. Images a class. What has fewer gives all it has, with
            a warning.
        seeds: Integer, how many; or a list of them.
        test_features, test_labels: The images to score. Without them, those
            of `features` that were not drawn.
        l2: Float above 0, or a list of them. 2^10, the default, is what
            big_vision reports; of a list, every value has rows of its own.

    Returns:
        A list of dicts, one for each of `shots` and `l2`: `shots`, `l2`,
        `images` (that were trained on), `accuracies` (one a seed), their mean
        `accuracy` and deviation `std`, and `per_class`, the mean over classes
        of each class's accuracy, where rare classes count as the others.

    Raises:
        ValueError: if shapes do not fit, a value is out of range, there is
            only one class, or no image is left to score.
    """
    features = scores_of(features, "features")
    labels = labels_of(labels, len(features))
    own = test_features is None
    if own != (test_labels is None):
        raise ValueError("Give `test_features` and `test_labels`, or neither.")
    test_x, test_y = features, labels
    if not own:
        test_x = scores_of(test_features, "test_features")
        test_y = labels_of(test_labels, len(test_x), name="test_labels")
    classes = int(max(labels.max(), test_y.max())) + 1
    shots = _list_of("shots", shots, int)
    penalties = _list_of("l2", l2, float)
    seeds = range(seeds) if isinstance(seeds, int) else list(seeds)
    if not len(seeds):
        raise ValueError("`seeds` must be 1 or more. Received: none")
    _look_at_counts(labels, test_y, classes, max(shots))
    found = {}
    for seed in seeds:
        order = _orders(labels, classes, seed)
        for count in shots:
            chosen = np.concatenate([members[:count] for members in order])
            scored = np.ones(len(test_x), bool)
            if own:
                scored[chosen] = False
            if not scored.any():
                raise ValueError(
                    f"No image is left to score with {count} shots: give "
                    "`test_features` and `test_labels`, or fewer shots."
                )
            solve = ridge_solver(features[chosen], labels[chosen], classes)
            for penalty in penalties:
                best = solve(penalty).scores(test_x[scored]).argmax(axis=1)
                results = _shares(best == test_y[scored], test_y[scored])
                row = (len(chosen), *results)
                found.setdefault((count, penalty), []).append(row)
    return [_row(*key, rows) for key, rows in found.items()]


def _orders(labels, classes, seed):
    rng = np.random.default_rng(seed)
    return [
        rng.permutation(np.flatnonzero(labels == label))
        for label in range(classes)
    ]


def _shares(right, labels):
    """The share that is right, of images and as a mean over classes."""
    counts = np.bincount(labels)
    rights = np.bincount(labels, weights=right)
    there = counts > 0
    return right.mean(), np.mean(rights[there] / counts[there])


def _row(shots, l2, rows):
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


def _list_of(name, values, kind):
    values = np.ravel(values).tolist()
    least = 1 if kind is int else 0
    if not values or not all(
        isinstance(value, (kind, int)) and value >= least and value < np.inf
        for value in values
    ):
        raise ValueError(
            f"`{name}` must be numbers of at least {least}. Received: {values}"
        )
    return [kind(value) for value in dict.fromkeys(values)]


def _look_at_counts(labels, test_labels, classes, most):
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
            f"{missing.size} classes have images to score and none to train "
            f"on, so that all of these count as wrong: {_some(missing)}.",
        )
    few = np.flatnonzero((counts > 0) & (counts < most))
    if few.size:
        warn(
            f"{few.size} classes have fewer than {most} images, and train "
            f"with all they have: {_some(few)}.",
        )


def _some(numbers):
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    more = len(numbers) - _SHOWN
    return shown + (f" and {more} more" if more > 0 else "")
