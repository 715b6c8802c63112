"""The config.json of transformers, of all models of format "huggingface"."""

import math

from keras_vit.utils.types import Config
from keras_vit.weights.formats.format import check_option, pair
from keras_vit.weights.formats.unsupported import family, refusal

# `hidden_act` of transformers and the activation here that computes the same.
# Others are refused, such as "leaky_relu", whose slope is another in Keras.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "hardswish": "hard_silu",
    "mish": "mish",
    "tanh": "tanh",
}


def hidden_act(activation: str) -> str | None:
    """Returns the `hidden_act` of an activation; None if there is none."""
    if activation == "swiglu":
        return "gelu"  # of a separate class, which ignores the value
    found = (name for name, x in ACTIVATIONS.items() if x == activation)
    return next(found, None)


def mlp_ratio(hidden_size: int, mlp_dim: int, gated: bool) -> int | None:
    """Returns the whole `mlp_ratio` of an MLP of DINOv2, None if there is none.

    The width of its SwiGLU is 2/3 of that of other MLPs, rounded up to a
    multiple of 8.
    """
    for ratio in range(1, 65):
        width = hidden_size * ratio
        if gated:
            width = (int(width * 2 / 3) + 7) // 8 * 8
        if width == mlp_dim:
            return ratio
    return None


DINOV3, SIGLIP2 = "dinov3_vit", "siglip2_vision_model"
_COUNT = (
    "a whole number above 0",
    lambda value: type(value) is int and 0 < value < 2**31,
)
_FRACTION = (
    "between 0 and 1",
    lambda value: type(value) is float and 0 < value < 1,
)
_TRUE = ("true, as in all released models", lambda value: value is True)
_VALIDATORS = {  # name in config.json: (expected value, check)
    "hidden_act": (
        f"one of {', '.join(ACTIVATIONS)}",
        lambda value: isinstance(value, str) and value in ACTIVATIONS,
    ),
    "layer_norm_eps": _FRACTION,
    "num_attention_heads": _COUNT,
    "mask_ratio": _FRACTION,
    "norm_pix_loss": ("true or false", lambda value: type(value) is bool),
    "decoder_num_attention_heads": _COUNT,
    "rope_theta": (
        "a number above 0",
        lambda value: type(value) in (int, float) and value > 0,
    ),
}
# Entries of config.json that are read as arguments, of all models ("") and by
# model type; shapes of arrays have the others.
_ARGUMENTS = {
    "": {"layer_norm_eps": "norm_epsilon", "num_attention_heads": "num_heads"},
    "vit_mae": {
        "mask_ratio": "mask_ratio",
        "norm_pix_loss": "norm_pixels",
        "decoder_num_attention_heads": "decoder_num_heads",
    },
    DINOV3: {
        "rope_theta": "rope_base",
        "pos_embed_shift": "rope_shift",
        "pos_embed_jitter": "rope_jitter",
        "pos_embed_rescale": "rope_rescale",
    },
}
# The argument's value for null.
_NULL = {"rope_shift": 0.0, "rope_jitter": 1.0, "rope_rescale": 1.0}
# Entries of config.json that are written, of all models and by model type.
_WRITTEN = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("hidden_act", "layer_norm_eps", "image_size", "patch_size"),
    "num_channels",
)
_VIT = ("qkv_bias", "hidden_dropout_prob", "attention_probs_dropout_prob")
_DINOV2 = (*_VIT, "mlp_ratio", "use_swiglu_ffn")
_WRITTEN_OF = {
    "vit": (
        *(*_VIT, "intermediate_size", "pooler_output_size", "pooler_act"),
        "encoder_stride",
    ),
    "deit": (*_VIT, "intermediate_size", "pooler_output_size", "pooler_act"),
    "ijepa": (*_VIT, "intermediate_size"),
    "vit_mae": (
        *(*_VIT, *_ARGUMENTS["vit_mae"], "intermediate_size"),
        *("decoder_hidden_size", "decoder_intermediate_size"),
        "decoder_num_hidden_layers",
    ),
    "dinov2": (*_DINOV2, "use_mask_token"),
    "dinov2_with_registers": (*_DINOV2, "num_register_tokens"),
    DINOV3: (
        *("intermediate_size", "use_gated_mlp", *_ARGUMENTS[DINOV3]),
        *("query_bias", "key_bias", "value_bias", "num_register_tokens"),
    ),
    "clip_vision_model": ("intermediate_size", "projection_dim"),
    "siglip_vision_model": ("intermediate_size", "vision_use_head"),
    SIGLIP2: ("intermediate_size", "vision_use_head", "num_patches"),
    "yolos": (*_VIT, "intermediate_size"),
    "eomt": ("mlp_ratio", "use_swiglu_ffn", "num_register_tokens"),
}


