"""The model function: its options, and what Keras does with its models."""

import dataclasses
import inspect
import json
from typing import get_args, get_type_hints

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import BiTConfig, HybridConfig, ModelArguments, ViTConfig
from tests import reference
from tests.harness import numpy
from tests.markers import on_all
from tests.small import TINY, bit, hybrid, images, randomize, tiny

# Compiling takes seconds under JAX and TensorFlow.
ON_TORCH = pytest.mark.backends("torch")


OPTIONS = {
    "token": {},
    "gap": {"pooling": "gap"},
    "gap with class token": {"pooling": "gap", "class_token": True},
    "first_patch": {"pooling": "first_patch", "class_token": True},
    "map": {"pooling": "map"},
    "map with class token": {"pooling": "map", "class_token": True},
    "pre_logits": {"representation_size": 10},
    "registers": {"num_registers": 3, "class_token": False, "pooling": "gap"},
    "exact gelu": {"activation": "gelu", "norm_epsilon": 1e-3},
    "no biases": {"patch_bias": False, "qkv_bias": False},
    "qk norm, layer scale": {"qk_norm": True, "layer_scale": 0.1},
    "1-D in every layer": {
        "position_embedding": "learned_1d",
        "position_placement": "every_layer",
    },
    "2-D": {"position_embedding": "learned_2d"},
    "2-D shared": {
        "position_embedding": "learned_2d",
        "position_placement": "every_layer_shared",
        "num_registers": 2,
    },
    "relative": {"position_embedding": "relative", "qk_norm": True},
    "relative shared": {
        "position_embedding": "relative",
        "position_placement": "every_layer_shared",
        "pooling": "gap",
    },
}


# Those that no golden case has run on every backend.
NOT_GOLDEN = (
    *("first_patch", "map with class token", "1-D in every layer"),
    *("2-D shared", "relative", "relative shared"),
)


@pytest.mark.parametrize("case", on_all(OPTIONS, NOT_GOLDEN))
@pytest.mark.usefixtures("eager")
def test_logits_match_the_reference(case):
    options = OPTIONS[case]
    model = tiny(**options)
    weights = randomize(model)
    found = model.predict(images(), verbose=0)
    expected = reference.vision_transformer(
        images(),
        weights,
        options.get("pooling", "token"),
        options.get("activation", "gelu_tanh"),
        options.get("norm_epsilon", 1e-6),
    )
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=2e-5)


