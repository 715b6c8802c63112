"""transformers' `DINOv3ViTModel` (variants of the layout "huggingface").

https://github.com/huggingface/transformers, models/dinov3_vit
"""

import math

import numpy as np

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit.weights.formats import rotary
from keras_vit.weights.formats.format import Values
from keras_vit.weights.formats.huggingface_config import DINOV3
from keras_vit.weights.formats.huggingface_config import ROPE_CHANGES
from keras_vit.weights.formats.huggingface_config import hidden_act
from keras_vit.weights.weight_map import TORCH
from keras_vit.weights.weight_map import WeightMap

VARIANTS = ("dinov3", "dinov3-gated")
ARGUMENTS = {"norm_epsilon": 1e-5, "rope_base": rotary.BASE}
_REGISTERS = "register_tokens/tokens"


def _map(variant: str, first: tuple[str, ...]) -> WeightMap:
    path, block = "block_{i}", "layer.{i}"
    keys = tuple(f"{block}.mlp.{name}.*" for name in first)
    layers = (
        ("patch_embedding/*", "embeddings.patch_embeddings.*", "conv"),
        ("class_token/tokens", "embeddings.cls_token", "array"),
        (_REGISTERS, "embeddings.register_tokens", "array"),
        ("mask_token/tokens", "embeddings.mask_token", "array"),
        (f"{path}/norm_1/*", f"{block}.norm1.*", "norm"),
        *(
            (
                f"{path}/attention/{name}/*",
                f"{block}.attention.{name[0]}_proj.*",
                "heads",
            )
            for name in ("query", "key", "value")
        ),
        (
            f"{path}/attention/attention_output/*",
            f"{block}.attention.o_proj.*",
            "merge",
        ),
        (f"{path}/scale_1/gamma", f"{block}.layer_scale1.lambda1", "array"),
        (f"{path}/norm_2/*", f"{block}.norm2.*", "norm"),
        (f"{path}/mlp/dense_1/*", keys, "gated" if len(keys) > 1 else "linear"),
        (f"{path}/mlp/dense_2/*", f"{block}.mlp.down_proj.*", "linear"),
        (f"{path}/scale_2/gamma", f"{block}.layer_scale2.lambda1", "array"),
        ("encoder_norm/*", "norm.*", "norm"),
    )
    types = {**TORCH, "gated": rotary.GATED}
    heads = rotary.PUBLISHED_HEADS
    return WeightMap(variant, types, layers, published_heads=heads)


MAPS = (
    _map(VARIANTS[0], ("up_proj",)),
    _map(VARIANTS[1], ("gate_proj", "up_proj")),
)


def after_reading(
    weights: dict[str, Array], stored: Config, variant: str
) -> tuple[dict[str, Array], Config]:
    """Adds the periods, which are computed there; removes empty registers."""
    if variant in VARIANTS:
        weights = rotary.add_periods(weights, stored)
        if weights.get(_REGISTERS, np.zeros(1)).size == 0:
            weights.pop(_REGISTERS)
    return weights, stored


def before_writing(
    weights: dict[str, Array], arguments: Config, variant: str
) -> dict[str, Array]:
    """The opposite of `after_reading`; adds a mask token if there is none."""
    if variant not in VARIANTS:
        return weights
    weights = rotary.drop_periods(weights, arguments, "transformers")
    empty = np.zeros_like(weights["class_token/tokens"][:, :0])
    return {_REGISTERS: empty, **rotary.add_mask_token(weights)}


def values(arguments: Config) -> Values:
    """Returns the values of arguments in a folder, as `Format.values`."""
    return {
        "class_token": (True,),
        "classes": (None,),
        "layer_scale": (arguments["layer_scale"] or 1.0,),
        "patch_bias": (True,),
        "final_norm": ("before_pooling",),
        "activation": ("gelu", "gelu_tanh", "swiglu"),
    }


def model_config(arguments: Config) -> Config:
    """Returns the config.json of a model."""
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
            for argument, (name, none) in ROPE_CHANGES.items()
        },
    }
