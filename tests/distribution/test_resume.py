"""Runs on several devices resume bit for bit."""

import csv
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit

BACKEND = keras.config.backend()
ROOT = pathlib.Path(__file__).parents[2]
RUNS = {
    "tensorflow": ["mirrored:0"],
    "jax": ["data-parallel:0", "model-parallel:2"],
}


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow")
def test_interrupted_runs_resume_bit_for_bit(tmp_path):
    environment = {
        **os.environ,
        "KERAS_BACKEND": BACKEND,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LOGICAL_DEVICES": "2",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
        "--xla_force_host_platform_device_count=4",
    }
    program = [sys.executable, "-m", "tests.distribution.small_resume"]
    done = subprocess.run(
        [*program, str(tmp_path), *RUNS[BACKEND]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    count = len(RUNS[BACKEND])
    assert done.stdout.count("It crashed.\n") == count
    assert done.stdout.count("resuming  from step 5") == count
    for name in RUNS[BACKEND]:
        assert_same_end(tmp_path / name)


def assert_same_end(folder):
    folders = [folder / which for which in ("straight", "crashed")]
    weights = [
        keras_vit.converters.load(folder / "model.npz").get_weights()
        for folder in folders
    ]
    for straight, crashed in zip(*weights, strict=True):
        np.testing.assert_array_equal(straight, crashed)
    rows = [
        list(csv.DictReader((folder / "metrics.csv").open()))
        for folder in folders
    ]
    for straight, crashed in zip(*rows, strict=True):
        del straight["images_per_second"], crashed["images_per_second"]
        # The weights are the same bit for bit. A mean may be rounded
        # differently: a checkpoint within an interval has the sum of the
        # replicas' losses, not each one's.
        expected = {name: float(value) for name, value in straight.items()}
        found = {name: float(value) for name, value in crashed.items()}
        assert found == pytest.approx(expected, rel=1e-5)
