import os
import sys

import keras
import pytest

import keras_vit
from keras_vit import _logging
from keras_vit import training
from keras_vit.training import callbacks
from keras_vit.training.callbacks import EventFiles
from tests.training import run_small
from tests.training.fitting import fit

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(autouse=True)
def _shown():
    _logging.show()


class Terminal:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def metrics_and_fit(tmp_path, *callbacks):
    model, schedule = run_small.build()
    metrics = training.CSVMetrics(tmp_path / "metrics.csv", 4, schedule)
    fit(
        model,
        run_small.Stream,
        run_small.Stream(100, count=2),
        steps=5,
        interval=2,
        callbacks=[metrics, *(make(metrics) for make in callbacks)],
        checkpoints=training.ResumableCheckpoint(tmp_path / "checkpoints", 100),
    )
    return metrics


def progress(metrics, steps=5):
    return callbacks.Progress(metrics, steps)


def test_log_has_one_line_per_evaluation(tmp_path, capsys):
    rows = metrics_and_fit(tmp_path, progress).rows
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "step 2/5",
        "step 4/5",
        "step 5/5",
    ]
    for line, row in zip(lines, rows, strict=True):
        assert f"train loss {row['train_loss']:.4f}" in line
        assert f"test accuracy {row['test_accuracy']:.4f}" in line
        assert f"rate {row['learning_rate']:.2e}" in line
        assert f"{row['images_per_second']:.0f} images/s" in line
        assert line.endswith(" left")
    assert lines[-1].endswith("0:00 left")


def test_terminal_line_is_overwritten(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(callbacks.Progress, "EVERY", 0)
    metrics_and_fit(tmp_path, progress)
    assert terminal.text.count("\n") == 3
    steps = [x.split("/")[0] for x in terminal.text.split("\r\033[Kstep ")[1:]]
    # Each step, and again with its evaluation.
    assert steps == ["1", "2", "2", "3", "4", "4", "5", "5"]
    first = terminal.text.split("\r\033[K")[1]
    assert "train accuracy" in first and "test" not in first


def test_terminal_line_fits_the_terminal(tmp_path, monkeypatch):
    """A longer one would wrap, and each step would leave a row behind."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(callbacks.Progress, "EVERY", 0)
    monkeypatch.setenv("COLUMNS", "40")
    metrics_and_fit(tmp_path, lambda metrics: progress(metrics, 1000))
    lines = [
        x.partition("\n")[0] for x in terminal.text.split("\r\033[K") if x[-1:]
    ]
    live = [x for x in lines if "test" not in x]
    assert len(live) == 5 and max(map(len, live)) < 40


def test_event_files_hold_the_metrics(tmp_path):
    tf = pytest.importorskip("tensorflow")
    folder = tmp_path / "tensorboard"
    rows = metrics_and_fit(
        tmp_path, lambda metrics: EventFiles(folder, metrics)
    ).rows
    (path,) = folder.iterdir()
    assert "tfevents" in path.name
    head, *events = (
        tf.compat.v1.Event.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(path))
    )
    assert head.file_version == "brain.Event:2"
    assert [event.step for event in events] == [2, 4, 5]
    for event, row in zip(events, rows, strict=True):
        found = {x.tag: x.simple_value for x in event.summary.value}
        assert found["loss/train"] == pytest.approx(row["train_loss"])
        assert found["accuracy/test"] == pytest.approx(row["test_accuracy"])
        assert found["learning_rate"] == pytest.approx(row["learning_rate"])
        assert len(found) == 6


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_events_missed_on_a_full_disk_are_written_later(tmp_path, capsys):
    tf = pytest.importorskip("tensorflow")
    asked, writer = [], tf.io.TFRecordWriter

    def refusing(target):
        asked.append(target)
        return writer("/dev/full" if len(asked) == 1 else target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.io, "TFRecordWriter", refusing)
        metrics_and_fit(
            tmp_path, lambda metrics: EventFiles(tmp_path / "tb", metrics)
        )
    assert "No space left" in capsys.readouterr().err
    (path,) = (tmp_path / "tb").iterdir()
    steps = [
        tf.compat.v1.Event.FromString(record.numpy()).step
        for record in tf.data.TFRecordDataset(str(path))
    ]
    assert steps == [0, 2, 4, 5]


def test_sigterm_is_handled_after_the_last_micro_batch(tmp_path):
    """SIGTERM within a step takes effect at its end, and is counted in
    steps."""
    model, _ = run_small.build()
    checkpoints = training.ResumableCheckpoint(tmp_path, 100, micro_batches=4)

    class Terminate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            checkpoints._signalled = checkpoints.step >= 5

    with pytest.raises(training.Preempted, match="Saved step 2 in"):
        fit(
            model,
            run_small.Stream,
            run_small.Stream(100, count=2),
            steps=40,
            interval=40,
            callbacks=[Terminate()],
            checkpoints=checkpoints,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002.npz"]
    again = training.ResumableCheckpoint(tmp_path, 100, micro_batches=4)
    assert again.restore(model) == 8


def test_processes_stop_at_the_same_step(tmp_path):
    """Another process got the signal; this one, not the first, writes
    nothing."""
    model, _ = run_small.build()
    processes = keras_vit.distribution.Strategy(
        "two", "for a test", process=(1, 2), gather=lambda number: [number, 1]
    )
    checkpoints = training.ResumableCheckpoint(tmp_path, 4, strategy=processes)
    with pytest.raises(training.Preempted, match="Saved step 10 in"):
        fit(
            model,
            run_small.Stream,
            run_small.Stream(100, count=2),
            steps=40,
            interval=40,
            callbacks=[],
            checkpoints=checkpoints,
        )
    assert not list(tmp_path.iterdir())
