"""Runs that are killed resume bit for bit."""

import contextlib
import errno
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import time
import types

import keras
import numpy as np
import pytest

from keras_vit import training
from keras_vit.training import callbacks, checkpoint
from keras_vit_programs import curves, logs, rows, run_folder
from tests.harness import numpy
from tests.recipes.programs import Crash, completed_steps, rows_of
from tests.training import run_small


@pytest.fixture(autouse=True)
def _shown():
    logs.show()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run: its folder, model and checkpoints."""
    folder = tmp_path_factory.mktemp("straight")
    model, checkpoints = run_small.main(folder)
    return types.SimpleNamespace(folder=folder, model=model, checkpoints=checkpoints)


@pytest.fixture
def crashed(straight, tmp_path_factory, tmp_path):
    """The folder of a run that was interrupted after 17 steps."""
    once = tmp_path_factory.getbasetemp() / "crashed"
    if not once.exists():
        with pytest.raises(KeyboardInterrupt):
            run_small.main(once, [Crash(17)])
    return shutil.copytree(once, tmp_path / "run")


def assert_same_end(folder, straight):
    assert json.loads((folder / "rows.json").read_text()) == json.loads(
        (straight / "rows.json").read_text()
    )
    with (
        np.load(folder / "end.npz") as found,
        np.load(straight / "end.npz") as expected,
    ):
        assert found.files == expected.files
        for name in expected.files:
            np.testing.assert_array_equal(found[name], expected[name])


def assert_averaged(model):
    averages = model.optimizer._model_variables_moving_average
    for found, average in zip(model.get_weights(), averages, strict=True):
        np.testing.assert_array_equal(found, numpy(average))


ON_TORCH = pytest.mark.backends("torch")


# Within an interval, before the first checkpoint, at one, at an evaluation.
@pytest.mark.parametrize(
    "after", [13, *(pytest.param(i, marks=ON_TORCH) for i in (1, 5, 8))]
)
def test_interrupted_run_resumes_bit_for_bit(after, straight, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_small.main(tmp_path, [Crash(after)])
    epochs = []
    end = keras.callbacks.LambdaCallback(on_epoch_end=lambda i, _: epochs.append(i))
    run_small.main(tmp_path, [end])
    assert epochs == [*range(3)][-len(epochs) :]  # such as TensorBoard's steps
    assert_same_end(tmp_path, straight.folder)


@pytest.mark.suite("jax", "torch")
def test_equal_averages_resume(tmp_path):
    """The run resumes before its first averaged step, and after it."""
    run_small.main(tmp_path / "straight", average_from=12)
    for step in (7, 18):  # it resumes from steps 5 and 15
        with pytest.raises(KeyboardInterrupt):
            run_small.main(tmp_path / "crashed", [Crash(step)], average_from=12)
    model, _ = run_small.main(tmp_path / "crashed", average_from=12)
    assert_same_end(tmp_path / "crashed", tmp_path / "straight")
    assert_averaged(model)


# A process that has imported the modules but started no threads, so that it
# can be forked quickly.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.training.run_small"])


@contextlib.contextmanager
def clock(*years):
    """Returns moments of these years in turn, of which none is the true time.

    `perf_counter`, which measures durations, is not changed.
    """
    moments = itertools.cycle((year - 1970) * 31_556_952.0 for year in years)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: next(moments))
        patch.setattr(time, "time_ns", lambda: int(next(moments)) * 10**9)
        yield


def run_and_die(folder):
    """Runs while the clock jumps, and kills itself after a checkpoint."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    write = checkpoint.write_state

    def write_and_die(path, arrays, note):
        write(path, arrays, note)
        if note["step"] == 10:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.write_state = write_and_die
    with clock(2026, 2036, 2016, 1970, 2110, 2026, 2026):
        run_small.main(folder)


