"""What a model leaves out: the same results, for less."""

import math
import threading

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import TransformerBlock
from keras_vit.layers import _reading
from keras_vit.models import Model

BACKEND = keras.config.backend()
SIZES = {
    "patch_size": 4,
    "hidden_size": 16,
    "num_layers": 3,
    "num_heads": 2,
    "mlp_dim": 32,
    "input_shape": (16, 16, 3),
    "classes": 3,
}
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3))
# What is asked for, and of how many tokens the last block's MLP is then: there
# are 16 patches.
CASES = {
    "token": ({}, 1),
    "no top": ({"include_top": False, "pooling": "token"}, 1),
    "registers": ({"num_registers": 4}, 1),
    "distilled": ({"distillation": True}, 2),
    "norm after": ({"final_norm": "after_pooling"}, 1),
    "layer scale": ({"layer_scale": 0.1, "qk_norm": True}, 1),
    "remat": ({"remat": True}, 1),
    "every layer": ({"position_placement": "every_layer"}, 1),
    "tokens": ({"include_top": False}, 17),
    "gap": ({"pooling": "gap", "class_token": False}, 16),
    "token_gap": ({"pooling": "token_gap"}, 17),
    "first_patch": ({"pooling": "first_patch", "class_token": False}, 16),
    "map": ({"pooling": "map", "class_token": False}, 16),
    "relative": ({"position_embedding": "relative"}, 17),
}


def build(**options):
    model = keras_vit.VisionTransformer(**{**SIZES, **options})
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(rng.normal(0, 0.3, weight.shape))
    return model


def plain(model):
    return keras.Model(model.input, model.output)


def values(x):
    return keras.ops.convert_to_numpy(x)


def tokens_of(model, monkeypatch):
    """How many tokens the MLP of the last block is given."""
    mlp, seen = model.get_layer("block_2").mlp, []
    original = type(mlp).call

    def call(self, x, **arguments):
        if self is mlp:
            seen.append(x.shape[1])
        return original(self, x, **arguments)

    with monkeypatch.context() as patch:
        # In the class: a `call` replaced in the instance gets all tokens.
        patch.setattr(type(mlp), "call", call)
        model(IMAGES)
    return seen[-1]


@pytest.mark.parametrize("name", CASES)
def test_the_same_for_less(name, monkeypatch, record_error):
    options, count = CASES[name]
    model = build(**options)
    assert tokens_of(model, monkeypatch) == count
    found, wanted = values(model(IMAGES)), values(plain(model)(IMAGES))
    record_error("tokens left out", name, np.abs(found - wanted).max(), 1e-5)


