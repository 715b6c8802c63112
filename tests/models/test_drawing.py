"""What is drawn beside a model's building is what is drawn at once."""

import random

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import _drawing
from keras_vit.layers import initializers
from keras_vit.models import _trunk
from tests.harness import numpy

SIZES = {
    "patch_size": 8,
    "hidden_size": 192,
    "num_layers": 3,
    "num_heads": 3,
    "mlp_dim": 256,
    "input_shape": (64, 64, 3),
    "classes": 5,
    "position_embedding": "learned",
}
MODELS = {
    "VisionTransformer": SIZES,
    "HybridVisionTransformer": {
        **SIZES,
        "patch_size": 1,
        "resnet_layers": (1, 1),
    },
    "BiT": {"resnet_layers": (1, 1), "input_shape": (32, 32, 3)},
}


def build(name="VisionTransformer"):
    """Returns the weights of a model of the seed 7, and what seed is next."""
    keras.utils.set_random_seed(7)
    model = getattr(keras_vit, name)(**MODELS[name])
    return [numpy(w) for w in model.weights], random.random()


def assert_same(found, wanted):
    assert found[1] == wanted[1]
    assert any(x.size >= _drawing._LARGE for x in found[0])
    for a, b in zip(found[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def at_once(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_drawing, "_is_shared", lambda: False)
        return {name: build(name) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_that_are_drawn_at_once(name, at_once):
    assert _drawing._is_shared()  # or nothing is tested
    assert_same(build(name), at_once[name])


def test_a_variable_that_copied_its_start_is_made_again(
    at_once, monkeypatch, caplog
):
    monkeypatch.setattr(_drawing, "_is_shared", lambda: True)
    monkeypatch.setattr(_drawing, "given", np.copy)
    assert_same(build(), at_once["VisionTransformer"])
    assert "built a second time" in caplog.text


def test_counting_parameters_initializes_no_weights(monkeypatch):
    called = []
    initialize = initializers._Start.__call__

    def counted(self, shape, dtype=None):
        called.append(shape)
        return initialize(self, shape, dtype)

    monkeypatch.setattr(initializers._Start, "__call__", counted)
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.VisionTransformer(**SIZES)
    assert not called
    assert model.count_params() > 500_000
    build()
    assert called


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "mixed_bfloat16"])
def test_precision(dtype, monkeypatch):
    """Copies are made of what is drawn, never of what is about to be."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        found = build()
        monkeypatch.setattr(_drawing, "_is_shared", lambda: False)
        assert_same(found, build())
    finally:
        keras.config.set_dtype_policy(before)


def test_what_breaks_while_it_is_built_is_told(at_once, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_trunk, "head_layer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build()
    assert_same(build(), at_once["VisionTransformer"])


def test_what_breaks_while_it_is_drawn_is_told(monkeypatch):
    monkeypatch.setattr(initializers.Uniform, "_draw", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build()


def test_copies_are_seen():
    """Each device has its own under a strategy or a distribution."""
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            assert not _drawing._is_shared()
    if keras.config.backend() == "jax":
        mesh = keras.distribution.DeviceMesh((1,), ["batch"])
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(device_mesh=mesh)
        )
        try:
            assert not _drawing._is_shared()
        finally:
            keras.distribution.set_distribution(before)
    assert _drawing._is_shared()
