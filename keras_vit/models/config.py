"""Options of the architectures and their defaults, and the named variants."""

import dataclasses
import difflib
import functools
import inspect
import numbers
import textwrap

import keras

from keras_vit import _checks
from keras_vit.layers import TransformerBlock
from keras_vit.layers.positions import check_rotary_changes
from keras_vit.layers.preprocessing import SCALE_AND_SHIFT

DEFAULT_IMAGE_SIZE = 224
POOLINGS = ("token", "gap", "token_gap", "first_patch", "map", None)
FINAL_NORMS = ("before_pooling", "after_pooling", "none")
POSITION_EMBEDDINGS = (
    "learned",
    "learned_1d",
    "learned_2d",
    "relative",
    "rope",
    "sincos2d",
    "none",
)
POSITION_PLACEMENTS = ("stem", "every_layer", "every_layer_shared")
POSITION_PREFIXES = ("all", "class", "none")
# vit-keras and keras-hub call the head's activation `activation`.
OUTPUT_ACTIVATIONS = ("linear", "log_softmax", "sigmoid", "softmax")


def option(default, doc):
    """Declares a field of a config with its default and its documentation."""
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Architecture of a Vision Transformer; see `VisionTransformer`.

    The defaults are those of google-research/vision_transformer; the other
    values are for models of timm, Hugging Face, torchvision and big_vision.
    """

    patch_size: tuple = option(
        None,
        "Integer or `(rows, columns)`, in pixels, or positions of a hybrid's "
        "feature map. Required without `weights`.",
    )
    hidden_size: int = option(
        None,
        "Integer. Number of channels of a token, D in the paper. Required "
        "without `weights`.",
    )
    num_layers: int = option(
        None, "Integer. Number of encoder blocks. Required without `weights`."
    )
    num_heads: int = option(
        None,
        "Integer. Number of attention heads, which must divide `hidden_size`. "
        "Required without `weights`.",
    )
    mlp_dim: int = option(
        None,
        "Integer. Width of the MLPs' hidden layers; None for 4 times "
        "`hidden_size`.",
    )
    pooling: str = option(
        None,
        'String. "token" (the class token), "gap" (mean of the patches), '
        '"token_gap" (both, concatenated: DINOv2\'s classifier), '
        '"first_patch" (the token of the top left patch: big_vision\'s '
        '`pool_type="0"`, whose checkpoints have the same arrays as for '
        '"gap"), "map" (attention pooling), or None. With `include_top`, None '
        'means "token", or "gap" without a class token; otherwise it means no '
        "pooling.",
    )
    representation_size: int = option(
        None,
        "Integer. Width of the tanh layer `pre_logits` before the head, which "
        "the paper uses in pre-training; None for no such layer.",
    )
    class_token: bool = option(
        None,
        "Boolean. Whether to have a class token. None means True, unless "
        '`pooling` is "gap", "first_patch" or "map", which do not use it.',
    )
    num_registers: int = option(
        0, "Integer. Number of register tokens after the class token."
    )
    distillation: bool = option(
        False,
        "Boolean. Whether to have DeiT's distillation token. With a head, the "
        "output is then the mean of the outputs of both tokens' heads.",
    )
    mask_token: bool = option(
        False,
        "Boolean. Whether to store the vector for masked patches that DINOv2's "
        "checkpoints contain. It does not affect the output.",
    )
    position_embedding: str = option(
        "learned",
        'String. "learned" (also called "learned_1d"), "learned_2d", '
        '"relative", "sincos2d" or "none": those of the paper\'s Appendix D.4 '
        "and big_vision's fixed embeddings; \"rope\": DINOv3's rotary "
        "positions. See `AddPositionEmbs`, `RelativePositionEmbs` and "
        "`RotaryPositionEmbs`.",
    )
    position_placement: str = option(
        None,
        'String. Where position embeddings are added: "stem" (once before the '
        'blocks), "every_layer" (before every block, separate embeddings) or '
        '"every_layer_shared" (before every block, the same embeddings). None '
        'means "stem", or "every_layer" for relative positions, which are '
        'part of every block\'s attention, and "every_layer_shared" for rotary '
        'ones. Ignored if `position_embedding` is "none".',
    )
    position_prefix: str = option(
        "all",
        "String. Which tokens before the patches have a position embedding: "
        '"all", "class" (registers have none: DINOv2) or "none" (big_vision '
        "and timm's `no_embed_class`). Only patches have relative positions.",
    )
    grid_size: tuple = option(
        None,
        "`(rows, columns)` of patches for which position embeddings are "
        "learned. None takes the grid of `input_shape`; if its size is None, "
        "that of `weights`, or else that of 224 x 224 pixels.",
    )
    resampling: str = option(
        "bilinear_align_corners",
        "String. Method to resample position embeddings to another grid; see "
        "`AddPositionEmbs`.",
    )
    rope_base: float = option(
        100.0,
        "Float above 0. The periods of rotary positions are powers of it, up "
        "to nearly `rope_base` itself; see `RotaryPositionEmbs`.",
    )
    rope_shift: float = option(
        0.0,
        "Float. In training, rotary positions are shifted by random numbers "
        "in [-rope_shift, rope_shift]; 0 for none.",
    )
    rope_jitter: float = option(
        1.0,
        "Float, 1 or more. In training, rotary positions of rows and of "
        "columns are multiplied by random numbers in [1 / rope_jitter, "
        "rope_jitter]; 1 for none.",
    )
    rope_rescale: float = option(
        1.0,
        "Float, 1 or more. In training, all rotary positions are multiplied by "
        "one random number in [1 / rope_rescale, rope_rescale]; 1 for none.",
    )
    patch_bias: bool = option(
        True, "Boolean. Whether the patch embedding has a bias."
    )
    pre_norm: bool = option(
        False, "Boolean. Whether to normalise tokens before the first block."
    )
    qkv_bias: bool = option(
        True,
        "Boolean. Whether the query, key and value projections have a bias.",
    )
    key_bias: bool = option(
        True,
        "Boolean. Whether the key projection has a bias, if `qkv_bias`. "
        "DINOv3's has none.",
    )
    qk_norm: bool = option(
        False, "Boolean. Whether to normalise queries and keys."
    )
    layer_scale: float = option(
        None,
        "Float above 0. Initial value of the factors of `LayerScale`; None "
        "for no `LayerScale`.",
    )
    activation: str = option(
        "gelu_tanh",
        'String. "gelu_tanh" (Google\'s weights), "gelu" (exact: PyTorch\'s '
        'weights), "quick_gelu", "swiglu", or the name of a Keras activation; '
        "see `MlpBlock`.",
    )
    norm_epsilon: float = option(
        1e-6,
        "Float above 0. Epsilon of every layer norm; 1e-12 in some of Hugging "
        "Face's weights.",
    )
    final_norm: str = option(
        "before_pooling",
        'String. Where the last layer norm is: "before_pooling" (layer '
        '`encoder_norm`, on all tokens), "after_pooling" (layer `head_norm`, '
        'as in timm\'s average pooling) or "none".',
    )
    dropout: float = option(
        0.0,
        "Float in [0, 1). Dropout rate after the position embeddings, after "
        "the attention and after both dense layers of the MLP.",
    )
    attention_dropout: float = option(
        0.0, "Float in [0, 1). Dropout rate of the attention probabilities."
    )
    drop_path: float = option(
        0.0,
        "Float in [0, 1). Stochastic depth rate of the last block, or the only "
        "one; the rate grows linearly from 0 in the first of several blocks.",
    )
    block: type = option(
        TransformerBlock,
        "Class of the encoder blocks: `TransformerBlock` or a subclass; or a "
        "function that returns such a block. It is called with arguments of "
        "`TransformerBlock`; see the example of `VisionTransformer`.",
    )
    remat: bool = option(
        False,
        "Boolean. Whether training recomputes the blocks' activations for the "
        "gradients instead of storing them.",
    )
    pad_to_patch: bool = option(
        False,
        "Boolean. Whether to pad images whose size is no multiple of the patch "
        "size with zeros at the bottom and at the right.",
    )

    def __post_init__(self):
        check_required(
            self, ("patch_size", "hidden_size", "num_layers", "num_heads")
        )
        hidden_size = _checks.positive_int("hidden_size", self.hidden_size)
        if self.mlp_dim is None:
            _set(self, mlp_dim=4 * hidden_size)
        for name in ("hidden_size", "num_layers", "num_heads", "mlp_dim"):
            _convert(self, name, _checks.positive_int)
        _convert(self, "num_registers", _checks.non_negative_int)
        for name in ("dropout", "attention_dropout", "drop_path"):
            _convert(self, name, _checks.rate)
        _convert(self, "norm_epsilon", _checks.positive_float)
        _convert(self, "patch_size", _checks.positive_pair)
        if self.grid_size is not None:
            _convert(self, "grid_size", _checks.positive_pair)
        if self.representation_size is not None:
            _convert(self, "representation_size", _checks.positive_int)
        if self.layer_scale is not None:
            _convert(self, "layer_scale", _checks.positive_float)
        for field in dataclasses.fields(self):
            if field.type is bool and getattr(self, field.name) is not None:
                _convert(self, field.name, _checks.boolean)
        if self.activation in OUTPUT_ACTIVATIONS:
            raise ValueError(
                "`activation` is that of the encoder's MLPs; the head's is "
                f"`classifier_activation`. Received: "
                f"activation={self.activation!r}. Give "
                f"`classifier_activation={self.activation!r}`, or a `block` "
                "whose `make_mlp` uses it."
            )
        for name, choices in (
            ("pooling", POOLINGS),
            ("final_norm", FINAL_NORMS),
            ("position_prefix", POSITION_PREFIXES),
            ("position_embedding", POSITION_EMBEDDINGS),
        ):
            _checks.one_of(name, getattr(self, name), choices)
        self._check_block()
        self._resolve_positions()
        self._check_pooling()

    def _check_block(self):
        if isinstance(self.block, str):
            raise ValueError(
                "The blocks of the saved model are of the class "
                f"{self.block!r}, which the file does not contain. Pass the "
                "class, or the function that made them, as `block`."
            )
        is_class = isinstance(self.block, type)
        if (
            not callable(self.block)
            or isinstance(self.block, keras.Layer)
            or (is_class and not issubclass(self.block, TransformerBlock))
        ):
            raise ValueError(
                "`block` must be `TransformerBlock`, a subclass, or a function "
                f"that returns one. Received: block={self.block!r}"
            )

    def _resolve_positions(self):
        if self.position_embedding == "learned_1d":
            _set(self, position_embedding="learned")
        relative = self.position_embedding == "relative"
        if self.position_placement is None:
            defaults = {"relative": "every_layer", "rope": "every_layer_shared"}
            default = defaults.get(self.position_embedding, "stem")
            _set(self, position_placement=default)
        _checks.one_of(
            "position_placement", self.position_placement, POSITION_PLACEMENTS
        )
        if relative and self.position_placement == "stem":
            raise ValueError(
                "Relative positions are part of every block's attention: "
                "`position_placement` must be 'every_layer' or "
                "'every_layer_shared'. Received: position_placement='stem'"
            )
        if self.position_embedding == "none":
            _set(self, position_placement="stem")
        self._check_rotary()

    def _check_rotary(self):
        _convert(self, "rope_base", _checks.positive_float)
        names = ("rope_shift", "rope_jitter", "rope_rescale")
        check_rotary_changes(**{name: getattr(self, name) for name in names})
        if self.position_embedding != "rope":
            defaults = {f.name: f.default for f in dataclasses.fields(self)}
            for name in ("rope_base", *names):
                if getattr(self, name) != defaults[name]:
                    raise ValueError(
                        f"`{name}` has an effect only with "
                        "`position_embedding='rope'`. Received: "
                        f"{name}={getattr(self, name)!r}, "
                        f"position_embedding={self.position_embedding!r}"
                    )
            return
        if self.position_placement != "every_layer_shared":
            raise ValueError(
                "Rotary positions are part of every block's attention and the "
                "same in all: `position_placement` must be None or "
                "'every_layer_shared'. Received: "
                f"position_placement={self.position_placement!r}"
            )
        if self.hidden_size % (4 * self.num_heads):
            raise ValueError(
                "Rotary positions need a number of channels per head that is a "
                f"multiple of 4. Received: hidden_size={self.hidden_size}, "
                f"num_heads={self.num_heads}"
            )

    def _check_pooling(self):
        if self.class_token is None:
            uses_token = self.pooling in (None, "token", "token_gap")
            _set(self, class_token=uses_token)
        if self.pooling in ("token", "token_gap") and not self.class_token:
            raise ValueError(
                f"`pooling={self.pooling!r}` uses the class token, and this "
                "model has none. Set `class_token=True`, or choose "
                "`pooling='gap'`, 'first_patch' or 'map'."
            )
        norm_after_pooling = self.final_norm == "after_pooling"
        if self.pooling is None:
            for name, needs_pooling in (
                ("representation_size", self.representation_size),
                ("final_norm", norm_after_pooling),
            ):
                if needs_pooling:
                    raise ValueError(
                        f"`{name}={getattr(self, name)!r}` needs a `pooling`. "
                        "Received: pooling=None with include_top=False."
                    )
        if self.distillation and (
            not self.class_token
            or self.representation_size
            or norm_after_pooling
        ):
            raise ValueError(
                "`distillation=True` needs `class_token=True`, no "
                "`representation_size` and no norm after the pooling. "
                f"Received: class_token={self.class_token}, "
                f"pooling={self.pooling!r}, "
                f"representation_size={self.representation_size}, "
                f"final_norm={self.final_norm!r}"
            )

    @property
    def prefix_tokens(self):
        """Tokens before the patches, in order, as a dict `{layer name: (number
        of tokens, whether they have a position embedding)}`."""
        counts = {
            "class_token": int(self.class_token),
            "distillation_token": int(self.distillation),
            "register_tokens": self.num_registers,
        }
        embedded = {
            "all": tuple(counts),
            "class": ("class_token", "distillation_token"),
            "none": (),
        }[self.position_prefix]
        return {
            name: (count, name in embedded)
            for name, count in counts.items()
            if count
        }


def resolve(config_class, explicit, inferred):
    """Builds a config from explicit values, else inferred ones, else defaults.

    Args:
        config_class: Class, such as `ViTConfig`.
        explicit: Dict of the caller's arguments; None means unspecified.
        inferred: Dict of arguments inferred from a checkpoint. Those that are
            no fields of the config are ignored.

    Returns:
        An instance of `config_class`.
    """
    values = {}
    for name in field_names(config_class):
        for source in (explicit, inferred):
            if source.get(name) is not None:
                values[name] = source[name]
                break
    return config_class(**values)


_ROTARY = ("rope_base", "rope_shift", "rope_jitter", "rope_rescale")


def resolve_vit(explicit, inferred, include_top):
    """Builds the `ViTConfig` of a model, without `grid_size`.

    Args:
        explicit: As in `resolve`.
        inferred: As in `resolve`; empty without a checkpoint.
        include_top: Boolean. Whether the model has a head.

    Returns:
        A `ViTConfig`.
    """
    explicit = {k: v for k, v in explicit.items() if v is not None}
    inferred = dict(inferred)
    # These depend on the new model: on the size of its images, and on whether
    # its output is the pooled vector, pre_logits or all tokens.
    for name in ("grid_size", "representation_size"):
        inferred.pop(name, None)
    explicit.pop("grid_size", None)
    embedding = explicit.get("position_embedding")
    embedding = "learned" if embedding == "learned_1d" else embedding
    if embedding not in (None, inferred.get("position_embedding")):
        for name in ("position_placement", *_ROTARY):
            inferred.pop(name, None)
    if not include_top:
        inferred.pop("pooling", None)
        if explicit.get("pooling") is None and inferred:
            final_norm = explicit.get("final_norm") or inferred["final_norm"]
            if final_norm == "after_pooling":  # and there is no pooling
                explicit["final_norm"] = "none"
    elif "pooling" not in {**inferred, **explicit}:
        explicit["pooling"] = (
            "token" if explicit.get("class_token", True) else "gap"
        )
    return resolve(ViTConfig, explicit, inferred)


def resolve_input_shape(input_shape, input_tensor):
    """Returns the checked shape of the model's images; None if unspecified."""
    if input_tensor is not None:
        if not keras.utils.is_keras_tensor(input_tensor):
            raise ValueError(
                "`input_tensor` must be a Keras tensor, such as the output of "
                f"`keras.Input`. Received: {type(input_tensor).__name__}"
            )
        shape = _check_shape("input_tensor", input_tensor.shape[1:])
        if input_shape is not None and tuple(input_shape) != shape:
            raise ValueError(
                f"`input_shape={input_shape}` contradicts `input_tensor`, "
                f"whose shape is {shape}. Give one of them."
            )
        return shape
    if input_shape is None:
        return None
    return _check_shape("input_shape", input_shape)


