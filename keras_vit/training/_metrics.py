import csv
import time

import keras

COLUMNS = (
    "step",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "learning_rate",
    "images_per_second",
)


class MetricsFile(keras.callbacks.Callback):
    """Writes one row of `metrics.csv` at each evaluation of `model.fit`.

    A row holds the means over the steps since the row before, and is on disk
    before training goes on. Several calls of `fit` may share the callback:
    steps go on counting.

    Args:
        path: Path of the file, which is replaced.
        batch_size: Integer. Images a step.
        learning_rate: Function of the step, such as a Keras schedule.
        rows: List of the rows of an earlier run, which goes on here.
        step: Integer. The step it goes on from.
        parts: Integer. Calls of Keras's a step: the parts in which a batch
            comes where gradients are accumulated.
    """

    def __init__(
        self, path, batch_size, learning_rate, rows=None, step=0, parts=1
    ):
        super().__init__()
        self._parts = parts
        self.rows = [] if rows is None else rows
        self._path = path
        self._batch_size = batch_size
        self._learning_rate = learning_rate
        self._step = self._first_step = step
        self._seconds = 0.0
        with open(path, "w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)
            csv.writer(file).writerows(map(_cells, self.rows))

    def on_epoch_begin(self, epoch, logs=None):
        self._timed_from, self._started = self._step, time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._step == self._first_step + 1:
            # Compiling is no training: the clock starts behind it, unless
            # there is nothing else to time.
            self._first = time.perf_counter()

    def on_test_begin(self, logs=None):
        now = time.perf_counter()
        first = self._first_step
        if self._timed_from == first and self._step > first + 1:
            self._timed_from, self._started = first + 1, self._first
        self._seconds = now - self._started

    def on_epoch_end(self, epoch, logs=None):
        parts = self._step - self._timed_from
        images = parts * self._batch_size // self._parts
        step = self._step // self._parts
        # The rate of the last update made: the schedule is read before it.
        rate = keras.ops.convert_to_numpy(self._learning_rate(step - 1))
        values = (
            step,
            logs["loss"],
            logs["accuracy"],
            logs["val_loss"],
            logs["val_accuracy"],
            float(rate),
            images / self._seconds,
        )
        row = dict(zip(COLUMNS, map(float, values), strict=True))
        row["step"] = step
        self.rows.append(row)
        with open(self._path, "a", newline="") as file:
            csv.writer(file).writerow(_cells(row))


def _cells(row):
    return [
        f"{row[name]:.6g}" if name != "step" else row["step"]
        for name in COLUMNS
    ]
