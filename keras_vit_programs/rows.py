"""Keras callbacks: metrics file, early stopping, progress, TensorBoard, EMA."""

import csv
import datetime
import logging
import pathlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import keras

from keras_vit.training.callbacks import Logs, selection_score
from keras_vit.utils.files import atomic_write, log_os_errors
from keras_vit.utils.logging import logger
from keras_vit.utils.types import StrPath

# What a line shows, by the split, or "", and the title of its column.
Cells: TypeAlias = dict[tuple[str, str], str]


class CSVMetrics(keras.callbacks.Callback):
    """Writes one row of `metrics.csv` at each evaluation of `model.fit`.

    A row holds the loss and every metric that the model is compiled with, as
    means over the steps since the previous row. It is on disk before training
    continues. The callback may be used in several calls of `fit`, over which
    it counts steps continuously.

    Args:
        path: Path of the file, which is replaced; None for no file.
        batch_size: Integer. Images per step.
        learning_rate: Function of the step, such as a Keras schedule.
        rows: List of dicts. The rows of the run that is resumed. New rows are
            appended to this list.
        step: Integer. The step to resume from, counted in micro-batches.
        micro_batches: Integer. Number of micro-batches per step: Keras calls
            the callback once for each of them.
        split: "test" or "validation". The split that is evaluated on.

    Attributes:
        rows: List of dicts, one per evaluation.
    """

    def __init__(
        self,
        path: StrPath | None,
        batch_size: int,
        learning_rate: Callable[[int], Any],
        rows: list[dict[str, Any]] | None = None,
        step: int = 0,
        micro_batches: int = 1,
        split: str = "test",
    ) -> None:
        super().__init__()
        self._micro_batches = micro_batches
        self.rows = [] if rows is None else rows
        self._path = None if path is None else pathlib.Path(path)
        self._batch_size = batch_size
        self._learning_rate = learning_rate
        self._step = self._first_step = step
        self._seconds = 0.0
        self._split = split
        self._write()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._timed_from, self._started = self._step, time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._step += 1
        is_only_step = self.params["steps"] == 1
        if self._step == self._first_step + 1 and not is_only_step:
            # The first step includes compilation, so that the speed is measured
            # from its end.
            self._timed_from, self._started = self._step, time.perf_counter()

    def on_test_begin(self, logs: Logs = None) -> None:
        self._seconds = time.perf_counter() - self._started

    @property
    def fractional_step(self) -> float:
        """Float. Completed steps, with the fraction of the current one."""
        return self._step / self._micro_batches

    def now(self, logs: Logs) -> dict[str, Any]:
        """Returns a row for the current interval, without an evaluation."""
        return self._row(logs, time.perf_counter() - self._started)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        row = self._row(logs, self._seconds)
        self.rows.append(row)
        self._write()

    def _write(self) -> None:
        """Writes all rows: earlier ones may be missing if the disk was full."""
        if self._path is None:
            return
        with (
            log_os_errors(self._path.name),
            atomic_write(self._path) as temporary,
            open(temporary, "w", newline="") as file,
        ):
            if self.rows:
                csv.writer(file).writerow(self.rows[0])
            for row in self.rows:
                step, *values = row.values()
                cells = (f"{value:.6g}" for value in values)
                csv.writer(file).writerow([step, *cells])

    def _row(self, logs: Logs, seconds: float) -> dict[str, Any]:
        images = (self._step - self._timed_from) * self._batch_size
        step = self._step // self._micro_batches
        # The last update used the learning rate at the step before it.
        rate = self._learning_rate(max(0, step - 1))
        # The loss is first, and what callbacks measured is last.
        order = sorted(logs, key=lambda name: name not in ("loss", "val_loss"))
        parts = {"train": {}, self._split: {}}
        for name in order:
            split = self._split if name.startswith("val_") else "train"
            parts[split][name.removeprefix("val_")] = logs[name]
        values = {
            f"{split}_{name}": value
            for split, found in parts.items()
            for name, value in found.items()
        }
        values["learning_rate"] = keras.ops.convert_to_numpy(rate)
        values["images_per_second"] = images / self._micro_batches / seconds
        row = {name: float(value) for name, value in values.items()}
        return {"step": step, **row}


