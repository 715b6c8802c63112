"""A model says its config, from which the same model can be built."""

import keras
import pytest

import keras_vit
from keras_vit.config import HybridConfig
from keras_vit.config import ViTConfig
from keras_vit.config import field_names
from tests.converters.test_kept_options import FAMILIES
from tests.converters.test_kept_options import built
from tests.converters.test_kept_options import changed
from tests.small import RESNET
from tests.small import TINY
from tests.small import tiny

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    "family, field",
    [(family, x) for family, (_, cases, _) in FAMILIES.items() for x in cases],
)
def test_a_model_says_its_config(family, field):
    model, arguments = built(family, field)
    config = keras_vit.config_of(model)
    for name in field_names(type(config)):
        value = arguments.get(name)
        if name == "patch_size" and isinstance(value, int):
            value = (value, value)
        if value is not None:
            assert getattr(config, name) == value
    other = {"input_shape": arguments["input_shape"], "classes": 3}
    again = getattr(keras_vit, family)(config, **other)
    assert not changed(again, model)
    assert keras_vit.config_of(keras.models.clone_model(model)) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_has_the_same_config(family, tmp_path):
    arguments = {**FAMILIES[family][2], "name": "mine"}
    model = getattr(keras_vit, family)(**arguments)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.converters.load(tmp_path / "model.keras")
    config = keras_vit.config_of(model)
    assert keras_vit.config_of(loaded) == config
    keras_vit.converters.save(model, tmp_path / "model.weights.h5")
    for name in ("model.keras", "model.weights.h5"):
        opened = keras_vit.converters.open_checkpoint(tmp_path / name)
        assert opened.config == config and opened.config is opened.config
        assert (opened.classes, opened.channels) == (3, 3)


def test_config_of_an_encoder_and_of_other_models():
    config = ViTConfig(**TINY, grid_size=2)
    encoder = keras_vit.VisionTransformer(
        config, include_top=False, input_shape=(8, 8, 3)
    )
    assert keras_vit.config_of(encoder) == config
    model = keras_vit.pretraining.MaskedImageModeling(encoder)
    assert keras_vit.config_of(model).num_layers == 2
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="was not made by keras_vit"):
        keras_vit.config_of(other)


def test_defaults_of_a_config_do_not_replace_what_weights_need(tmp_path):
    model = tiny(activation="gelu", norm_epsilon=1e-3)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.VisionTransformer(
        ViTConfig(**TINY, dropout=0.1), weights=tmp_path / "model.keras"
    )
    config = keras_vit.config_of(loaded)
    assert (config.activation, config.norm_epsilon) == ("gelu", 1e-3)
    assert config.dropout == 0.1


@pytest.mark.parametrize("function", ["VisionTransformer", "BiT"])
def test_config_of_a_hybrid_is_refused_for_one_of_its_parts(function):
    config = HybridConfig(**{**TINY, **RESNET, "patch_size": 1})
    with pytest.raises(ValueError, match="must be a .*Received: HybridConfig"):
        getattr(keras_vit, function)(config, input_shape=(16, 16, 3))
