"""Attention maps: golden values, and those of the fused kernel."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.layers import TransformerBlock
from tests import golden_data
from tests.harness import numpy
from tests.inspection import models
from tests.small import images, randomize, tiny

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


def load(case):
    arguments = golden_data.load_arguments(case)
    if case == "vit_jax_gap":
        arguments["grid_size"] = (4, 6)
    path = golden_data.load_path(case)
    return keras_vit.converters.load(path, **arguments)


def small(**options):
    model = tiny(**options)
    randomize(model)
    return model


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
    before = numpy(model(images))
    maps = inspection.attention_maps(model, images)
    blocks = [x for x in model.layers if isinstance(x, TransformerBlock)]
    layout = inspection.token_layout(model)
    assert layout.prefix == CASES[case]
    length = len(layout.prefix) + layout.grid[0] * layout.grid[1]
    heads = blocks[0].num_heads
    assert maps.shape == (len(blocks), len(images), heads, length, length)
    assert maps.dtype == "float32"
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)
    # The input of the last block is the output of the layer before it.
    block = blocks[-1]
    attention = block.attention
    before_it = model.layers[model.layers.index(block) - 1]
    tokens = keras_vit.feature_extractor(model, before_it.name)(images)
    normed = block.norm_1(tokens)
    mixed = np.einsum("bhqk,bkhd->bqhd", maps[-1], numpy(attention.value(normed)))
    np.testing.assert_allclose(
        numpy(attention.attention_output(mixed)),
        numpy(attention(normed)),
        atol=1e-5,
    )
    np.testing.assert_array_equal(numpy(model(images)), before)


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
@pytest.mark.parametrize("case", POSITIONS)
def test_attention_maps_with_positions_in_blocks(case):
    """A block computed from the maps has the output of the model's block."""
    options, index, before = POSITIONS[case]
    model = small(**options, input_shape=(None, None, 3), grid_size=(2, 3))
    x = images(2, 20, 8, 3)
    maps = inspection.attention_maps(model, x)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)
    block = model.get_layer(f"block_{index}")
    seen = keras_vit.feature_extractor(model, [before, block.name])(x)
    tokens, attention = seen[before], block.attention
    value = numpy(attention.value(block.norm_1(tokens)))
    mixed = np.einsum("bhqk,bkhd->bqhd", maps[index], value)
    tokens = tokens + attention.attention_output(mixed)
    found = numpy(tokens + block.mlp(block.norm_2(tokens)))
    expected = numpy(seen[block.name])
    np.testing.assert_allclose(found, expected, atol=5e-5)
    heat = inspection.attention_heatmap(model, x)
    assert heat.shape == (2, 20, 8) and np.ptp(heat) > 0.01
    norms = inspection.token_norms(model, x, index)
    lengths = np.linalg.norm(expected, axis=-1)
    np.testing.assert_allclose(norms[0], lengths, rtol=1e-4)


@pytest.mark.backends("torch")
def test_layers_argument_selects_blocks():
    model, x = small(num_layers=3), images()
    every = inspection.attention_maps(model, x)
    for chosen, kept in ((1, [1]), (-1, [2]), ((2, 0), [2, 0])):
        found = inspection.attention_maps(model, x, layers=chosen)
        np.testing.assert_allclose(found, every[kept], atol=1e-6)


def test_attention_maps_of_images_of_any_size():
    model = small(input_shape=(None, None, 3), grid_size=(2, 3))
    found = inspection.attention_maps(model, images(1, 20, 8, 3))
    assert found.shape == (2, 1, 3, 11, 11)
    assert inspection.token_layout(model, (20, 8)).grid == (5, 2)
    padded = small(input_shape=(10, 12, 3), pad_to_patch=True)
    layout = inspection.token_layout(padded)
    assert (layout.grid, layout.patch_size) == ((3, 3), (4, 4))
    heat = inspection.attention_heatmap(padded, images(1, 10, 12, 3))
    assert heat.shape == (1, 10, 12)


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_attention_maps_after_training_and_loading(tmp_path):
    model = small(dropout=0.1, attention_dropout=0.1, remat=True)
    model.compile("sgd", "mse")
    before = inspection.attention_maps(model, images())
    model.fit(images(), np.ones((2, 5)), verbose=0)
    after = inspection.attention_maps(model, images())
    assert np.abs(after - before).max() > 1e-4
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    found = inspection.attention_maps(loaded, images())
    np.testing.assert_allclose(found, after, atol=1e-6)


@pytest.mark.backends("torch")
def test_half_precision_scores_are_float32():
    model = small()
    full = inspection.attention_maps(model, images())
    keras.config.set_dtype_policy("mixed_bfloat16")
    other = small()
    other.set_weights(model.get_weights())
    half = inspection.attention_maps(other, images())
    assert half.dtype == "float32"
    np.testing.assert_allclose(half.sum(-1), 1, atol=1e-6)
    # bfloat16 has 8 bits: 0.4% of tokens, queries and keys.
    assert 1e-5 < np.abs(half - full).max() < 0.1


@pytest.mark.backends("torch")
def test_attention_maps_of_a_quantized_model():
    model = small(num_layers=1)
    full = inspection.attention_maps(model, images())
    model.quantize("int8")
    found = inspection.attention_maps(model, images())
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    assert 1e-6 < np.abs(found - full).max() < 0.1  # 8 bits


def test_outliers_are_the_patches_of_large_norm():
    """Blocks without weights return the position embeddings of the tokens."""
    model = models.looking_at(None, num_registers=1)
    layer = model.get_layer("position_embedding")
    layout = inspection.token_layout(model)
    lengths = np.array([1, 1.1, 0.9, 2.6, 1, 3.6])  # their median is 1.05
    embedding = np.zeros(layer.embedding.shape)
    embedding[0, -6:, 0] = lengths
    layer.embedding.assign(embedding)
    norms = inspection.token_norms(model, models.images())
    np.testing.assert_allclose(norms[1, 1, layout.num_prefix :], lengths, rtol=1e-6)
    norms[:, :, 0] = 100  # the class token may have any norm
    for ratio, expected in ((3.0, [5]), (2.0, [3, 5]), (4.0, [])):
        found = inspection.outlier_tokens(norms, layout, ratio)
        assert found.shape == norms.shape
        places = [i + layout.num_prefix for i in expected]
        for one in found.reshape(-1, norms.shape[-1]):
            np.testing.assert_array_equal(np.flatnonzero(one), places)