class StopEarly(keras.callbacks.Callback):
    """Stops the training after `patience` successive evaluations without a
    better `selection_score`.

    Unlike Keras's `EarlyStopping`, it decides by all rows of the run, so that a
    run that resumes stops at the same step.
    """

    def __init__(self, rows: list[dict[str, Any]], patience: int) -> None:
        super().__init__()
        self._rows, self._patience = rows, patience

    @property
    def is_due(self) -> bool:
        """Whether the training has to stop now."""
        if not self._rows:
            return False
        scores = [selection_score(row) for row in self._rows]
        return len(scores) - 1 - scores.index(max(scores)) >= self._patience

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self.is_due:
            logger.info(f"stopped: {self._patience} evaluations without improvement")
            self.model.stop_training = True


class Progress(keras.callbacks.Callback):
    """Logs a row of a table for each evaluation; `metrics` must precede it in
    the list of callbacks.

    On a terminal, a further line with a bar, which fits its width, shows the
    progress between evaluations, if the log level is INFO or lower.
    """

    # Seconds between updates of the progress line. Each reads the loss, which
    # waits for the device.
    EVERY = 0.3

    def __init__(self, metrics: CSVMetrics, steps: int) -> None:
        super().__init__()
        self._metrics, self._steps = metrics, steps
        self._first = self._from = -1.0  # before the first step
        self._shown, self._titled = 0.0, False

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        now = time.perf_counter()
        if self._first < 0:  # the first step includes compilation
            self._first, self._from = now, self._metrics.fractional_step
        if self._is_live() and now - self._shown > self.EVERY:
            self._shown = now
            self._rewrite(self._bar(self._cells(self._metrics.now(logs))))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self._is_live():
            self._rewrite("")
        cells = self._cells(self._metrics.rows[-1])
        rows = [list(cells.values())]
        if not self._titled:
            splits = [split for split, _ in cells]
            first = [s * (s not in splits[:i]) for i, s in enumerate(splits)]
            rows = [first, [name for _, name in cells], *rows]
        self._titled = True
        widths = [max(len(n), len(x), 7) for (_, n), x in cells.items()]
        for row in rows:
            texts = zip(row, widths, strict=True)
            line = "  ".join(f"{text:>{width}}" for text, width in texts)
            logger.info(line.rstrip())

    def _is_live(self) -> bool:
        return sys.stdout.isatty() and logger.isEnabledFor(logging.INFO)

    def _rewrite(self, text: str) -> None:
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()

    def _bar(self, cells: Cells) -> str:
        """Returns a line that is narrower than the terminal: a longer one would
        wrap, and only its last row would be erased."""
        (_, step), *values = cells.items()
        text = "  ".join(f"{name} {x}" for (_, name), x in values if x)
        width = shutil.get_terminal_size().columns - 1
        room = max(0, min(30, width - len(f"{step}  {text}") - 2))
        done = round(room * self._metrics.fractional_step / self._steps)
        return f"{step}  {'#' * done}{'.' * (room - done)}  {text}"[:width]

    def _cells(self, row: dict[str, Any]) -> Cells:
        """Returns the values to show of a row of `metrics.csv`."""
        width = len(str(self._steps))
        cells = {("", "step"): f"{row['step']:{width}}/{self._steps}"}
        for column, value in row.items():
            split, _, name = column.partition("_")
            if split in ("train", "validation", "test"):
                name = "mAP" if name == "mean_average_precision" else name
                cells[split, name.replace("_", " ")] = f"{value:.4f}"
        cells["", "images/s"] = f"{row['images_per_second']:.0f}"
        cells["", "left"] = ""
        if done := self._metrics.fractional_step - self._from:
            spent = time.perf_counter() - self._first
            left = self._steps - self._metrics.fractional_step
            left = datetime.timedelta(seconds=round(spent / done * left))
            cells["", "left"] = str(left)
        return cells
