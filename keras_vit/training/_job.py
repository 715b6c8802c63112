"""A recipe's training: from what it decided to the files it leaves."""

import contextlib
import dataclasses
import pathlib
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.training._checkpoints import Checkpoints
from keras_vit.training._data import Data
from keras_vit.training._data import find_data
from keras_vit.training._fit import fit
from keras_vit.training._flags import before_training
from keras_vit.training._flags import require
from keras_vit.training._losses import loss_of
from keras_vit.training._metrics import MetricsFile
from keras_vit.training._optimizers import averaged
from keras_vit.training._output import CHECKPOINTS
from keras_vit.training._output import check_output
from keras_vit.training._output import open_output
from keras_vit.training._output import save_json
from keras_vit.training._output import versions
from keras_vit.training._results import FILES
from keras_vit.training._results import print_results
from keras_vit.training._results import save_model
from keras_vit.training._results import save_pictures
from keras_vit.training._strategy import strategy

# What may differ when a run goes on.
_FREE = ("output", "overwrite", "checkpoint_every")


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
        loss: "softmax" or "sigmoid", which needs one-hot labels.
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
    loss: str = "softmax"

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
    test: Any
    rate: Callable
    checkpoints: Checkpoints
    done: int


def main_of(plan):
    """Returns a recipe's `main(config)`.

    Args:
        plan: Function of the config and a `Data` that returns a `Job`.
    """

    def main(config):
        with before_training():
            chosen = strategy(config.strategy)
            if chosen.host[1] > 1:
                raise ValueError("This recipe reads its images on one host.")
            if config.mixed_precision:
                keras.config.set_dtype_policy("mixed_bfloat16")
            require("matplotlib")
            data = find_data(
                config.dataset, skip_bad_images=config.skip_bad_images
            )
            output = check_output(
                config.output or pathlib.Path("runs") / data.name,
                config.overwrite,
            )
            job = plan(config, data)
        train(job, chosen, output)

    return main


def train(job, chosen, output):
    """Trains, or goes on with a training that was interrupted.

    Args:
        job: A `Job`.
        chosen: A `Strategy`.
        output: Path of the folder, from `check_output`.

    Returns:
        Dict of what `config.json` holds.

    Raises:
        UserError: if something is wrong with the job, before it begins.
        Preempted, Diverged: see `fit`.
    """
    started = time.perf_counter()
    parts = job.config.accumulate
    with contextlib.ExitStack() as scope:
        with before_training():
            ready = _prepare(job, chosen, output, scope)
        print(_headline(job, chosen, output, ready), flush=True)
        metrics = MetricsFile(
            output / "metrics.csv",
            job.config.batch_size,
            ready.rate,
            ready.checkpoints.rows,
            ready.done,
            parts,
        )
        fit(
            ready.model,
            ready.train,
            chosen.distribute(ready.test),
            steps=job.steps * parts,
            interval=job.interval * parts,
            callbacks=[metrics],
            checkpoints=ready.checkpoints,
            done=ready.done,
        )
        accuracy = metrics.rows[-1]["test_accuracy"]
        if job.config.average:
            scope.enter_context(averaged(ready.model))
            results = ready.model.evaluate(
                chosen.distribute(ready.test), return_dict=True, verbose=0
            )
            accuracy = float(results["accuracy"])
            print(f"with averaged weights: {accuracy:.4f}")
        save_model(ready.model, output)
        save_pictures(
            job, ready.model, ready.test, metrics.rows, accuracy, output
        )
    shutil.rmtree(output / CHECKPOINTS)  # of no use to a run that is done
    facts = {
        "config": {**dataclasses.asdict(job.config), "steps": job.steps},
        "data": job.data.facts(),
        "model": {
            "name": ready.model.name,
            "weights": ready.model.count_params(),
        },
        "test_accuracy": accuracy,
        "seconds": round(time.perf_counter() - started, 1),
        "command": shlex.join(sys.argv),
        "versions": versions(),
    }
    # The last one: a folder that has it is that of a run that is done.
    save_json(facts, output / "config.json")
    print_results(facts, output)
    return facts


def _prepare(job, chosen, output, scope):
    config, data, parts = job.config, job.data, job.config.accumulate
    part_size = config.batch_size // parts
    chosen.host_batch_size(part_size)
    keras.utils.set_random_seed(config.seed)
    scope.enter_context(chosen.scope())
    model = job.build()
    options = {**job.batches, "batch_size": part_size}

    def batches_from(start):
        batches = data.train(
            seed=config.seed, start=start, **options, **job.augment
        )
        return chosen.distribute(batches)

    batches_from(0)  # what is wrong with it is said now
    test = data.test(**options)
    optimizer, rate = job.optimizer()
    model.compile(
        optimizer=optimizer,
        loss=loss_of(job.loss, job.batches.get("one_hot")),
        # Weighted: the padding of the last test batch has weight 0.
        weighted_metrics=["accuracy"],
    )
    folder = output / CHECKPOINTS
    if config.overwrite:
        shutil.rmtree(folder, ignore_errors=True)
    every = parts * (config.checkpoint_every or job.interval)
    checkpoints = Checkpoints(folder, every, job.facts(), seed=config.seed)
    done = checkpoints.restore(model)
    # Only now: before, an error could still have left all as it was.
    open_output(output, FILES)
    return _Ready(model, batches_from, test, rate, checkpoints, done)


def _headline(job, chosen, output, ready):
    config, data, model = job.config, job.data, ready.model
    rows, columns, channels = model.input_shape[1:]
    patch = config.patch_size
    patches = f", patches {patch} x {patch}" if patch else ""
    step = ready.done // config.accumulate
    going_on = f"\ngoing on  from step {step}" if ready.done else ""
    return (
        f"data      {data.name}: {data.num_train} training and "
        f"{data.num_test} test images, {len(data.class_names)} classes\n"
        f"model     {model.name}: {model.count_params():,} weights, images "
        f"{rows} x {columns} x {channels}{patches}\n"
        f"training  {job.steps} steps of {config.batch_size} images, "
        f"{job.summary}, on {keras.backend.backend()}\n"
        f"strategy  {chosen.describe()}\n"
        f"output    {output}{going_on}"
    )
