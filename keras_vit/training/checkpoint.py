"""Checkpoints from which a training resumes bit for bit."""

import contextlib
import json
import os
import pathlib
import re
import signal
import threading

import keras
import numpy as np

from keras_vit._logging import logger
from keras_vit.distribution.strategy import Strategy
from keras_vit.optimizers import assign_averages
from keras_vit.training.callbacks import best_row
from keras_vit.training.run_folder import not_fatal
from keras_vit.training.run_folder import replacing


class Diverged(ArithmeticError):
    """The loss is no number any more."""


def raise_if_another(path, found, expected):
    """Raises a `ValueError` if a file's run is not the run at hand.

    Args:
        path: Path that is named.
        found: Dict of facts, as JSON has them.
        expected: Dict of facts.
    """
    expected = json.loads(json.dumps(expected))
    differing = [
        f"{name} was {found.get(name, 'not recorded')!r} and is "
        f"{expected.get(name, 'not recorded')!r}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    if found.keys() != expected.keys():
        differing.append("it was written by another version of this package")
    if differing:
        raise ValueError(
            f"{str(path)!r} is of another run: {'; '.join(differing)}. Run "
            "the same command to go on, or start anew in another folder or "
            "with --overwrite."
        )


class _TorchRandom:
    """PyTorch's random state, looking like a variable.

    Unseeded dropout draws from it, and so do data loaders and evaluations. So
    it begins anew with every interval, from the seed and the step, and is
    saved in the midst of one.
    """

    dtype = "uint8"

    def __init__(self, device):
        self.device = device

    @property
    def shape(self):
        return tuple(self.device.get_rng_state().shape)

    def seed(self, entropy):
        import torch

        (seed,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        torch.manual_seed(int(seed >> np.uint64(1)))

    def assign(self, array):
        import torch

        self.device.set_rng_state(torch.from_numpy(array.copy()))

    def __array__(self, dtype=None, copy=None):
        return self.device.get_rng_state().numpy().copy()


def random_states():
    if keras.backend.backend() != "torch":
        return []
    import torch

    # Dropout draws on the device that it runs on.
    return [_TorchRandom(torch.cuda if torch.cuda.is_available() else torch)]


def state_of(model):
    """Returns all that changes while a model is trained, by name."""
    groups = {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "random": random_states(),
    }
    return {
        f"{group}/{i}": variable
        for group, variables in groups.items()
        for i, variable in enumerate(variables)
    }


def _raise_unless_finite(name, array):
    """A step can blow up the weights before any loss shows it."""
    if (
        array.dtype.kind in "fV"
        and not np.isfinite(array.astype("float32")).all()
    ):
        raise Diverged(
            f"A value of {name} is not finite any more. Nothing was saved over "
            "the last good checkpoint. Lower the learning rate, or lengthen "
            "the warm-up."
        )


def arrays_of(state):
    """Returns the values as arrays that a file can hold."""
    arrays = {}
    for name, variable in state.items():
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if not isinstance(variable, _TorchRandom):
            variable = keras.ops.convert_to_numpy(variable)
        array = np.asarray(variable)
        _raise_unless_finite(name, array)
        if dtype == "bfloat16":  # which .npz has no name for; no bit is lost
            array = array.astype("float32")
        arrays[name] = array
    return arrays


def write_state(path, arrays, note):
    # An archive's list of its members has no checksum; the note has one.
    text = json.dumps({**note, "names": list(arrays)}).encode()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, note=np.frombuffer(text, np.uint8), **arrays)
        file.flush()
        os.fsync(file.fileno())  # or a power cut leaves a name without bytes


def read_state(path):
    """Returns `(arrays, note)`; checksums are compared while reading."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    note = json.loads(arrays.pop("note").tobytes())
    if note.pop("names") != list(arrays):
        raise ValueError("its arrays are not all there")
    return arrays, note


_NAME = re.compile(r"step-(\d{8})\.npz")


class Preempted(Exception):
    """The machine is wanted back; everything is saved."""


class ResumableCheckpoint(keras.callbacks.Callback):
    """Saves what a run needs to go on as if nothing had happened.

    Weights, the optimizer with its averages, the state of every random
    generator, metrics in the middle of an interval, and the rows written so
    far. Batches are not saved: batch number k follows from the seed and k. A
    file comes to its place whole; the newest `keep` stay.

    Within `watching()`, SIGTERM (which machines get that are wanted back)
    saves after the step at hand and raises `Preempted`. A loss that is not
    finite raises `Diverged` and is never saved.

    Args:
        folder: Path; it is made if it does not exist.
        every: Integer. Steps between two checkpoints.
        facts: Dict of what must be the same for a run to go on, such as
            its config: numbers, strings, None, lists.
        keep: Integer. How many to keep.
        seed: Integer. Of PyTorch's dropout.
        parts: Integer. Calls of Keras's a step, as for `MetricsFile`. Files
            and messages count steps; nothing is saved within one.
        hosts: A `Strategy`. The first of its hosts writes, and all read what
            it wrote.
        keep_best: Boolean. Whether to save the weights of the best evaluation
            too, by accuracy or, without one, by loss; see `restore_best`.

    Attributes:
        rows: List of dicts, which the run fills at evaluations; `restore`
            fills it with the earlier ones.
    """

    CHECK = 10  # steps between two looks at the loss, which wait for a device

    def __init__(
        self,
        folder,
        every,
        facts=None,
        keep=3,
        seed=0,
        parts=1,
        hosts=None,
        keep_best=False,
    ):
        super().__init__()
        self.parts = parts
        self.hosts = hosts or Strategy("none", "there is one host")
        self.folder = pathlib.Path(folder)
        self.every, self.keep, self.seed = every, keep, seed
        self.keep_best = keep_best
        self.facts = facts or {}
        self.rows = []
        self.step = 0  # Keras's
        self._signalled = self._terminated = False
        self._metrics = None  # to put back when an interval goes on
        self._saved = None
        self._random = None  # likewise

    def restore(self, model):
        """Puts the newest good checkpoint into a compiled model.

        Returns:
            Integer. Keras's step to go on from; 0 if there is no checkpoint.

        Raises:
            ValueError: if the checkpoints are of another run.
        """
        for path in sorted(self._files(), reverse=True):
            try:
                arrays, note = read_state(path)
            # What damaged bytes lead NumPy to is of many kinds.
            except Exception as error:
                logger.warning(
                    "checkpoint %s cannot be used (%r); trying the one before",
                    path.name,
                    error,
                )
                continue
            raise_if_another(path, note["facts"], self.facts)
            self._assign(model, arrays, path)
            self.rows[:] = note["rows"]
            self._saved = note["step"]
            self.step = self._saved * self.parts
            return self.step
        return 0

    def restore_best(self, model):
        """Assigns a model the weights of its best evaluation.

        With `use_ema=True` of the optimizer, they are the averages, which
        were evaluated.

        Returns:
            Dict. The row of the evaluation of the weights that the model has
            then. If those of the best one cannot be read, it keeps its own,
            with a warning.
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

    @property
    def _best(self):
        return self.folder / "best.npz"

    def _assign(self, model, arrays, path):
        model.optimizer.build(model.trainable_variables)
        variables = state_of(model)
        shapes = {name: tuple(v.shape) for name, v in variables.items()}
        found = {
            name: array.shape
            for name, array in arrays.items()
            if not name.startswith("metrics/")
        }
        if found != shapes:
            raise ValueError(f"{str(path)!r} is of another model.")
        for name, variable in variables.items():
            if not name.startswith("random/"):
                variable.assign(arrays[name])
        self._metrics = [
            array
            for name, array in arrays.items()
            if name.startswith("metrics/")
        ]
        if self._metrics:
            self._random = arrays.get("random/0")

    @contextlib.contextmanager
    def watching(self):
        """Listens for SIGTERM in its body."""

        def terminate(number, frame):
            self._signalled = True

        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        before = signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def fit_calls(self, model, steps, interval, validation_data):
        """Yields the calls of `model.fit` that are left after `restore`.

        Args:
            model: Compiled model.
            steps: Integer. Steps of the whole run, as Keras counts them.
            interval: Integer. Steps between two evaluations.
            validation_data: Batches to evaluate on.

        Yields:
            Tuples of the first step, which counts updates of the weights,
            `steps_per_epoch` and `epochs`.
        """
        if self.step % interval:
            # Metrics of a begun interval are restored, and Keras creates
            # their variables at the first use.
            model.evaluate(validation_data, steps=1, verbose=0)
        for start, length, epochs in plan_fit_calls(self.step, steps, interval):
            yield start // self.parts, length, epochs
            if model.stop_training:  # set by a callback
                break
        # Also if an earlier run was interrupted after its last step.
        assign_averages(model)

    # In `model.fit`

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            for state in random_states():
                if self._random is None:
                    state.seed([self.seed, self.step])
                else:
                    state.assign(self._random)
            self._random = None

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has just emptied the metrics; this interval had begun before.
        if self._metrics:
            variables = self.model.metrics_variables
            if len(variables) == len(self._metrics):
                for variable, value in zip(
                    variables, self._metrics, strict=True
                ):
                    variable.assign(value)
            else:
                logger.warning(
                    "The checkpoint was saved with other metrics. Those of "
                    "the current interval count from step %d.",
                    self.done,
                )
        self._metrics = None

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.hosts.host[1] == 1:
            self._terminated = self._signalled
        elif self.step % self.CHECK == 0:
            # One that is stopped alone would leave the others waiting.
            self._terminated = any(self.hosts.gather(int(self._signalled)))
        due = self._due()
        if due or self.step % self.CHECK == 0:
            self._raise_if_diverged(logs)
        # The last step of an interval is saved with its evaluation.
        if due and batch + 1 < self.params["steps"]:
            self.save(self.model.metrics_variables)
            self._raise_if_terminated()

    def on_epoch_end(self, epoch, logs=None):
        self._raise_if_diverged(logs)
        # The best first: a run that is killed between the two evaluates this
        # step again.
        if (
            self.keep_best
            and self.rows
            and best_row(self.rows) is self.rows[-1]
        ):
            self.save(path=self._best)
        if self._due():
            self.save()
        self._raise_if_terminated()

    def _due(self):
        if self._terminated and self.step % self.parts == 0:
            return True
        return self.step % self.every == 0

    def _raise_if_terminated(self):
        if self._terminated:
            raise Preempted(
                f"Saved step {self.done} in {str(self.folder)!r}; the same "
                "command goes on from there."
            )

    def _raise_if_diverged(self, logs):
        loss = float(logs["loss"])
        if np.isfinite(loss):
            return
        rate = float(
            keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
        )
        raise Diverged(
            f"The loss is {loss} at step {self.done}, with a learning rate "
            f"of {rate:.3g}. {self.last} Lower the learning rate, or lengthen "
            "the warm-up."
        )

    def save(self, metrics=(), path=None):
        """Writes a checkpoint of this step. A full disk is no reason to stop:
        it is said, and the earlier ones stay."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        state = state_of(self.model)
        for i, variable in enumerate(metrics):
            state[f"metrics/{i}"] = variable
        arrays = arrays_of(state)  # of several hosts, all have to ask
        if not self.hosts.first:
            return
        step = self.done
        note = {"step": step, "facts": self.facts, "rows": self.rows}
        with not_fatal(f"checkpoint of step {step}") as written:
            write_state(path or self._path(step), arrays, note)
        if path is not None or not written:
            return
        self._saved = step
        for path in sorted(self._files())[: -self.keep]:
            path.unlink(missing_ok=True)

    @property
    def last(self):
        """What there is to go on from, in words."""
        if not self._saved:
            return "There is no checkpoint yet."
        return (
            f"The last good checkpoint is {self._path(self._saved)}, and the "
            "same command goes on from there."
        )

    @property
    def done(self):
        """Steps done."""
        return self.step // self.parts

    def _files(self):
        if not self.folder.is_dir():
            return []
        return [p for p in self.folder.iterdir() if _NAME.fullmatch(p.name)]

    def _path(self, step):
        return self.folder / f"step-{step:08d}.npz"


def plan_fit_calls(done, steps, interval):
    """Lists calls of `model.fit` as `(first step, steps_per_epoch, epochs)`.

    They are one call up to the next evaluation, one for all whole intervals,
    and one for the remaining steps.
    """
    calls = []
    for length in (interval - done % interval, interval, steps % interval):
        length = min(length, steps - done)
        epochs = (steps - done) // interval if length == interval else 1
        if length and epochs:
            calls.append((done, length, epochs))
            done += length * epochs
    return calls
