"""Processing of a run's evaluations: metrics file, log, curves, early stopping.

At each evaluation, `Recorder` makes a row of metrics and calls functions with
it, its sinks.
"""

import datetime
import logging
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras

from keras_vit.training import ResumableCheckpoint
from keras_vit.training.callbacks import Logs, Row, comparable, selection_score
from keras_vit.utils.files import log_os_errors
from keras_vit.utils.logging import logger
from keras_vit.utils.optional import require
from keras_vit_programs.curves import plot_learning_curves
from keras_vit_programs.run_folder import save_csv

# What a line shows, by the split, or "", and the title of its column.
Cells: TypeAlias = dict[tuple[str, str], str]


class Recorder(ResumableCheckpoint):
    """The callback of a run that counts its steps, hands the row of each
    evaluation to `sinks`, and saves checkpoints.

    The metrics of a row are means over the steps since the previous row. It
    also has the learning rate and the speed.

    Args:
        folder: Path of the folder of the checkpoints.
        every: Integer. Steps between two checkpoints.
        fingerprint: Dict of the settings that must be equal to resume.
        batch_size: Integer. Images per step.
        **options: Further arguments of `ResumableCheckpoint`.

    Attributes:
        learning_rate: Function of the step, such as a Keras schedule; None for
            rows without it.
        sinks: List of functions of the recorder and a row of `metrics.csv`,
            which are called after each evaluation.
        stops: List of functions of all rows so far that return why the training
            ends there, or None. They are asked after each evaluation, and when a
            run resumes, so that one that has stopped does not go on.
        watchers: List of functions of the recorder and the metrics so far,
            which are called after each step.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        every: int,
        fingerprint: dict[str, Any],
        batch_size: int,
        **options: Any,
    ) -> None:
        super().__init__(folder, every, fingerprint, **options)
        self.batch_size = batch_size
        self.learning_rate: Callable[[int], Any] | None = None
        self.sinks: list[Callable[[Recorder, Row], None]] = []
        self.stops: list[Callable[[list[Row]], str | None]] = []
        self.watchers: list[Callable[[Recorder, Logs], None]] = []
        self._is_compiled = False

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._measure_from_here()

    def _measure_from_here(self) -> None:
        self._from, self._started, self._ended = self.step, time.perf_counter(), None

    def on_step_end(self, logs: Logs) -> None:
        # The first step includes compilation: if others follow, the speed is
        # measured from its end.
        if not self._is_compiled and self.params["steps"] > self.accumulate:
            self._measure_from_here()
        self._is_compiled = True
        for watch in self.watchers:
            watch(self, logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        self._ended = time.perf_counter()

    def make_row(self, logs: Logs) -> Row:
        """Returns the row of the current interval; its evaluation may be missing."""
        measured = {}
        if self.learning_rate:
            # The last update used the learning rate at the step before it.
            rate = keras.ops.convert_to_numpy(self.learning_rate(self.step - 1))
            measured["learning_rate"] = float(rate)
        images = (self.step - self._from) * self.batch_size
        seconds = (self._ended or time.perf_counter()) - self._started
        measured["images_per_second"] = images / seconds
        return super().make_row(logs) | measured

    def keep_row(self, row: Row) -> None:
        super().keep_row(row)
        if reason := self.reason_to_stop():
            logger.info(f"stopped: {reason}")
            self.model.stop_training = True
        for sink in self.sinks:
            sink(self, row)

    def reason_to_stop(self) -> str | None:
        """Returns why the training is over before its last step, or None."""
        reasons = (stop(self.rows) for stop in self.stops) if self.rows else ()
        return next(filter(None, reasons), None)


def write_rows(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Writes all rows of `metrics.csv`: earlier ones may be missing if the disk
    was full."""
    texts = [
        {name: f"{value:.6g}" for name, value in row.items()} | {"step": row["step"]}
        for row in rows
    ]
    with log_os_errors(path.name):
        save_csv(texts, path)


def draw_curves(path: pathlib.Path, title: str) -> Callable[[Recorder, Row], None]:
    """Returns a sink that draws `curves.png`, at most every 20 seconds."""
    last_drawing = time.perf_counter()

    def draw(recorder: Recorder, row: Row) -> None:
        nonlocal last_drawing
        if time.perf_counter() - last_drawing > 20:
            last_drawing = time.perf_counter()
            with log_os_errors(path.name):
                plot_learning_curves(recorder.rows, path, title)

    return draw


