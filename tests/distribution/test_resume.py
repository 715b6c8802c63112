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
RUNS = [
    pytest.param(name, marks=pytest.mark.backends(backend))
    for backend, name in (
        ("tensorflow", "mirrored:0"),
        ("jax", "data-parallel:0"),
        ("jax", "model-parallel:2"),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_crashed_run_resumes(name, tmp_path):
    environment = {
        **os.environ,
        "KERAS_BACKEND": BACKEND,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LOGICAL_DEVICES": "4",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    program = [sys.executable, "-m", "tests.distribution.small_resume"]
    done = subprocess.run(
        [*program, str(tmp_path), name],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "crashed\n" in done.stdout
    assert "resuming  from step 5" in done.stdout
    folders = [tmp_path / which for which in ("straight", "crashed")]
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
        for row in (straight, crashed):
            del row["images_per_second"]
        # A checkpoint within an interval has the sum of the replicas' losses,
        # not each one's, so the mean may be rounded differently.
        losses = [float(row.pop("train_loss")) for row in (straight, crashed)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert straight == crashed
