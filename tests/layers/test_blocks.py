"""Blocks compared with the NumPy reference, and their dropout."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from tests import reference
from tests.harness import numpy
from tests.markers import on_all


def weights_of(layer, seed=0):
    """Random weights, because zeros would hide mistakes."""
    rng = np.random.default_rng(seed)
    weights = {}
    for weight in layer.weights:
        value = rng.normal(size=weight.shape) * 0.3
        if "gamma" in weight.path:
            value = value + 1
        weight.assign(value)
        weights[weight.path] = value
    return weights


def tokens(*shape):
    return np.random.default_rng(1).normal(size=shape)


@pytest.mark.parametrize(
    "activation, bias, norm, scale",
    [
        ("gelu_tanh", True, False, None),
        ("gelu", False, True, 0.5),
        ("quick_gelu", True, True, None),
    ],
)
def test_block_matches_the_reference(activation, bias, norm, scale):
    layer = layers.TransformerBlock(
        4,
        24,
        activation=activation,
        norm_epsilon=1e-3,
        qkv_bias=bias,
        qk_norm=norm,
        layer_scale=scale,
        name="block",
    )
    layer.build((None, None, 12))
    weights = weights_of(layer)
    x = tokens(2, 5, 12)
    expected = reference.block(x, weights, "block", activation, 1e-3)
    np.testing.assert_allclose(numpy(layer(x.astype("float32"))), expected, atol=5e-6)


@pytest.mark.parametrize(
    "policy, tolerance", [("mixed_bfloat16", 0.2), ("mixed_float16", 0.02)]
)
def test_half_precision_matches_float32(policy, tolerance):
    """Outputs are up to 10, so that a tolerance is 2 % or 0.2 % of them."""
    x = tokens(2, 9, 24).astype("float32")
    block = layers.TransformerBlock(3, 48)
    block.build(x.shape)
    weights_of(block)
    keras.config.set_dtype_policy(policy)
    half = layers.TransformerBlock(3, 48)
    half.build(x.shape)
    half.set_weights(block.get_weights())
    found = numpy(ops.cast(half(x), "float32"))
    np.testing.assert_allclose(found, numpy(block(x)), atol=tolerance)


def test_drop_path_drops_branches_of_whole_images():
    block = layers.TransformerBlock(1, 4, drop_path=0.5)
    x = np.ones((400, 2, 4), "float32") * tokens(1, 2, 4).astype("float32")
    block.build(x.shape)
    weights_of(block)
    full = numpy(block(x)) - x
    moved = numpy(block(x, training=True)) - x
    # Four outcomes: neither branch, either one, both; equal within an image.
    kinds = {tuple(np.round(image.ravel(), 3)) for image in moved}
    assert len(kinds) == 4
    none = (np.abs(moved).max(axis=(1, 2)) == 0).mean()
    assert 0.17 < none < 0.33
    assert np.abs(full).max() > 0.1


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "drop_path"])
def test_dropout_is_off_unless_training(rate):
    block = layers.TransformerBlock(2, 8, **{rate: 0.5})
    x = tokens(3, 5, 8).astype("float32")
    still = numpy(block(x))
    np.testing.assert_array_equal(still, numpy(block(x, training=False)))
    first = numpy(block(x, training=True))
    second = numpy(block(x, training=True))
    assert np.abs(first - still).max() > 1e-3
    assert np.abs(first - second).max() > 1e-3


def test_dropout_follows_both_dense_layers():
    mlp = layers.MlpBlock(50, activation="linear", dropout=0.5)
    mlp.build((None, 50))
    eye, none = np.eye(50, dtype="float32"), np.zeros(50, "float32")
    mlp.set_weights([eye, none, eye, none])
    found = numpy(mlp(np.ones((100, 50), "float32"), training=True))
    # A value survives both with probability 1/4, and is then 4 times as large.
    assert set(np.unique(found)) == {0, 4}
    assert 0.22 < (found == 4).mean() < 0.28


def test_class_token_is_inserted_at_index():
    x = tokens(1, 3, 4).astype("float32")
    first = layers.ClassToken(2, index=1, initializer="ones")
    found = numpy(first(x))[0]
    np.testing.assert_array_equal(found[0], x[0, 0])
    np.testing.assert_array_equal(found[1:3], 1)
    np.testing.assert_array_equal(found[3:], x[0, 1:])
    assert not numpy(layers.ClassToken()(x))[0, 0].any(), "zeros at first"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_dropout_does_not_round_the_softmax(dtype):
    """In half precision, attention with dropout is as exact as the fused
    kernel."""
    exact = layers.MultiHeadAttention(2, dropout=0.1)
    half = layers.MultiHeadAttention(2, dropout=0.1, dtype=dtype)
    half._dropout.rate = 0.0  # the same path, but nothing is dropped
    rng = np.random.default_rng(0)
    tokens = ops.cast(rng.normal(size=(2, 50, 32)), dtype)
    full = ops.cast(tokens, "float32")
    exact(full), half(tokens)
    for ours, other in zip(half.weights, exact.weights, strict=True):
        ours.assign(0.5 * rng.normal(size=ours.shape))
        other.assign(ops.cast(ours, "float32"))

    def error(training):
        found = ops.cast(half(tokens, training=training), "float32")
        return np.abs(numpy(found) - numpy(exact(full))).max()

    assert error(training=True) < 1.25 * error(training=False)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_masked_tokens_are_not_attended_to(precision):
    """Boolean and additive masks equal attention without the tokens."""
    keras.config.set_dtype_policy(precision)
    layer = layers.MultiHeadAttention(2)
    x = tokens(2, 6, 8).astype("float32")
    layer.build(x.shape)
    weights_of(layer)
    kept = np.array([True, True, False, True, False, True])
    expected = numpy(layer(x, x[:, kept]))
    additive = np.where(kept, 0, -3e4).astype("float32")
    atol = 1e-5 if precision == "float32" else 2e-2
    for mask in (
        kept[None, None],
        np.broadcast_to(kept, (2, 6, 6)),
        np.broadcast_to(kept, (1, 2, 1, 6)),
        additive[None, None],
        np.broadcast_to(additive, (2, 2, 6, 6)),
    ):
        found = numpy(layer(x, mask=mask))
        np.testing.assert_allclose(found, expected, atol=atol)
        maps = numpy(layer.probabilities(x, mask=mask))
        assert not maps[..., ~kept].any()
        np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
    assert np.abs(numpy(layer(x)) - expected).max() > 0.05


def test_a_mask_for_each_head_and_query():
    """Against the formula, also where a query may attend to no token."""
    layer = layers.MultiHeadAttention(2, dropout=0.5)
    x = tokens(2, 5, 8).astype("float32")
    layer.build(x.shape)
    weights_of(layer)
    mask = np.random.default_rng(2).random((2, 2, 5, 5)) < 0.6
    mask[0, 0, 3] = False
    weights = numpy(layer.probabilities(x))
    weights = np.where(mask, weights, 0)
    weights[0, 0, 3] = 1
    weights /= weights.sum(-1, keepdims=True)
    value = numpy(layer.value(x))
    heads = np.einsum("bhts,bshd->bthd", weights, value)
    expected = numpy(layer.attention_output(heads.astype("float32")))
    np.testing.assert_allclose(numpy(layer(x, mask=mask)), expected, atol=1e-5)
    assert np.isfinite(numpy(layer(x, mask=mask, training=True))).all()


@pytest.mark.parametrize("remat", on_all([False, True], [True]))
def test_a_block_takes_a_mask(remat, tmp_path):
    """In a model that is saved and trained, and for some queries only."""
    block = layers.TransformerBlock(2, 16, remat=remat, name="block")
    inputs = [keras.Input((6, 8)), keras.Input((6, 6), dtype="bool")]
    model = keras.Model(inputs, block(inputs[0], mask=inputs[1]))
    weights_of(block)
    x = tokens(2, 6, 8).astype("float32")
    mask = np.random.default_rng(2).random((2, 6, 6)) < 0.6
    expected = block.norm_1(x)
    expected = x + numpy(block.attention(expected, expected, mask=mask))
    expected = expected + numpy(block.mlp(block.norm_2(expected)))
    found = model.predict([x, mask], verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    first = numpy(block(x, mask=mask, num_queries=2))
    np.testing.assert_allclose(first, found[:, :2], atol=1e-5)

    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict([x, mask], verbose=0), found)
    model.compile("sgd", "mse")
    model.fit([x, mask], 0 * x, verbose=0)
    assert np.abs(model.predict([x, mask], verbose=0) - found).max() > 1e-4


@pytest.mark.backends("torch")
def test_masks_of_earlier_layers_are_refused():
    """Attention refuses symbolic and eager masks, which a norm passes on."""
    block = layers.TransformerBlock(2, 8)
    embedding = keras.layers.Embedding(5, 4, mask_zero=True)
    tokens = np.array([[1, 2, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (keras.Input((3,)), tokens):
            with pytest.raises(ValueError, match=r"mask_zero=False.*\(.*, 3\)"):
                block(embedding(x))
            with pytest.raises(ValueError, match="MultiHeadAttention"):
                layers.MultiHeadAttention(2)(embedding(x))
            passed = layers.LayerNormalization()(embedding(x))
            assert passed._keras_mask is not None


@pytest.mark.backends("torch")
def test_kernel_regularizer_applies_to_the_kernels():
    """The regularizer applies to the six kernels and to no other weight."""
    block = layers.TransformerBlock(2, 24, kernel_regularizer="l2")
    block(tokens(2, 5, 12).astype("float32"))
    kernels = [w for w in block.weights if w.path.endswith("kernel")]
    assert len(kernels) == len(block.losses) == 6
    found = sum(float(loss) for loss in block.losses)
    expected = sum(0.01 * np.square(numpy(w)).sum() for w in kernels)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
