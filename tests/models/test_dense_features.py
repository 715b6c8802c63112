"""Feature maps against timm's and transformers', and what Keras does with a
model of them."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

import keras_vit
from tests import originals
from tests.markers import on_all
from tests.small import hybrid, images, randomize, tiny

ON_TORCH = pytest.mark.backends("torch")
# The files' own size is 32 x 32.
SIZES = {"square": (48, 48), "wide": (32, 80), "tall": (72, 24)}
# Each size is tried with the norm; without it, one shows the same.
NORMS = {True: tuple(SIZES), False: ("tall",)}
TOLERANCE = 3e-5
TIMM = ("token", "registers-positioned", "registers-scale-qknorm", "dinov3")
DINOV2 = ("dinov2", "dinov2-registers")
ON_ALL_BACKENDS = ("registers-scale-qknorm", "dinov2-registers")


def batch(size):
    draw = np.random.default_rng(0).normal
    return draw(size=(2, *size, 3)).astype("float32")


def theirs(function, x):
    """A list of their maps (B, C, H, W), as ours."""
    import torch

    x = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad(), torch.device("cpu"):
        found = function(x)
    return [y.permute(0, 2, 3, 1).numpy() for y in found]


def values(maps, x):
    """Maps by name. Compiles no program for a size, which `predict` does."""
    found = maps(x, training=False)
    return keras.tree.map_structure(keras.ops.convert_to_numpy, found)


def assert_maps(maps, x, expected, record_error, name):
    found = values(maps, x)
    assert len(found) == len(expected)
    for (layer, y), other in zip(found.items(), expected, strict=True):
        assert y.shape == other.shape and np.ptp(other) > 0.1
        case = f"{name} {layer} {x.shape[1:3]}"
        error = np.abs(y - other).max()
        record_error("dense features", case, error, TOLERANCE)


CASES = {
    "sincos": {
        "position_embedding": "sincos2d",
        "class_token": False,
        "pooling": "gap",
    },
    "2-D in every layer": {
        "position_embedding": "learned_2d",
        "position_placement": "every_layer",
        "num_registers": 2,
    },
    "relative": {"position_embedding": "relative"},
    "padded": {"pad_to_patch": True, "input_shape": (7, 12, 3)},
    "distilled": {"distillation": True},
}


@ON_TORCH
@pytest.mark.parametrize("case", CASES)
def test_any_size_is_that_of_a_model_for_any_size(case):
    """A model of one size gives the maps of one that was made for all."""
    options = CASES[case]
    fixed = tiny(**options)
    randomize(fixed)
    any_size = tiny(**{**options, "input_shape": (None, None, 3), "grid_size": (2, 3)})
    any_size.set_weights(fixed.get_weights())
    layer = keras_vit.feature_extractor(any_size, "block_0")
    maps = keras_vit.dense_features(fixed, blocks=0, norm=False)
    prefix = {"sincos": 0, "2-D in every layer": 3, "distilled": 2}
    for height, width in ((8, 12), (16, 4)):
        x = images(2, height, width, 3)
        tokens = values(layer, x)[:, prefix.get(case, 1) :]
        expected = tokens.reshape(2, height // 4, width // 4, 24)
        np.testing.assert_allclose(values(maps, x), expected, atol=1e-5)


@ON_TORCH
def test_blocks_after_the_last_one_are_not_built():
    model = tiny(num_layers=3)
    maps = keras_vit.dense_features(model, blocks=(1,))
    assert list(maps.output) == ["block_1"]
    names = [layer.name for layer in maps.layers]
    assert "block_1" in names and "encoder_norm" in names
    assert not {"block_2", "pooling", "head"} & set(names)
    assert maps.get_layer("block_0") is model.get_layer("block_0")
    # Negative ones from the last, the last by itself, one map by itself.
    assert list(keras_vit.dense_features(model, blocks=(-1, 0)).output) == [
        "block_0",
        "block_2",
    ]
    assert keras_vit.dense_features(model).output.shape[1:] == (None, None, 24)


@ON_TORCH
def test_a_hybrid_has_stages_and_blocks():
    model = hybrid(num_layers=2)
    maps = keras_vit.dense_features(model, blocks=(0, 1), stages=(1, 2))
    found = maps(images(1, 32, 64, 3))
    assert {name: tuple(x.shape[1:]) for name, x in found.items()} == {
        "stage_1": (8, 16, 128),
        "stage_2": (4, 8, 256),
        "block_0": (4, 8, 24),
        "block_1": (4, 8, 24),
    }


@ON_TORCH
@pytest.mark.parametrize("size", [(8, 12), (None, None)])
def test_preprocessing_scales_and_does_not_resize(size):
    """A model of the same weights without it sees the same patches."""
    model = tiny(input_shape=(*size, 3), preprocessing="torch")
    bare = tiny(input_shape=(*size, 3))
    randomize(model)
    bare.set_weights(model.get_weights())
    for shape in ((8, 12), (4, 4), (24, 16)):
        x = np.random.default_rng(0).integers(0, 256, (2, *shape, 3))
        scaled = keras_vit.preprocess_input(x, mode="torch")
        for build in (
            keras_vit.dense_features,
            lambda m: keras_vit.segmentation.LinearSegmenter(m, 3),
            lambda m: keras_vit.segmentation.EoMT(
                m, 3, queries=2, blocks=1, masked=False
            ),
        ):
            found, expected = build(model), build(bare)
            found.set_weights(expected.get_weights())
            found, expected = values(found, x), values(expected, scaled)
            for a, b in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
                np.testing.assert_allclose(a, b, atol=2e-5)


@ON_TORCH
def test_saved_loaded_and_trained(tmp_path):
    model = tiny()
    randomize(model)
    model.save(tmp_path / "model.keras")
    # The graph of a loaded model has its last block for one query only.
    loaded = keras.models.load_model(tmp_path / "model.keras")
    maps = keras_vit.dense_features(loaded, blocks=(0, 1))
    maps.save(tmp_path / "maps.keras")
    again = keras.models.load_model(tmp_path / "maps.keras")
    x = images(2, 12, 8, 3)
    expected = values(keras_vit.dense_features(model, blocks=(0, 1)), x)
    assert list(expected) == ["block_0", "block_1"]
    for other in (maps, again):
        found = values(other, x)
        for name, array in expected.items():
            assert array.shape == (2, 3, 2, 24)
            np.testing.assert_allclose(found[name], array, atol=1e-5)

    # Losses by name, and LoRA.
    maps.get_layer("block_0").attention.query.enable_lora(2)
    maps.compile("sgd", {"block_0": "mse", "block_1": "mse"})
    before = values(maps, x)
    assert any("lora" in w.path for w in maps.trainable_weights)
    maps.fit(x, {name: 0 * y for name, y in before.items()}, verbose=0)
    after = values(maps, x)
    assert np.abs(after["block_1"] - before["block_1"]).max() > 1e-5


@pytest.mark.parametrize("name", on_all(TIMM, ON_ALL_BACKENDS))
def test_maps_are_timms(name, tmp_path, record_error):
    case = originals.TIMM[name]
    original = originals.build(case)
    path, given = originals.save(case, original, tmp_path)
    model = keras_vit.converters.load(path, **given)
    side = 224 if name == "dinov3" else 32  # its files have no grid
    assert model.input_shape == (None, side, side, 3)
    for norm, sizes in NORMS.items():
        maps = keras_vit.dense_features(model, blocks=(0, 1), norm=norm)
        intermediates = functools.partial(
            original.forward_intermediates,
            indices=[0, 1],
            norm=norm,
            intermediates_only=True,
        )
        for size in sizes:
            x = batch(SIZES[size])
            expected = theirs(intermediates, x)
            assert_maps(maps, x, expected, record_error, name)


@pytest.mark.parametrize("name", on_all(DINOV2, ON_ALL_BACKENDS))
def test_maps_are_transformers(name, tmp_path, record_error):
    transformers = pytest.importorskip("transformers")
    kind = {
        "dinov2": "Dinov2Backbone",
        "dinov2-registers": "Dinov2WithRegistersBackbone",
    }[name]
    assert hasattr(transformers, kind)
    case = dataclasses.replace(originals.HUGGINGFACE[name], kind=kind)
    original = originals.build(case, out_features=["stage1", "stage2"])
    original.save_pretrained(tmp_path)
    model = keras_vit.converters.load(tmp_path)
    for norm, sizes in NORMS.items():
        maps = keras_vit.dense_features(model, blocks=(0, 1), norm=norm)
        original.config.apply_layernorm = norm
        for size in sizes:
            x = batch(SIZES[size])
            expected = theirs(lambda x: original(x).feature_maps, x)
            assert_maps(maps, x, expected, record_error, name)


@ON_TORCH
def test_stages_of_bit_are_timms(tmp_path, record_error):
    timm = pytest.importorskip("timm")
    import torch
    from timm.layers import StdConv2d

    with torch.device("cpu"):
        original = timm.models.resnetv2.ResNetV2(
            layers=(1, 1),
            channels=(128, 256),
            stem_chs=32,
            num_classes=5,
            stem_type="fixed",
            conv_layer=functools.partial(StdConv2d, eps=1e-8),
        ).eval()
    originals.shake(original)
    torch.save(original.state_dict(), tmp_path / "model.pth")
    model = keras_vit.converters.load(tmp_path / "model.pth")
    maps = keras_vit.dense_features(model, stages=(1, 2))
    original = functools.partial(
        original.forward_intermediates,
        indices=[1, 2],
        norm=True,
        intermediates_only=True,
    )
    for size in ((64, 64), (32, 96)):
        x = batch(size)
        expected = theirs(original, x)
        assert_maps(maps, x, expected, record_error, "bit")


def test_features_of_a_layer_of_another_library():
    model = keras_vit.ViTTi16(include_top=False, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match="Did you mean 'block_11'"):
        keras_vit.feature_extractor(model, ["blocks.11"])