def model_config(arguments: Config, model_type: str) -> Config:
    """Returns the entries of config.json that describe a model."""
    a, bias = arguments, arguments["qkv_bias"]
    (rows, columns), gated = a["patch_size"], a["activation"] == "swiglu"
    act, grid = hidden_act(a["activation"]), a["grid_size"] or (0, 0)
    size = grid[0] * rows, grid[1] * columns
    if model_type == DINOV3 and not any(size):  # of images of any size
        multiple = math.lcm(rows, columns)
        size = (224 // multiple * multiple or multiple,) * 2
    image_size = size[0] if size[0] == size[1] else size
    entries = {
        "hidden_size": a["hidden_size"],
        "num_hidden_layers": a["num_layers"],
        "num_attention_heads": a["num_heads"],
        "hidden_act": "silu" if gated and model_type == DINOV3 else act,
        "layer_norm_eps": a["norm_epsilon"],
        "image_size": None if model_type == SIGLIP2 else image_size,
        "num_patches": math.prod(grid),
        "patch_size": rows if rows == columns else [rows, columns],
        "num_channels": a["channels"],
        "intermediate_size": a["mlp_dim"],
        "mlp_ratio": mlp_ratio(a["hidden_size"], a["mlp_dim"], gated),
        "use_swiglu_ffn": gated,
        "use_gated_mlp": gated,
        "qkv_bias": bias,
        "query_bias": bias,
        "key_bias": bias and a["key_bias"],
        "value_bias": bias,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "use_mask_token": a["mask_token"],
        "num_register_tokens": a["num_registers"],
        "vision_use_head": a["pooling"] == "map",
        "projection_dim": a["classes"],
        "pooler_output_size": a["representation_size"],
        "pooler_act": "tanh" if a["representation_size"] else None,
        "encoder_stride": rows if a["family"] == "simmim" else None,
        "decoder_hidden_size": a.get("decoder_hidden_size"),
        "decoder_intermediate_size": a.get("decoder_mlp_dim"),
        "decoder_num_attention_heads": a.get("decoder_num_heads"),
        "decoder_num_hidden_layers": a.get("decoder_num_layers"),
        # Files may lack these: defaults of `MaskedAutoencoder`.
        "mask_ratio": a.get("mask_ratio", 0.75),
        "norm_pix_loss": a.get("norm_pixels", True),
    }
    names = (*_WRITTEN, *_WRITTEN_OF[model_type])
    config = {x: entries[x] for x in names if entries.get(x) is not None}
    for name, argument in _ARGUMENTS[DINOV3].items():
        if name in names:  # null means that there is no change
            none = _NULL.get(argument)
            value = a.get(argument, none)
            config[name] = None if value == none else value
    return config


def vision_config(config: dict) -> dict:
    """Returns the entries of config.json that are about the image tower."""
    vision = config.get("vision_config")
    if config.get("model_type") == "clip":  # its old key prevails
        vision = config.get("vision_config_dict") or vision
    return {**config, **vision} if isinstance(vision, dict) else config


def read_arguments(config: dict) -> dict:
    """Returns the arguments that transformers' config.json implies."""
    if name := family((), config):
        raise ValueError(refusal(name))
    config = vision_config(config)
    kind = str(config.get("model_type"))
    is_dinov3, validators = kind == DINOV3, dict(_VALIDATORS)
    if kind == "vit_mae":  # transformers' default, not that of the paper
        config = {"norm_pix_loss": False, **config}
        if config.get("mask_ratio") == 0:  # features of all patches, no training
            del config["mask_ratio"]
    if is_dinov3:
        validators |= {"proj_bias": _TRUE, "mlp_bias": _TRUE}
    gated = config.get("use_gated_mlp" if is_dinov3 else "use_swiglu_ffn")
    if gated:  # DINOv2's is a separate class, which ignores `hidden_act`
        del validators["hidden_act"]
    activation = config.get("hidden_act", "gelu")
    if is_dinov3 and gated:
        validators["hidden_act"] = (
            "'silu' with 'use_gated_mlp'",
            lambda value: value in ("silu", "swish"),
        )
        config = {"hidden_act": activation, **config}
    for name, (expected, is_valid) in validators.items():
        if name in config:
            check_option(is_valid(config[name]), name, config[name], expected)
    query, value = (config.get(f"{x}_bias", True) for x in ("query", "value"))
    if is_dinov3:  # all that are released have both or none
        expected = f"as 'value_bias', {value!r:.100}"
        check_option(query == value, "query_bias", query, expected)
    names = {**_ARGUMENTS[""], **_ARGUMENTS.get(kind, {})}
    arguments = {
        argument: _NULL.get(argument) if config[name] is None else config[name]
        for name, argument in names.items()
        if name in config
    }
    if kind == "dinov2_with_registers":  # also without any
        arguments["resampling"] = "bicubic_antialias"
    if gated:
        arguments["activation"] = "swiglu"
    elif is_dinov3 or "hidden_act" in config:
        arguments["activation"] = ACTIVATIONS[activation]
    image, patch = (pair(config.get(f"{x}_size")) for x in ("image", "patch"))
    if patch and kind.startswith("siglip2"):
        arguments["patch_size"] = patch
    if image and patch:
        arguments["grid_size"] = (image[0] // patch[0], image[1] // patch[1])
    return arguments


def check_config(config: dict, weights: dict) -> None:
    """Raises a `ValueError` if config.json describes another model."""
    config = vision_config(config)
    layers = {path.partition("/")[0] for path in weights}
    # transformers builds a model by these, whatever arrays there are.
    built: Config = {"num_hidden_layers": sum(x.startswith("block_") for x in layers)}
    for name in ("qkv", "query", "key", "value"):
        layer = "query" if name == "qkv" else name
        path = f"block_0/attention/{layer}/bias"
        built[f"{name}_bias"] = path in weights
    if "pre_logits/kernel" in weights:  # its activation
        built["pooler_act"] = "tanh"
    for name, value in built.items():
        found = config.get(name, value)
        check_option(found == value, name, found, f"{value!r}, as in its arrays")
    if "pre_logits/kernel" in weights and config.get("model_type") == "ijepa":
        raise ValueError(
            "Its pooler takes the first patch, for which this package has no layer. "
            "Save its IJepaModel with add_pooling_layer=False."
        )
