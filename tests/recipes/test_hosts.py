"""Two processes run the recipe's command line as two hosts."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from tests.server import unused_addresses

BACKEND = keras.config.backend()
ROOT = pathlib.Path(__file__).parents[2]
STRATEGY = {"tensorflow": "multiworker", "jax": "data-parallel"}


def start(output, *flags, **environment):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    settings = ["--steps", "3", "--batch-size", "16", "--average", "0.4"]
    recipe = ["-m", "tests.recipes.programs", "finetune_cifar"]
    return subprocess.Popen(
        [sys.executable, *recipe, *settings, "--output", str(output), *flags],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def hosts(output):
    addresses = unused_addresses(2)
    for index in range(2):
        cluster = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        yield start(
            output,
            "--strategy",
            STRATEGY[BACKEND],
            TF_CONFIG=json.dumps(cluster),
            KERAS_DISTRIBUTION_JOB_ADDRESSES=addresses[0],
            KERAS_DISTRIBUTION_NUM_PROCESSES="2",
            KERAS_DISTRIBUTION_PROCESS_ID=str(index),
        )


def finish(processes):
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=500)[0])
            assert process.returncode == 0, said[-1]
    finally:
        for process in processes:
            process.kill()
    return said


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow")
def test_two_hosts_run_the_recipe(tmp_path, record_error):
    alone, both = tmp_path / "alone", tmp_path / "both"
    processes = [start(alone, TF_CONFIG="{}"), *hosts(both)]
    _, first, second = finish(processes)
    # One of them writes and speaks.
    assert "2 devices, host 1 of 2" in first and "test accuracy" in first
    assert "2 devices, host 2 of 2" in second and "accuracy" not in second
    assert sorted(p.name for p in both.iterdir()) == sorted(training.FILES)
    case = f"recipe, {STRATEGY[BACKEND]}, two processes"
    facts = [
        json.loads((folder / "config.json").read_text())
        for folder in (alone, both)
    ]
    error = abs(facts[0]["test_accuracy"] - facts[1]["test_accuracy"])
    record_error(case, "accuracy", error, 1e-5)
    weights = [
        keras_vit.converters.load(folder / "model.npz").get_weights()
        for folder in (alone, both)
    ]
    errors = [np.abs(a - b).max() for a, b in zip(*weights, strict=True)]
    record_error(case, "weights", max(errors), 1e-5)