def resolve_preprocessing(preprocessing, input_tensor, checkpoint):
    """Returns the mode of a model's `ImagePreprocessing`; None for no layer.

    Args:
        preprocessing: Boolean or string; None means False.
        input_tensor: Keras tensor to build the model on, or None.
        checkpoint: A `Checkpoint`, or None.

    Raises:
        ValueError: if it is True and the checkpoint does not contain the mode,
            or with `input_tensor`.
    """
    if preprocessing is None or preprocessing is False:
        return None
    if preprocessing is not True and preprocessing not in (SCALE_AND_SHIFT):
        raise ValueError(
            "`preprocessing` must be True, False or one of "
            f"{', '.join(map(repr, SCALE_AND_SHIFT))}. Received: "
            f"preprocessing={preprocessing!r}"
        )
    if input_tensor is not None:
        raise ValueError(
            "`preprocessing` adds a layer after the model's own input and "
            "cannot be combined with `input_tensor`. Call "
            "`keras_vit.layers.ImagePreprocessing` on the tensor instead. "
            f"Received: preprocessing={preprocessing!r}"
        )
    if preprocessing is not True:
        return preprocessing
    mode = "tf" if checkpoint is None else checkpoint.preprocess_mode
    if mode is None:
        raise ValueError(
            f"{checkpoint.path!r} does not store how images are scaled. Give "
            'the mode of `preprocess_input`: `preprocessing="tf"` for [-1, 1] '
            'or `preprocessing="torch"` for ImageNet\'s mean and standard '
            'deviation, or "clip" for CLIP\'s. Received: preprocessing=True'
        )
    return mode


