import csv
import pathlib
import time

import keras

from keras_vit.training._output import not_fatal
from keras_vit.training._output import replacing


def columns(part, measure="accuracy"):
    """The columns of `metrics.csv`; `part` is what it was evaluated on, and
    `measure` "accuracy", or "loss" where there is nothing else."""
    names = dict.fromkeys(("loss", measure))
    return (
        "step",
        *(f"train_{name}" for name in names),
        *(f"{part}_{name}" for name in names),
        "learning_rate",
        "images_per_second",
    )


def score_of(row):
    """Returns what is larger the better a row is, on whatever it was
    evaluated on: its accuracy, or without one minus its loss."""
    for name, sign in (("accuracy", 1), ("loss", -1)):
        for part in ("test", "dev"):
            if f"{part}_{name}" in row:
                return sign * row[f"{part}_{name}"]
    return 0


def best_row(rows):
    """Returns the row of the best evaluation, the last one of equals."""
    return max(reversed(rows), key=score_of)


class MetricsFile(keras.callbacks.Callback):
    """Writes one row of `metrics.csv` at each evaluation of `model.fit`.

    A row holds the means over the steps since the row before, and is on disk
    before training goes on. Several calls of `fit` may share the callback:
    steps go on counting.

    Args:
        path: Path of the file, which is replaced; None for no file.
        batch_size: Integer. Images a step.
        learning_rate: Function of the step, such as a Keras schedule.
        rows: List of the rows of an earlier run, which goes on here.
        step: Integer. The step it goes on from.
        parts: Integer. Calls of Keras's a step: the parts in which a batch
            comes where gradients are accumulated.
        part: "test" or "dev", which is evaluated on.
        measure: As in `columns`.
    """

    def __init__(
        self,
        path,
        batch_size,
        learning_rate,
        rows=None,
        step=0,
        parts=1,
        part="test",
        measure="accuracy",
    ):
        super().__init__()
        self._parts = parts
        self.rows = [] if rows is None else rows
        self._path = None if path is None else pathlib.Path(path)
        self._batch_size = batch_size
        self._learning_rate = learning_rate
        self._step = self._first_step = step
        self._seconds = 0.0
        self._part = part
        self._measure = measure
        self._write()

    def on_epoch_begin(self, epoch, logs=None):
        self._timed_from, self._started = self._step, time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._step == self._first_step + 1:
            # Compiling is no training: the clock starts behind it, unless
            # there is nothing else to time.
            self._first = time.perf_counter()

    def on_test_begin(self, logs=None):
        self._seconds = self._clock()

    @property
    def exact_step(self):
        """Steps done; a fraction within one."""
        return self._step / self._parts

    def now(self, logs):
        """Returns a row of the interval at hand, without an evaluation."""
        return self._row(logs, self._clock())

    def on_epoch_end(self, epoch, logs=None):
        row = self._row(logs, self._seconds)
        self.rows.append(row)
        self._write()

    def _write(self):
        """All rows, as those of a moment when the disk was full are missing."""
        if self._path is None:
            return
        with not_fatal(self._path.name), replacing(self._path) as temporary:
            with open(temporary, "w", newline="") as file:
                csv.writer(file).writerow(columns(self._part, self._measure))
                csv.writer(file).writerows(map(_cells, self.rows))

    def _clock(self):
        """Returns the interval's seconds, those of compiling left out."""
        first = self._first_step
        if self._timed_from == first and self._step > first + 1:
            self._timed_from, self._started = first + 1, self._first
        return time.perf_counter() - self._started

    def _row(self, logs, seconds):
        images = (self._step - self._timed_from) * self._batch_size
        step = self._step // self._parts
        # The rate of the last update made: the schedule is read before it.
        rate = self._learning_rate(max(0, step - 1))
        values = {
            "train_loss": logs["loss"],
            "train_accuracy": logs.get("accuracy"),
            f"{self._part}_loss": logs.get("val_loss"),
            f"{self._part}_accuracy": logs.get("val_accuracy"),
            "learning_rate": keras.ops.convert_to_numpy(rate),
            "images_per_second": images / self._parts / seconds,
        }
        row = {k: float(v) for k, v in values.items() if v is not None}
        return {"step": step, **row}


def _cells(row):
    return [
        f"{value:.6g}" if name != "step" else value
        for name, value in row.items()
    ]
