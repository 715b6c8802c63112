"""Attention maps: golden values, and those of the fused kernel."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.layers import TransformerBlock
from tests import golden_data

REGISTERS = ("class_token", *["register_tokens"] * 4)
# case: the tokens before its patches
CASES = {
    "facebook_dinov2_reg": REGISTERS,  # no square, resampled positions
    "hf_vit_interpolate": ("class_token",),
    "timm_avg": ("class_token",),
    "timm_deit_distilled": ("class_token", "distillation_token"),
    "timm_map": (),
    "timm_reg_ls_qknorm": REGISTERS,
    "vit_jax_gap": (),
    "vit_jax_hybrid_small_stem": ("class_token",),
}
SMALL = {
    "input_shape": (16, 24, 3),
    "patch_size": 8,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "classes": 3,
}


def load(case):
    arguments = golden_data.load_arguments(case)
    if case == "vit_jax_gap":
        arguments["grid_size"] = (4, 6)
    path = golden_data.load_path(case)
    return keras_vit.converters.load(path, **arguments)


def small(**arguments):
    model = keras_vit.VisionTransformer(**{**SMALL, **arguments})
    rng = np.random.default_rng(0)
    for weight in model.weights:
        start = weight.path.endswith("gamma")
        weight.assign(start + 0.3 * rng.normal(size=weight.shape))
    return model


def some_images(count=2, shape=SMALL["input_shape"]):
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, (count, *shape)).astype("float32")


def test_attention_maps_match_golden_values(record_error):
    golden = golden_data.io("hf_vit")
    model = load("hf_vit")
    before = model.predict(golden["image"], verbose=0)
    maps = inspection.attention_maps(model, golden["image"])
    after = model.predict(golden["image"], verbose=0)
    np.testing.assert_array_equal(after, before)
    for index, found in enumerate(maps):
        name = f"attention_{index}"
        error = np.abs(found - golden[name]).max()
        record_error("hf_vit attention", name, error, 1e-5)


@pytest.mark.suite("torch")
@pytest.mark.parametrize("case", CASES)
def test_attention_maps_match_the_fused_attention(case):
    model, images = load(case), golden_data.io(case)["image"]
    before = keras.ops.convert_to_numpy(model(images))
    maps = inspection.attention_maps(model, images)
    blocks = [x for x in model.layers if isinstance(x, TransformerBlock)]
    layout = inspection.token_layout(model)
    assert layout.prefix == CASES[case]
    length = len(layout.prefix) + layout.grid[0] * layout.grid[1]
    heads = blocks[0].num_heads
    assert maps.shape == (len(blocks), len(images), heads, length, length)
    assert maps.dtype == "float32"
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)
    # Of the last block, whose input is the output of the layer before it.
    block = blocks[-1]
    attention = block.attention
    before_it = model.layers[model.layers.index(block) - 1]
    tokens = keras_vit.feature_extractor(model, before_it.name)(images)
    normed = block.norm_1(tokens)
    fused = keras.ops.convert_to_numpy(attention(normed))
    value = keras.ops.convert_to_numpy(attention.value(normed))
    mixed = np.einsum("bhqk,bkhd->bqhd", maps[-1], value)
    found = keras.ops.convert_to_numpy(attention.attention_output(mixed))
    np.testing.assert_allclose(found, fused, atol=1e-5)
    after = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_array_equal(after, before)


# positions: the model's options, a block, and whose output goes into it
POSITIONS = {
    "relative": (
        {"position_embedding": "relative", "num_registers": 1, "qk_norm": True},
        1,
        "block_0",
    ),
    "relative, shared": (
        {
            "position_embedding": "relative",
            "position_placement": "every_layer_shared",
            "pooling": "gap",
        },
        1,
        "block_0",
    ),
    "in every layer": (
        {
            "position_embedding": "learned_2d",
            "position_placement": "every_layer",
        },
        1,
        "position_embedding_1",
    ),
    "in every layer, shared": (
        {
            "position_embedding": "learned",
            "position_placement": "every_layer_shared",
        },
        0,
        "position_embedding_shared",
    ),
}


@pytest.mark.suite("tensorflow", "torch")
@pytest.mark.parametrize(
    "size",
    [
        pytest.param((16, 24), marks=pytest.mark.backends("torch")),
        (40, 16),
    ],
)
@pytest.mark.parametrize("case", POSITIONS)
def test_attention_maps_with_positions_in_blocks(case, size):
    """A block computed from the maps has the output of the model's block."""
    options, index, before = POSITIONS[case]
    model = small(**options, input_shape=(None, None, 3), grid_size=(2, 3))
    images = some_images(2, (*size, 3))
    maps = inspection.attention_maps(model, images)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)
    block = model.get_layer(f"block_{index}")
    seen = keras_vit.feature_extractor(model, [before, block.name])(images)
    x, attention = seen[before], block.attention
    value = keras.ops.convert_to_numpy(attention.value(block.norm_1(x)))
    mixed = np.einsum("bhqk,bkhd->bqhd", maps[index], value)
    x = x + attention.attention_output(mixed)
    found = keras.ops.convert_to_numpy(x + block.mlp(block.norm_2(x)))
    expected = keras.ops.convert_to_numpy(seen[block.name])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    heat = inspection.attention_heatmap(model, images)
    assert heat.shape == (2, *size) and np.ptp(heat) > 0.01
    norms = inspection.token_norms(model, images, index)
    lengths = np.linalg.norm(expected, axis=-1)
    np.testing.assert_allclose(norms[0], lengths, rtol=1e-4)


