import csv

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.training.callbacks import score_name
from tests.training.fitting import fit

pytestmark = pytest.mark.backends("torch")
SCHEDULE = keras_vit.schedules.warmup_cosine(0.5, steps=7, warmup=0.3)


def batches(start=0):
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(4, 2)).astype("float32")
        yield x, (x[:, 0] > 0).astype("int32")


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def fitted(folder, callbacks=()):
    """Trains a model for 7 steps with an evaluation each 3."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(SCHEDULE), loss, metrics=["accuracy"])
    metrics = training.CSVMetrics(folder / "metrics.csv", 4, SCHEDULE)
    fit(
        model,
        batches,
        next(batches()),
        steps=7,
        interval=3,
        callbacks=[metrics, *callbacks],
        checkpoints=training.ResumableCheckpoint(folder / "checkpoints", 100),
    )
    return model


def test_each_evaluation_writes_one_row(tmp_path):
    model = fitted(tmp_path)
    rows = rows_of(tmp_path / "metrics.csv")
    assert list(rows[0]) == [
        "step",
        "train_loss",
        "train_accuracy",
        "test_loss",
        "test_accuracy",
        "learning_rate",
        "images_per_second",
    ]
    assert [row["step"] for row in rows] == ["3", "6", "7"]
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 7
    loss, accuracy = model.evaluate(*next(batches()), verbose=0)
    assert float(rows[-1]["test_loss"]) == pytest.approx(loss, rel=1e-4)
    assert float(rows[-1]["test_accuracy"]) == pytest.approx(accuracy)
    for row in rows:
        rate = float(SCHEDULE(int(row["step"]) - 1))
        assert float(row["learning_rate"]) == pytest.approx(rate, rel=1e-4)
        assert float(row["images_per_second"]) > 0


def test_rows_are_on_disk_when_a_run_is_interrupted(tmp_path):
    class Break(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if len(rows_of(tmp_path / "metrics.csv")) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path, callbacks=[Break()])
    steps = [row["step"] for row in rows_of(tmp_path / "metrics.csv")]
    assert steps == ["3", "6"]


@pytest.mark.parametrize(
    "names, score",
    [
        (("test_loss", "test_top_5"), "test_loss"),
        (("test_loss", "test_mean_iou", "learning_rate"), "test_mean_iou"),
        (("train_accuracy", "validation_loss"), "validation_loss"),
        (("test_knn_accuracy", "test_accuracy"), "test_accuracy"),
    ],
)
def test_a_run_is_judged_by_what_it_measures(names, score):
    assert score_name(dict.fromkeys(names, 0.5)) == score