# One of each first layer, which meets the integers.
@pytest.mark.parametrize("build", on_all([tiny, hybrid, bit], [tiny, bit]))
def test_input_of_integers(build):
    model = build()
    randomize(model, 0.1)
    shape = model.input_shape[1:]
    x = np.random.default_rng(0).integers(0, 256, (2, *shape)).astype("uint8")
    other = build(input_tensor=keras.Input(shape, dtype="uint8"), input_shape=None)
    other.set_weights(model.get_weights())
    expected = numpy(model(x.astype("float32")))
    # Keras does not cast integers to the dtype of an input of floats.
    for found in (other(x), model(x)):
        np.testing.assert_allclose(numpy(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "case", on_all(["token", "2-D shared", "relative shared"], ["2-D shared"])
)
@pytest.mark.usefixtures("eager")
def test_weights_load_into_a_model_of_another_image_size(case, tmp_path):
    options = OPTIONS[case]
    model = tiny(**options)
    randomize(model)
    model.save_weights(tmp_path / "model.weights.h5")
    wide = tiny(input_shape=(12, 20, 3), **options)
    wide.load_weights(tmp_path / "model.weights.h5")
    any_size = tiny(input_shape=(None, None, 3), grid_size=(2, 3), **options)
    any_size.load_weights(tmp_path / "model.weights.h5")
    x = images(2, 12, 20, 3)
    np.testing.assert_allclose(
        wide.predict(x, verbose=0), any_size.predict(x, verbose=0), atol=2e-4
    )


@pytest.mark.suite("tensorflow", "torch")
@pytest.mark.parametrize(
    "pooling, position",
    [
        ("token", "learned"),
        ("map", "sincos2d"),
        pytest.param("token", "learned_2d", marks=ON_TORCH),
        pytest.param("gap", "factorized", marks=ON_TORCH),
        ("token", "relative"),
    ],
)
def test_any_image_size_matches_a_fixed_model(pooling, position):
    model = tiny(
        input_shape=(None, None, 3),
        grid_size=(2, 3),
        pooling=pooling,
        position_embedding=position,
    )
    weights = randomize(model)
    for size in ((16, 4), (20, 20), (4, 4)):
        x = images(2, *size, 3)
        found = model.predict(x, verbose=0)
        fixed = tiny(
            input_shape=(*size, 3),
            grid_size=(2, 3),
            pooling=pooling,
            position_embedding=position,
        )
        fixed.set_weights(model.get_weights())
        np.testing.assert_allclose(found, numpy(fixed(x)), atol=3e-5)
    assert "position_embedding/embedding" in weights or position != "learned"


@pytest.mark.backends("tensorflow", "torch")
def test_indivisible_image_of_unknown_size_raises():
    """TensorFlow relaxes shapes after a few calls; no pixel may be cut off."""
    model = tiny(input_shape=(None, None, 3))
    for size in (8, 12, 16, 20):
        model.predict(images(2, size, size, 3), verbose=0)
    with pytest.raises(Exception, match="patch|reshape|values"):
        model.predict(images(2, 18, 18, 3), verbose=0)


@pytest.mark.backends("tensorflow")
def test_unknown_image_size_keeps_the_batch_size():
    """18 x 16 x 8 pixels are also 16 x 16 x 9."""
    import tensorflow

    model = tiny(input_shape=(None, None, 3))
    shape = tensorflow.TensorSpec((None, None, None, 3))
    run = tensorflow.function(model, input_signature=[shape])
    for batch in (1, 7, 8, 9, 16):
        assert run(images(batch, 16, 16, 3)).shape == (batch, 5)
        with pytest.raises(tensorflow.errors.InvalidArgumentError):
            run(images(batch, 18, 16, 3))


def test_pad_to_patch_accepts_any_image_size():
    model = tiny(input_shape=(None, None, 3), pad_to_patch=True)
    randomize(model)
    x = images(2, 7, 10, 3)
    padded = np.pad(x, ((0, 0), (0, 1), (0, 2), (0, 0)))
    np.testing.assert_allclose(
        model.predict(x, verbose=0),
        model.predict(padded, verbose=0),
        atol=3e-5,
    )
    assert tiny(input_shape=(7, 10, 3), pad_to_patch=True).count_params()


@pytest.mark.backends("torch")
def test_numpy_scalars_are_accepted():
    model = tiny(
        patch_size=np.int64(4),
        hidden_size=np.int32(24),
        classes=np.int64(5),
        num_heads=np.int64(3),
        dropout=np.float32(0.1),
        input_shape=(np.int64(8), np.int64(12), np.int64(3)),
    )
    assert model.output_shape == (None, 5)
    again = keras.Model.from_config(json.loads(json.dumps(model.get_config())))
    assert again.count_params() == model.count_params()


@pytest.mark.backends("torch")
def test_outputs_in_mixed_precision():
    """Logits are float32; an encoder's tokens have the precision of its
    layers."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert tiny(distillation=True).output.dtype == "float32"
    encoder = tiny(include_top=False, classes=None)
    assert encoder.output.dtype == "bfloat16"
    for layer in encoder.layers:
        assert layer.compute_dtype == "bfloat16"


@ON_TORCH
@pytest.mark.usefixtures("eager")
def test_input_tensor_and_nesting():
    inner = tiny()
    assert not inner.predict(images(), verbose=0).any(), "the head is zero"
    randomize(inner)
    x = inputs = keras.Input((8, 12, 3))
    x = keras.layers.Rescaling(0.5)(x)
    around = tiny(input_tensor=x, input_shape=None)
    around.set_weights(inner.get_weights())
    nested = keras.Model(inputs, inner(x))
    expected = inner.predict(images() * 0.5, verbose=0)
    for model in (around, nested):
        found = model.predict(images(), verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)


@ON_TORCH
@pytest.mark.usefixtures("eager")
def test_feature_extractor():
    model = tiny(representation_size=10)
    extract = keras_vit.feature_extractor(
        model, ["block_1", "encoder_norm", "pre_logits"]
    )
    features = extract.predict(images(), verbose=0)
    shapes = {name: value.shape for name, value in features.items()}
    assert shapes == {
        "block_1": (2, 7, 24),
        "encoder_norm": (2, 7, 24),
        "pre_logits": (2, 10),
    }
    one = keras_vit.feature_extractor(model, "block_1")
    np.testing.assert_array_equal(one.predict(images(), verbose=0), features["block_1"])
    with pytest.raises(ValueError, match="'images', 'patch_emb.*'block_9'"):
        keras_vit.feature_extractor(model, ["block_0", "block_9"])


@pytest.mark.backends("torch")
def test_none_selects_the_default():
    fields = [field.name for field in dataclasses.fields(ViTConfig)]
    given = {name: None for name in fields if name not in TINY}
    named = tiny(**given).get_config()
    assert json.dumps(named["layers"]) == json.dumps(tiny().get_config()["layers"])


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "function, config_class, variant",
    [
        ("VisionTransformer", ViTConfig, "ViTB16"),
        ("HybridVisionTransformer", HybridConfig, "R50ViTB16"),
        ("BiT", BiTConfig, "BiT_R50x1"),
    ],
)
def test_fields_of_configs_are_arguments(function, config_class, variant):
    function = getattr(keras_vit, function)
    parameters = inspect.signature(function).parameters
    listed = {**get_type_hints(ModelArguments), "num_heads": int | None}
    for field in dataclasses.fields(config_class):
        required = field.default is dataclasses.MISSING
        parameter = parameters[field.name]
        assert parameter.default == (None if required else field.default)
        assert f"\n        {field.name}: " in function.__doc__
        # For type checkers, the types of fields before their checks.
        types = set(get_args(listed[field.name])) or {listed[field.name]}
        assert types >= (set(get_args(field.type)) or {field.type}) or (
            field.name in ("resnet_layers", "block")
        )
        assert parameter.annotation == listed[field.name]
    assert "**architecture" not in function.__doc__
    types = get_type_hints(function)
    for name in types.keys() - {"config", "weights", "architecture", "return"}:
        assert listed[name] == types[name], name
    found = inspect.signature(getattr(keras_vit, variant)).parameters
    assert found.keys() == parameters.keys() - {"config"}
    for name in ("VisionTransformer", "HybridVisionTransformer", "R26ViTS32"):
        with pytest.raises(TypeError, match="Did you mean 'num_layers'"):
            getattr(keras_vit, name)(depth=3)


@pytest.mark.backends("torch")
def test_a_config_builds_what_its_fields_build():
    config = ViTConfig(**TINY, pooling="gap", layer_scale=0.1)
    others = {"input_shape": (8, 12, 3), "classes": 5}
    found = keras_vit.VisionTransformer(config, **others, pooling="map")
    expected = tiny(pooling="map", layer_scale=0.1, class_token=False)
    assert json.dumps(found.get_config()["layers"]) == json.dumps(
        expected.get_config()["layers"]
    )


@pytest.mark.backends("torch")
def test_drop_path_grows_with_depth():
    one = tiny(num_layers=1, drop_path=0.4)
    assert one.get_layer("block_0").drop_path == 0.4
    model = tiny(num_layers=5, drop_path=0.4)
    rates = [model.get_layer(f"block_{i}").drop_path for i in range(5)]
    np.testing.assert_allclose(rates, [0, 0.1, 0.2, 0.3, 0.4])


# Arguments, and a part of their error.
ERRORS = {
    "patch_size=-4": "patch_size=-4",
    "num_heads=5": "divide the hidden size 24",
    "pooling='avg'": "'token', 'gap', .*'map', None.*'avg'",
    "position_embedding='rotary'": "'sincos2d'",
    "activation='gelu_new'": "gelu_tanh",
    "input_shape=(10, 12, 3)": "8 or 12 would work.*pad_to_patch",
    "class_token=False, pooling='token'": "choose `pooling='gap'`",
    "distillation=True, pooling='gap'": "needs `class_token=True`",
    "include_top=False, representation_size=8": "needs a `pooling`",
    "include_top=False, final_norm='after_pooling'": "needs a `pooling`",
    "distillation=True, final_norm='after_pooling'": "no norm after",
    "patch_size=None": "patch_size must be given",
    "activation=keras.layers.ReLU()": "name of a Keras",
    "layer_scale='a'": "`layer_scale`.*layer_scale='a'",
    "class_token='cls'": "class_token='cls'",
    "dropout=1.5": "dropout=1.5|Invalid value",
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("arguments", ERRORS)
def test_wrong_arguments_raise(arguments):
    with pytest.raises(ValueError, match=f"(?s){ERRORS[arguments]}"):
        tiny(**eval(f"dict({arguments})"))


@pytest.mark.backends("torch")
def test_activation_of_the_head_raises():
    for value in ("softmax", "sigmoid", "linear"):
        message = f"classifier_activation='{value}'"
        with pytest.raises(ValueError, match=message):
            tiny(activation=value)
        head = tiny(classifier_activation=value).get_layer("head")
        assert head.activation is keras.activations.get(value)