@pytest.mark.backends("torch")
@pytest.mark.slow
def test_killed_run_resumes_bit_for_bit_with_a_wrong_clock(straight, tmp_path):
    """`python -m tests.faults` sends `kill -9` at random moments."""
    process = PROCESSES.Process(target=run_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with clock(1970):
        run_small.main(tmp_path)
    assert_same_end(tmp_path, straight.folder)
    assert all(float(x["images_per_second"]) > 0 for x in rows_of(tmp_path))


class Terminate(keras.callbacks.Callback):
    """Sends a signal within a step: SIGTERM, as schedulers do, or that of Ctrl-C."""

    def __init__(self, number, times=1):
        super().__init__()
        self.number, self.times = number, times

    def on_train_batch_begin(self, batch, logs=None):
        if completed_steps(self.model) == 6:
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            for _ in range(self.times):
                signal.raise_signal(self.number)


@pytest.fixture
def interruptible():
    """Ctrl-C is ignored in processes that a shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_a_checkpoint_at_the_end_of_the_step(
    number, straight, tmp_path, capsys, interruptible
):
    """test_flags.py has the exit status."""
    before = signal.getsignal(number)
    with pytest.raises(training.Preempted, match="Saved step 7 in") as error:
        run_small.main(tmp_path, [Terminate(number)])
    assert error.value.number == number and signal.getsignal(number) == before
    said = "Ctrl-C again stops at once" in capsys.readouterr().out
    assert said == (number == signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_small.main(tmp_path / "twice", [Terminate(signal.SIGINT, 2)])
    run_small.main(tmp_path)
    assert_same_end(tmp_path, straight.folder)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "member"])
def test_damaged_newest_checkpoint_falls_back_to_the_previous(
    damage, straight, crashed, capsys
):
    newest = crashed / "checkpoints" / "step-00000015.npz"
    body = bytearray(newest.read_bytes())
    if damage == "truncated":
        body = body[: len(body) // 2]
    elif damage == "flipped":
        body[len(body) // 2] ^= 1
    elif damage == "empty":
        body = b""
    newest.write_bytes(body)
    if damage == "member":
        with np.load(newest) as file:
            arrays = dict(file)
        del arrays["model/1"]
        np.savez(newest, **arrays)
    run_small.main(crashed)
    captured = capsys.readouterr()
    assert "step-00000015.npz cannot be used" in captured.err
    assert "from 10\n" in captured.out
    assert_same_end(crashed, straight.folder)


@pytest.mark.backends("torch")
def test_full_disk_is_reported_and_training_continues(
    straight, tmp_path, capsys, monkeypatch
):
    """Rows of metrics that could not be written are written later."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write_state, atomic_write = checkpoint.write_state, run_folder.atomic_write
    targets = []

    def write_but_one(path, state, note):
        if note["step"] == 15:
            raise full
        write_state(path, state, note)

    def refuse_the_first(path):
        targets.append(path)
        if len(targets) == 1:
            raise full
        return atomic_write(path)

    monkeypatch.setattr(checkpoint, "write_state", write_but_one)
    monkeypatch.setattr(run_folder, "atomic_write", refuse_the_first)
    with pytest.raises(KeyboardInterrupt):
        run_small.main(tmp_path, callbacks=[Crash(17)])
    warned = capsys.readouterr().err
    assert "step 15 could not be written" in warned
    assert "metrics.csv could not be written" in warned
    assert [row["step"] for row in rows_of(tmp_path)] == ["8", "16"]
    run_small.main(tmp_path)
    assert "from 10\n" in capsys.readouterr().out
    assert_same_end(tmp_path, straight.folder)


@pytest.mark.backends("torch")
def test_newest_three_checkpoints_are_kept(straight):
    folder = straight.folder / "checkpoints"
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"step-{step:08d}.npz" for step in (10, 15, 20)]
    # Of another configuration, they are refused; one that is off may be new.
    for given, words in (
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"seed": 0, "alpha": 0.5}, "alpha was None and is 0.5"),
        ({"seed": 0, "no_flip": False, "loss": None, "erase": 0.0}, None),
    ):
        other = training.ResumableCheckpoint(folder, 5, given)
        if words is None:
            assert other.restore(run_small.build()[0]) == 20
            continue
        with pytest.raises(ValueError, match=words):
            other.restore(run_small.build()[0])


