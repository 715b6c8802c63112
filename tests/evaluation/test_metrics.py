import json
import warnings

import hypothesis
import keras
import numpy as np
import pytest
import sklearn.metrics

from keras_vit import evaluation
from keras_vit_programs import charts

pytestmark = pytest.mark.backends("torch")

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(200, 7))
LABELS = RNG.integers(0, 7, 200)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_accuracy_matches_sorting(k):
    scores = SCORES.round(0)  # with ties
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    expected = np.mean([y in row for y, row in zip(LABELS, best, strict=True)])
    assert evaluation.accuracy(scores, LABELS, k) == expected
    if k == 1:
        assert expected == np.mean(scores.argmax(1) == LABELS)


def test_real_accuracy_ignores_images_without_labels():
    scores = np.eye(4)[[0, 1, 2, 3]]
    lists = [[0, 2], [], [1], [3]]
    assert evaluation.real_accuracy(scores, lists) == pytest.approx(2 / 3)
    rows = np.zeros((4, 4))
    for row, members in zip(rows, lists, strict=True):
        row[members] = 1
    assert evaluation.real_accuracy(scores, rows) == pytest.approx(2 / 3)


MULTI_HOT = (RNG.random((200, 7)) < 0.3).astype(int)


@pytest.mark.backends("jax", "tensorflow", "torch")
@pytest.mark.parametrize(
    "convert",
    [
        keras.ops.convert_to_tensor,
        lambda x: keras.ops.convert_to_tensor(x.astype("float32")),
        lambda x: [np.flatnonzero(row) for row in x],
        lambda x: np.array([np.flatnonzero(row) for row in x], object),
    ],
)
def test_multi_hot_labels_of_any_kind_count_the_same(convert):
    labels = convert(MULTI_HOT)
    expected = sklearn.metrics.average_precision_score(MULTI_HOT, SCORES)
    found = evaluation.mean_average_precision(SCORES, labels)
    assert found == pytest.approx(expected, abs=1e-12)
    best = MULTI_HOT[np.arange(200), SCORES.argmax(1)]
    expected = best[MULTI_HOT.any(1)].mean()
    assert evaluation.real_accuracy(SCORES, labels) == expected


@pytest.mark.parametrize(
    "labels, match",
    [
        ([[0, 1], [1, 0]], r"must be an array. Received: \[0, 1\]"),
        ([[0, 0], []], r"different integers from 0 to 1.* \[0, 0\]"),
        ([[0.0], [0.5]], r"integers from 0 to 1.*Received: \[0.0\]"),
        ([[True], []], r"Received: \[True\]"),
        ([0, 1], "Received: 0"),
        (np.array([0, 1]), r"of shape \(2, 2\)"),
        (np.array([[1, np.nan], [0, 1]]), "1 NaN"),
        ([[-1], [0]], r"Received: \[-1\]"),
    ],
)
def test_labels_of_two_meanings_and_wrong_labels_raise(labels, match):
    for function in (evaluation.real_accuracy, evaluation.average_precisions):
        with pytest.raises(ValueError, match=match):
            function(np.eye(2), labels)


def average_precision(scores, positive):
    """The definition: a threshold at each score, from the highest down."""
    value = recall = 0.0
    for threshold in np.unique(scores)[::-1]:
        found = positive[scores >= threshold]
        value += found.mean() * (found.sum() / positive.sum() - recall)
        recall = found.sum() / positive.sum()
    return value


@hypothesis.given(hypothesis.strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=30)
def test_average_precisions_match_the_definition(seed):
    rng = np.random.default_rng(seed)
    count, classes = rng.integers(1, 12), rng.integers(3, 6)
    # With ties, and with classes without positives and without negatives.
    scores = rng.integers(-2, 3, (count, classes)) / 2
    labels = (rng.random((count, classes)) < rng.random(classes)).astype(int)
    labels[:, 0], labels[:, 1] = 0, 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluation.average_precisions(scores.astype("float16"), labels)
    assert found[0] is None
    for value, score, label in zip(found, scores.T, labels.T, strict=True):
        if label.any():
            expected = average_precision(score, label)
            assert value == pytest.approx(expected, abs=1e-12)
        else:
            assert value is None


@hypothesis.given(hypothesis.strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=30)
def test_counts_of_classes_match_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    classes, count = rng.integers(2, 6), rng.integers(1, 30)
    labels, predicted = rng.integers(0, classes, (2, count))
    labels[labels == classes - 1] = 0  # a class without images
    numbers = np.arange(classes)
    confusion = evaluation.confusion_matrix(predicted, labels, classes)
    expected = sklearn.metrics.confusion_matrix(labels, predicted, labels=numbers)
    assert (confusion == expected).all()
    either = confusion.sum(0) + confusion.sum(1) > 0
    mean, ious = evaluation.mean_iou(confusion.astype("float32"))
    expected = sklearn.metrics.jaccard_score(
        labels, predicted, labels=numbers[either], average=None
    )
    np.testing.assert_allclose(ious[either], expected, atol=1e-12)
    assert np.isnan(ious[~either]).all()
    assert mean == pytest.approx(expected.mean(), abs=1e-12)
    options = {"labels": numbers, "average": None, "zero_division": np.nan}
    for key, score in (
        ("accuracy", sklearn.metrics.recall_score),
        ("precision", sklearn.metrics.precision_score),
    ):
        rows = evaluation.per_class(confusion, list(map(str, numbers)))
        found = [np.nan if row[key] is None else row[key] for row in rows]
        np.testing.assert_allclose(
            found, score(labels, predicted, **options), atol=1e-12
        )


