"""Arguments of the functions that build models: their names and defaults."""

import dataclasses
import difflib
import functools
import inspect
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, get_type_hints

from keras_vit.config import (
    HybridArguments,
    ResNetConfig,
    ViTConfig,
    field_names,
    is_required,
    known,
    resolve,
)
from keras_vit.utils import checks
from keras_vit.utils.scaling import Mode, ModeLike, as_mode
from keras_vit.utils.types import Config, Tensor
from keras_vit.weights import Checkpoint

DEFAULT_IMAGE_SIZE = 224
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def architecture_of(
    config_class: type,
    config: ViTConfig | ResNetConfig | None,
    given: Mapping[str, Any],
) -> Config:
    """Returns the fields of a config that a function was given, as arguments or
    in a `config`, over which arguments take precedence.

    Fields of a `config` that have their default are left out: it does not say
    whether they were given, and `weights` may need another value.
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


def resolve_vit(
    config_class: type[ViTConfig],
    explicit: Config,
    inferred: Config,
    include_top: bool,
) -> ViTConfig:
    """Builds the `ViTConfig` or `HybridConfig` of a model from explicit values,
    else inferred ones, else defaults, without its `grid_size`."""
    explicit, inferred = known(explicit), known(inferred)
    # These depend on the new model: on the size of its images, and on whether
    # its output is the pooled vector, pre_logits or all tokens.
    for name in ("grid_size", "representation_size"):
        inferred.pop(name, None)
    explicit.pop("grid_size", None)
    embedding = explicit.get("position_embedding")
    embedding = "learned" if embedding == "learned_1d" else embedding
    if embedding not in (None, inferred.get("position_embedding")):
        for name in [n for n in inferred if n.startswith("rope_")]:
            del inferred[name]
        inferred.pop("position_placement", None)
    if not include_top:
        inferred.pop("pooling", None)
        if "pooling" not in explicit and inferred:
            final_norm = explicit.get("final_norm") or inferred["final_norm"]
            if final_norm == "after_pooling":  # and there is no pooling
                explicit["final_norm"] = "none"
    elif "pooling" not in {**inferred, **explicit}:
        explicit["pooling"] = "token" if explicit.get("class_token", True) else "gap"
    return resolve(config_class, {**inferred, **explicit})


def resolve_input_shape(
    input_shape: object, input_tensor: Tensor | None
) -> tuple[int | None, ...] | None:
    """Returns the checked shape of the model's images; None if unspecified."""
    if input_tensor is not None:
        shape = _check_shape("input_tensor", input_tensor.shape[1:])
        fits = input_shape in (None, shape, list(shape))
        checks.require(fits, "input_shape", input_shape, f"{shape}, as `input_tensor`")
        return shape
    if input_shape is None:
        return None
    return _check_shape("input_shape", input_shape)


def resolve_preprocessing(
    preprocessing: bool | ModeLike | None,
    input_tensor: Tensor | None,
    checkpoint: Checkpoint | None,
) -> Mode | None:
    """Returns the mode of a model's `ImagePreprocessing`; None for no layer.

    True is the mode of the checkpoint, if it contains one.
    """
    if preprocessing is None or preprocessing is False:
        return None
    if preprocessing is not True:
        preprocessing = as_mode(preprocessing, name="preprocessing")
    if input_tensor is not None:
        raise ValueError(
            "`preprocessing` adds a layer after the model's own input and "
            "cannot be combined with `input_tensor`. Call "
            "`keras_vit.layers.ImagePreprocessing` on the tensor instead. "
            f"Received: preprocessing={preprocessing!r}"
        )
    if preprocessing is not True:
        return preprocessing
    if checkpoint is None:
        return "tf"
    mode = checkpoint.preprocess_mode
    if mode is None:
        raise ValueError(
            f"{checkpoint.path!r} does not store how images of "
            f"{checkpoint.channels} channels are scaled. Give the mode of "
            '`preprocess_input`: `preprocessing="tf"` for [-1, 1], '
            '`preprocessing="torch"` for ImageNet\'s mean and standard deviation, '
            '"clip" for CLIP\'s, or others as `preprocessing=(mean, std)`. '
            "Received: preprocessing=True"
        )
    return mode


def _check_shape(name: str, shape: Any) -> tuple[int | None, ...]:
    is_shape = (
        isinstance(shape, (tuple, list))
        and len(shape) == 3
        and shape[2] is not None
        and all(n is None or isinstance(n, numbers.Integral) for n in shape)
        and all(n is None or n > 0 for n in shape)
    )
    # The first of these sizes is the number of channels.
    is_first = is_shape and shape[0] in (1, 3) and shape[2] > 4
    if not is_shape or (is_first and shape[1] != shape[0]):
        raise ValueError(
            f"`{name}` must have the shape (height, width, channels), channels "
            "last, where height and width may be None for any size. "
            f"Received: {name}={shape!r}"
        )
    return tuple(size if size is None else int(size) for size in shape)


def resolve_classes(
    include_top: bool,
    classes: int | None,
    checkpoint: Checkpoint | None,
) -> int | None:
    """Returns the number of classes; None if there is no head."""
    if include_top not in (True, False):
        # The first positional argument has another meaning in other packages.
        raise ValueError(
            "`include_top` must be True or False. Received: include_top="
            f"{include_top!r}. Give all arguments by name, such as "
            'weights="imagenet21k" or input_shape=(224, 224, 3).'
        )
    if classes is not None:
        classes = checks.positive_int("classes", classes)
    if not include_top:
        return None
    if classes is not None:
        return classes
    if checkpoint is None:
        return 1000
    if checkpoint.classes is None:
        raise ValueError(
            f"{checkpoint.path!r} has no classification head. Give `classes` "
            "for a new one, or set `include_top=False`."
        )
    return checkpoint.classes


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
            raise TypeError(f"{function}() has no argument {name!r}.{hint}")


def takes_fields(
    config_class: type,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Shows the fields of a config as arguments of a function that takes them as
    `**architecture`, in its signature and its docstring, and makes it answer names
    of other libraries' arguments."""

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