@pytest.mark.backends("torch")
def test_layers_argument_selects_blocks():
    model, images = small(num_layers=3), some_images(1)
    every = inspection.attention_maps(model, images)
    for chosen, kept in ((1, [1]), (-1, [2]), ((2, 0), [2, 0])):
        found = inspection.attention_maps(model, images, layers=chosen)
        np.testing.assert_allclose(found, every[kept], atol=1e-6)
    for wrong in (3, (), (-4, 0)):
        with pytest.raises(ValueError, match="from 0 to 2"):
            inspection.attention_maps(model, images, layers=wrong)


def test_attention_maps_of_images_of_any_size():
    model = small(input_shape=(None, None, 3), grid_size=(2, 3))
    found = inspection.attention_maps(model, some_images(1, (40, 16, 3)))
    assert found.shape == (2, 1, 2, 11, 11)
    assert inspection.token_layout(model, (40, 16)).grid == (5, 2)
    with pytest.raises(ValueError, match="takes images of any size"):
        inspection.token_layout(model)


@pytest.mark.backends("torch")
def test_heatmap_of_padded_images():
    model = small(input_shape=(20, 24, 3), pad_to_patch=True)
    layout = inspection.token_layout(model)
    assert (layout.grid, layout.patch_size) == ((3, 3), (8, 8))
    heat = inspection.attention_heatmap(model, some_images(1, (20, 24, 3)))
    assert heat.shape == (1, 20, 24)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_attention_maps_after_training_and_loading(tmp_path):
    model = small(dropout=0.1, attention_dropout=0.1, remat=True)
    model.compile("sgd", "mse")
    before = inspection.attention_maps(model, some_images())
    model.fit(some_images(), np.ones((2, 3)), verbose=0)
    after = inspection.attention_maps(model, some_images())
    assert np.abs(after - before).max() > 1e-4
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    found = inspection.attention_maps(loaded, some_images())
    np.testing.assert_allclose(found, after, atol=1e-6)


def test_half_precision_scores_are_float32():
    full = inspection.attention_maps(small(), some_images())
    keras.config.set_dtype_policy("mixed_bfloat16")
    half = inspection.attention_maps(small(), some_images())
    assert half.dtype == "float32"
    np.testing.assert_allclose(half.sum(-1), 1, atol=1e-6)
    # bfloat16 has 8 bits: 0.4% of tokens, queries and keys.
    assert 1e-5 < np.abs(half - full).max() < 0.05


def test_attention_maps_of_a_quantized_model():
    model = small(num_layers=1)
    full = inspection.attention_maps(model, some_images())
    model.quantize("int8")
    found = inspection.attention_maps(model, some_images())
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    assert 1e-6 < np.abs(found - full).max() < 0.05  # 8 bits


def test_token_norms_match_the_l2_norm():
    model, images = small(num_registers=2), some_images()
    tokens = keras_vit.feature_extractor(model, "block_1")(images)
    tokens = keras.ops.convert_to_numpy(tokens)
    found = inspection.token_norms(model, images)
    assert found.shape == (2, 2, 9)
    expected = np.sqrt((tokens**2).sum(-1))
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)


@pytest.mark.backends("torch")
def test_models_without_attention_are_refused():
    bit = keras_vit.BiT(
        input_shape=(32, 32, 3), resnet_layers=(1,), width_factor=0.5, classes=2
    )
    with pytest.raises(ValueError, match="has no attention"):
        inspection.attention_maps(bit, some_images(1, (32, 32, 3)))
    with pytest.raises(ValueError, match="has no patches"):
        inspection.token_layout(bit)
    inner = small(name="inner")
    outer = keras.Sequential([keras.Input(SMALL["input_shape"]), inner])
    with pytest.raises(ValueError, match=r"pass model.get_layer\('inner'\)"):
        inspection.attention_maps(outer, some_images())


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "images", [np.zeros((16, 24, 3)), np.zeros((1, 16, 16, 3)), [[1.0]]]
)
def test_images_of_wrong_shape_are_refused(images):
    with pytest.raises(ValueError, match="must be a batch of images"):
        inspection.attention_maps(small(), images)