def weights_after(model, optimizer="sgd"):
    labels = np.arange(2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.fit(IMAGES, labels, epochs=2, verbose=0, shuffle=False)
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.parametrize("name", ["token", "distilled", "remat"])
def test_the_same_gradients(name, record_error):
    model = build(**CASES[name][0])
    other = plain(build(**CASES[name][0]))
    error = np.abs(weights_after(model) - weights_after(other)).max()
    record_error("tokens left out", f"{name}, two steps", error, 1e-5)


def test_dropout_runs():
    model = build(dropout=0.2, attention_dropout=0.2, drop_path=0.2, remat=True)
    assert np.isfinite(weights_after(model, "adam")).all()


def test_saved_and_cloned_models_leave_out_as_much(tmp_path, monkeypatch):
    model = build()
    model.save(tmp_path / "a.keras")
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for other in (loaded, cloned):
        assert isinstance(other, Model)
        assert tokens_of(other, monkeypatch) == 1
        np.testing.assert_array_equal(
            values(other(IMAGES)), values(model(IMAGES))
        )


def test_all_tokens_where_they_are_wanted():
    model = build()
    for name in ("block_2", "encoder_norm"):
        outputs = [
            keras_vit.feature_extractor(model, name)(IMAGES),
            keras_vit.feature_extractor(model, [name, "head"])(IMAGES)[name],
            keras.Model(model.input, model.get_layer(name).output)(IMAGES),
        ]
        assert {tuple(x.shape) for x in outputs} == {(2, 17, 16)}


def test_extracted_pre_logits_leave_out_as_much(monkeypatch):
    model = build(representation_size=8)
    extract = keras_vit.feature_extractor(model, "pre_logits")
    assert tokens_of(extract, monkeypatch) == 1
    head = keras.layers.Dense(4)(model.get_layer("pre_logits").output)
    assert tokens_of(Model(model.input, head), monkeypatch) == 1


def test_a_block_that_is_called_twice_is_whole(monkeypatch):
    block = TransformerBlock(2, 32, name="block_2")
    x = tokens = keras.Input((17, 16))
    for _ in range(2):
        x = block(x)
    model = Model(tokens, keras_vit.layers.Pooling()(x))
    array = np.random.default_rng(0).normal(size=(2, 17, 16))
    np.testing.assert_allclose(
        values(model(array)), values(plain(model)(array)), rtol=1e-6
    )


def test_a_block_of_ones_own_is_whole():
    class Block(TransformerBlock):
        def call(self, inputs, relative=None, training=False):
            return keras.ops.flip(super().call(inputs), axis=1)

    tokens = keras.Input((17, 16))
    x = Block(2, 32)(tokens)
    assert Model(tokens, keras_vit.layers.Pooling()(x))._first_read is None


def test_other_readers_are_seen():
    """A norm over the tokens, and a layer that is no norm."""
    for reader in (
        keras.layers.LayerNormalization(axis=[1, 2]),
        keras.layers.Activation("relu"),
    ):
        tokens = keras.Input((17, 16))
        x = reader(TransformerBlock(2, 32)(tokens))
        model = Model(tokens, keras_vit.layers.Pooling()(x))
        assert model._first_read is None


def test_other_threads_are_not_told():
    block, found = object(), []
    with _reading.first_of(block, 1):
        ask = threading.Thread(
            target=lambda: found.append(_reading.count_of(block))
        )
        ask.start()
        ask.join()
        with _reading.first_of(object(), 2):
            assert _reading.count_of(block) is None
        assert _reading.count_of(block) == 1
    assert found == [None] and _reading.count_of(block) is None


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["block", "mlp", "encoder_norm"])
def test_a_hook_sees_all_tokens(name):
    model, seen = build(), []
    block = model.get_layer("block_2")
    parts = {"block": block, "mlp": block.mlp}
    layer = parts.get(name) or model.get_layer(name)
    before = values(model(IMAGES))
    hook = layer.register_forward_hook(
        lambda layer, args, output: seen.append(tuple(output.shape))
    )
    after = values(model(IMAGES))
    hook.remove()
    assert seen == [(2, 17, 16)]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["block", "mlp", "encoder_norm"])
def test_a_replaced_forward_sees_all_tokens(name):
    model, seen = build(), []
    block = model.get_layer("block_2")
    layers = {"block": block, "mlp": block.mlp}
    layer = layers.get(name) or model.get_layer(name)
    forward = layer.forward

    def wrapped(*arguments, **options):
        output = forward(*arguments, **options)
        seen.append(tuple(output.shape))
        return output

    layer.forward = wrapped
    model(IMAGES)
    assert seen == [(2, 17, 16)]


@pytest.mark.backends("torch")
def test_a_hook_of_the_pooling_layer_receives_all_tokens():
    model, seen = build(), []
    model.get_layer("pooling").register_forward_pre_hook(
        lambda layer, args: seen.append(tuple(args[0].shape))
    )
    model(IMAGES)
    assert seen == [(2, 17, 16)]


@pytest.mark.parametrize("name", ["block", "mlp", "dense_2", "encoder_norm"])
def test_a_replaced_call_returns_all_tokens(name):
    model, seen = build(), []
    block = model.get_layer("block_2")
    layers = {"block": block, "mlp": block.mlp, "dense_2": block.mlp.dense_2}
    layer = layers.get(name) or model.get_layer(name)
    call = layer.call

    def wrapped(*arguments, **options):
        output = call(*arguments, **options)
        seen.append(math.prod(output.shape))
        return output

    layer.call = wrapped
    model(IMAGES)
    assert seen == [2 * 17 * 16]


@pytest.mark.backends("torch")
def test_gradients_are_free_before_the_next_step():
    model, held = build(), []
    weights_after(model)
    original = model.call

    def call(*args, **kwargs):
        held.append(any(v.value.grad is not None for v in model.weights))
        return original(*args, **kwargs)

    model.call = call
    model.train_step((IMAGES, np.arange(2), None))
    model.train_step((IMAGES, np.arange(2), None))
    assert held == [False, False]
    assert any(v.value.grad is not None for v in model.weights)
