"""What a model says of itself: its config, and the arguments that build it."""

import keras

from keras_vit.config import ResNetConfig, ViTConfig, config_from
from keras_vit.models.assigning import weights_by_path
from keras_vit.utils.types import Config
from keras_vit.weights.infer import (
    arguments_from_layer_configs,
    infer_pretraining,
    is_position_layer,
    pretraining_options,
)


def config_of(model: keras.Model) -> ViTConfig | ResNetConfig:
    """Returns the config of a model of this package, or of its encoder.

    It follows from the layers, so that models which are cloned or loaded from a
    `.keras` file have one, too.

    Args:
        model: A model of `keras_vit`, also of its pre-training or segmentation.

    Returns:
        A `ViTConfig`; a `HybridConfig` of a hybrid; a `BiTConfig` or
        `ResNetConfig` of a BiT.

    Raises:
        ValueError: if the model was not made by this package, or if its blocks
            differ, which no config can say.

    Example:

    >>> config = keras_vit.config_of(model)
    >>> config.hidden_size
    768
    >>> deeper = keras_vit.VisionTransformer(config, num_layers=24)
    """
    arguments, built = describe(model)
    arguments["pooling"] = built["pooling"]
    if "block" in arguments:
        block = type(getattr(model, "encoder", model).get_layer("block_0"))
        if arguments["block"] != keras.saving.get_registered_name(block):
            raise ValueError(
                f"The model {model.name!r} has no config: {arguments['block']}. "
                "A config is that of equal blocks; `keras.models.clone_model` and "
                ".keras files copy a model of any."
            )
        arguments["block"] = block
    return config_from(arguments)


def describe(model: keras.Model) -> tuple[Config, Config]:
    """Returns the arguments that describe a model's architecture, and the
    others that it was built with, such as `input_shape`."""
    encoder = getattr(model, "encoder", model)
    layers = {layer.name: layer for layer in encoder.layers}
    configs = {name: layer.get_config() for name, layer in layers.items()}
    positions = next(filter(is_position_layer, layers), None)
    shapes = {path: v.shape for path, v in variables_of(model).items()}
    try:
        arguments, built = arguments_from_layer_configs(
            configs,
            shapes,
            getattr(layers.get(positions), "built_grid", None),
            {x: keras.saving.get_registered_name(type(y)) for x, y in layers.items()},
        )
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"The model {encoder.name!r} was not made by keras_vit. {error}"
        ) from error
    arguments |= infer_pretraining(shapes)
    if encoder is not model:
        arguments |= pretraining_options(model.get_config())
    return arguments, built


def variables_of(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the variables of a model, also of pre-training, by path."""
    if hasattr(model, "encoder"):
        return model.variables_by_path()
    return weights_by_path(model)
