"""A recipe's training: from what it decided to the files it leaves."""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_vit._logging import logger
from keras_vit._warnings import warn
from keras_vit.training._checkpoints import Checkpoints
from keras_vit.training._data import Data
from keras_vit.training._fit import fit
from keras_vit.training._flags import before_training
from keras_vit.training._losses import loss_of
from keras_vit.training._metrics import MetricsFile
from keras_vit.training._output import CHECKPOINTS
from keras_vit.training._output import claimed
from keras_vit.training._output import open_output
from keras_vit.training._progress import Progress
from keras_vit.training._results import FILES
from keras_vit.training._results import MORE_FILES
from keras_vit.training._results import facts_of
from keras_vit.training._results import headline
from keras_vit.training._results import losing_hosts
from keras_vit.training._results import save_model
from keras_vit.training._results import save_predictions_of
from keras_vit.training._results import write_last
from keras_vit.training._results import writing
from keras_vit.training._shares import to_tf_dataset
from keras_vit.training._tensorboard import EventFiles

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
        data: A `Data`.
        steps: Integer. Updates of the weights.
        interval: Integer. Updates between two evaluations.
        build: Function without arguments that returns the model.
        optimizer: Function without arguments that returns the optimizer and
            its rate, a function of the step.
        batches: Dict. Arguments of `Data.train` and `Data.test` but the
            batch's size.
        augment: Dict. Further arguments of `Data.train`.
        summary: String. How it is trained, in a few words.
        loss: "softmax" or "sigmoid", which needs one-hot labels; None for a
            model with a loss of its own.
        save: Function of the model and the output folder, instead of writing
            a classifier and its predictions.
        watch: Function of the output folder and of Keras's step that the run
            goes on from, which returns more callbacks.
    """

    config: Any
    data: Data
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
    checkpoints: Checkpoints
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
        with before_training():
            claim.enter_context(claimed(output, chosen))
        return _train(job, chosen, output, keep)


def _train(job, chosen, output, keep):
    started = time.perf_counter()
    parts = job.config.accumulate
    with contextlib.ExitStack() as scope:
        with before_training():
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
    checkpoints = Checkpoints(
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
        "loss": loss_of(job.loss, job.batches.get("one_hot")),
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
        return to_tf_dataset(batches)
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
