"""Two processes run the recipe's command line together (JAX)."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit import training
from tests.recipes import programs
from tests.server import unused_addresses

ROOT = pathlib.Path(__file__).parents[2]


SETTINGS = ("--steps", "3", "--batch-size", "16", "--average", "0.4")


def start(output, *flags, **environment):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    recipe = ["-m", "tests.recipes.programs", "finetune_cifar"]
    return subprocess.Popen(
        [sys.executable, *recipe, *SETTINGS, "--output", str(output), *flags],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_two(output):
    (address,) = unused_addresses(1)
    for index in range(2):
        yield start(
            output,
            "--strategy",
            "data-parallel",
            KERAS_DISTRIBUTION_JOB_ADDRESSES=address,
            KERAS_DISTRIBUTION_NUM_PROCESSES="2",
            KERAS_DISTRIBUTION_PROCESS_ID=str(index),
        )


def finish(processes):
    """Returns what the processes print."""
    printed = []
    try:
        for process in processes:
            printed.append(process.communicate(timeout=500)[0])
            assert process.returncode == 0, printed[-1]
    finally:
        for process in processes:
            process.kill()
    return printed


@pytest.mark.nightly
@pytest.mark.backends("jax")
@pytest.mark.usefixtures("small_model")
def test_two_processes_run_the_recipe(tmp_path, record_error):
    folders = one, two = tmp_path / "one", tmp_path / "two"
    processes = list(start_two(two))
    programs.run("finetune_cifar", *SETTINGS, "--output", one)
    first, second = finish(processes)
    # The first one writes the files and prints.
    assert "2 devices, process 1 of 2" in first and "test accuracy" in first
    assert "2 devices, process 2 of 2" in second and "accuracy" not in second
    names = [sorted(p.name for p in folder.iterdir()) for folder in folders]
    assert names[0] == names[1] and set(training.FILES) <= set(names[0])
    case = "recipe, data-parallel, two processes"
    accuracies = [
        json.loads((folder / "config.json").read_text())["test_accuracy"]
        for folder in folders
    ]
    record_error(case, "accuracy", abs(np.subtract(*accuracies)), 1e-5)
    weights = [
        keras_vit.converters.load(folder / "model.npz").get_weights()
        for folder in folders
    ]
    errors = [np.abs(a - b).max() for a, b in zip(*weights, strict=True)]
    record_error(case, "weights", max(errors), 1e-5)