def test_counts_of_pixels_above_the_integers_of_float32_add_up():
    confusion = np.array([[2**24, 0], [1, 0]], "float32")
    confusion = np.tile(confusion, (2, 2))
    expected = evaluation.mean_iou(confusion.astype("int64"))[0]
    assert evaluation.mean_iou(confusion)[0] == expected


def test_load_real_labels(tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[65], [], [795, 970]]))
    assert evaluation.load_real_labels(path) == [[65], [], [795, 970]]
    deep = "[" * 100_000
    for wrong in ("[[1], 2]", "{}", "[]", "[[true]]", "[[1], ", deep):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="one list of class numbers"):
            evaluation.load_real_labels(path)
    with pytest.raises(FileNotFoundError, match="none.json"):
        evaluation.load_real_labels(tmp_path / "none.json")


def test_calibration_error_of_a_known_case():
    """Two bins hold images: |0.9 - 0.5| for two of them, |0.6 - 1| for one."""
    probabilities = [[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]]
    labels = [0, 0, 0]
    error = evaluation.calibration_error(probabilities, labels, bins=5)
    assert error == pytest.approx(2 / 3 * 0.4 + 1 / 3 * 0.4)
    rows = evaluation.reliability(probabilities, labels, bins=5)
    assert [row["images"] for row in rows] == [0, 0, 1, 0, 2]  # (0.4, 0.6]
    assert rows[0]["accuracy"] is None and rows[2]["accuracy"] == 1


def test_per_class_metrics():
    labels = np.array([0, 0, 0, 1, 1, 2])
    predicted = np.array([0, 1, 1, 1, 1, 0])
    confusion = evaluation.confusion_matrix(predicted, labels, 4)
    rows = evaluation.per_class(confusion, ["a", "b", "c", "d"])
    assert rows[0] == {
        "class": "a",
        "images": 3,
        "right": 1,
        "accuracy": 1 / 3,
        "precision": 1 / 2,
        "mistaken_for": "b",
        "times": 2,
    }
    assert rows[1]["mistaken_for"] is None and rows[1]["accuracy"] == 1
    assert rows[2]["accuracy"] == 0 and rows[2]["precision"] is None
    assert rows[3]["accuracy"] is None and rows[3]["images"] == 0
    assert evaluation.per_class((predicted, labels), list("abcd")) == rows
    nested = tuple(map(tuple, confusion))
    assert evaluation.per_class(nested, list("abcd")) == rows
    parts = evaluation.per_class(confusion / 6, list("abcd"))
    assert parts[0]["accuracy"] == pytest.approx(1 / 3)
    assert parts[0]["precision"] == pytest.approx(1 / 2)


def test_many_classes_need_no_matrix(tmp_path):
    """That of these classes would take 80 GB."""
    names, path = list(map(str, range(10**5))), tmp_path / "confusion.png"
    labels = np.array([7, 7, 7, 7, 99_999])
    predicted = np.array([8, 9, 9, 8, 99_999])
    rows = evaluation.per_class((predicted, labels), names)
    assert (rows[7]["mistaken_for"], rows[7]["times"]) == ("8", 2)
    assert rows[-1]["precision"] == 1 and rows[8]["precision"] == 0
    charts.write_confusion(predicted, labels, names, "", path)
    assert not path.exists()


def test_plots_show_the_metrics(tmp_path):
    pytest.importorskip("matplotlib")
    probabilities = evaluation.softmax(SCORES)
    rows = evaluation.reliability(probabilities, LABELS)
    figure = charts.plot_reliability(rows, "title")
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [row["accuracy"] or 0 for row in rows]
    for classes in (7, 60):
        confusion = evaluation.confusion_matrix(LABELS, LABELS, classes)
        names = [f"a long name of class {i}" for i in range(classes)]
        figure = charts.plot_confusion(confusion, names)
        assert bool(figure.axes[0].texts) == (classes == 7)
        figure.savefig(tmp_path / "a.png")
    pixels, masks = np.zeros((2, 4, 4, 1)), np.zeros((2, 4, 4), int)
    masks[:, :2], masks[:, 2] = 1, 255
    figure = charts.plot_segmentation(pixels, masks, masks % 2, ["sky", "sea"], "title")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["image", "truth", "prediction", "", "", ""]
    assert len(figure.legends[0].get_texts()) == 2
    shown = figure.axes[1].images[0].get_array()
    assert (shown[2] == 1).all() and not (shown[0] == shown[3]).all()
    images = [np.zeros((4, 6)), np.ones((8, 8, 3))]
    tops = [[("cat", 0.75), ("dog", 0.25)]] * 2
    figure = charts.plot_top_predictions(images, tops, ["1.png", "2.png"])
    assert figure.axes[1].texts[0].get_text() == "cat  75.0%"
    figure.savefig(tmp_path / "b.png")
