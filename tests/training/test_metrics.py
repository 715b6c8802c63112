import csv

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from tests.training.fitting import fit


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss


def batches():
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(4, 2)).astype("float32")
        yield x, (x[:, 0] > 0).astype("int32")


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.backends("torch")
def test_each_evaluation_writes_one_row(model, tmp_path):
    model, loss = model
    schedule = keras_vit.schedules.warmup_cosine(0.5, steps=7, warmup=0.3)
    model.compile(keras.optimizers.SGD(schedule), loss, metrics=["accuracy"])
    path = tmp_path / "metrics.csv"
    metrics = training.CSVMetrics(path, 4, schedule)
    test = next(batches())
    fit(
        model,
        lambda start: batches(),
        test,
        steps=7,
        interval=3,
        callbacks=[metrics],
        checkpoints=training.ResumableCheckpoint(tmp_path / "checkpoints", 100),
    )
    rows = rows_of(path)
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
    loss, accuracy = model.evaluate(*test, verbose=0)
    assert float(rows[-1]["test_loss"]) == pytest.approx(loss, rel=1e-4)
    assert float(rows[-1]["test_accuracy"]) == pytest.approx(accuracy)
    for row in rows:
        rate = float(schedule(int(row["step"]) - 1))
        assert float(row["learning_rate"]) == pytest.approx(rate, rel=1e-4)
        assert float(row["images_per_second"]) > 0


@pytest.mark.backends("torch")
def test_rows_are_on_disk_when_a_run_is_interrupted(model, tmp_path):
    model, loss = model
    model.compile("sgd", loss, metrics=["accuracy"])
    path = tmp_path / "metrics.csv"

    class Break(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if len(rows_of(path)) == 2:
                raise KeyboardInterrupt

    metrics = training.CSVMetrics(path, 4, lambda step: 0.1)
    with pytest.raises(KeyboardInterrupt):
        fit(
            model,
            lambda start: batches(),
            next(batches()),
            steps=8,
            interval=2,
            callbacks=[metrics, Break()],
            checkpoints=training.ResumableCheckpoint(
                tmp_path / "checkpoints", 100
            ),
        )
    assert [row["step"] for row in rows_of(path)] == ["2", "4"]


@pytest.mark.backends("torch")
def test_missing_metric_raises_at_the_first_evaluation(model, tmp_path):
    model, loss = model
    model.compile("sgd", loss)
    metrics = training.CSVMetrics(
        tmp_path / "metrics.csv", 4, lambda step: 0.1, metric="accuracy"
    )
    with pytest.raises(ValueError, match="no metric 'accuracy'.*test_loss"):
        fit(
            model,
            lambda start: batches(),
            next(batches()),
            steps=8,
            interval=2,
            callbacks=[metrics],
            checkpoints=training.ResumableCheckpoint(tmp_path, 100),
        )


@pytest.mark.parametrize("steps", [500, 10_000])
def test_bit_hyperrule_schedule(steps):
    """Compare with the steps of bit_hyperrule.py: a warm-up and three decays
    by 10."""
    warmup, *decays = {
        500: (100, 200, 300, 400),
        10_000: (500, 3000, 6000, 9000),
    }[steps]
    rate = keras_vit.schedules.BiTHyperRule(0.003, steps)

    def at(step):
        return float(keras.ops.convert_to_numpy(rate(step)))

    assert at(0) == 0
    assert at(warmup // 2) == pytest.approx(0.0015)
    assert at(warmup) == pytest.approx(0.003)
    for i, step in enumerate(decays):
        assert at(step) == pytest.approx(0.003 / 10**i)
        assert at(step + 1) == pytest.approx(0.003 / 10 ** (i + 1))


def test_warmup_cosine_schedule():
    rate = keras_vit.schedules.warmup_cosine(0.2, steps=100, warmup=0.1)
    rates = [float(rate(step)) for step in (0, 5, 10, 55, 100)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.1, 0], abs=1e-6)


@pytest.mark.parametrize("steps, warmup", [(1, 0.0), (1, 0.9), (2, 0.5)])
def test_warmup_cosine_schedule_of_few_steps(steps, warmup):
    rate = keras_vit.schedules.warmup_cosine(0.2, steps, warmup)
    rates = np.array([float(rate(step)) for step in range(steps + 1)])
    assert np.isfinite(rates).all() and (rates >= 0).all()


@pytest.mark.backends("jax")
@pytest.mark.parametrize(
    "rate",
    [
        keras_vit.schedules.warmup_cosine(0.2, 100, 0.1),
        keras_vit.schedules.BiTHyperRule(0.003, 700),
    ]
    + [
        keras_vit.schedules.WarmupDecay(0.2, 100, 10, d)
        for d in ("linear", "staircase")
    ],
    ids=["cosine", "rule", "linear", "staircase"],
)
def test_second_call_of_a_schedule_does_not_compile(rate, caplog):
    """Compiled functions are never freed: in a long run they take
    gigabytes."""
    import jax

    jax.clear_caches()
    with jax.log_compiles():
        rate(3)
        assert "Compiling" in caplog.text
        caplog.clear()
        rate(4), rate(50)
    assert "Compiling" not in caplog.text
