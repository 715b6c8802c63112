"""The same batches train the same on any number of devices and processes."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

BACKEND = keras.config.backend()
ROOT = pathlib.Path(__file__).parents[2]
# Runs of `small_run` in one process: with each optimizer and strategy.
FEW = {
    "tensorflow": (
        (
            "none:0:0:sgd",
            "none:0:0:adamw",
            "mirrored:2:0:sgd",
            "mirrored:2:0:adamw",
        ),
        # A process of TensorFlow reduces gradients of one size only.
        ("none:0:0:sgd-distill", "mirrored:2:0:sgd-distill"),
    ),
    "jax": (
        (
            "none:0:0:sgd",
            "none:0:0:adamw",
            "none:0:0:sgd-distill",
            "data-parallel:4:0:sgd-accumulate",
            "data-parallel:4:0:adamw",
            "data-parallel:4:0:sgd-distill",
            "model-parallel:4:2:sgd",
        ),
    ),
}
# All runs, by process.
RUNS = {
    # A process of TensorFlow reduces over one number of devices only.
    "tensorflow": (
        (
            "none:0:0:sgd",
            "none:0:0:adamw",
            "none:0:0:keras-sgd",
            "mirrored:2:0:sgd",
            "mirrored:2:0:keras-sgd",
        ),
        ("mirrored:4:0:sgd", "mirrored:4:0:adamw"),
    ),
    "jax": (
        (
            "none:0:0:sgd",
            "data-parallel:2:0:sgd",
            "data-parallel:4:0:sgd",
            "data-parallel:4:0:sgd-accumulate",
        ),
        (
            "none:0:0:adamw",
            "data-parallel:4:0:adamw",
            "model-parallel:4:2:sgd",
            "model-parallel:4:2:adamw",
        ),
    ),
}


def start(output, runs, logical=4, **environment):
    devices = f"--xla_force_host_platform_device_count={logical}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": BACKEND,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LOGICAL_DEVICES": str(logical),
        "XLA_FLAGS": flags,
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
            printed, _ = process.communicate(timeout=900)
            assert process.returncode == 0, printed
    finally:
        for process in processes:
            process.kill()


def read(paths):
    """Returns the arrays of runs, as `{run: {name: array}}`."""
    results = {}
    for path in paths:
        with np.load(path) as file:
            for key in file.files:
                run, name = key.rsplit("/", 1)
                results.setdefault(run, {})[name] = file[key]
    return results


def differences(a, b):
    return {
        name: np.abs(a[name] - b[name]).max()
        for name in ("losses", "tested", "weights")
    }


@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(FEW, id="few", marks=pytest.mark.slow),
        pytest.param(RUNS, id="all", marks=pytest.mark.nightly),
    ],
)
def test_any_number_of_devices_gives_equal_training(
    runs, tmp_path, record_error
):
    runs = runs[BACKEND]
    paths = [tmp_path / f"{i}.npz" for i in range(len(runs))]
    finish([start(*pair) for pair in zip(paths, runs, strict=True)])
    found = read(paths)
    for run, results in found.items():
        name, devices, model_devices, kind = run.split(":")
        if name == "none":
            # The model learns; otherwise, equality would mean little.
            assert np.ptp(results["losses"]) > 0.1
            continue
        if name == "model-parallel":
            assert results["shards"].max() == int(model_devices)
        if kind == "keras-sgd":
            # Keras clips the gradient of each device, so its weights differ
            # by much more than the tolerance below.
            one_device = found["none:0:0:keras-sgd"]
            assert differences(results, one_device)["weights"] > 1e-3
            continue
        one_device = found[f"none:0:0:{kind.removesuffix('-accumulate')}"]
        for what, error in differences(results, one_device).items():
            record_error(
                f"{name} on {devices} devices", f"{kind} {what}", error, 1e-5
            )
