"""The description of a model: its config, and the arguments that build it."""

import keras

from keras_vit.config import ResNetConfig, ViTConfig
from keras_vit.models.assigning import weights_by_path
from keras_vit.models.model import described
from keras_vit.utils.types import Config
from keras_vit.weights.infer import (
    SIZES,
    built_of,
    family,
    fields_of,
    infer_architecture,
    infer_family,
    pretraining_options,
)


def config_of(model: keras.Model) -> ViTConfig | ResNetConfig:
    """Returns the config of a model of this package, or of its encoder.

    Args:
        model: A model of `keras_vit`, including models for pre-training, segmentation
            and detection.

    Returns:
        A `ViTConfig`; for a hybrid, a `HybridConfig`; for a BiT, a `BiTConfig` or
        `ResNetConfig`.

    Raises:
        ValueError: if the model has no config, for example because it was assembled
            from layers.

    Example:

    >>> config = keras_vit.config_of(model)
    >>> config.hidden_size
    768
    >>> deeper = keras_vit.VisionTransformer(config, num_layers=24)
    """
    encoder = getattr(model, "encoder", model)
    config = getattr(encoder, "config", None)
    if not isinstance(config, (ViTConfig, ResNetConfig)):
        raise ValueError(
            f"The model {encoder.name!r} has no config: it was not made by keras_vit, "
            "was assembled from its layers, or was copied by "
            "`keras.models.clone_model`. Give it the config of the model from which "
            "its layers come: `model.config = keras_vit.config_of(other)`."
        )
    return config


def family_of(model: keras.Model) -> str:
    """Returns the family of a model, a name in `keras_vit.families.FAMILIES`."""
    return family(variables_of(model), [layer.name for layer in model.layers])


def describe(model: keras.Model) -> tuple[Config, Config]:
    """Returns the arguments that describe a model's architecture, and the
    others that it was built with, such as `input_shape`."""
    encoder = getattr(model, "encoder", model)
    config = config_of(model)
    fields = fields_of(described(encoder))
    arguments = inferred_from_arrays(model, fields.get("position_prefix"))
    different = [
        f"{name}={value!r} (arrays: {arguments[name]!r})"
        for name, value in vars(config).items()
        if name in SIZES and value != arguments.get(name)
    ]
    if different:
        raise ValueError(
            f"The config of the model {encoder.name!r} does not match its layers: "
            f"{', '.join(different)}. Set `model.config` to theirs."
        )
    arguments |= fields
    built = built_of({layer.name: layer.get_config() for layer in encoder.layers})
    if isinstance(config, ViTConfig):
        mode = "token" if config.class_token else "gap"
        arguments["pooling"] = built["pooling"] or mode
    if encoder is not model:
        arguments |= pretraining_options(model.get_config())
    if texts := getattr(model, "text_encoder", None):
        arguments["text"] = vars(texts.config)
    return arguments, built


def inferred_from_arrays(model: keras.Model, prefix: str | None = None) -> Config:
    """Returns the arguments that follow from the arrays of a model, with a given
    `position_prefix`; raises a `ValueError` if another package made the model."""
    encoder = getattr(model, "encoder", model)
    shapes = {path: v.shape for path, v in variables_of(model).items()}
    grid = getattr(getattr(encoder, "config", None), "grid_size", None)
    try:
        arguments = infer_architecture(shapes, grid, configured_prefix=prefix)
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"The model {encoder.name!r} was not made by keras_vit. {error}"
        ) from error
    return arguments | infer_family(shapes)


def variables_of(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the variables of a model by path, including models for pre-training."""
    if hasattr(model, "encoder"):
        return model.variables_by_path()
    return weights_by_path(model)
