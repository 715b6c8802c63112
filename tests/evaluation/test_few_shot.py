import tracemalloc
import warnings

import numpy as np
import pytest

from keras_vit import evaluation
from keras_vit.evaluation import probes

pytestmark = pytest.mark.backends("torch")


def blobs(per_class, columns=12, distance=1.5, seed=0):
    """Features of classes with different centers."""
    centers = np.random.default_rng(5).normal(size=(len(per_class), columns))
    labels = np.repeat(np.arange(len(per_class)), per_class)
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(len(labels), columns))
    scales = np.geomspace(0.01, 100, columns)
    return scales * (distance * centers[labels] + noise) + 3, labels


def normal_equations(x, y, classes, l2, test):
    """The definition: (X'X + l2 I) W = X'Y."""
    mean, deviation = x.mean(0), x.std(0) + 1e-5
    x, test = (
        np.hstack([(a - mean) / deviation, np.full((len(a), 1), 100.0)])
        for a in (x, test)
    )
    targets = -np.ones((len(x), classes))
    targets[np.arange(len(x)), y] = 1
    gram = x.T @ x + l2 * np.eye(x.shape[1])
    return test @ np.linalg.solve(gram, x.T @ targets)


@pytest.mark.parametrize("l2", [2.0**-6, 1.0, 2.0**10, 2.0**20])
@pytest.mark.parametrize("columns", [12, 90])  # fewer and more than images
def test_ridge_matches_the_normal_equations(columns, l2):
    x, y = blobs([20, 20, 3], columns)
    test, _ = blobs([5, 5, 5], columns, seed=1)
    found = evaluation.ridge(x, y, 4, l2).scores(test)
    expected = normal_equations(x, y, 4, l2, test)
    assert found.shape == (15, 4)
    assert np.abs(found - expected).max() < 1e-8


def test_few_shot_matches_the_normal_equations():
    x, y = blobs([40] * 5, distance=0.5)
    test_x, test_y = blobs([30] * 5, distance=0.5, seed=1)
    rows = evaluation.few_shot(
        x, y, (2, 7), 2, test_features=test_x, test_labels=test_y, l2=[1, 1024]
    )
    assert [(r["shots"], r["l2"]) for r in rows] == [
        (2, 1),
        (2, 1024),
        (7, 1),
        (7, 1024),
    ]
    for row in rows:
        expected = []
        for seed in range(2):
            rng = np.random.default_rng(seed)
            orders = [rng.permutation(np.flatnonzero(y == c)) for c in range(5)]
            chosen = np.concatenate([o[: row["shots"]] for o in orders])
            scores = normal_equations(x[chosen], y[chosen], 5, row["l2"], test_x)
            expected.append(np.mean(scores.argmax(1) == test_y))
        assert row["accuracies"] == expected
        assert row["accuracy"] == np.mean(expected)
        assert row["std"] == np.std(expected)
        # As many test images of each class: the same mean.
        assert row["per_class"] == pytest.approx(row["accuracy"])
        assert row["images"] == 5 * row["shots"]


def test_more_shots_are_better_and_need_unused_images():
    x, y = blobs([60] * 6, distance=0.4)
    rows = evaluation.few_shot(x, y, shots=(1, 50))
    assert len(rows[0]["accuracies"]) == 3
    assert rows[0]["accuracy"] < rows[1]["accuracy"]
    with pytest.raises(ValueError, match="No image is left to evaluate on with 60"):
        evaluation.few_shot(x, y, shots=60)


