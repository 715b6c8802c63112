"""Checks that keras-hub makes of its backbones, on every kind of encoder."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import SimpleFeaturePyramid
from tests.harness import numpy

SIZES = {
    "patch_size": 4,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "include_top": False,
}
ROOT = {"resnet_layers": (1, 1), "width_factor": 0.5, "include_top": False}


def _vit(**options):
    return keras_vit.VisionTransformer(
        **{"input_shape": (12, 12, 3), **SIZES, **options}
    )


def _hybrid(**options):
    options = {**SIZES, "patch_size": 1, "num_layers": 1, **ROOT, **options}
    options = {"input_shape": (32, 32, 3), **options}
    return keras_vit.HybridVisionTransformer(**options)


def _bit(**options):
    options = {"input_shape": (32, 32, 3), **ROOT, **options}
    return keras_vit.BiT(**options)


def _maps(blocks=(0, 1), **options):
    return keras_vit.dense_features(_vit(**options), blocks=blocks)


# Function that builds the encoder, and the shape of one image's output.
ENCODERS = {
    "ViT": (_vit, (10, 16)),
    "no class token": (lambda **o: _vit(class_token=False, **o), (9, 16)),
    "pooled": (lambda **o: _vit(pooling="token", **o), (16,)),
    "MAP": (lambda **o: _vit(pooling="map", **o), (16,)),
    "DeiT": (lambda **o: _vit(distillation=True, **o), (11, 16)),
    "DINOv2": (
        lambda **o: _vit(
            layer_scale=1.0,
            num_registers=4,
            position_prefix="class",
            activation="swiglu",
            mask_token=True,
            **o,
        ),
        (14, 16),
    ),
    "DINOv3": (
        lambda **o: _vit(
            layer_scale=1.0,
            num_registers=4,
            position_embedding="rope",
            key_bias=False,
            **o,
        ),
        (14, 16),
    ),
    "relative": (
        lambda **o: _vit(position_embedding="relative", **o),
        (10, 16),
    ),
    "any size": (
        lambda **o: _vit(**{"input_shape": (None, None, 3), **o}),
        (10, 16),
    ),
    "hybrid": (_hybrid, (17, 16)),
    "BiT": (_bit, (4, 4, 256)),
    "maps": (_maps, {"block_0": (3, 3, 16), "block_1": (3, 3, 16)}),
    "one map": (lambda **o: _maps(blocks=-1, **o), (3, 3, 16)),
}


def images(name, size=None, dtype="uint8"):
    size = size or (32 if name in ("hybrid", "BiT") else 12)
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (2, size, size, 3)).astype(dtype)


def outputs(model, x):
    found = keras.tree.flatten(model(x))
    return [numpy(ops.cast(y, "float32")) for y in found]


def assert_close(found, expected, tolerance=1e-5):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


# The others, which consist of the same layers, are nightly.
SUITE = ("DINOv2", "DINOv3", "BiT")
encoders = pytest.mark.parametrize(
    "name",
    [
        name if name in SUITE else pytest.param(name, marks=pytest.mark.nightly)
        for name in ENCODERS
    ],
)


@pytest.mark.suite("torch")
@encoders
def test_calls_and_saving(name, tmp_path):
    build, shape = ENCODERS[name]
    model, x = build(), images(name, dtype="float32")
    expected = outputs(model, x)
    shapes = shape.values() if isinstance(shape, dict) else [shape]
    assert [y.shape for y in expected] == [(2, *shape) for shape in shapes]
    found = keras.tree.flatten(model.predict({"images": x}, verbose=0))
    assert_close(found, expected)
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
        assert_close(outputs(other, x), expected)


@pytest.mark.suite("torch")
@pytest.mark.parametrize(
    "policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"]
)
@encoders
def test_precision_policies(name, policy):
    keras.config.set_dtype_policy(policy)
    model = ENCODERS[name][0]()
    keras.config.set_dtype_policy("float32")
    policy = keras.dtype_policies.get(policy)
    found = keras.tree.flatten(model(images(name, dtype="float32")))
    for y in (*found, *model.outputs):
        assert keras.backend.standardize_dtype(y.dtype) == policy.compute_dtype
    for weight in model.weights:
        assert weight.dtype == policy.variable_dtype
    for layer in model.layers:
        assert layer.compute_dtype == policy.compute_dtype


# Relative to the largest value: tokens and weights have 127 steps.
@pytest.mark.nightly  # PyTorch takes seconds for the first product of int8
@encoders
def test_quantized_and_saved(name, tmp_path):
    model, x = ENCODERS[name][0](), images(name, dtype="float32") / 255
    before = outputs(model, x)
    model.quantize("int8")
    expected = outputs(model, x)
    for y, z in zip(before, expected, strict=True):
        assert np.abs(y - z).max() < 0.1 * np.abs(y).max()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(outputs(again, x), expected)


@pytest.mark.suite("torch")
@encoders
def test_position_interpolation(name, tmp_path):
    """The weights of one size, loaded into a model of another, are those that
    a model of any size resamples. ResNets have none to resample."""
    build = ENCODERS[name][0]
    size = 64 if name in ("hybrid", "BiT") else 20
    model = build(input_shape=(None, None, 3), **_grid(name))
    model.save_weights(tmp_path / "model.weights.h5")
    larger = build(input_shape=(size, size, 3))
    larger.load_weights(tmp_path / "model.weights.h5")
    x = images(name, size, "float32")
    assert_close(outputs(larger, x), outputs(model, x), 1e-4)


def _grid(name):
    return {} if name == "BiT" else {"grid_size": 4 if name == "hybrid" else 3}


@pytest.mark.suite("torch")
def test_pyramids():
    maps = keras_vit.dense_features(_bit(), stages=(1, 2))
    found = outputs(maps, images("BiT", dtype="float32"))
    assert [y.shape for y in found] == [(2, 8, 8, 128), (2, 4, 4, 256)]
    x = keras.Input((12, 12, 3))
    pyramid = keras.Model(x, SimpleFeaturePyramid(8)(_maps(blocks=-1)(x)))
    found = pyramid(images("ViT", dtype="float32"))
    sizes = {level: tuple(y.shape[1:3]) for level, y in found.items()}
    assert sizes == {"P2": (12, 12), "P3": (6, 6), "P4": (3, 3), "P5": (1, 1)}


# One of each first layer, which meets the integers.
@pytest.mark.parametrize("name", ["ViT", "hybrid", "BiT"])
def test_input_of_integers(name):
    build, x = ENCODERS[name][0], images(name)
    model = build()
    size = {"input_shape": None}
    integers = keras.Input(x.shape[1:], dtype="uint8")
    other = build(input_tensor=integers, **size)
    other.set_weights(model.get_weights())
    assert_close(outputs(other, x), outputs(model, x.astype("float32")), 1e-4)
    # Keras does not cast integers to the dtype of an input of floats.
    assert_close(outputs(model, x), outputs(other, x), 1e-4)