def _check_shape(name, shape):
    error = ValueError(
        f"`{name}` must have the shape (height, width, channels), where "
        "height and width may be None for any size; channels come last. "
        f"Received: {name}={shape!r}"
    )
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise error
    if shape[2] is None:
        raise error
    for size in shape:
        if size is not None and (
            not isinstance(size, numbers.Integral) or size <= 0
        ):
            raise error
    if shape[0] in (1, 3) and shape[2] > 4 and shape[1] != shape[0]:
        raise ValueError(
            f"`{name}={shape!r}` would be images of {shape[0]} rows with "
            f"{shape[2]} channels: give (height, width, channels), "
            f"{(*shape[1:], shape[0])}."
        )
    return tuple(size if size is None else int(size) for size in shape)


def resolve_classes(include_top, classes, inferred, checkpoint):
    """Returns the number of classes; None if there is no head."""
    if include_top not in (True, False):
        # The first positional argument has another meaning in other packages.
        raise ValueError(
            "`include_top` must be True or False. Received: include_top="
            f"{include_top!r}. Give all arguments by name, such as "
            'weights="imagenet21k" or input_shape=(224, 224, 3).'
        )
    if classes is not None:
        if classes == 0 and not isinstance(classes, bool):
            raise ValueError(
                "`classes` must be a positive integer. Received: classes=0. "
                "For a model without a head, pass include_top=False."
            )
        classes = _checks.positive_int("classes", classes)
    if not include_top:
        return None
    if classes is None:
        classes = inferred.get("classes", 1000)
    if classes is None:
        raise ValueError(
            f"{checkpoint.path!r} has no classification head. Give `classes` "
            "for a new one, or set `include_top=False`."
        )
    return classes


