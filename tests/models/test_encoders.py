"""Checks that keras-hub makes of its backbones, on kinds of encoders."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.harness import numpy

SIZES = {"patch_size": 4, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
ROOT = {"resnet_layers": (1, 1), "width_factor": 0.5, "include_top": False}


def vit(**options):
    options = {"input_shape": (12, 12, 3), "include_top": False, **options}
    return keras_vit.VisionTransformer(**SIZES, **options)


def dinov2(**options):
    return vit(
        layer_scale=1.0,
        num_registers=4,
        position_prefix="class",
        activation="swiglu",
        mask_token=True,
        **options,
    )


def hybrid(**options):
    sizes = {**SIZES, "patch_size": 1, "num_layers": 1, **ROOT}
    options = {"input_shape": (32, 32, 3), **options}
    return keras_vit.HybridVisionTransformer(**sizes, **options)


def bit(**options):
    return keras_vit.BiT(**{"input_shape": (32, 32, 3), **ROOT, **options})


def images(build, dtype="float32"):
    size = 32 if build in (hybrid, bit) else 12
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (2, size, size, 3)).astype(dtype)


def assert_close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(
        numpy(found), numpy(expected), rtol=tolerance, atol=tolerance
    )


encoders = pytest.mark.parametrize("build", [dinov2, bit])


@pytest.mark.suite("torch")
@encoders
def test_calls_and_saving(build, tmp_path):
    model, x = build(), images(build)
    expected = model(x)
    assert expected.shape == (
        2,
        *((14, 16) if build is dinov2 else (4, 4, 256)),
    )
    assert_close(model.predict({"images": x}, verbose=0), expected)
    config = json.dumps(model.get_config())
    again = type(model).from_config(json.loads(config))
    assert json.dumps(again.get_config()) == config
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is type(model)
    # Channels are last, whatever Keras's default is.
    keras.config.set_image_data_format("channels_first")
    try:
        fresh = build()
    finally:
        keras.config.set_image_data_format("channels_last")
    fresh.load_weights(tmp_path / "model.weights.h5")
    for other in (again, fresh):
        assert_close(other(x), expected)


@pytest.mark.suite("torch")
@pytest.mark.parametrize("policy", ["mixed_float16"])
@encoders
def test_precision_policies(build, policy):
    keras.config.set_dtype_policy(policy)
    model = build()
    keras.config.set_dtype_policy("float32")
    policy = keras.dtype_policies.get(policy)
    for y in (model(images(build)), model.output):
        assert keras.backend.standardize_dtype(y.dtype) == policy.compute_dtype
    for weight in model.weights:
        assert weight.dtype == policy.variable_dtype
    for layer in model.layers:
        assert layer.compute_dtype == policy.compute_dtype


# One of each first layer, which meets the integers.
@pytest.mark.parametrize("build", [vit, hybrid, bit])
def test_input_of_integers(build):
    model, x = build(), images(build, "uint8")
    integers = keras.Input(x.shape[1:], dtype="uint8")
    other = build(input_tensor=integers, input_shape=None)
    other.set_weights(model.get_weights())
    expected = model(ops.cast(x, "float32"))
    assert_close(other(x), expected, 1e-4)
    # Keras does not cast integers to the dtype of an input of floats.
    assert_close(model(x), expected, 1e-4)
