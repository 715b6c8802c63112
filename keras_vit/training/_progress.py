"""Progress of a run."""

import logging
import sys
import time

import keras

from keras_vit._logging import logger


class Progress(keras.callbacks.Callback):
    """Logs a line for each evaluation.

    On a terminal, if such lines are shown, another one changes in between.

    Args:
        metrics: `MetricsFile`, which comes before this in the callbacks.
        steps: Integer. Steps of the whole run.
    """

    EVERY = 0.3  # seconds between two looks at a loss, which wait for a device

    def __init__(self, metrics, steps):
        super().__init__()
        self._metrics, self._steps = metrics, steps
        self._first = self._from = None
        self._shown = 0.0

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if self._first is None:  # compiling is no measure of what is left
            self._first, self._from = now, self._metrics.exact_step
        if self._is_live() and now - self._shown > self.EVERY:
            self._shown = now
            self._rewrite(self._line(self._metrics.now(logs)))

    def on_epoch_end(self, epoch, logs=None):
        if self._is_live():
            self._rewrite("")
        logger.info(self._line(self._metrics.rows[-1]))

    def _is_live(self):
        return sys.stdout.isatty() and logger.isEnabledFor(logging.INFO)

    def _rewrite(self, text):
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()

    def _line(self, row):
        texts = [f"step {row['step']:{len(str(self._steps))}}/{self._steps}"]
        for name, value in row.items():
            if name.endswith(("_loss", "_accuracy")):
                texts.append(f"{name.replace('_', ' ')} {value:.4f}")
        texts.append(f"rate {row['learning_rate']:.2e}")
        texts.append(f"{row['images_per_second']:.0f} images/s")
        texts.append(f"{self._left()} left")
        return "  ".join(texts)

    def _left(self):
        done = self._metrics.exact_step - self._from
        if not done:
            return "?"
        spent = time.perf_counter() - self._first
        return clock(spent / done * (self._steps - self._metrics.exact_step))


def clock(seconds):
    """Returns `1:02:03`, or `2:03` below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"
