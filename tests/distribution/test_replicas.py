"""A step on two replicas of `tf.distribute` is that on one device."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.backends("tensorflow"), pytest.mark.slow]


@pytest.fixture(scope="module")
def found():
    """The devices must be set up before TensorFlow begins: a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.distribution.small_replicas"],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "name",
    ["clipnorm", "clipvalue", "global_clipnorm", "batch_norm", "ignored"],
)
def test_a_step_is_that_of_one_device(found, name):
    one, two = found[name]
    np.testing.assert_allclose(two, one, rtol=1e-4)


def test_a_step_of_eomt_is_that_of_one_device(found):
    """The points of the loss are random, and differ between replicas."""
    one, two = found["eomt"]
    np.testing.assert_allclose(two, one, rtol=0.05)


def test_images_of_all_replicas_have_different_masks(found):
    assert found["masks"] == [4, 4]
