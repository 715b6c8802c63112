"""One training run: from its settings to the files of its output folder."""

import contextlib
import dataclasses
import math
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_vit._logging import logger
from keras_vit._logging import show
from keras_vit._program import UserError
from keras_vit._program import require
from keras_vit._program import user_errors
from keras_vit._warnings import warn
from keras_vit.data import bad_label
from keras_vit.data import unreadable
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.loading import load_dataset
from keras_vit.data.loading import share_of
from keras_vit.distribution import get_strategy
from keras_vit.distribution.sharding import steadily
from keras_vit.losses import get_loss
from keras_vit.optimizers import assign_averages
from keras_vit.optimizers import averaged
from keras_vit.optimizers import inner_optimizer
from keras_vit.training.callbacks import EventFiles
from keras_vit.training.callbacks import MetricsFile
from keras_vit.training.callbacks import Progress
from keras_vit.training.checkpoint import ResumableCheckpoint
from keras_vit.training.results import FILES
from keras_vit.training.results import MORE_FILES
from keras_vit.training.results import facts_of
from keras_vit.training.results import headline
from keras_vit.training.results import losing_hosts
from keras_vit.training.results import print_results
from keras_vit.training.results import save_model
from keras_vit.training.results import save_predictions_of
from keras_vit.training.results import write_last
from keras_vit.training.results import writing
from keras_vit.training.run_folder import CHECKPOINTS
from keras_vit.training.run_folder import check_output
from keras_vit.training.run_folder import claimed
from keras_vit.training.run_folder import open_output


def fit(model, train, test, *, steps, interval, callbacks, checkpoints, done=0):
    """Calls `model.fit` until `steps` steps are done.

    With `use_ema=True` of the optimizer, evaluations are of the averages of
    the weights, and the model has them in the end, as after `model.fit`.

    Args:
        model: A compiled model.
        train: Function of a step that returns the endless batches from there.
        test: Batches that end; evaluated at every multiple of `interval`
            steps and after the last one.
        steps: Integer.
        interval: Integer.
        callbacks: List of Keras callbacks, shared by the calls of `fit`.
        checkpoints: `ResumableCheckpoint`, which see the others' work.
        done: Integer. Steps that an earlier run has done.

    Raises:
        Preempted: after SIGTERM, when everything is saved.
        Diverged: if the loss is NaN or infinite.
        UserError: if an image cannot be read.
    """
    if getattr(inner_optimizer(model), "use_ema", False):
        callbacks = [_Averages(), *callbacks]
    if done % interval:
        # The metrics continue from where they were, and exist only after use.
        model.evaluate(test, steps=1, verbose=0)
    with checkpoints.watching(), reading(checkpoints):
        for start, length, rounds in parts(done, steps, interval):
            model.fit(
                train(start),
                epochs=rounds,
                steps_per_epoch=length,
                validation_data=test,
                callbacks=[*callbacks, checkpoints],
                shuffle=False,  # the batches are shuffled already
                verbose=0,  # `Progress` logs more
            )
    # Also if an earlier run was interrupted after its last step.
    assign_averages(model)


@contextlib.contextmanager
def reading(checkpoints):
    """Turns an image that cannot be read, or a label that is out of range, in
    its body into a `UserError`."""
    try:
        yield
    except Exception as error:  # each backend wraps TensorFlow's in another
        if message := bad_label(error):
            raise UserError(message) from error
        name = unreadable(error)
        if name is None:
            raise
        raise UserError(
            f"{name!r} cannot be read. Remove it or convert it, or use "
            "--skip-bad-images, which finds all such files of a folder first. "
            f"This was after step {checkpoints.done}. {checkpoints.last}"
        ) from error


class _Averages(keras.callbacks.Callback):
    """Evaluates averaged weights, and trains on with the raw ones.

    At the end of each call, `model.fit` replaces the weights by their
    averages. Keras's `SwapEMAWeights` adds and subtracts them under
    TensorFlow, so that evaluating would change the weights by rounding.
    """

    def __init__(self):
        super().__init__()
        self._evaluation = self._raw = None

    def on_train_begin(self, logs=None):
        if self._raw is not None:
            for variable, value in zip(
                self.model.trainable_variables, self._raw, strict=True
            ):
                variable.assign(value)
        self._raw = None

    def on_test_begin(self, logs=None):
        self._evaluation = averaged(self.model)
        self._evaluation.__enter__()

    def on_test_end(self, logs=None):
        self._evaluation.__exit__(None, None, None)

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == self.params["epochs"]:
            self._raw = [
                keras.ops.convert_to_numpy(variable)
                for variable in self.model.trainable_variables
            ]


def parts(done, steps, interval):
    """Lists calls of `model.fit`, as `(first step, length, rounds)`: up to
    the next evaluation, whole intervals, and what remains."""
    calls = []
    for length in (interval - done % interval, interval, steps % interval):
        length = min(length, steps - done)
        rounds = (steps - done) // interval if length == interval else 1
        if length and rounds:
            calls.append((done, length, rounds))
            done += length * rounds
    return calls


