"""A model says its config, and its `.keras` file keeps every option that no
argument replaces."""

import dataclasses
import functools
import warnings

import keras
import pytest

import keras_vit
from keras_vit.config import (
    BiTConfig,
    HybridConfig,
    ResNetConfig,
    ViTConfig,
    field_names,
)
from tests.small import RESNET, TINY, tiny

pytestmark = pytest.mark.backends("torch")

SIZES = {
    "input_shape": (16, 16, 3),
    "classes": 3,
    "patch_size": 8,
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
}
ROPE = {"position_embedding": "rope"}


@keras.saving.register_keras_serializable("test_kept_options")
class Block(keras_vit.layers.TransformerBlock):
    pass


# A value that is not the default of each field, and other arguments that the
# value needs.
OF_VIT = {
    "patch_size": {"patch_size": (8, 4)},
    "hidden_size": {"hidden_size": 24},
    "num_layers": {"num_layers": 2},
    "num_heads": {"num_heads": 4},
    "mlp_dim": {"mlp_dim": 24},
    "pooling": {"pooling": "first_patch"},
    "representation_size": {"representation_size": 12},
    "unit_norm": {"unit_norm": True},
    "class_token": {"class_token": False, "pooling": "gap"},
    "num_registers": {"num_registers": 2},
    "distillation": {"distillation": True},
    "mask_token": {"mask_token": True},
    "position_embedding": {"position_embedding": "sincos2d"},
    "position_placement": {"position_placement": "every_layer"},
    "position_prefix": {"position_prefix": "none"},
    # The grid is that of the images; that of the file is resampled to it.
    "grid_size": {"grid_size": (1, 3), "input_shape": (8, 24, 3)},
    "resampling": {"resampling": "bicubic"},
    "rope_base": {"rope_base": 50.0, **ROPE},
    "rope_shift": {"rope_shift": 0.2, **ROPE},
    "rope_jitter": {"rope_jitter": 1.5, **ROPE},
    "rope_rescale": {"rope_rescale": 2.0, **ROPE},
    "patch_bias": {"patch_bias": False},
    "pre_norm": {"pre_norm": True},
    "qkv_bias": {"qkv_bias": False},
    "key_bias": {"key_bias": False},
    "qk_norm": {"qk_norm": True},
    "layer_scale": {"layer_scale": 0.25},
    "activation": {"activation": "quick_gelu"},
    "norm_epsilon": {"norm_epsilon": 1e-3},
    "final_norm": {"final_norm": "after_pooling", "pooling": "gap"},
    "dropout": {"dropout": 0.1},
    "attention_dropout": {"attention_dropout": 0.2},
    "drop_path": {"drop_path": 0.3},
    "block": {"block": Block},
    "remat": {"remat": True},
    "pad_to_patch": {"pad_to_patch": True, "input_shape": (18, 14, 3)},
}
OF_RESNET = {
    "resnet_layers": {"resnet_layers": (1, 2)},
    "width_factor": {"width_factor": 1.0},
    "group_norm_epsilon": {"group_norm_epsilon": 1e-3},
    "std_epsilon": {"std_epsilon": 1e-3},
    "std_epsilon_place": {"std_epsilon_place": "other"},
    "conv_padding": {"conv_padding": "other"},
    "pool_padding": {"pool_padding": "zeros"},
}
OTHER = {
    ("HybridVisionTransformer", "std_epsilon_place"): "variance",
    ("HybridVisionTransformer", "conv_padding"): "symmetric",
    ("BiT", "std_epsilon_place"): "std",
    ("BiT", "conv_padding"): "same",
    ("BiT", "pool_padding"): "same",
}
FAMILIES = {
    "VisionTransformer": (ViTConfig, OF_VIT, SIZES),
    "HybridVisionTransformer": (
        ResNetConfig,
        OF_RESNET,
        {**SIZES, "resnet_layers": (1,), "width_factor": 0.5, "patch_size": 1},
    ),
    "BiT": (
        BiTConfig,
        OF_RESNET,
        {
            "resnet_layers": (1,),
            "width_factor": 0.5,
            "input_shape": (16, 16, 3),
            "classes": 3,
        },
    ),
}


def built(family, field):
    _, cases, sizes = FAMILIES[family]
    arguments = {**sizes, **cases[field]}
    if (family, field) in OTHER:
        arguments[field] = OTHER[family, field]
    return getattr(keras_vit, family)(**arguments, name="mine"), arguments


@functools.cache
def default(family):
    return getattr(keras_vit, family)(**FAMILIES[family][2])