# Argument names of timm, transformers, keras-hub and vit-keras, and what
# corresponds to them here.
FOREIGN_ARGUMENT_NAMES = {
    "num_classes": "classes",
    "num_labels": "classes",
    "pretrained_top": "classes",
    "dynamic_img_size": "input_shape",
    "image_size": "input_shape",
    "img_size": "input_shape",
    "image_shape": "input_shape",
    "in_chans": "input_shape",
    "in_channels": "input_shape",
    "preset": "weights",
    "from_preset": "weights",
    "pretrained": "weights",
    "embed_dim": "hidden_size",
    "depth": "num_layers",
    "drop_rate": "dropout",
    "dropout_rate": "dropout",
    "drop_path_rate": "drop_path",
    "global_pool": "pooling",
    "init_values": "layer_scale",
    "reg_tokens": "num_registers",
    "act_layer": "activation",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "proj_drop_rate": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "stochastic_depth": "drop_path",
    "intermediate_size": "mlp_dim",
    "intermediate_dim": "mlp_dim",
    "num_channels": "input_shape",
    "layer_norm_eps": "norm_epsilon",
    "fc_norm": "final_norm",
    "no_embed_class": "position_prefix",
    "posemb": "position_embedding",
    "pool_type": "pooling",
    "rep_size": "representation_size",
    "num_tokens": "num_registers",
    "num_register_tokens": "num_registers",
    "gradient_checkpointing": "remat",
    "checkpoint_path": "weights",
    "features_only": "dense_features",
    "output_attentions": "inspection.attention_maps",
    "dtype": "keras.config.set_dtype_policy",
    # Nothing here corresponds to these, although a name is similar.
    "norm_layer": None,
    "data_format": None,
    "patch_drop_rate": None,
    "use_mlp_bias": None,
    "batch_size": None,
}