def test_imbalanced_and_missing_classes_warn():
    x, y = blobs([30, 4, 0, 30])
    test_x, test_y = blobs([200, 10, 10, 200], seed=1)
    with pytest.warns(UserWarning) as caught:
        rows = evaluation.few_shot(
            x,
            y,
            5,
            1,
            test_features=test_x,
            test_labels=test_y,
            class_names=("ant", "bee", "cat", "dog"),
        )
    text = [str(warning.message) for warning in caught]
    assert "1 classes have test images and no training images" in text[0]
    assert "1 classes have fewer than 5 images" in text[1]
    assert text[0].endswith("as cat.") and text[1].endswith("as bee.")
    assert rows[0]["images"] == 14
    assert rows[0]["per_class"] < rows[0]["accuracy"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a class that is never asked for
        evaluation.few_shot(x, y, 4, 1, test_features=x, test_labels=y)


@pytest.mark.parametrize("balanced", [False, True])
def test_linear_probe_matches_scikit_learn(balanced):
    models = pytest.importorskip("sklearn.linear_model")
    x, y = blobs([60, 20, 9], distance=0.6)
    l2 = 0.01
    found = evaluation.linear_probe(x, y, 3, l2, balanced)
    standard = (x - x.mean(0)) / (x.std(0) + 1e-5)
    expected = models.LogisticRegression(
        C=1 / (l2 * len(x)),
        class_weight="balanced" if balanced else None,
        tol=1e-9,
        max_iter=2000,
    ).fit(standard, y)
    np.testing.assert_allclose(
        evaluation.softmax(found.scores(x)),
        expected.predict_proba(standard),
        atol=2e-5,
    )


def test_linear_probe_never_predicts_a_missing_class():
    x, y = blobs([30, 0, 30])
    best = evaluation.linear_probe(x, y, 3).scores(x).argmax(1)
    assert 1 not in best and np.mean(best == y) > 0.9
    with pytest.warns(UserWarning, match="did not converge in 2 steps"):
        evaluation.linear_probe(x, y, 3, steps=2)


def peak_of(function, *arguments):
    """Returns the peak memory of NumPy during a call, in bytes."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.backends("torch")
def test_linear_probe_memory_is_bounded(monkeypatch):
    """For ImageNet all scores would need 10 GB, in several copies."""
    rng = np.random.default_rng(0)
    classes, count = 400, 6000
    x = rng.normal(size=(count, 8))
    y = rng.integers(0, classes, count)
    whole = evaluation.linear_probe(x[:200], y[:200] % 3, 3)
    monkeypatch.setattr(probes, "_SCORES_PER_CHUNK", 100 * classes)
    with pytest.warns(UserWarning, match="did not converge"):
        peak = peak_of(evaluation.linear_probe, x, y, classes, 1e-3, False, 1)
    assert peak < count * classes * 8 / 4
    monkeypatch.setattr(probes, "_SCORES_PER_CHUNK", 3 * 7)
    chunked = evaluation.linear_probe(x[:200], y[:200] % 3, 3)
    np.testing.assert_allclose(chunked.kernel, whole.kernel, atol=1e-9)
    np.testing.assert_allclose(chunked.bias, whole.bias, atol=1e-9)


@pytest.mark.backends("torch")
def test_nearest_neighbors_memory_is_bounded():
    """For a thousand test images and ImageNet's training images: 10 GB."""
    sklearn = pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3000, 4)), rng.integers(0, 3, 3000)
    test = rng.normal(size=(900, 4))
    with sklearn.config_context(working_memory=1):  # MB
        peak = peak_of(evaluation.nearest_neighbors, x, y, 3, test)
    assert peak < 900 * 3000 * 8 / 4


@pytest.mark.parametrize("temperature", [None, 0.07])
def test_nearest_neighbors_match_sorting(temperature):
    x, y = blobs([20, 20, 20], columns=6)
    test, _ = blobs([5, 5, 5], columns=6, seed=1)
    found = evaluation.nearest_neighbors(x, y, 4, test, 5, temperature)
    assert found.shape == (15, 4)
    for row, image in zip(found, test, strict=True):
        cosines = [a @ image / np.linalg.norm(a) / np.linalg.norm(image) for a in x]
        votes = np.zeros(4)
        for i in np.argsort(cosines)[-5:]:
            votes[y[i]] += np.exp(cosines[i] / temperature) if temperature else 1
        np.testing.assert_allclose(row, votes / votes.sum(), atol=1e-12)
