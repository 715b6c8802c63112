"""Average precisions against scikit-learn's."""

import keras
import numpy as np
import pytest
from sklearn.metrics import average_precision_score

import keras_vit
from keras_vit import evaluation
from keras_vit.metrics import MeanAveragePrecision

CLASSES, BINS = 6, 256


@pytest.fixture
def data():
    """Logits and labels of 100 images; the last class has no positives."""
    rng = np.random.default_rng(0)
    labels = rng.uniform(size=(100, CLASSES)) < [0.02, 0.1, 0.3, 0.5, 0.9, 0]
    labels = labels.astype("float32")
    logits = 3 * rng.normal(size=labels.shape) + 2 * labels - 2
    logits[:2] = [[-40.0], [40.0]]  # beyond the bins
    return logits.astype("float32"), labels


def expected(scores, labels):
    return average_precision_score(labels[:, :-1], scores[:, :-1], average="macro")


def rounded(logits):
    step = 32 / BINS
    return np.clip(np.floor(logits / step), -BINS // 2, BINS // 2 - 1)


def value_of(metric):
    return float(keras.ops.convert_to_numpy(metric.result()))


@pytest.mark.parametrize("from_logits", [True, False])
def test_metric_equals_scikit_learn(data, from_logits):
    logits, labels = data
    scores = logits
    if not from_logits:
        # Scores in the middle of the bins, which rounding does not move.
        logits = (rounded(logits) + 0.5) * 32 / BINS
        scores = 1 / (1 + np.exp(-logits))
    metric = MeanAveragePrecision(CLASSES, BINS, from_logits)
    metric = keras.metrics.deserialize(keras.metrics.serialize(metric))
    for rows in (slice(0, 64), slice(64, 100)):
        metric.update_state(labels[rows], scores[rows])
    found = expected(rounded(logits), labels)
    assert value_of(metric) == pytest.approx(found, abs=1e-6)
    assert found < 0.95
    # Many bins leave few ties.
    metric = MeanAveragePrecision(CLASSES, 2**16, from_logits)
    metric.update_state(labels, scores)
    assert value_of(metric) == pytest.approx(expected(logits, labels), abs=1e-4)
    metric.reset_state()
    assert value_of(metric) == 0


def test_padding_is_ignored(data):
    """In `evaluate`, compiled, with the weights of an `ImageDataset`."""
    logits, labels = data
    padding = np.zeros((28, CLASSES), "float32")
    weights = np.r_[np.full(100, 1.28), np.zeros(28)].astype("float32")
    model = keras.Sequential(
        [keras.Input((CLASSES,)), keras.layers.Activation("linear")]
    )
    model.compile(
        "sgd",
        keras_vit.losses.SigmoidCrossentropy(),
        weighted_metrics=[MeanAveragePrecision(CLASSES, BINS, True)],
    )
    results = model.evaluate(
        np.r_[logits, padding + 3],
        np.r_[labels, padding],
        sample_weight=weights,
        batch_size=32,
        verbose=0,
        return_dict=True,
    )
    assert results["mean_average_precision"] == pytest.approx(
        expected(rounded(logits), labels), abs=1e-6
    )


def test_mixup_labels_are_weighted(data):
    logits, labels = data
    labels = 0.25 * labels + 0.75 * labels[::-1]
    metric = MeanAveragePrecision(CLASSES, BINS, from_logits=True)
    metric.update_state(labels, logits)
    found = [
        average_precision_score(
            np.r_[np.ones(100), np.zeros(100)],
            np.r_[column, column],
            sample_weight=np.r_[part, 1 - part],
        )
        for column, part in zip(rounded(logits).T[:-1], labels.T[:-1], strict=True)
    ]
    assert value_of(metric) == pytest.approx(np.mean(found), abs=1e-6)


@pytest.mark.backends("torch")
def test_average_precision_of_all_scores_equals_scikit_learn(data):
    logits, labels = data
    logits = np.round(logits)  # with ties
    found = evaluation.average_precisions(logits, labels)
    assert found.pop() is None
    np.testing.assert_allclose(
        found,
        average_precision_score(labels[:, :-1], logits[:, :-1], average=None),
        atol=1e-12,
    )
    lists = [list(np.flatnonzero(row)) for row in labels]
    assert evaluation.mean_average_precision(logits, lists) == pytest.approx(
        np.mean(found), abs=1e-12
    )
    with pytest.raises(ValueError, match="None of the images"):
        evaluation.mean_average_precision(logits, 0 * labels)