def check_arguments(function, names, accepted):
    """Checks the names of a function's arguments.

    Args:
        function: String. Name of the function.
        names: Names of the arguments that it received.
        accepted: Names of the arguments that it takes.

    Raises:
        TypeError: if a name is unknown, with a suggestion.
    """
    for name in names:
        if name not in accepted:
            close = difflib.get_close_matches(name, accepted, 1)
            suggestion = FOREIGN_ARGUMENT_NAMES.get(
                name, close[0] if close else None
            )
            hint = f" Did you mean {suggestion!r}?" if suggestion else ""
            raise TypeError(f"{function}() has no argument {name!r}.{hint}")


def takes_fields_of(*config_classes):
    """Returns a decorator that makes the fields of configs arguments.

    The decorated function receives them as `**architecture`; other names raise
    a TypeError. The fields and their defaults become part of its signature, and
    their documentation replaces the line `{architecture}` in its docstring.

    Args:
        *config_classes: Dataclasses whose fields are made with `option`.
    """
    fields = {
        field.name: field
        for config_class in config_classes
        for field in dataclasses.fields(config_class)
    }

    def decorate(function):
        signature = inspect.signature(function)
        *named, rest = signature.parameters.values()
        names = {parameter.name for parameter in named}
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=field.default
            )
            for name, field in fields.items()
            if name not in names
        ]
        accepted = [parameter.name for parameter in (*named, *added)]

        @functools.wraps(function)
        def wrapper(**arguments):
            check_arguments(function.__name__, arguments, accepted)
            return function(**arguments)

        wrapper.__doc__ = (function.__doc__ or "").replace(
            "        {architecture}\n",
            "".join(_field_doc(fields[p.name]) for p in added),
        )
        wrapper.__signature__ = signature.replace(parameters=(*named, *added))
        return wrapper

    return decorate


