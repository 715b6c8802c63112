"""Initial values of DINO and MoCo v3, which are those of the original codes."""

import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import weights_by_path
from keras_vit.training.presets import MOMENTUM
from keras_vit.training.pretraining import initialize

pytestmark = pytest.mark.suite("torch")
WIDTH, MLP, PATCH = 96, 192, 4


def initial_values(name, seed=0):
    """Returns the initial values of an encoder, by path."""
    encoder = keras_vit.VisionTransformer(
        input_shape=(16, 16, 3),
        patch_size=PATCH,
        hidden_size=WIDTH,
        num_layers=1,
        num_heads=3,
        mlp_dim=MLP,
        include_top=False,
    )
    variables = weights_by_path(encoder)
    initialize(variables, MOMENTUM[name].settings["initialize"], seed)
    return {
        path: keras.ops.convert_to_numpy(variable)
        for path, variable in variables.items()
    }


def assert_uniform(array, bound):
    assert 0.95 * bound < np.abs(array).max() <= bound
    if array.size > 1000:
        assert array.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert abs(array.mean()) < 0.1 * bound


def assert_normal(array, std):
    assert array.std() == pytest.approx(std, rel=0.25)
    if array.size > 1000:
        assert array.std() == pytest.approx(std, rel=0.05)
        assert np.abs(array).max() > 3 * std  # not truncated at 2


def expected_values(name, path):
    """Returns the check of a weight of DINO or MoCo v3, and its argument."""
    kind = path.rpartition("/")[2]
    patches = path.startswith("patch_embedding/")
    inputs = 3 * PATCH**2
    if kind in ("gamma", "beta") or (kind == "bias" and not patches):
        return np.testing.assert_array_equal, float(kind == "gamma")
    if name == "dino":
        # The patch embedding has PyTorch's default for convolutions.
        if patches:
            return assert_uniform, 1 / math.sqrt(inputs)
        return assert_normal, 0.02
    if kind == "kernel":
        fans = WIDTH + MLP
        if "attention" in path:
            fans = 2 * WIDTH
        elif patches:
            fans = inputs + WIDTH
        return assert_uniform, math.sqrt(6 / fans)
    return (assert_normal, 1e-6) if kind == "tokens" else (None, None)


@pytest.mark.parametrize("name", ["dino", "mocov3"])
def test_initial_values(name):
    values = initial_values(name)
    kinds = {path.rpartition("/")[2] for path in values}
    assert kinds > {"kernel", "bias", "gamma", "beta", "tokens"}
    for path, value in values.items():
        check, argument = expected_values(name, path)
        if check is not None:
            check(value, argument)
    # The seed determines them.
    path = "block_0/mlp/dense_1/kernel"
    again, other = (initial_values(name, seed)[path] for seed in (0, 2))
    np.testing.assert_array_equal(values[path], again)
    assert np.abs(values[path] - other).max() > 0.01
