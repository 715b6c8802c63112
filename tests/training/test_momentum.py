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


@pytest.mark.parametrize("name", ["dino", "mocov3"])
def test_biases_are_zero_and_norms_are_one(name):
    values = initial_values(name)
    kinds = {path: path.rpartition("/")[2] for path in values}
    assert set(kinds.values()) > {"kernel", "bias", "gamma", "beta", "tokens"}
    for path, kind in kinds.items():
        if kind == "gamma":
            np.testing.assert_array_equal(values[path], 1)
        elif kind == "beta" or (kind == "bias" and "patch" not in path):
            np.testing.assert_array_equal(values[path], 0)


def test_dino():
    values = initial_values("dino")
    bound = 1 / math.sqrt(3 * PATCH**2)  # PyTorch's default for convolutions
    for path, value in values.items():
        if path.startswith("patch_embedding/"):
            assert_uniform(value, bound)
        elif path.endswith(("kernel", "tokens", "embedding")):
            assert_normal(value, 0.02)


def test_mocov3():
    values = initial_values("mocov3")
    inputs = 3 * PATCH**2
    for path, value in values.items():
        if not path.endswith("kernel"):
            continue
        fans = WIDTH + MLP  # of the MLP
        if "attention" in path:
            fans = 2 * WIDTH
        elif path.startswith("patch_embedding/"):
            fans = inputs + WIDTH
        assert_uniform(value, math.sqrt(6 / fans))
    (tokens,) = (v for path, v in values.items() if path.endswith("tokens"))
    assert_normal(tokens, 1e-6)


@pytest.mark.parametrize("name", ["dino", "mocov3"])
def test_the_seed_determines_the_values(name):
    first, again, other = (initial_values(name, seed) for seed in (1, 1, 2))
    path = "block_0/mlp/dense_1/kernel"
    np.testing.assert_array_equal(first[path], again[path])
    assert np.abs(first[path] - other[path]).max() > 0.01