def changed(model, other):
    """Returns what differs in the configs of two models' layers."""
    configs = [
        {layer.name: layer.get_config() for layer in m.layers} for m in (model, other)
    ]
    assert configs[0].keys() == configs[1].keys()
    return {
        f"{name}.{key}"
        for name, config in configs[0].items()
        for key in config
        if config[key] != configs[1][name].get(key)
    } - {"head.units", "distillation_head.units"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_has_a_case(family):
    config, cases, _ = FAMILIES[family]
    assert {field.name for field in dataclasses.fields(config)} == set(cases)


@pytest.mark.parametrize(
    "family, field",
    [(family, x) for family, (_, cases, _) in FAMILIES.items() for x in cases],
)
def test_config_and_file_have_every_option(family, field, tmp_path):
    function = getattr(keras_vit, family)
    model, arguments = built(family, field)
    names = [layer.name for layer in default(family).layers]
    if names == [x.name for x in model.layers] and field != "block":
        assert changed(model, default(family)), "the case is the default"

    config = keras_vit.config_of(model)
    for name in field_names(type(config)):
        value = arguments.get(name)
        if name == "patch_size" and isinstance(value, int):
            value = (value, value)
        if value is not None:
            assert getattr(config, name) == value
    other = {"input_shape": arguments["input_shape"], "classes": 3}
    assert not changed(function(config, **other), model)

    path = tmp_path / "model.keras"
    model.save(path)
    opened = keras_vit.converters.open_checkpoint(path)
    if field == "block":  # the file has its name
        config = dataclasses.replace(config, block=opened.config.block)
    assert opened.config == config and opened.config is opened.config
    assert (opened.classes, opened.channels) == (3, 3)
    overrides = {"classes": 5}
    if field == "block":
        overrides["block"] = Block
    if field == "representation_size":  # else the new head is without it
        overrides["representation_size"] = 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras_vit.converters.load(path, **overrides)
        weights = function(
            weights=path, input_shape=arguments["input_shape"], **overrides
        )
    for other in (loaded, weights):
        assert not changed(model, other)
        assert other.output_shape == (None, 5)
        found = keras_vit.config_of(other)
        if field == "block":
            found = dataclasses.replace(found, block=config.block)
        assert found == config
    assert loaded.name == "mine"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_weights_file_has_the_same_config(family, tmp_path):
    model = default(family)
    keras_vit.converters.save(model, tmp_path / "model.weights.h5")
    opened = keras_vit.converters.open_checkpoint(tmp_path / "model.weights.h5")
    assert opened.config == keras_vit.config_of(model)


def test_config_of_an_encoder_and_of_other_models():
    config = ViTConfig(**TINY, grid_size=2)
    encoder = keras_vit.VisionTransformer(
        config, include_top=False, input_shape=(8, 8, 3)
    )
    assert keras_vit.config_of(encoder) == config
    copy = type(encoder).from_config(encoder.get_config())
    assert keras_vit.config_of(copy) == config
    # Keras makes the copy of its class and tensors alone.
    clone = keras.models.clone_model(encoder)
    with pytest.raises(ValueError, match="copied by .*clone_model.*model.config = "):
        keras_vit.config_of(clone)
    clone.config = config
    assert keras_vit.config_of(clone) == config
    model = keras_vit.pretraining.MaskedImageModeling(encoder)
    assert keras_vit.config_of(model).num_layers == 2
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="was not made by keras_vit"):
        keras_vit.config_of(other)
    config = HybridConfig(**{**TINY, **RESNET, "patch_size": 1})
    for function in (keras_vit.VisionTransformer, keras_vit.BiT):
        with pytest.raises(ValueError, match="must be .*Received: HybridConfig"):
            function(config, input_shape=(16, 16, 3))


def test_defaults_of_a_config_do_not_replace_what_weights_need(tmp_path):
    model = tiny(activation="gelu", norm_epsilon=1e-3)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.VisionTransformer(
        ViTConfig(**TINY, dropout=0.1), weights=tmp_path / "model.keras"
    )
    config = keras_vit.config_of(loaded)
    assert (config.activation, config.norm_epsilon) == ("gelu", 1e-3)
    assert config.dropout == 0.1


def test_an_argument_takes_precedence_over_the_file(tmp_path):
    path = tmp_path / "model.keras"
    given = {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.2}
    keras_vit.VisionTransformer(**SIZES, **given, remat=True).save(path)
    model = keras_vit.converters.load(path, dropout=0.0, drop_path=0.4, remat=False)
    block = model.get_layer("block_0")
    assert (block.dropout, block.drop_path, block.remat) == (0.0, 0.4, False)
    assert block.attention_dropout == 0.1


def with_regularizer(*args, **kwargs):
    return keras_vit.layers.TransformerBlock(*args, kernel_regularizer="l2", **kwargs)


@pytest.mark.parametrize(
    "arguments, policy, message",
    [
        ({"block": with_regularizer}, "float32", "kernel_regularizer 'L2'"),
        ({}, "mixed_bfloat16", "dtype 'mixed_bfloat16'"),
        (
            {"classifier_activation": keras.layers.LeakyReLU()},
            "float32",
            "activation 'leaky_re_lu'",
        ),
    ],
)
def test_what_no_argument_keeps_is_named(arguments, policy, message, tmp_path):
    path = tmp_path / "model.keras"
    keras.config.set_dtype_policy(policy)
    try:
        sizes = {**SIZES, "num_layers": 2}
        keras_vit.VisionTransformer(**sizes, **arguments).save(path)
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.warns(UserWarning, match=message):
        keras_vit.converters.load(path, classes=5)