class TensorBoard(keras.callbacks.TensorBoard):
    """Writes no more after its files cannot be written, such as on a full disk,
    which Keras's callback ends the training for."""

    _failed = False

    def on_train_begin(self, logs: Logs = None) -> None:
        self._write(super().on_train_begin, logs)

    def on_train_end(self, logs: Logs = None) -> None:
        self._write(super().on_train_end, logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        self._write(super().on_test_begin, logs)

    def on_test_end(self, logs: Logs = None) -> None:
        self._write(super().on_test_end, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._write(super().on_epoch_end, epoch, logs)

    def _write(self, hook: Callable[..., None], *args: Any) -> None:
        try:
            if not self._failed:
                hook(*args)
        except (OSError, require("tensorflow").errors.OpError) as error:
            self._failed = True
            line = str(error).partition("\n")[0]
            logger.warning("tensorboard could not be written, and stops: %s", line)


def no_improvement(patience: int) -> Callable[[list[Row]], str | None]:
    """Returns one of `Recorder.stops`: whether the last `patience` evaluations had no
    better `selection_score`."""

    def reason(rows: list[Row]) -> str | None:
        scores = [selection_score(row) for row in comparable(rows)]
        if len(scores) - 1 - scores.index(max(scores)) < patience:
            return None
        return f"{patience} evaluations without improvement"

    return reason


class Progress:
    """A sink that logs a row of a table for each evaluation.

    On a terminal, a further line with a bar, which fits its width, shows the
    progress between evaluations, if the log level is INFO or lower: `watch` is
    to be one of `Recorder.watchers`.
    """

    # Seconds between updates of the progress line. Each reads the loss, which
    # waits for the device.
    EVERY = 0.3
    # Seconds of training without a row, after which a line says how long it takes.
    SILENT = 20.0

    def __init__(self, steps: int) -> None:
        self._steps, self._shown = steps, 0.0
        self._titles: list[tuple[str, str]] = []  # those of the last row
        # The time and the step from which the time that is left is estimated.
        self._first: tuple[float, int] | None = None
        self._evaluated = self._has_told = False

    def __call__(self, recorder: Recorder, row: Row) -> None:
        if self._is_live():
            self._rewrite("")
        cells = self._cells(recorder, row)
        lines = [list(cells.values())]
        if self._titles != list(cells):
            splits = [split for split, _ in cells]
            first = ["" if s in splits[:i] else s for i, s in enumerate(splits)]
            lines = [first, [name for _, name in cells], *lines]
        self._titles = list(cells)
        widths = [max(len(n), len(x), 7) for (_, n), x in cells.items()]
        for line in lines:
            texts = zip(line, widths, strict=True)
            text = "  ".join(f"{text:>{width}}" for text, width in texts)
            logger.info(text.rstrip())
        if not self._evaluated:  # the first evaluation includes compilation, too
            self._first, self._evaluated = (time.perf_counter(), recorder.step), True

    def watch(self, recorder: Recorder, logs: Logs) -> None:
        """Shows the line with the bar."""
        now = time.perf_counter()
        if self._first is None:  # the first step includes compilation
            self._first = now, recorder.step
        if self._is_live() and now - self._shown > self.EVERY:
            self._shown = now
            row = recorder.make_row(logs)
            self._rewrite(self._bar(self._cells(recorder, row), row["step"]))
        waits = not (self._is_live() or self._has_told or self._evaluated)
        if waits and now - self._first[0] > self.SILENT:
            self._has_told = True
            recorder.make_row(logs)  # waits for the device
            spent, done = time.perf_counter() - self._first[0], recorder.step
            each = spent / max(1, done - self._first[1])
            left = datetime.timedelta(seconds=round(each * (self._steps - done)))
            logger.info(f"step {done}: {each:.2f} s a step, about {left} left")

    def _is_live(self) -> bool:
        return sys.stdout.isatty() and logger.isEnabledFor(logging.INFO)

    def _rewrite(self, text: str) -> None:
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()

    def _bar(self, cells: Cells, done: int) -> str:
        """Returns a line that is narrower than the terminal: a longer one would
        wrap, and only its last row would be erased."""
        (_, step), *values = cells.items()
        text = "  ".join(f"{name} {x}" for (_, name), x in values if x)
        width = shutil.get_terminal_size().columns - 1
        room = max(0, min(30, width - len(f"{step}  {text}") - 2))
        full = round(room * done / self._steps)
        return f"{step}  {'#' * full}{'.' * (room - full)}  {text}"[:width]

    def _cells(self, recorder: Recorder, row: Row) -> Cells:
        """Returns the values to show of a row of `metrics.csv`."""
        step, width = row["step"], len(str(self._steps))
        cells = {("", "step"): f"{step:{width}}/{self._steps}"}
        for column, value in row.items():
            split, _, name = column.partition("_")
            if split in ("train", "validation", "test"):
                name = "mAP" if name == "mean_average_precision" else name
                cells[split, name.replace("_", " ")] = f"{value:.4f}"
        speed = row["images_per_second"]
        cells["", "images/s"] = f"{speed:.{int(speed < 10)}f}"
        cells["", "left"] = ""
        if self._first and step > self._first[1]:
            spent, done = time.perf_counter() - self._first[0], step - self._first[1]
            each = spent / done if self._evaluated else recorder.batch_size / speed
            left = round(each * (self._steps - step))
            cells["", "left"] = str(datetime.timedelta(seconds=left))
        return cells
