"""The config.json of transformers, of all models of layout "huggingface"."""

import math
from typing import Any

from keras_vit._types import Config

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


DINOV3 = "dinov3_vit"
# Argument: key of config.json, and the argument's value for null.
_ROPE_CHANGES = {
    "rope_shift": ("pos_embed_shift", 0.0),
    "rope_jitter": ("pos_embed_jitter", 1.0),
    "rope_rescale": ("pos_embed_rescale", 1.0),
}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_fraction(value: object) -> bool:
    return type(value) is float and 0 < value < 1


def _is_activation(value: object) -> bool:
    return isinstance(value, str) and value in ACTIVATIONS


_COUNT = ("a whole number above 0", _is_count)
_TRUE = ("true, as in all released models", lambda value: value is True)
_VALIDATORS = {  # name in config.json: (expected value, check)
    "hidden_act": (f"one of {', '.join(ACTIVATIONS)}", _is_activation),
    "layer_norm_eps": ("between 0 and 1", _is_fraction),
    "num_attention_heads": _COUNT,
    "mask_ratio": ("between 0 and 1", _is_fraction),
    "norm_pix_loss": ("true or false", lambda value: type(value) is bool),
    "decoder_num_attention_heads": _COUNT,
}
_ARGUMENTS = {
    "layer_norm_eps": "norm_epsilon",
    "num_attention_heads": "num_heads",
}
_ARGUMENTS_OF = {
    "vit_mae": {
        "mask_ratio": "mask_ratio",
        "norm_pix_loss": "norm_pixels",
        "decoder_num_attention_heads": "decoder_num_heads",
    },
    DINOV3: {"rope_theta": "rope_base"},
}


def vision_config(config: dict) -> dict:
    """Returns the entries of config.json that are about the image tower."""
    vision = config.get("vision_config")
    if config.get("model_type") == "clip":  # its old key prevails
        vision = config.get("vision_config_dict") or vision
    return {**config, **vision} if isinstance(vision, dict) else config


def read_arguments(config: dict) -> dict:
    """Returns the arguments that transformers' config.json implies."""
    config = vision_config(config)
    kind = str(config.get("model_type"))
    is_dinov3 = kind == DINOV3
    if kind == "vit_mae":  # transformers' default, not that of the paper
        config = {"norm_pix_loss": False, **config}
    validators = dict(_VALIDATORS)
    if is_dinov3:
        validators |= {"proj_bias": _TRUE, "mlp_bias": _TRUE}
    gated = config.get("use_gated_mlp" if is_dinov3 else "use_swiglu_ffn")
    if gated:  # DINOv2's is a separate class, which ignores `hidden_act`
        del validators["hidden_act"]
    for name, (expected, is_valid) in validators.items():
        if name in config and not is_valid(config[name]):
            raise ValueError(
                f"{name!r} in its config.json must be {expected}. Received: "
                f"{config[name]!r:.100}"
            )
    arguments = {}
    if gated:
        arguments["activation"] = "swiglu"
    elif is_dinov3 or "hidden_act" in config:
        arguments["activation"] = ACTIVATIONS[config.get("hidden_act", "gelu")]
    names = _ARGUMENTS | _ARGUMENTS_OF.get(kind, {})
    arguments |= {
        argument: config[name]
        for name, argument in names.items()
        if name in config
    }
    if is_dinov3:
        return arguments | _read_dinov3(config)
    image = _pair(config.get("image_size"))
    patch = _pair(config.get("patch_size"))
    if patch and kind.startswith("siglip2"):
        arguments["patch_size"] = patch
    if image and patch:
        arguments["grid_size"] = (image[0] // patch[0], image[1] // patch[1])
    return arguments


def _read_dinov3(config: Config) -> Config:
    query, value = (config.get(f"{x}_bias", True) for x in ("query", "value"))
    if query != value:
        raise ValueError(
            "'query_bias' and 'value_bias' in its config.json must be equal, "
            f"as in all released DINOv3. Received: {query!r:.100} and "
            f"{value!r:.100}"
        )
    activation = config.get("hidden_act", "gelu")
    if config.get("use_gated_mlp") and activation not in ("silu", "swish"):
        raise ValueError(
            "'hidden_act' in its config.json must be 'silu' with "
            f"'use_gated_mlp'. Received: {activation!r:.100}"
        )
    return {
        argument: none if config[name] is None else config[name]
        for argument, (name, none) in _ROPE_CHANGES.items()
        if name in config
    }


def dinov3_config(arguments: Config) -> Config:
    """Returns the config.json of a DINOv3."""
    a = arguments
    gated = a["activation"] == "swiglu"
    rows, columns = a["patch_size"]
    multiple = math.lcm(rows, columns)
    bias = a["qkv_bias"]
    return {
        "model_type": DINOV3,
        "architectures": ["DINOv3ViTModel"],
        "hidden_size": a["hidden_size"],
        "intermediate_size": a["mlp_dim"],
        "num_hidden_layers": a["num_layers"],
        "num_attention_heads": a["num_heads"],
        "hidden_act": "silu" if gated else hidden_act(a["activation"]),
        "use_gated_mlp": gated,
        "layer_norm_eps": a["norm_epsilon"],
        "rope_theta": a["rope_base"],
        "image_size": -(-224 // multiple) * multiple,
        "patch_size": rows if rows == columns else [rows, columns],
        "num_channels": a["channels"],
        "query_bias": bias,
        "key_bias": bias and a["key_bias"],
        "value_bias": bias,
        "num_register_tokens": a["num_registers"],
        **{
            name: None if a.get(argument, none) == none else a[argument]
            for argument, (name, none) in _ROPE_CHANGES.items()
        },
    }


def _pair(size: Any) -> tuple[int, int] | None:
    if type(size) is int:
        size = (size, size)
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return tuple(size) if all(map(_is_count, size)) else None
    return None


def check_config(config: dict, weights: dict) -> None:
    """Raises a `ValueError` if config.json describes another model."""
    config = vision_config(config)
    layers = {path.partition("/")[0] for path in weights}
    # transformers builds a model by these, whatever arrays there are.
    built = {"num_hidden_layers": sum(x.startswith("block_") for x in layers)}
    for name in ("qkv", "query", "key", "value"):
        layer = "query" if name == "qkv" else name
        path = f"block_0/attention/{layer}/bias"
        built[f"{name}_bias"] = path in weights
    for name, value in built.items():
        if name in config and config[name] != value:
            raise ValueError(
                f"{name!r} in its config.json must be {value!r}, as in its "
                f"arrays. Received: {config[name]!r:.100}"
            )
    activation = config.get("pooler_act", "tanh")
    if "pre_logits/kernel" in weights and activation != "tanh":
        raise ValueError(
            "'pooler_act' in its config.json must be 'tanh', the activation of "
            f"`pre_logits`. Received: {activation!r:.100}"
        )
