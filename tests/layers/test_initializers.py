"""The NumPy initializers: distribution, seeds, precision, skipping."""

import threading

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import initializers

SHAPE = (8, 50, 1000)


def initializer(name):
    return {
        "uniform": lambda: initializers.glorot_uniform(40, 20),
        "normal": lambda: initializers.Normal(0.3),
        "truncated": lambda: initializers.lecun_normal(16),
        "constant": lambda: initializers.Constant(0.5),
    }[name]()


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("name", "keras_initializer"),
    [
        ("uniform", keras.initializers.RandomUniform(-(0.1**0.5), 0.1**0.5)),
        ("normal", keras.initializers.RandomNormal(stddev=0.3)),
        ("truncated", keras.initializers.TruncatedNormal(stddev=0.25 / 0.8796)),
        ("constant", keras.initializers.Constant(0.5)),
    ],
)
def test_distribution_matches_keras(name, keras_initializer):
    keras.utils.set_random_seed(0)
    ours, theirs = (
        np.sort(keras.ops.convert_to_numpy(make(SHAPE)), None)
        for make in (initializer(name), keras_initializer)
    )
    inner = slice(4000, -4000)  # the tails of normal ones vary
    np.testing.assert_allclose(ours[inner], theirs[inner], atol=0.015)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["uniform", "normal", "truncated"])
def test_seed_determines_the_values(name):
    keras.utils.set_random_seed(1)
    first, second = initializer(name), initializer(name)
    keras.utils.set_random_seed(1)
    again = initializer(name)
    copied = first.from_config(first.get_config())
    first, second, again, copied = (
        keras.ops.convert_to_numpy(x((40,))) for x in (first, second, again, copied)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - second).max() > 0.01
    assert np.abs(first - copied).max() > 0.01


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("uniform", [-0.127877384, 0.298355609, 0.204484552]),
        ("normal", [-0.052231077, 0.572110891, -0.229140341]),
        ("truncated", [-0.049482297, 0.542002261, -0.217081293]),
    ],
)
def test_values_are_equal_on_every_backend(name, known):
    """The values were recorded under JAX; TensorFlow and PyTorch give the
    same."""
    keras.utils.set_random_seed(1)
    found = keras.ops.convert_to_numpy(initializer(name)((3,)))
    np.testing.assert_allclose(found, known, rtol=1e-6)


# JAX computes float64 in a mode of its own.
FLOAT64 = pytest.param("float64", marks=pytest.mark.backends("tensorflow", "torch"))


@pytest.mark.parametrize("dtype", [FLOAT64, "float32", "float16", "bfloat16"])
def test_dtype_is_respected(dtype):
    for name in ("uniform", "truncated", "constant"):
        made = initializer(name)((4, 3), dtype=dtype)
        assert keras.backend.standardize_dtype(made.dtype) == dtype
    layer = keras_vit.layers.MlpBlock(8, dtype=dtype)
    layer.build((None, 2, 4))
    kinds = {keras.backend.standardize_dtype(w.dtype) for w in layer.weights}
    assert kinds == {dtype}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["uniform", "normal", "truncated"])
def test_values_do_not_depend_on_the_number_of_cores(name, monkeypatch):
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(initializers.os, "cpu_count", lambda n=cores: n)
        keras.utils.set_random_seed(1)
        found.append(keras.ops.convert_to_numpy(initializer(name)(SHAPE)))
    np.testing.assert_array_equal(*found)
    # No slice of the array repeats another one.
    size = initializers._SLICE_SIZE
    slices = found[0].ravel()[: 3 * size].reshape(3, size)
    assert abs(np.corrcoef(slices)[np.triu_indices(3, 1)]).max() < 0.02


@pytest.mark.backends("torch")
def test_skip_init_applies_to_its_own_thread():
    found = {}

    def make(name):
        found[name] = keras.ops.convert_to_numpy(initializer("normal")((9,)))

    with initializers.skip_init():
        make("inside")
        thread = threading.Thread(target=make, args=["other thread"])
        thread.start()
        thread.join()
        constant = keras.ops.convert_to_numpy(initializer("constant")((9,)))
    make("after")
    assert not found["inside"].any()
    assert found["other thread"].all() and found["after"].all()
    assert (constant == 0.5).all()
