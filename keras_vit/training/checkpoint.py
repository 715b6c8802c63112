"""Checkpoints from which a training run resumes bit for bit."""

import contextlib
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.distribution.strategy import Strategy
from keras_vit.optimizers import assign_averages, inner_optimizer
from keras_vit.training.callbacks import Logs, Row, best_row
from keras_vit.training.state_files import (
    Diverged,
    check_same_run,
    collect_state,
    read_state,
    to_arrays,
    write_state,
)
from keras_vit.utils.files import log_os_errors
from keras_vit.utils.logging import logger
from keras_vit.utils.types import Array, StrPath


class Preempted(Exception):
    """Raised after SIGTERM or Ctrl-C, once a checkpoint has been written.

    Attributes:
        number: Integer. The number of the signal.
    """

    number: int = signal.SIGTERM


class ResumableCheckpoint(keras.callbacks.Callback):
    """Saves checkpoints from which a training run resumes bit for bit.

    - What is saved: the weights, the optimizer with its moving averages, the states of
      the random generators, the metrics since the last evaluation, the rows of all
      evaluations, and the `fingerprint`. Batches are not: batch k is determined by the
      seed and k.
    - When: after every `every` steps, and after the evaluation if one is due at that
      step. Within `watching()`, also after the current step at SIGTERM, which
      schedulers send before preemption, and at the first Ctrl-C; `watching()` then
      raises `Preempted`. A second Ctrl-C stops at once. A loss or a weight that is not
      finite raises `Diverged` and is never saved. Files are written atomically, and the
      newest `keep` files are kept. If one cannot be read, the previous one is used.
    - What `restore` rejects: another `fingerprint`, and a model whose variables differ
      in number or shape. Nothing is assigned then. A setting that is new and off is
      accepted (the file does not have it, and its value is None, False or 0). Recipes
      put their settings, the numbers of images and the class names into the
      `fingerprint`.
    - What is not noticed: changes that the `fingerprint` does not contain, such as
      another loss in the code. The state of other callbacks is not saved. With other
      metrics, earlier rows keep theirs, and the interval between evaluations begins
      again.

    A step is an update of the weights: with an optimizer that accumulates
    gradients, it is `gradient_accumulation_steps` batches of `model.fit`.

    It must be the last callback, so that it saves the effects of the others.

    Args:
        folder: Path. It is created if it does not exist.
        every: Integer. Steps between two checkpoints.
        fingerprint: Dict of the settings that must be equal for a run to
            resume, with values that JSON can represent. `restore` compares
            them.
        keep: Integer. Number of checkpoints to keep.
        seed: Integer. Seeds PyTorch's random generator, which dropout uses.
        strategy: `keras_vit.distribution.Strategy`, or None for one process. The first
            process writes checkpoints, and all processes read them.
        keep_best: Boolean. Whether to also save the weights of the best evaluation, by
            the first of accuracy, mean average precision and loss that is measured; see
            `restore_best`.
        steps: Integer. Steps after which the callback ends `model.fit`, even within an
            epoch; None for no limit.
        split: "test" or "validation". The split used for evaluation, for the names in
            `rows`.

    Attributes:
        rows: List of dicts, one per evaluation, with the metrics under names such as
            "train_loss" and "test_loss". `restore` fills it from the checkpoint.
        step: Integer. Completed steps.
        accumulate: Integer. Batches of `model.fit` per step.
    """

    # Steps between two checks of the loss. Reading it waits for the device.
    CHECK = 10

    def __init__(
        self,
        folder: StrPath,
        every: int,
        fingerprint: dict[str, Any] | None = None,
        keep: int = 3,
        seed: int = 0,
        strategy: Strategy | None = None,
        keep_best: bool = False,
        steps: int | None = None,
        split: str = "test",
    ) -> None:
        super().__init__()
        self.strategy = strategy or Strategy("none", "there is one process")
        self.folder = pathlib.Path(folder)
        self._best = self.folder / "best.npz"
        self.every, self.keep, self.seed = every, keep, seed
        self.keep_best, self.steps, self.split = keep_best, steps, split
        self.fingerprint = fingerprint or {}
        self.rows: list[Row] = []
        self.accumulate = 1
        self._batches = 0  # of `model.fit`: the only counter of a run
        self._signalled = 0  # the number of the signal
        self._terminated = self._fits = False
        self._metrics = None  # of the interval that is resumed
        self._saved = None
        self._left_out: set[str] = set()  # names of metrics that are not numbers
        self._random = None  # of the interval that is resumed

    @property
    def step(self) -> int:
        """Integer. Completed steps."""
        return self._batches // self.accumulate

    def set_model(self, model: keras.Model) -> None:
        """Is called by `model.fit` and `restore`."""
        super().set_model(model)
        if model.steps_per_execution > 1:
            raise ValueError(
                "A checkpoint counts the batches of `model.fit`, which calls it once "
                "for `steps_per_execution` of them. Leave that argument of `compile` "
                f"out. Received: steps_per_execution={model.steps_per_execution}"
            )
        self.accumulate = inner_optimizer(model).gradient_accumulation_steps or 1

    def restore(self, model: keras.Model) -> int:
        """Restores the newest readable checkpoint.

        Args:
            model: Compiled model. Its variables are assigned.

        Returns:
            Integer. The step to resume from; 0 if there is no checkpoint.

        Raises:
            ValueError: if the checkpoints belong to a run with other settings or to
                another model, or if `compile` had `steps_per_execution` above 1.
        """
        self.set_model(model)
        for path in reversed(self._files()):
            try:
                arrays, note = read_state(path)
                found = note["fingerprint"]
            # NumPy raises various exceptions for corrupt files.
            except Exception as error:
                logger.warning(
                    "checkpoint %s cannot be used (%r); trying the one before",
                    path.name,
                    error,
                )
                continue
            check_same_run(path, found, self.fingerprint)
            self._assign(model, arrays, path)
            self.rows[:] = note["rows"]
            self._saved = note["step"]
            self._batches = self._saved * self.accumulate
            return self._saved
        return 0

    def restore_best(self, model: keras.Model) -> dict[str, Any]:
        """Assigns to a model the weights of its best evaluation, or their moving
        averages if these were evaluated.

        Args:
            model: Compiled model.

        Returns:
            Dict. The row of the evaluation whose weights the model has afterwards. If
            the weights of the best evaluation cannot be read, a warning is logged, and
            the model keeps those of the last step.
        """
        best, last = best_row(self.rows), self.rows[-1]
        if best is last:
            return last
        try:
            arrays, note = read_state(self._best)
            if note["step"] != best["step"]:
                raise ValueError(f"it is of step {note['step']}")
        except Exception as error:
            logger.warning(
                "The weights of step %d, the best evaluation, cannot be read "
                "from %s (%r). Keeping those of the last step.",
                best["step"],
                self._best,
                error,
            )
            return last
        self._assign(model, arrays, self._best)
        assign_averages(model)
        return best

    def _assign(
        self, model: keras.Model, arrays: dict[str, Array], path: pathlib.Path
    ) -> None:
        model.optimizer.build(model.trainable_variables)
        variables = collect_state(model)
        shapes = {name: tuple(v.shape) for name, v in variables.items()}
        if generator := _generator():
            shapes["random/0"] = tuple(generator.get_rng_state().shape)
        found = {
            name: array.shape
            for name, array in arrays.items()
            if not name.startswith("metrics/")
        }
        if found != shapes:
            raise ValueError(f"{str(path)!r} is of another model.")
        for name, variable in variables.items():
            variable.assign(arrays[name])
        self._metrics = [
            array for name, array in arrays.items() if name.startswith("metrics/")
        ]
        if self._metrics:
            self._random = arrays.get("random/0")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Returns a context in which SIGTERM, and Ctrl-C within `model.fit`, save a
        checkpoint and stop."""

        def terminate(number: int, frame: Any) -> None:
            is_key = number == signal.SIGINT
            if is_key and (self._signalled or not self._fits):
                signal.default_int_handler(number, frame)
            again = " Ctrl-C again stops at once." if is_key else ""
            logger.info(f"\nStopping after this step, with a checkpoint.{again}")
            self._signalled = number

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals
            return
        before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
        # It is ignored in the background, and notebooks may handle it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            before[signal.SIGINT] = signal.default_int_handler
        for number in before:
            signal.signal(number, terminate)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def finish_interval(
        self,
        model: keras.Model,
        batches: Callable[[int], Any],
        interval: int,
        validation_data: Any,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> int:
        """Trains up to the next evaluation if the restored checkpoint is between two
        evaluations. Returns the `initial_epoch` for the rest of `model.fit`, whose
        epochs have `interval` steps."""
        if self.step % interval and self.step != self.steps:
            # The metrics of an interrupted interval are restored at its first
            # step, and Keras creates their variables at their first use.
            model.evaluate(validation_data, steps=1, verbose=0)
            epoch = self.step // interval
            model.fit(
                batches(self.step),
                initial_epoch=epoch,
                epochs=epoch + 1,
                steps_per_epoch=(interval - self.step % interval) * self.accumulate,
                validation_data=validation_data,
                callbacks=callbacks,
                shuffle=False,
                verbose=0,
            )
        return -(-self.step // interval)

    # In `model.fit`

    def on_train_begin(self, logs: Logs = None) -> None:
        self._fits = True

    def on_train_end(self, logs: Logs = None) -> None:
        self._fits = False

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if batch == 0 and (generator := _generator()):
            import torch

            # PyTorch has one generator for dropout, data loaders and evaluation, so
            # that it is reseeded at each interval.
            if self._random is None:
                entropy = np.random.SeedSequence([self.seed, self.step])
                (seed,) = entropy.generate_state(1, np.uint64)
                torch.manual_seed(int(seed >> np.uint64(1)))
            else:
                generator.set_rng_state(torch.from_numpy(self._random.copy()))
            self._random = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        # Keras has just reset the metrics, but a resumed interval continues
        # with those of its earlier steps.
        saved, self._metrics = self._metrics or [], None
        variables = self.model.metrics_variables
        if len(saved) not in (0, len(variables)):
            logger.warning(
                "The checkpoint has other metrics. Those of the current "
                "interval count from step %d.",
                self.step,
            )
            saved = []
        for variable, value in zip(variables, saved, strict=False):
            variable.assign(value)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._batches += 1
        if self._batches % self.accumulate:
            return  # the step is not complete
        if self.strategy.process[1] == 1:
            self._terminated = bool(self._signalled)
        elif self.step % self.CHECK == 0:
            # All processes must stop at the same step: the others would wait
            # for one that stops alone.
            self._terminated = any(self.strategy.gather(self._signalled))
        due = self._due()
        if due or self.step % self.CHECK == 0:
            self._raise_if_diverged(logs)
        self.on_step_end(logs)
        last = self.step == self.steps
        if last:  # of the run, and perhaps within an epoch
            self.model.stop_training = True
        # The last step of an interval is saved after its evaluation.
        if due and not last and batch + 1 < self.params["steps"]:
            self.save(self.model.metrics_variables)
            self._raise_if_terminated()

    def on_step_end(self, logs: Logs) -> None:
        """Is called after each step, before a checkpoint of it is saved; a
        subclass may use it."""

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        # The row comes first: metrics.csv shows where a run diverged.
        self.keep_row(self.make_row(logs))
        self._raise_if_diverged(logs)
        # The best weights are saved before the checkpoint: a run that is
        # killed between the two evaluates this step again.
        if self.keep_best and best_row(self.rows) is self.rows[-1]:
            self.save(path=self._best)
        if self._due():
            self.save()
            self._raise_if_terminated()

    def make_row(self, logs: Logs) -> Row:
        """Returns the step and its metrics by name, such as "train_loss"."""
        # The loss is first, and what callbacks measured is last.
        names = sorted(logs, key=lambda name: name not in ("loss", "val_loss"))
        row: Row = {"step": self.step}
        for name in sorted(names, key=lambda name: name.startswith("val_")):
            split = self.split if name.startswith("val_") else "train"
            if shape := np.shape(logs[name]):  # such as a number for each class
                if name not in self._left_out:
                    logger.warning(
                        "The metric %r has the shape %s and is not in the rows of "
                        "the run, which have one number for each metric. Add a "
                        "metric of one number, such as its mean.",
                        name,
                        shape,
                    )
                self._left_out.add(name)
            else:
                row[f"{split}_{name.removeprefix('val_')}"] = float(logs[name])
        return row

    def keep_row(self, row: Row) -> None:
        """Keeps the row of an evaluation, before a checkpoint is saved; a
        subclass may use it further."""
        self.rows.append(row)

    def _due(self) -> bool:
        # A step may be incomplete at the end of an epoch.
        is_complete = self._batches % self.accumulate == 0
        return is_complete and (self._terminated or self.step % self.every == 0)

    def _raise_if_terminated(self) -> None:
        if self._terminated:
            error = Preempted(
                f"Saved step {self.step} in {str(self.folder)!r}; the same "
                "command resumes from there."
            )
            error.number = self._signalled or signal.SIGTERM
            raise error

    def _raise_if_diverged(self, logs: Logs) -> None:
        loss = float(logs["loss"])
        if np.isfinite(loss):
            return
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        raise Diverged(
            f"The loss is {loss} at step {self.step}, with a learning rate "
            f"of {rate:.3g}. {self.last} Lower the learning rate, or lengthen "
            "the warm-up."
        )

    def save(
        self,
        metrics: Sequence[keras.Variable] = (),
        path: pathlib.Path | None = None,
    ) -> None:
        """Writes a checkpoint of the current step, with the metrics within an
        interval, to a path or as one of the `keep` newest.

        If the disk is full, a warning is logged, training continues, and the
        earlier checkpoints are kept.
        """
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        state = collect_state(self.model)
        for i, variable in enumerate(metrics):
            state[f"metrics/{i}"] = variable
        # All processes read the values, as sharded variables need all of them.
        arrays = to_arrays(state)
        if generator := _generator():
            arrays["random/0"] = generator.get_rng_state().numpy().copy()
        if not self.strategy.is_main:
            return
        step = self.step
        note = {"step": step, "fingerprint": self.fingerprint, "rows": self.rows}
        with log_os_errors(f"checkpoint of step {step}") as written:
            write_state(path or self._path(step), arrays, note)
        if path is not None or not written:
            return
        self._saved = step
        for path in self._files()[: -self.keep]:
            path.unlink(missing_ok=True)

    @property
    def last(self) -> str:
        """String. A sentence about the last checkpoint, for messages."""
        if not self._saved:
            return "There is no checkpoint yet."
        return (
            f"The last good checkpoint is {self._path(self._saved)}, and the "
            "same command resumes from there."
        )

    def _files(self) -> list[pathlib.Path]:
        """Returns the paths of the checkpoints, the oldest first."""
        return sorted(self.folder.glob(f"step-{'[0-9]' * 8}.npz"))

    def _path(self, step: int) -> pathlib.Path:
        return self.folder / f"step-{step:08d}.npz"


def _generator() -> Any:
    """Returns the module that holds the state of PyTorch's random generator;
    None for other backends, whose generators are variables of the model.

    Dropout layers, data loaders and evaluations sample from it. It is therefore
    seeded by the seed and the step at the beginning of every interval between
    two evaluations, and saved in checkpoints within one.
    """
    if keras.backend.backend() != "torch":
        return None
    import torch

    # Dropout uses the generator of the device that it runs on.
    return torch.cuda if torch.cuda.is_available() else torch
