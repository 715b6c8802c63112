"""One batch on any number of devices and hosts: the same training."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.server import unused_addresses

BACKEND = keras.config.backend()
ROOT = pathlib.Path(__file__).parents[2]
# Runs of `small_run`, by process.
FEW = {
    "tensorflow": (  # which reduces over one number of devices a process
        (
            *("none:0:0:sgd", "none:0:0:adamw", "none:0:0:keras-sgd"),
            *("mirrored:2:0:sgd", "mirrored:2:0:keras-sgd"),
        ),
        ("mirrored:4:0:adamw",),
    ),
    "jax": (
        (
            *("none:0:0:sgd", "none:0:0:adamw"),
            *("data-parallel:4:0:sgd-accumulate", "data-parallel:8:0:sgd"),
            "model-parallel:8:4:adamw",
        ),
    ),
}
MANY = {
    "tensorflow": (
        ("none:0:0:sgd", "mirrored:4:0:sgd"),
        ("mirrored:8:0:sgd",),
    ),
    "jax": (
        (
            *("none:0:0:sgd", "none:0:0:adamw"),
            *("data-parallel:2:0:sgd", "data-parallel:8:0:adamw"),
            "model-parallel:8:4:sgd",
        ),
    ),
}
HOSTS = {"tensorflow": "multiworker:0:0:", "jax": "data-parallel:0:0:"}


def start(output, runs, logical=8, **environment):
    devices = f"--xla_force_host_platform_device_count={logical}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": BACKEND,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LOGICAL_DEVICES": str(logical),
        "XLA_FLAGS": devices,
        **environment,
    }
    command = [sys.executable, "-m", "tests.distribution.small_run"]
    return subprocess.Popen(
        [*command, str(output), *runs],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(processes):
    try:
        for process in processes:
            said, _ = process.communicate(timeout=900)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()


def read(paths):
    """Returns run -> what was found -> array."""
    found = {}
    for path in paths:
        with np.load(path) as file:
            for name in file.files:
                run, what = name.rsplit("/", 1)
                found.setdefault(run, {})[what] = file[name]
    return found


def differences(a, b):
    return {
        what: np.abs(a[what] - b[what]).max()
        for what in ("losses", "tested", "weights")
    }


@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(FEW, id="few", marks=pytest.mark.slow),
        pytest.param(MANY, id="many", marks=pytest.mark.nightly),
    ],
)
def test_any_number_of_devices_trains_the_same(runs, tmp_path, record_error):
    groups = runs[BACKEND]
    paths = [tmp_path / f"{i}.npz" for i in range(len(groups))]
    finish([start(*pair) for pair in zip(paths, groups, strict=True)])
    found = read(paths)
    for run, results in found.items():
        name, devices, _, kind = run.split(":")
        if name == "none":
            # It learns, or equality would say little.
            assert np.ptp(results["losses"]) > 0.1
            continue
        if name == "model-parallel":
            assert results["shards"].max() == 4
        if kind == "keras-sgd":
            # What clipping on each device is worth; ours clips the whole.
            own = found["none:0:0:keras-sgd"]
            assert differences(results, own)["weights"] > 1e-3
            continue
        alone = found[f"none:0:0:{kind.removesuffix('-accumulate')}"]
        for what, error in differences(results, alone).items():
            record_error(
                f"{name} on {devices} devices", f"{kind} {what}", error, 1e-5
            )


# tests/recipes/test_hosts.py runs two processes every time.
@pytest.mark.nightly
@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_two_hosts_train_the_same(kind, tmp_path, record_error):
    # One run a process: TensorFlow starts its collectives anew for a second
    # strategy, and fails if the other host has not ended the first by then.
    addresses = unused_addresses(2)
    paths = [tmp_path / f"{name}.npz" for name in ("alone", "0", "1")]
    processes = [start(paths[0], [f"none:0:0:{kind}"])]
    for index in range(2):
        cluster = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        processes.append(
            start(
                paths[index + 1],
                [HOSTS[BACKEND] + kind],
                logical=1,
                TF_CONFIG=json.dumps(cluster),
                KERAS_DISTRIBUTION_JOB_ADDRESSES=addresses[0],
                KERAS_DISTRIBUTION_NUM_PROCESSES="2",
                KERAS_DISTRIBUTION_PROCESS_ID=str(index),
            )
        )
    finish(processes)
    reference = read(paths[:1])[f"none:0:0:{kind}"]
    for path in paths[1:]:
        for run, results in read([path]).items():
            for what, error in differences(results, reference).items():
                name = run.split(":")[0]
                record_error(
                    f"{name}, two processes", f"{kind} {what}", error, 1e-5
                )
