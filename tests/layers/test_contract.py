"""Every public layer, through one harness and through Keras's own."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests.harness import check_integers, check_layer, run_keras_layer_test
from tests.markers import on_all

_rng = np.random.default_rng(0)
IMAGES = _rng.normal(size=(2, 12, 8, 3)).astype("float32")
TOKENS = _rng.normal(size=(2, 7, 12)).astype("float32")
GRID = _rng.normal(size=(2, 3, 2, 12)).astype("float32")
# Offsets of 6 patches, for 3 heads.
RELATIVE = _rng.normal(size=(2, 11, 4)).astype("float32")
# Sines and cosines for 7 tokens.
ROTARY = _rng.normal(size=(2, 7, 2, 2)).astype("float32")
PATCHES = _rng.normal(size=(2, 7, 6)).astype("float32")
# Rows and columns of patches, and those of their images, which differ.
PLACES = np.array([[1, 0, 2, 3]] * 7 + [[3, 1, 4, 2]] * 7)
PLACES = PLACES.reshape(2, 7, 4).astype("float32")
COORDINATES = PLACES[..., :2]
MASKED = np.array([[1, 0, 1, 0, 0, 1, 0], [0, 1, 1, 1, 0, 0, 0]], "float32")

# softmax does not change when every score of a row moves by the same amount,
# so a key's bias (and its norm's beta) can have no gradient
KEY = ("key/bias", "key_norm/beta")

# Inputs: the calls that make layers of them.
CALLS = {
    "IMAGES": (
        "Patches((4, 2))",
        "Patches(5, pad_to_patch=True)",
        "PatchEmbedding(12, 4)",
        "PatchEmbedding(12, (5, 3), use_bias=False, pad_to_patch=True)",
        "StdConv2D(6, 3, 2)",
        "StdConv2D(6, (7, 3), 2, 'symmetric', 1e-10, 'variance')",
        "StdConv2D(6, 4, (1, 2), 'valid')",
        "GroupNorm(3, epsilon=1e-6)",
        "ResidualUnit(3, 2, projects=True, groups=3, group_norm_epsilon=1e-6)",
        "ResidualUnit(3, 2, projects=True, preactivation=True, groups=3, "
        "group_norm_epsilon=1e-5, std_epsilon=1e-10, "
        "std_epsilon_place='variance', conv_padding='symmetric')",
        "ImagePreprocessing((9, 10), 'torch')",
        "MaxPool2D()",
        "MaxPool2D((3, 5), (2, 1), 'symmetric')",
        "MaxPool2D(3, 2, 'zeros')",
    ),
    "GRID": (
        "RelativePositionEmbs(4)",
        "RelativePositionEmbs(4, grid_size=(4, 3))",
        "RotaryPositionEmbs(8, base=20, num_prefix_tokens=1, shift=0.1, "
        "jitter=1.5, rescale=2.0)",
        "GroupNorm(4, epsilon=1e-5, gamma_initializer='zeros')",
        "ResidualUnit(3, groups=3, group_norm_epsilon=1e-6)",
        "SimpleFeaturePyramid(8, norm_epsilon=1e-5)",
    ),
    "TOKENS, GRID": (
        "AddPositionEmbs(num_prefix_tokens=1)",
        "AddPositionEmbs(grid_size=(2, 5), num_prefix_tokens=1, resampling='bicubic')",
        "AddPositionEmbs('sincos2d', num_prefix_tokens=1)",
        "AddPositionEmbs('learned_2d', num_prefix_tokens=1)",
        "AddPositionEmbs('learned_2d', grid_size=(2, 5), num_skipped_tokens=1)",
        "AddPositionEmbs('factorized', grid_size=(2, 5), num_prefix_tokens=1, "
        "resampling='bilinear_square')",
        "AddPositionEmbs('none')",
        "FeatureMap(1)",
    ),
    "TOKENS": (
        "ClassToken()",
        "ClassToken(4, index=2, initializer='random_normal')",
        "AddPositionEmbs(grid_size=(7, 1))",
        "AddPositionEmbs(num_prefix_tokens=2, num_skipped_tokens=1, grid_size=(2, 2))",
        "MlpBlock(20, dropout=0.1)",
        "MlpBlock(20, kernel_regularizer='l2')",
        "MlpBlock(20, 'quick_gelu')",
        "LayerScale(0.5)",
        "MultiHeadAttention(3)",
        "MultiHeadAttention(4, qkv_bias=False, qk_norm=True, "
        "dropout=0.1, norm_epsilon=1e-5)",
        "TransformerBlock(3, 24)",
        "TransformerBlock(3, 24, activation='gelu', norm_epsilon=1e-12, "
        "qk_norm=True, layer_scale=0.5, dropout=0.1, "
        "attention_dropout=0.1, drop_path=0.1, "
        "kernel_regularizer=keras.regularizers.L1L2(1e-4, 1e-3))",
        "Pooling('token_gap', num_prefix_tokens=1)",
        "MlpBlock(20, 'swiglu')",
        "Pooling(index=1)",
        "Pooling('gap', num_prefix_tokens=2)",
        "Pooling('first_patch', num_prefix_tokens=2)",
        "AttentionPooling(3, 24, num_prefix_tokens=1)",
        # `axis` is a list, as Keras's own layer stores it.
        "LayerNormalization(axis=[-1], epsilon=1e-6)",
        "LayerNormalization(axis=[1, 2])",
        "LayerNormalization(axis=[-1], scale=False)",
    ),
    "TOKENS, TOKENS, RELATIVE": ("MultiHeadAttention(3, dropout=0.1)",),
    "TOKENS, TOKENS, ROTARY": ("MultiHeadAttention(3, key_bias=False)",),
    "TOKENS, ROTARY": ("TransformerBlock(3, 24, key_bias=False)",),
    "TOKENS, RELATIVE": ("TransformerBlock(3, 24)",),
    "GRID, IMAGES": ("UpsampleMap((4, 5))",),
    "TOKENS, MASKED": ("MaskToken()", "Pooling('gap')"),
    "TOKENS, PLACES": (
        "AddPositionEmbs(grid_size=(2, 3), resampling='bicubic_offset')",
        "AddPositionEmbs('sincos2d')",
    ),
    "PLACES": ("RotaryPositionEmbs(8, num_prefix_tokens=1)",),
    "PATCHES, COORDINATES, MASKED": ("MixedSizes((1, 3), num_prefix_tokens=2)",),
}
CASES = {
    f"{call} of {inputs}": (call, *(globals()[x] for x in inputs.split(", ")))
    for inputs, calls in CALLS.items()
    for call in calls
}

# Layers whose weights or angles need a size, and what they then say.
NEEDS_SIZES = {
    "LayerNormalization(axis=[1, 2]) of TOKENS": "None",  # Keras's own message
    "AddPositionEmbs(num_prefix_tokens=1) of TOKENS, GRID": "give `grid_size",
    "AddPositionEmbs('learned_2d', num_prefix_tokens=1) of TOKENS, GRID": (
        "give `grid_size"
    ),
    "RelativePositionEmbs(4) of GRID": "give `grid_size",
    "MultiHeadAttention(3, key_bias=False) of TOKENS, TOKENS, ROTARY": (
        "for rotary positions"
    ),
    "TransformerBlock(3, 24, key_bias=False) of TOKENS, ROTARY": (
        "for rotary positions"
    ),
}


def made(call):
    return eval(call, {**vars(layers), **globals()})


def case_of(name):
    """Returns a function that makes the layer, and its inputs."""
    call, *inputs = CASES[name]
    return lambda: made(call), *inputs


@pytest.mark.suite("torch")
@pytest.mark.parametrize("case", CASES)
def test_layer_contract(case):
    make, *inputs = case_of(case)
    check_layer(make, *inputs, still=KEY, needs_sizes=NEEDS_SIZES.get(case))


# The first case of each layer.
ONE_EACH = list({case.split("(")[0]: case for case in reversed(CASES)}.values())


@pytest.mark.backends("jax", "tensorflow")  # the contract has it under PyTorch
@pytest.mark.parametrize("case", ONE_EACH)
def test_integers_are_cast(case):
    make, *inputs = case_of(case)
    check_integers(make, *inputs)


@pytest.mark.parametrize("case", ONE_EACH)
def test_arguments_cannot_be_changed(case):
    """They would be saved, while sublayers and weights keep the first value."""
    make, *inputs = case_of(case)
    layer = make()
    if isinstance(layer, keras.layers.LayerNormalization):
        return  # whose attributes are Keras's
    config = layer.get_config()
    for _ in range(2):  # before and after it is built
        for name in config.keys() - keras.Layer().get_config().keys():
            with pytest.raises(AttributeError, match=f"`{name}` of.*'{layer.name}'"):
                setattr(layer, name, "other")
        assert layer.get_config() == config
        layer(*inputs)
    layer.trainable = False
    layer.dtype_policy = "float16"
    found = layer.get_config()
    assert not found["trainable"] and layer.compute_dtype == "float16"


# Layers that have weights, or kernels of a backend, and none inside them.
ON_ALL_BACKENDS = (
    *("PatchEmbedding", "StdConv2D", "GroupNorm", "AddPositionEmbs"),
    *("LayerScale", "MultiHeadAttention", "MlpBlock", "LayerNormalization"),
    *("MaxPool2D", "RelativePositionEmbs", "MaskToken", "MixedSizes"),
)


@pytest.mark.parametrize(
    "case",
    on_all(ONE_EACH, [x for x in ONE_EACH if x.split("(")[0] in ON_ALL_BACKENDS]),
)
def test_keras_layer_test(case):
    make, *inputs = case_of(case)
    run_keras_layer_test(make, *inputs)


@pytest.mark.backends("torch")
def test_every_layer_has_a_case():
    public = {name for name in dir(layers) if name[0].isupper()}
    assert public == {case.split("(")[0] for case in CASES}


# What is called, and a part of its error.
ERRORS = {
    "FeatureMap()(TOKENS, GRID)": r"6 tokens: 0 prefix.*3 x 2.*\(2, 7, 12\)",
    "UpsampleMap(4)(GRID, IMAGES[:, :8])": "3 x 2 .*images of 8 x 8 pixels",
    "SimpleFeaturePyramid(8)(GRID[:, :1])": r"Received: shape \(2, 1, 2, 12\)",
    "SimpleFeaturePyramid(8)(TOKENS)": r"Received: shape \(2, 7, 12\)",
    "MultiHeadAttention(3)(TOKENS, mask=MASKED)": r":, None, :.*\(2, 7\)",
    "Patches(0)": "patch_size=0",
    "Patches(2)(IMAGES[0])": r"4 axes.*Received: shape \(12, 8, 3\)",
    "Patches(5)(IMAGES)": "5 x 5 .*of 12 x 8.*10 or 15.*pad_to_patch",
    "PatchEmbedding(12, 16)(IMAGES)": "not a multiple of 16",
    "_twice(PatchEmbedding(12, 4), IMAGES, IMAGES[..., :1])": "to have value 3",
    "AddPositionEmbs('rotary')": "'learned', .*'none'.*kind='rotary'",
    "RelativePositionEmbs(4)(keras.Input((None, 2, 12)))": "give `grid_size",
    "RotaryPositionEmbs(6)": "multiple of 4. Received: head_size=6",
    "TransformerBlock(3, 24)(TOKENS, ROTARY[:, 1:])": r"7, 2, 2.*\(2, 6, 2, 2",
    "TransformerBlock(3, 24)(TOKENS[:, :5], RELATIVE)": r"5 tokens.*2, 11, 4",
    "TransformerBlock(4, 24)(TOKENS, RELATIVE)": r"- 1, 3\).*\(2, 11, 4\)",
    "AddPositionEmbs(resampling='nearest')": "'bicubic'.*resampling='nearest'",
    "AddPositionEmbs()(TOKENS)": "give `grid_size",
    "AddPositionEmbs('sincos2d')(TOKENS[:, :6, :10], GRID)": "of 4.*=10",
    "MlpBlock(8, 'gelo')": "'gelu_tanh'.*activation='gelo'",
    "MultiHeadAttention(5)(TOKENS)": "divide .* 12. .*num_heads=5",
    "StdConv2D(8, 3, padding='SAME')": "'same', .*'valid'.*padding='SAME'",
    "StdConv2D(8, 3, epsilon_place='var')": "'variance'.*epsilon_place='var'",
    "StdConv2D(8, 3)(TOKENS)": r"4 axes.*Received: shape \(2, 7, 12\)",
    "GroupNorm(epsilon=1e-06)(IMAGES)": r"32 groups.*\(2, 12, 8, 3\)",
    "ResidualUnit(8, group_norm_epsilon=1, conv_padding='valid')": "'valid'",
    "MaxPool2D(padding='valid')": "'same', .*'zeros'.*padding='valid'",
    "Pooling('max')": "'token', 'gap'",
    "TransformerBlock(3, 24, layer_scale=True)": "above 0.*layer_scale=True",
}


def _twice(layer, first, second):
    layer(first)
    layer(second)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("call", ERRORS)
def test_wrong_arguments_raise(call):
    with pytest.raises(ValueError, match=f"(?s){ERRORS[call]}"):
        made(call)
