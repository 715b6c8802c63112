"""DINO and MoCo v3 train the same on one and on two devices."""

import os
import pathlib
import subprocess
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow")
def test_two_devices_equal_one():
    """The centre, the batch norms and the keys are those of the whole batch."""
    flags = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-m", "tests.distribution.small_momentum"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "KERAS_BACKEND": keras.config.backend(),
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
        },
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    rows = [row for row in rows if row and row[0] in ("dino", "mocov3")]
    assert [row[:2] for row in rows] == [["dino", "2"], ["mocov3", "2"]]
    for row in rows:
        assert float(row[2]) < 1e-4, row
