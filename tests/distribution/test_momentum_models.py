"""DINO and MoCo v3 train the same on one and on two devices."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FLAG = "--xla_force_host_platform_device_count=2"
# Four times the largest difference on TensorFlow and JAX. On one device, the
# reverse order of the images changes as much. The losses of MoCo v3 differ by
# more, because batch norms divide by the standard deviations of features that
# are almost the same for all images at first.
TOLERANCES = {
    "dino": {"loss": 2e-6, "center": 1e-7, "weights": 1e-6},
    "mocov3": {"loss": 3e-5, "center": 0, "weights": 3e-6},
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.backends(name))
        for name in ("tensorflow", "jax")
    ],
)
def test_two_devices_equal_one(backend, record_error):
    assert keras.config.backend() == backend
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.distribution.small_momentum"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["method"] for line in lines] == list(TOLERANCES)
    for line in lines:
        method = line["method"]
        assert line["count"] == 2
        for what, tolerance in TOLERANCES[method].items():
            record_error(
                "two devices",
                f"{method} {what}",
                line["devices"][what],
                tolerance,
            )
