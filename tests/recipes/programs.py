"""Helpers for the tests of recipes.

    python -m tests.recipes.programs RECIPE ...

runs a recipe whose compact-vit is small, in a process of its own.
"""

import contextlib
import csv
import dataclasses
import importlib.util
import json
import pathlib
import runpy
import sys
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.optimizers import inner_optimizer
from keras_vit_programs import building, flags, runs, setup, sizes

RECIPES = pathlib.Path(__file__).parents[2] / "recipes"

# Two narrow blocks of compact-vit: most of the time is compiling.
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "pooling": "gap"}
SMALL = ("VisionTransformer", SMALL, None)


def load(name):
    """Returns a recipe as a module."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def rows_of(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def read_metadata(folder):
    return json.loads((folder / "config.json").read_text())


def run(name, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")


def refused(capsys, name, *arguments):
    """Returns the one-line error of a wrong command line."""
    with pytest.raises(SystemExit) as ended:
        run(name, *arguments)
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line


def imagenet():
    """A dataset of digits with the size and the name of ImageNet."""
    return dataclasses.replace(
        keras_vit.data.load_dataset("digits"),
        name="imagenet2012",
        num_train=1_281_167,
        image_size=None,
        channels=3,
    )


def plan(recipe, config, data):
    """Returns what a recipe trains, with which optimizer and settings."""
    completed = recipe.resolve_config(config, data)

    def build():
        if hasattr(recipe, "build_model"):
            return recipe.build_model(completed, data)
        size = completed.image_size
        return building.build_model(
            completed.model,
            completed.weights,
            completed.patch_size,
            completed.seed,
            input_shape=(size, size, data.channels),
            classes=len(data.class_names),
            **completed.encoder_arguments(),
        )

    def optimizer():
        schedule = recipe.learning_rate_schedule(completed)
        build = getattr(recipe, "build_optimizer", setup.build_optimizer)
        return build(completed, schedule), schedule

    summary = getattr(recipe, "summary", lambda *_: None)
    return types.SimpleNamespace(
        config=completed,
        steps=completed.steps,
        build=build,
        optimizer=optimizer,
        batches=completed.batches(),
        split=data.evaluation_split,
        summary=summary(config, completed),
    )


@dataclasses.dataclass(frozen=True)
class Settings(
    flags.Accumulate,
    flags.Average,
    flags.Keep,
    flags.Holdout,
    flags.Mixing,
    flags.Patches,
    flags.Dataset,
):
    """What a run needs, with defaults."""

    batch_size: int = 64
    protocol: str = "simple"
    keep: str = "last"


def completed_steps(model):
    """Returns the number of updates that the optimizer of a model has made."""
    # Under JAX, variables are stale during training.
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    iterations = inner_optimizer(model).iterations
    return int(keras.ops.convert_to_numpy(iterations))


class Crash(keras.callbacks.Callback):
    """Interrupts training after a step."""

    def __init__(self, step):
        super().__init__()
        self.last = step

    def on_train_batch_end(self, batch, logs=None):
        if completed_steps(self.model) == self.last:
            raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted(step):
    """Interrupts training after a step, before its checkpoint is saved."""
    add = runs.Run._add_callbacks

    def add_more(run, model):
        run.callbacks.append(Crash(step))
        add(run, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.Run, "_add_callbacks", add_more)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            yield


def assert_same_weights(path, other):
    models = (keras.models.load_model(x, compile=False) for x in (path, other))
    for a, b in zip(*(x.get_weights() for x in models), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same_runs(folder, other, *files):
    """Asserts that two runs have the same weights and metrics."""
    for name in files or ("model.keras",):
        assert_same_weights(folder / name, other / name)
    rows = [rows_of(x) for x in (folder, other)]
    for row in (row for run_rows in rows for row in run_rows):
        del row["images_per_second"]
    assert rows[0] == rows[1]


if __name__ == "__main__":
    sizes.COMPACT["compact-vit"] = SMALL
    run(*sys.argv[1:])