def _field_doc(field):
    lines = textwrap.wrap(f"{field.name}: {field.metadata['doc']}", 67)
    text = textwrap.indent("\n".join(lines), " " * 12)
    return text[4:] + "\n"


def field_names(config_class):
    """Returns the names of a config's fields."""
    return [field.name for field in dataclasses.fields(config_class)]


def check_required(config, names):
    """Raises a ValueError if one of the named fields is None."""
    missing = [name for name in names if getattr(config, name) is None]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} must be given where there are no `weights` "
            "to take them from. Received: "
            f"{', '.join(f'{name}=None' for name in missing)}"
        )


def _set(config, **values):
    for name, value in values.items():
        object.__setattr__(config, name, value)


def _convert(config, name, check):
    _set(config, **{name: check(name, getattr(config, name))})


@dataclasses.dataclass(frozen=True)
class Variant:
    """Sizes of a named model; see `VARIANTS`."""

    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    patch_size: int
    resnet_layers: tuple | None = None  # units per stage; None: no hybrid

    def sizes(self):
        """Returns the arguments of the function that builds the model."""
        values = dataclasses.asdict(self)
        return {name: v for name, v in values.items() if v is not None}


# Ti, S: https://arxiv.org/abs/2106.10270, Table 2.
# B, L, H: https://arxiv.org/abs/2010.11929, Table 1.
# g, G: https://arxiv.org/abs/2106.04560, Table 2 (there with `pooling="map"`).
# S, B, L with patches of 14: https://arxiv.org/abs/2304.07193 (DINOv2).
#                   hidden layers heads   mlp patch
VARIANTS = {
    "ViTTi16": Variant(192, 12, 3, 768, 16),
    "ViTS16": Variant(384, 12, 6, 1536, 16),
    "ViTS32": Variant(384, 12, 6, 1536, 32),
    "ViTB8": Variant(768, 12, 12, 3072, 8),
    "ViTB16": Variant(768, 12, 12, 3072, 16),
    "ViTB32": Variant(768, 12, 12, 3072, 32),
    "ViTL16": Variant(1024, 24, 16, 4096, 16),
    "ViTL32": Variant(1024, 24, 16, 4096, 32),
    "ViTH14": Variant(1280, 32, 16, 5120, 14),
    "ViTS14": Variant(384, 12, 6, 1536, 14),
    "ViTB14": Variant(768, 12, 12, 3072, 14),
    "ViTL14": Variant(1024, 24, 16, 4096, 14),
    "ViTg14": Variant(1408, 40, 16, 6144, 14),
    "ViTG14": Variant(1664, 48, 16, 8192, 14),
    # google-research/vision_transformer, configs/models.py. Patch sizes are in
    # positions of the feature map; one position after the root is 4 x 4 pixels.
    "R_ViTTi16": Variant(192, 12, 3, 768, 8, ()),
    "R26ViTS32": Variant(384, 12, 6, 1536, 1, (2, 2, 2, 2)),
    "R26ViTB32": Variant(768, 12, 12, 3072, 1, (2, 2, 2, 2)),
    "R50ViTB16": Variant(768, 12, 12, 3072, 1, (3, 4, 9)),
    "R50ViTL32": Variant(1024, 24, 16, 4096, 1, (3, 4, 6, 3)),
}

# https://arxiv.org/abs/1912.11370: (number of units of each stage, width
# factor).
BIT_VARIANTS = {
    "BiT_R50x1": ((3, 4, 6, 3), 1),
    "BiT_R50x3": ((3, 4, 6, 3), 3),
    "BiT_R101x1": ((3, 4, 23, 3), 1),
    "BiT_R101x3": ((3, 4, 23, 3), 3),
    "BiT_R152x2": ((3, 8, 36, 3), 2),
    "BiT_R152x4": ((3, 8, 36, 3), 4),
}
