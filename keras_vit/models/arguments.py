"""Arguments of the functions that build models: their names and defaults."""

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, get_type_hints

from keras_vit.config import (
    HybridArguments,
    ResNetConfig,
    ViTConfig,
    field_names,
    is_required,
    known,
)
from keras_vit.utils.types import Config

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def architecture_of(
    config_class: type,
    config: ViTConfig | ResNetConfig | None,
    given: Mapping[str, Any],
) -> Config:
    """Returns the fields of a config that a function was given, as arguments or
    in a `config`, over which arguments take precedence.

    Fields of a `config` that equal their default are left out: it is not known whether
    they were given, and `weights` may need another value.
    """
    names, found = field_names(config_class), {}
    if config is not None:
        # A `HybridConfig` is a config of both its parts.
        if not isinstance(config, config_class) or field_names(type(config)) != names:
            raise ValueError(
                f"The first argument must be a `{config_class.__name__}`. "
                f"Received: {config!r}. Give all other arguments by name, such "
                'as weights="imagenet21k".'
            )
        found = {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != field.default
        }
    return {**known(found), **known(dict(given))}


# Argument names of timm, transformers, keras-hub and vit-keras, and what
# corresponds to them here.
FOREIGN_ARGUMENT_NAMES = {
    "num_labels": "classes",
    "pretrained_top": "classes",
    "dynamic_img_size": "input_shape",
    "image_size": "input_shape",
    "img_size": "input_shape",
    "in_chans": "input_shape",
    "in_channels": "input_shape",
    "preset": "weights",
    "from_preset": "weights",
    "pretrained": "weights",
    "embed_dim": "hidden_size",
    "depth": "num_layers",
    "drop_rate": "dropout",
    "global_pool": "pooling",
    "init_values": "layer_scale",
    "reg_tokens": "num_registers",
    "act_layer": "activation",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "proj_drop_rate": "dropout",
    "stochastic_depth": "drop_path",
    "intermediate_size": "mlp_dim",
    "intermediate_dim": "mlp_dim",
    "num_channels": "input_shape",
    "fc_norm": "final_norm",
    "no_embed_class": "position_prefix",
    "posemb": "position_embedding",
    "pool_type": "pooling",
    "rep_size": "representation_size",
    "num_tokens": "num_registers",
    "gradient_checkpointing": "remat",
    "checkpoint_path": "weights",
    "features_only": "dense_features",
    "out_indices": "dense_features",
    "output_attentions": "inspection.attention_maps",
    "dtype": "keras.config.set_dtype_policy",
}


def check_arguments(
    function: str, names: Iterable[str], accepted: Collection[str]
) -> None:
    """Raises a TypeError with a suggestion if a function has no argument of
    one of the names that it received."""
    for name in names:
        if name not in accepted:
            close = difflib.get_close_matches(name, accepted, 1)
            suggestion = FOREIGN_ARGUMENT_NAMES.get(name, close[0] if close else None)
            hint = f" Did you mean {suggestion!r}?" if suggestion else ""
            if name in ("features_only", "out_indices", "output_attentions", "dtype"):
                hint = f" Call the function {suggestion!r} instead."
            raise TypeError(f"{function}() has no argument {name!r}.{hint}")


def takes_fields(
    config_class: type,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Shows the fields of a config in the signature and the docstring of a function
    that takes them as `**architecture`, and makes it suggest its own arguments for
    names from other libraries."""

    def decorate(
        function: Callable[_Arguments, _Result],
    ) -> Callable[_Arguments, _Result]:
        signature = inspect.signature(function)
        types = get_type_hints(HybridArguments)
        *own, _ = signature.parameters.values()
        fields = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if is_required(field) else field.default,
                annotation=types[field.name],
            )
            for field in dataclasses.fields(config_class)
        ]
        names = {x.name for x in (*own, *fields)}

        @functools.wraps(function)
        def wrapper(*args: _Arguments.args, **arguments: _Arguments.kwargs) -> _Result:
            check_arguments(function.__name__, arguments, names)
            return function(*args, **arguments)

        vars(wrapper)["__signature__"] = signature.replace(parameters=[*own, *fields])
        wrapper.__doc__ = _with_fields(function.__doc__ or "", config_class)
        return wrapper

    return decorate


def _with_fields(text: str, config_class: type) -> str:
    """Returns a docstring with the fields of a config in place of the last
    argument, `**architecture`."""
    described = "\n".join(
        (kind.__doc__ or "").partition("    Args:\n")[2].partition("\n\n")[0]
        for kind in reversed(config_class.__mro__)
        if dataclasses.is_dataclass(kind)
    )
    name = f"`keras_vit.config.{config_class.__name__}`"
    place = f"        **architecture: Fields of {name}."
    return text.replace(place, described.strip("\n"))
