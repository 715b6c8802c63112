"""A model for inference computes only the tokens that are pooled."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import Model, inference_model, with_any_size
from tests.harness import copies
from tests.harness import numpy as values
from tests.markers import on_all
from tests.small import images, randomize, tiny

pytestmark = pytest.mark.usefixtures("eager")

IMAGES = images(2, 16, 16, 3)
# Options, and how many tokens the last block's MLP computes: there are 16
# patches.
CASES = {
    "token": ({}, 1),
    "no top": ({"include_top": False, "pooling": "token"}, 1),
    "distilled": ({"distillation": True}, 2),
    "remat": ({"remat": True}, 1),
    "tokens": ({"include_top": False}, 17),
    "gap": ({"pooling": "gap", "class_token": False}, 16),
    "token_gap": ({"pooling": "token_gap"}, 17),
    "first_patch": ({"pooling": "first_patch", "class_token": False}, 16),
    "map": ({"pooling": "map", "class_token": False}, 16),
    "relative": ({"position_embedding": "relative"}, 1),
}


def build(**options):
    model = tiny(
        **{
            "num_layers": 3,
            "input_shape": (16, 16, 3),
            "classes": 3,
            **options,
        }
    )
    randomize(model)
    return model


def tokens_of(model, monkeypatch):
    """Returns the number of tokens that the MLP of the last block receives."""
    mlp, seen = model.get_layer("block_2").mlp, []
    original = type(mlp).call

    def call(self, x, **arguments):
        if self is mlp:
            seen.append(x.shape[1])
        return original(self, x, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(mlp), "call", call)
        model(IMAGES)
    return seen[-1]


# These have other layers, or another number of tokens.
ON_EVERY_BACKEND = ("token", "distilled", "remat", "map", "relative")


@pytest.mark.parametrize("name", on_all(CASES, ON_EVERY_BACKEND))
def test_last_block_computes_only_pooled_tokens(name, monkeypatch, record_error):
    options, count = CASES[name]
    model = build(**options)
    fast = inference_model(model)
    assert (fast is model) == (count > 2)
    assert tokens_of(fast, monkeypatch) == count
    assert tokens_of(model, monkeypatch) >= 16
    found, wanted = values(fast(IMAGES)), values(model(IMAGES))
    record_error("num_queries", name, np.abs(found - wanted).max(), 1e-5)


def weights_after(model, optimizer="sgd"):
    labels = np.arange(2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.fit(IMAGES, labels, epochs=2, verbose=0, shuffle=False)
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize("name", on_all(["token", "distilled", "remat"], ["remat"]))
def test_gradients_match_the_full_computation(name, record_error):
    model, other = (build(**CASES[name][0]) for _ in range(2))
    other.set_weights(model.get_weights())
    other = inference_model(other)
    error = np.abs(weights_after(model) - weights_after(other)).max()
    record_error("num_queries", f"{name}, two steps", error, 1e-5)


@pytest.mark.backends("torch")
def test_saved_and_cloned_models_keep_num_queries(tmp_path, monkeypatch):
    model = inference_model(build())
    for other in copies(model, tmp_path).values():
        assert isinstance(other, Model)
        assert tokens_of(other, monkeypatch) == 1
        np.testing.assert_array_equal(values(other(IMAGES)), values(model(IMAGES)))


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize("name", ["token", "distilled", "relative"])
def test_features_include_all_tokens(name, tmp_path):
    reference = build(**CASES[name][0])
    model = inference_model(reference)
    model.save(tmp_path / "a.keras")
    copy = keras.saving.load_model(tmp_path / "a.keras")
    length = 18 if name == "distilled" else 17
    for layer in ("block_2", "encoder_norm"):
        output = reference.get_layer(layer).output
        expected = values(keras.Model(reference.input, output)(IMAGES))
        assert expected.shape == (2, length, 24)
        for found in (
            keras_vit.feature_extractor(copy, layer)(IMAGES),
            keras_vit.feature_extractor(copy, [layer, "head"])(IMAGES)[layer],
        ):
            np.testing.assert_allclose(values(found), expected, atol=1e-6)
    norms = keras_vit.inspection.token_norms(copy, IMAGES)
    assert norms.shape == (3, 2, length)
    np.testing.assert_allclose(
        keras_vit.inspection.attention_heatmap(copy, IMAGES),
        keras_vit.inspection.attention_heatmap(reference, IMAGES),
        atol=1e-6,
    )


@pytest.mark.backends("torch")
def test_models_on_other_layers(monkeypatch):
    model = build(representation_size=8)
    extract = keras_vit.feature_extractor(model, "pre_logits")
    assert tokens_of(inference_model(extract), monkeypatch) == 1
    x = keras.layers.Dense(4)(model.get_layer("pre_logits").output)
    other = inference_model(Model(model.input, x))
    assert tokens_of(other, monkeypatch) == 1
    mean = keras.layers.GlobalAveragePooling1D()
    mean(keras.Input((17, 24)))  # the call below is not its first
    for outputs in (
        [model.output, mean(model.get_layer("encoder_norm").output)],
        [model.output, model.get_layer("block_2").output],
        [model.output, mean(model.get_layer("block_2").output)],
        model.get_layer("encoder_norm").output,
    ):
        other = keras.Model(model.input, outputs)
        assert inference_model(other) is other
    sequential = keras.Sequential([keras.Input((16, 16, 3)), model])
    assert inference_model(sequential) is sequential


@pytest.mark.backends("torch")
def test_class_names_are_saved(tmp_path):
    model = keras_vit.ViTTi16(input_shape=(16, 16, 3), num_layers=1, classes=2)
    assert "class_names" not in model.get_config()
    model.class_names = ("cat", "dög")
    model.save(tmp_path / "model.keras")
    for load in (keras.models.load_model, keras_vit.load):
        loaded = load(tmp_path / "model.keras")
        assert list(loaded.class_names) == ["cat", "dög"]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("function", [inference_model, with_any_size])
def test_compiled_models_give_models_that_are_not_compiled(function):
    model = build(pooling="token", input_shape=(8, 8, 3))
    model.compile("adam", lambda labels, outputs: outputs)
    other = function(model)
    assert other is not model and not other.compiled and model.compiled