# What may differ when a run goes on.
_FREE = (
    *("output", "overwrite", "checkpoint_every", "tensorboard"),
    "skip_bad_images",  # which a run may need that met one
)
TENSORBOARD = "tensorboard"


@dataclasses.dataclass(frozen=True)
class Job:
    """What a recipe decided; nothing of it is built yet.

    Attributes:
        config: Its flags, `TrainingFlags`, with all defaults filled in.
        data: A `ImageDataset`.
        steps: Integer. Updates of the weights.
        interval: Integer. Updates between two evaluations.
        build: Function without arguments that returns the model.
        optimizer: Function without arguments that returns the optimizer and
            its rate, a function of the step.
        batches: Dict. Arguments of `ImageDataset.train` and `.test`, without
            the batch size.
        augment: Dict. Further arguments of `ImageDataset.train`.
        summary: String. How it is trained, in a few words.
        loss: "softmax" or "sigmoid", which needs one-hot labels; None for a
            model with a loss of its own.
        save: Function of the model and the output folder, instead of writing
            a classifier and its predictions.
        watch: Function of the output folder and of Keras's step that the run
            goes on from, which returns more callbacks.
    """

    config: Any
    data: ImageDataset
    steps: int
    interval: int
    build: Callable
    optimizer: Callable
    batches: dict
    augment: dict
    summary: str = ""
    loss: str | None = "softmax"
    save: Callable | None = None
    watch: Callable | None = None

    @property
    def measure(self):
        """What tells how good the model is."""
        return "accuracy" if self.loss else "loss"

    @property
    def part(self):
        """What is evaluated on: "dev" where images were held out for it."""
        return "dev" if self.data.num_dev else "test"

    @property
    def total(self):
        """The number of images that are evaluated on."""
        return getattr(self.data, f"num_{self.part}")

    def evaluation(self, **options):
        """Returns the batches to evaluate on."""
        batches = getattr(self.data, self.part)
        return batches(**{**self.batches, **options})

    def facts(self):
        """Returns what makes a run this run, and no other."""
        facts = dataclasses.asdict(self.config) | {"steps": self.steps}
        return {name: facts[name] for name in facts if name not in _FREE} | {
            "backend": keras.backend.backend()
        }


@dataclasses.dataclass
class _Ready:
    """What is built of a job."""

    model: keras.Model
    train: Callable
    test: Any  # what is evaluated on
    rate: Callable
    checkpoints: ResumableCheckpoint
    done: int


def train(job, chosen, output, keep=True):
    """Trains, or goes on with a training that was interrupted.

    With several hosts all of them call it, and the first one writes.

    Args:
        job: A `Job`.
        chosen: A `Strategy`.
        output: Path of the folder, from `check_output`.
        keep: Boolean. Whether to save the model and its predictions.

    Returns:
        Dict of what `config.json` holds.

    Raises:
        UserError: if something is wrong with the job, before it begins, or
            its results cannot be written.
        Preempted, Diverged: see `fit`.
    """
    with contextlib.ExitStack() as claim:
        with user_errors():
            claim.enter_context(claimed(output, chosen))
        return _train(job, chosen, output, keep)


def _train(job, chosen, output, keep):
    started = time.perf_counter()
    parts = job.config.accumulate
    with contextlib.ExitStack() as scope:
        with user_errors():
            ready = _prepare(job, chosen, output, scope)
        logger.info(headline(job, chosen, output, ready))
        callbacks = _callbacks(job, chosen, output, ready)
        with losing_hosts(chosen, ready.checkpoints):
            fit(
                ready.model,
                ready.train,
                _fed(ready.test, chosen),
                steps=job.steps * parts,
                interval=job.interval * parts,
                callbacks=callbacks,
                checkpoints=ready.checkpoints,
                done=ready.done,
            )
        scope.enter_context(writing(output, ready.checkpoints))
        rows = ready.checkpoints.rows
        row = rows[-1]
        if job.config.keep == "best":
            chosen.gather(0)  # the first host has written it by now
            row = ready.checkpoints.restore_best(ready.model)
        facts = facts_of(job, ready.model, row, started)
        if chosen.first and keep and job.save:
            job.save(ready.model, output)
        elif chosen.first and keep:
            save_model(ready.model, output)
            if chosen.num_devices == 1:
                save_predictions_of(job, ready.model, facts, output)
    with writing(output, ready.checkpoints):
        if chosen.first:
            write_last(job, chosen, output, facts, rows, keep)
    chosen.gather(0)  # none ends before the first
    return facts


