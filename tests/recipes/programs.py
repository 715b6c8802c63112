"""Helpers for the tests of recipes.

    python -m tests.recipes.programs RECIPE ...

runs a recipe whose compact-vit is small, in a process of its own.
"""

import contextlib
import csv
import importlib.util
import json
import os
import pathlib
import runpy
import subprocess
import sys
import types

import pytest

from keras_vit import training
from keras_vit.training import masked
from keras_vit.training import models

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


def command(name, *argv):
    return subprocess.run(
        [sys.executable, str(RECIPES / f"{name}.py"), *argv],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=300,
    )


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


def plan(recipe, config, data):
    """Returns what a recipe trains, with which optimizer and settings."""
    completed = recipe.resolve_config(config, data)

    def build():
        if hasattr(recipe, "build_model"):
            return recipe.build_model(completed, data)
        if hasattr(completed, "method"):
            return masked.build_masked(completed, data.channels)
        size = completed.image_size
        return training.build_model(
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
        return recipe.build_optimizer(completed, schedule), schedule

    summary = getattr(recipe, "summary", lambda *_: None)
    return types.SimpleNamespace(
        config=completed,
        steps=completed.steps,
        build=build,
        optimizer=optimizer,
        loss=getattr(completed, "loss", None),
        batches=completed.batches(),
        split=data.evaluation_split,
        summary=summary(config, completed),
    )


@contextlib.contextmanager
def more_callbacks(*callbacks):
    """Adds callbacks to runs, before the one that saves checkpoints."""
    make = training.Run._make_callbacks

    def make_more(run, *arguments):
        made = make(run, *arguments)
        return [*made[:-1], *callbacks, made[-1]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Run, "_make_callbacks", make_more)
        yield


if __name__ == "__main__":
    models.COMPACT["compact-vit"] = SMALL
    run(*sys.argv[1:])
