import io
import resource
import sys
import time

import keras
import pytest

import keras_vit
from keras_vit import training
from keras_vit.training.callbacks import score_name
from keras_vit_programs import logs, rows
from tests.training import run_small
from tests.training.fitting import fit

pytestmark = pytest.mark.backends("torch")

METRICS = ("loss", "accuracy")


@pytest.fixture(autouse=True)
def _shown():
    logs.show()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def trained(checkpoints, callbacks=(), steps=40, interval=40, accumulate=None):
    model, _ = run_small.build(accumulate=accumulate)
    fit(
        model,
        run_small.Stream,
        run_small.Stream(100, count=2),
        steps=steps,
        interval=interval,
        callbacks=list(callbacks),
        checkpoints=checkpoints,
    )


def rows_of_run(folder, shown_steps=5):
    """Trains with progress, and returns the rows."""
    progress = rows.Progress(shown_steps)
    recorder = rows.Recorder(folder / "checkpoints", 100, {}, batch_size=4)
    recorder.sinks.append(progress)
    recorder.watchers.append(progress.watch)
    trained(recorder, steps=5, interval=2)
    return recorder.rows


def test_a_log_without_a_row_says_how_long_training_takes(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(rows.Progress, "SILENT", 0.0)
    rows_of_run(tmp_path)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("step ") and first.endswith(" left")
    assert " s a step, about 0:00:0" in first
    assert not [line for line in others if line.startswith("step ")]


def test_log_has_each_evaluation(tmp_path, capsys):
    rows = rows_of_run(tmp_path)
    assert "learning_rate" not in rows[0]  # whose schedule was not given
    splits, names, *lines = capsys.readouterr().out.splitlines()
    assert splits.split() == ["train", "test"]
    assert names.split() == [
        "step",
        *2 * ["loss", "accuracy"],
        *("images/s", "left"),
    ]
    assert max(map(len, (splits, names, *lines))) < 80
    assert [line.split()[0] for line in lines] == ["2/5", "4/5", "5/5"]
    for line, row in zip(lines, rows, strict=True):
        values = [row[f"{s}_{n}"] for s in ("train", "test") for n in METRICS]
        speed = row["images_per_second"]
        speed = f"{speed:.1f}" if speed < 10 else f"{speed:.0f}"
        texts = [*(f"{value:.4f}" for value in values), speed]
        assert line.split()[1:-1] == texts
    assert lines[-1].endswith(" 0:00:00")


@pytest.mark.parametrize("speed, text", [(0.26, "0.3"), (9.5, "9.5"), (10.4, "10")])
def test_slow_speeds_have_a_decimal(speed, text):
    row = {"step": 1, "images_per_second": speed}
    assert rows.Progress(5)._cells(None, row)["", "images/s"] == text


def test_the_first_estimate_is_of_the_speed_and_others_of_the_time(tmp_path):
    recorder = rows.Recorder(tmp_path, 100, {}, batch_size=4)
    progress = rows.Progress(10)
    # 100 seconds, most of them of the compilation of the first evaluation.
    progress._first = time.perf_counter() - 100, 1
    row = {"step": 2, "images_per_second": 8.0}
    assert progress._cells(recorder, row)["", "left"] == "0:00:04"
    progress(recorder, row)
    progress._first = time.perf_counter() - 100, 1
    assert progress._cells(recorder, row)["", "left"] == "0:13:20"


def test_a_full_disk_ends_the_files_for_tensorboard_alone(tmp_path, caplog):
    """The limit of a file's size fails where a full disk does, in TensorFlow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(size):
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: resource.setrlimit(
                resource.RLIMIT_FSIZE, (size, hard)
            )
        )

    tensorboard = rows.TensorBoard(tmp_path / "tensorboard", write_graph=False)
    recorder = rows.Recorder(tmp_path / "checkpoints", 2, {}, batch_size=4)
    trained(recorder, [limited(100), tensorboard, limited(soft)], 6, 2)
    assert [row["step"] for row in recorder.rows] == [2, 4, 6]
    assert recorder._path(6).exists()
    (message,) = (r.message for r in caplog.records if "tensorboard" in r.message)
    assert "File too large" in message and "\n" not in message


@pytest.mark.parametrize("width", [None, 40])
def test_terminal_line_is_overwritten(width, tmp_path, monkeypatch):
    """A line longer than the terminal would wrap, and leave a row behind."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(rows.Progress, "EVERY", 0)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    rows_of_run(tmp_path, shown_steps=1000 if width else 5)
    text = terminal.getvalue()
    assert text.count("\n") == 5  # two of titles
    first, *lines = text.split("\r\033[K")
    live = [line for line in lines if "\n" not in line]
    assert [int(line.split("/")[0]) for line in live] == [1, 2, 3, 4, 5]
    assert max(map(len, live)) < (width or 80)
    if not width:
        assert "#" in live[-1] and "." not in live[-1].split()[1]
        assert "  loss " in live[0] and " left" in live[1]


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


def test_sigterm_is_handled_after_the_last_micro_batch(tmp_path):
    """SIGTERM within a step takes effect at its end, and is counted in
    steps."""
    checkpoints = training.ResumableCheckpoint(tmp_path, 100)

    class Terminate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            checkpoints._signalled = batch >= 5

    with pytest.raises(training.Preempted, match="Saved step 2 in"):
        trained(checkpoints, [Terminate()], accumulate=4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002.npz"]
    again = training.ResumableCheckpoint(tmp_path, 100)
    assert again.restore(run_small.build(accumulate=4)[0]) == 2


def test_processes_stop_at_the_same_step(tmp_path):
    """Another process got the signal; this one, not the first, writes
    nothing."""
    processes = keras_vit.distribution.Strategy(
        "two", "for a test", process=(1, 2), gather=lambda number: [number, 1]
    )
    checkpoints = training.ResumableCheckpoint(tmp_path, 4, strategy=processes)
    with pytest.raises(training.Preempted, match="Saved step 10 in"):
        trained(checkpoints)
    assert not list(tmp_path.iterdir())