class Evaluated(keras.callbacks.Callback):
    """Keeps the weights of each evaluation."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_test_batch_end(self, batch, logs=None):
        if batch == 0:
            self.weights.append(self.model.get_weights())


def test_restore_best_restores_the_best_evaluated_weights(
    tmp_path, capsys, monkeypatch
):
    """The restored weights are those that were evaluated: the averages."""
    # Accuracies of so short a run depend on the backend.
    scores = {8: 0.1, 16: 0.3, 24: 0.2}
    monkeypatch.setattr(callbacks, "selection_score", lambda row: scores[row["step"]])
    evaluated = Evaluated()
    model, checkpoints = run_small.main(tmp_path, [evaluated], keep_best=True)
    last = model.get_weights()
    for best, warning in ((1, ""), (2, "cannot be read")):
        assert checkpoints.restore_best(model) is checkpoints.rows[best]
        for found, expected in zip(
            model.get_weights(), evaluated.weights[best], strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        assert warning in (printed := capsys.readouterr().err)
        assert warning or "best.npz" not in printed
        # A damaged file leaves the weights of the end.
        (tmp_path / "checkpoints" / "best.npz").write_bytes(b"damaged")
        model.set_weights(last)


@pytest.mark.backends("torch")
def test_best_weights_need_evaluations(tmp_path):
    model, _ = run_small.build()
    checkpoint = training.ResumableCheckpoint(tmp_path, 2, keep_best=True)
    message = "Give `fit` `validation_data`.*step, train_loss, train_accuracy"
    with pytest.raises(ValueError, match=message):
        model.fit(run_small.Stream(0), steps_per_epoch=2, callbacks=[checkpoint])


class ByClass(keras.metrics.Metric):
    """A metric of a number for each class."""

    def __init__(self, name):
        super().__init__(name=name)
        self.mean = self.add_variable((3,), "zeros", name="mean")

    def update_state(self, labels, logits, sample_weight=None):
        self.mean.assign(keras.ops.mean(logits, 0))

    def result(self):
        return self.mean + 0


@pytest.mark.backends("torch")
@pytest.mark.parametrize("before, after", [(0, 3), (1, 3), (3, 1), (3, 0)])
def test_a_run_that_resumes_with_other_metrics_keeps_its_rows(
    before, after, tmp_path, capsys, monkeypatch
):
    """Values stay in their columns, with gaps, and the best row is one that has
    the score of the last."""
    build = run_small.build

    def build_with(count):
        model, schedule = build()
        top_2 = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top_2")
        metrics = ["accuracy", top_2, ByClass(name="by_class")][:count]
        model.compile(model.optimizer, model.loss, metrics=metrics)
        return model, schedule

    monkeypatch.setattr(run_small, "build", lambda average_from: build_with(before))
    with pytest.raises(KeyboardInterrupt):
        run_small.main(tmp_path, [Crash(17)], keep_best=True)
    capsys.readouterr()
    monkeypatch.setattr(run_small, "build", lambda average_from: build_with(after))
    _, checkpoints = run_small.main(tmp_path, keep_best=True)
    warned = capsys.readouterr().err
    for name in ("by_class", "val_by_class"):
        message = f"The metric {name!r} has the shape (3,)"
        assert warned.count(message) == (after == 3)
    first, *_, last = kept = checkpoints.rows
    assert first.keys() - last.keys() or last.keys() - first.keys()
    for written, row in zip(rows_of(tmp_path), kept, strict=True):
        assert float(written.pop("images_per_second")) > 0
        found = {name: float(text) for name, text in written.items() if text}
        assert found == pytest.approx(row, rel=1e-5)
    # The run resumed from step 15: the row of step 8 is of the first metrics.
    compared = kept if before and after else kept[1:]
    assert callbacks.comparable([{"step": 1, "train_loss": 2.0}, *kept]) == compared
    assert rows.no_improvement(len(compared))(kept) is None
    curves.plot_learning_curves(kept, tmp_path / "curves.png")


class Poisoned(run_small.Stream):
    good = 12

    def __getitem__(self, index):
        images, labels = super().__getitem__(index)
        return images * (np.nan if self.start + index >= self.good else 1), labels


@pytest.mark.backends("torch")
@pytest.mark.parametrize("good, found_at", [(12, 15), (15, 16)])
def test_nan_loss_raises_diverged_and_keeps_good_checkpoints(
    good, found_at, tmp_path, monkeypatch
):
    """An evaluation that finds it is in metrics.csv."""
    monkeypatch.setattr(Poisoned, "good", good)
    words = f"The loss is nan at step {found_at}, with a learning rate of 0.0"
    with pytest.raises(training.Diverged, match=words) as error:
        run_small.main(tmp_path, stream=Poisoned)
    losses = [row["train_loss"] for row in rows_of(tmp_path)]
    assert ["nan" == loss for loss in losses] == [False, True][: found_at // 8]
    last = found_at // 5 * 5 - (found_at == 15) * 5
    assert f"step-{last:08}.npz" in str(error.value)
    for path in (tmp_path / "checkpoints").iterdir():
        with np.load(path) as good:
            for name in good.files:
                assert np.isfinite(good[name]).all(), name


@pytest.mark.backends("torch")
def test_several_steps_per_execution_are_refused(tmp_path):
    model, _ = run_small.build()
    model.compile("sgd", "mse", steps_per_execution=2)
    with pytest.raises(ValueError, match="Received: steps_per_execution=2"):
        training.ResumableCheckpoint(tmp_path, 5).restore(model)


@pytest.mark.backends("torch")
def test_non_finite_weights_are_not_saved(tmp_path):
    model, _ = run_small.build()
    model.optimizer.build(model.trainable_variables)
    checkpoints = training.ResumableCheckpoint(tmp_path, 5)
    checkpoints.set_model(model)
    checkpoints.save()
    (good,) = tmp_path.iterdir()
    before = good.read_bytes()
    kernel = model.trainable_variables[0]
    kernel.assign(kernel * np.nan)
    with pytest.raises(training.Diverged, match="model/0 is no longer finite"):
        checkpoints.save()
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [before]


def test_evaluation_uses_the_averaged_weights(straight):
    """Training continues with the raw weights, as without evaluations."""
    model, checkpoints = straight.model, straight.checkpoints
    assert_averaged(model)
    results = model.evaluate(
        run_small.Stream(10**7, count=3), return_dict=True, verbose=0
    )
    last = checkpoints.rows[-1]
    assert last["test_loss"] == pytest.approx(results["loss"], rel=1e-5)
    assert last["test_accuracy"] == pytest.approx(results["accuracy"])
    raw, _ = run_small.build()
    assert checkpoints.restore(raw) == 20
    pairs = zip(raw.get_weights(), model.get_weights(), strict=True)
    assert any((found != average).any() for found, average in pairs)
