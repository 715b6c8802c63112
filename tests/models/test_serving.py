"""LoRA, quantization and export of trained models by Keras."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.markers import on_all
from tests.small import images, randomize, tiny


@pytest.mark.usefixtures("eager")
def test_lora_trains_and_merges(tmp_path):
    model = tiny()
    randomize(model)
    before = model.predict(images(), verbose=0)
    for i in range(2):
        attention = model.get_layer(f"block_{i}").attention
        attention.query.enable_lora(2)
        attention.value.enable_lora(2, lora_alpha=3)
    model.get_layer("head").enable_lora(2)
    adapted = [w.path for w in model.trainable_weights if "lora" in w.path]
    assert len(adapted) == 10
    model.compile("sgd", "mse")
    model.fit(images(), np.ones((2, 5)), verbose=0)
    after = model.predict(images(), verbose=0)
    assert np.abs(after - before).max() > 1e-4
    model.save(tmp_path / "model.keras")
    # Keras makes new weights of LoRA for the head, whose config names them.
    merged = keras.models.load_model(tmp_path / "model.keras")
    assert sum("lora" in w.path for w in merged.weights) == 2
    keras_vit.converters.save(model, tmp_path / "model.npz")
    keras_vit.converters.save(merged, tmp_path / "merged.npz")
    size = {"input_shape": model.input_shape[1:]}
    for loaded in (
        merged,
        keras_vit.load(tmp_path / "model.keras"),
        keras_vit.load(tmp_path / "model.npz", **size),
        keras_vit.load(tmp_path / "merged.npz", **size),
    ):
        found = loaded.predict(images(), verbose=0)
        np.testing.assert_allclose(found, after, atol=2e-5)


OF_TRANSFORMERS = {
    "activation": "gelu",
    "norm_epsilon": 1e-12,
    "input_shape": (8, 8, 3),
}
OF_EOMT = {
    **OF_TRANSFORMERS,
    "layer_scale": 1.0,
    "mlp_dim": 48,
    "resampling": "bicubic_antialias",
    "position_prefix": "none",
}


def encoder(**options):
    return tiny(include_top=False, classes=None, pooling=None, **options)


FOLDERS = {
    "yolos": lambda: keras_vit.detection.YOLOS(
        encoder(**OF_TRANSFORMERS, resampling="bicubic"), 2, queries=3
    ),
    "eomt": lambda: keras_vit.segmentation.EoMT(
        encoder(**OF_EOMT), 2, queries=3, blocks=1, masked=False
    ),
    "classifier": lambda: tiny(**OF_TRANSFORMERS),
    "mae": lambda: keras_vit.pretraining.MaskedAutoencoder(
        encoder(**OF_TRANSFORMERS), decoder_hidden_size=16, decoder_num_heads=2
    ),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", FOLDERS)
def test_lora_is_merged_into_folders_of_transformers(name, tmp_path):
    model = FOLDERS[name]()
    encoder = getattr(model, "encoder", model)
    for layer in (encoder.get_layer("block_0"), encoder.get_layer("block_1")):
        layer.attention.query.enable_lora(2, lora_alpha=3)
        layer.mlp.dense_1.enable_lora(2)
    for layer in model.layers:
        if layer.name in ("class_3", "eomt_head", "head"):
            getattr(layer, "class_head", layer).enable_lora(2)
    randomize(model)
    x = images(2, 8, 8, 3)
    expected = keras.tree.flatten(encoder.predict(x, verbose=0))
    keras_vit.save(model, tmp_path / "folder", "huggingface")
    loaded = keras_vit.load(tmp_path / "folder")
    loaded = getattr(loaded, "encoder", loaded)
    assert not [w.path for w in loaded.weights if "lora" in w.path]
    found = keras.tree.flatten(loaded.predict(x, verbose=0))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-5)


QUANTIZATIONS = {
    "int8": lambda: {"mode": "int8"},
    "int4": lambda: {"mode": "int4"},
    "int8, weights only": lambda: {
        "config": keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    },
    "int8, another range": lambda: {
        "config": keras.quantizers.Int8QuantizationConfig(
            activation_quantizer=keras.quantizers.AbsMaxQuantizer(value_range=(-50, 50))
        )
    },
    "int4, blocks of 16": lambda: {
        "config": keras.quantizers.Int4QuantizationConfig(block_size=16)
    },
}


ON_EVERY_BACKEND = ("int8", "int8, another range", "int4, blocks of 16")


@pytest.mark.suite("tensorflow", "torch")
@pytest.mark.parametrize("name", on_all(QUANTIZATIONS, ON_EVERY_BACKEND))
@pytest.mark.usefixtures("eager")
def test_quantized_models_are_saved_and_cloned(name, tmp_path):
    pooling = "map"  # which has an attention and an MLP besides the block's
    model = tiny(hidden_size=48, num_layers=1, pooling=pooling)
    head = np.random.default_rng(0).normal(size=(48, 5))
    model.get_layer("head").kernel.assign(head)
    full = model.predict(images(), verbose=0)
    model.quantize(**QUANTIZATIONS[name]())
    expected = model.predict(images(), verbose=0)
    # Rounding to 255 steps, or to 15, moves the logits by some percent.
    bound = {"int8": 0.1, "int4": 0.7}[name[:4]]
    assert 0 < np.abs(expected - full).max() / np.abs(full).max() < bound
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for other in (loaded, clone):
        np.testing.assert_array_equal(other.predict(images(), verbose=0), expected)
        mlp = other.get_layer("block_0").mlp
        mode = model.get_layer("block_0").mlp.dense_1.quantization_mode
        assert mlp.dense_1.quantization_mode == mode


@pytest.mark.backends("torch")
def test_int8_model_in_a_name_scope_is_loaded(tmp_path):
    with keras.name_scope("outer"):
        model = tiny(hidden_size=48, num_layers=1)
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.get_layer("block_0").mlp.dense_1.quantization_mode == "int8"


@pytest.mark.backends("torch")
def test_layers_quantized_by_a_policy_map_are_built_from_their_config():
    """The policies quantize the layers inside a block before its config."""
    block = tiny(num_layers=1).get_layer("block_0")
    policies = keras.dtype_policies.DTypePolicyMap("float32")
    for layer in (block.mlp.dense_1, block.attention.query):
        policies[layer.path] = keras.dtype_policies.get("int8_from_float32")
    keras.config.set_dtype_policy(policies)
    model = tiny(num_layers=1)
    keras.config.set_dtype_policy("float32")
    assert model.get_layer("block_0").mlp.dense_1.quantization_mode == "int8"
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    found = again.get_layer("block_0").attention.query.quantization_mode
    assert found == "int8"