def _prepare(job, chosen, output, scope):
    config, parts = job.config, job.config.accumulate
    part_size = config.batch_size // parts
    chosen.host_batch_size(part_size)
    if chosen.first:
        _warn_of_average(job)
    keras.utils.set_random_seed(config.seed)
    scope.enter_context(chosen.scope())
    model = job.build()
    options = {**job.batches, "shard": chosen.host}

    def batches_from(start):
        # Runs begin and resume between whole batches, never within one.
        batches = job.data.train(
            seed=config.seed,
            start=start // parts,
            batch_size=config.batch_size,
            micro_batches=parts,
            **options,
            **job.augment,
        )
        return _fed(batches, chosen)

    batches_from(0)  # what is wrong with it is said now
    test = job.evaluation(batch_size=part_size, **options)
    optimizer, rate = job.optimizer()
    model.compile(optimizer=optimizer, **_judged(job))
    checkpoints = ResumableCheckpoint(
        output / CHECKPOINTS,
        parts * (config.checkpoint_every or job.interval),
        job.facts(),
        seed=config.seed,
        parts=parts,
        hosts=chosen,
        keep_best=config.keep == "best",
    )
    done = _open(job, chosen, output, checkpoints, model)
    return _Ready(model, batches_from, test, rate, checkpoints, done)


def _judged(job):
    """Arguments of `compile`."""
    if job.loss is None:
        return {}
    return {
        "loss": get_loss(job.loss, job.batches.get("one_hot")),
        # Weighted: the padding of the last test batch has weight 0.
        "weighted_metrics": ["accuracy"],
    }


def _warn_of_average(job):
    decay, steps = job.config.average, job.steps
    if decay**steps > 0.1:
        warn(
            f"--average {decay} over {steps} steps is {decay**steps:.0%} the "
            "weights that training starts with. At most "
            f"{math.floor(1e4 * 0.1 ** (1 / steps)) / 1e4} fits so few steps.",
        )


def _open(job, chosen, output, checkpoints, model):
    """Returns the step to go on from, in a folder that is ready for files."""
    if job.config.overwrite and chosen.first:
        shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)
    chosen.gather(0)  # then all of them look
    done = checkpoints.restore(model)
    if len(set(chosen.gather(done))) > 1:
        raise ValueError(
            f"Not all hosts find the same checkpoints in {str(output)!r}: "
            "--output must be a folder that they share."
        )
    # Only now: before, an error could still have left all as it was.
    if chosen.first:
        open_output(output, (*FILES, *MORE_FILES))
        (output / CHECKPOINTS).mkdir(exist_ok=True)
        if not done:
            shutil.rmtree(output / TENSORBOARD, ignore_errors=True)
    return done


def _fed(batches, chosen):
    if chosen.name == "none" and keras.backend.backend() == "tensorflow":
        return steadily(batches)
    return chosen.distribute(batches)


def _callbacks(job, chosen, output, ready):
    metrics = MetricsFile(
        output / "metrics.csv" if chosen.first else None,
        job.config.batch_size,
        ready.rate,
        ready.checkpoints.rows,
        ready.done,
        job.config.accumulate,
        job.part,
        job.measure,
    )
    callbacks = [metrics]
    # Devices that share a model are not asked for pictures in between.
    if job.watch and chosen.first and chosen.num_devices == 1:
        callbacks += job.watch(output, ready.done)
    if chosen.first:
        callbacks.append(Progress(metrics, job.steps))
        if job.config.tensorboard:
            callbacks.append(EventFiles(output / TENSORBOARD, metrics))
    return callbacks


def main_of(plan):
    """Returns a recipe's `main(config)`.

    Args:
        plan: Function of the config and a `ImageDataset` that returns a `Job`.
    """

    def main(config):
        show()
        with user_errors():
            chosen, data, output = begin(config)
            job = plan(config, data)
        facts = train(job, chosen, output)
        if chosen.first:
            print_results(facts, output)

    return main


def begin(config, holdout=None):
    """Returns the strategy, the data and the output folder of a config.

    Args:
        config: `TrainingFlags`.
        holdout: What to hold out where the config does not say.

    Raises:
        ValueError: if something is wrong with them; nothing is written yet.
        ImportError: if a package is missing.
    """
    chosen = get_strategy(config.strategy)
    if chosen.name == "model-parallel" and chosen.gather(0) != [0]:
        raise ValueError(
            "Recipes split a model over the devices of one host, as the first "
            "host alone writes it. Use --strategy data-parallel."
        )
    if config.mixed_precision:
        keras.config.set_dtype_policy("mixed_bfloat16")
    require("matplotlib")
    if config.tensorboard:
        require("tensorflow")
    if config.holdout is not None:
        holdout = config.holdout
    data = data_of(config, holdout)
    if share_of(data.name, holdout) and not data.num_dev:
        raise ValueError(
            f"--holdout {holdout} of {data.num_train} images is not one image. "
            "Give a larger share."
        )
    output = config.output or pathlib.Path("runs") / data.name
    return chosen, data, check_output(output, config.overwrite)


def data_of(config, holdout):
    """Returns the data of a config.

    Args:
        config: `TrainingFlags`.
        holdout: The share of the training images to evaluate on, or "paper".
            With 0, the model trains on all of them and is evaluated on the
            test set. With None, likewise, except that it does not train on
            the images that a preset leaves out.
    """
    left_out = config.published_holdout() if holdout is None else holdout
    data = load_dataset(
        config.dataset, left_out, config.skip_bad_images, config.test_split
    )
    return data if holdout else dataclasses.replace(data, num_dev=0)
