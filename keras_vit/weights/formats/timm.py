"""timm (format "timm"), most of whose names DeiT, MAE and DINOv2 also use.

https://github.com/huggingface/pytorch-image-models
"""

import re
from collections.abc import Collection
from typing import Any

import numpy as np

from keras_vit.config import POSITION_PREFIXES
from keras_vit.utils.scaling import Mode, mean_and_std
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.weights.files import read_training, weights_file
from keras_vit.weights.formats import dinov3, naflex
from keras_vit.weights.formats.format import (
    QKV,
    Format,
    Values,
    block_layers,
    check_option,
    image_size,
    pair,
    refuse_others,
    resnet_layers,
)
from keras_vit.weights.weight_map import TORCH, Layers, WeightMap

# Constants of ResNets. In vision_transformer_hybrid.py, `padding_same=False`
# corresponds to "symmetric" for both paddings.
_HYBRID_CONSTANTS = {
    "group_norm_epsilon": 1e-5,
    "std_epsilon": 1e-8,
    "std_epsilon_place": "variance",
    "conv_padding": "same",
    "pool_padding": "same",
}
# resnetv2.py
_BIT_CONSTANTS = {
    **_HYBRID_CONSTANTS,
    "conv_padding": "symmetric",
    "pool_padding": "zeros",
}


def mlp(path: str, key: str) -> Layers:
    return (
        (f"{path}/dense_1/*", f"{key}.fc1.*", "linear"),
        (f"{path}/dense_2/*", f"{key}.fc2.*", "linear"),
    )


def encoder(
    mlp_names: tuple[str, ...] = ("fc1", "fc2"),
    scales: tuple[str, ...] = ("ls1.gamma", "ls2.gamma"),
    registers: str = "reg_token",
) -> Layers:
    """Returns the layers of a Vision Transformer, as in `WeightMap`."""
    pooling = "pooling/attention"
    return (
        ("patch_embedding/*", "patch_embed.proj.*", "conv"),
        ("class_token/tokens", "cls_token", "array"),
        ("distillation_token/tokens", "dist_token", "array"),
        ("register_tokens/tokens", registers, "array"),
        ("position_embedding/embedding", "pos_embed", "array"),
        ("pre_norm/*", "norm_pre.*", "norm"),
        *block_layers(
            "blocks.{i}.",
            "attn.qkv.*",
            "attn.proj.*",
            (f"mlp.{mlp_names[0]}.*", f"mlp.{mlp_names[1]}.*"),
            scales=scales,
        ),
        *(
            (
                f"block_{{i}}/attention/{name}_norm/*",
                f"blocks.{{i}}.attn.{name[0]}_norm.*",
                "norm",
            )
            for name in QKV[:2]
        ),
        ("encoder_norm/*", "norm.*", "norm"),
        ("pooling/probe", "attn_pool.latent", "array"),
        (f"{pooling}/query/*", "attn_pool.q.*", "heads"),
        (
            tuple(f"{pooling}/{name}/*" for name in QKV[1:]),
            "attn_pool.kv.*",
            "fused",
        ),
        (f"{pooling}/attention_output/*", "attn_pool.proj.*", "merge"),
        ("pooling/norm/*", "attn_pool.norm.*", "norm"),
        *mlp("pooling/mlp", "attn_pool.mlp"),
        ("head_norm/*", "fc_norm.*", "norm"),
        ("head/*", "head.*", "linear"),
        ("distillation_head/*", "head_dist.*", "linear"),
    )


def _resnet(prefix: str, root: str = "stem.") -> Layers:
    """Returns the layers of timm's ResNetV2, which counts from 0."""
    names = ("conv1", "conv2", "conv3", "downsample.conv")
    return (
        ("root_norm/*", f"{prefix}{root}norm.*", "norm"),
        *resnet_layers(
            f"{prefix}{root}conv.*",
            f"{prefix}stages.{{s-1}}.blocks.{{u-1}}.",
            [f"{name}.*" for name in names],
            [f"{name.replace('conv', 'norm')}.*" for name in names],
        ),
    )


_BACKBONE = "patch_embed.backbone."
# NaFlexVit has these arrays in the module of its embeddings.
_NAFLEX = ("cls_token", "reg_token", "pos_embed")
_MAPS = (
    WeightMap("", TORCH, encoder()),
    # DeiT III, as released by Meta.
    WeightMap(
        "deit3",
        TORCH,
        encoder(scales=("gamma_1", "gamma_2")),
        required=("pos_embed",),
    ),
    # Hybrids whose ResNet is only the root have names without `stem.`.
    WeightMap("root", TORCH, (*_resnet(_BACKBONE, root="")[:2], *encoder())),
    WeightMap("hybrid", TORCH, (*_resnet(_BACKBONE), *encoder())),
    WeightMap(
        "bit",
        TORCH,
        (
            *_resnet(""),
            ("final_norm/*", "norm.*", "norm"),
            ("head/*", "head.fc.*", "pointwise"),
        ),
    ),
    *dinov3.TIMM_MAPS,
    WeightMap(
        naflex.TIMM,
        TORCH,
        (
            ("patch_embedding/*", "embeds.proj.*", "linear"),
            ("position_embedding/rows", "embeds.pos_embed_y", "table"),
            ("position_embedding/columns", "embeds.pos_embed_x", "table"),
            *(
                (path, f"embeds.{key}" if key in _NAFLEX else key, kind)
                for path, key, kind in encoder()
                if key not in ("patch_embed.proj.*", "dist_token")
                and path != "distillation_head/*"
            ),
        ),
        required=("embeds.proj.weight",),
    ),
)

# SigLIP's towers for which timm has the approximate GELU.
_TANH_SIGLIP = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_|"
    r"vit_large_patch16_siglip_(gap_)?512"
)
_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
# Poolings of architectures whose name has a part.
_USUAL = (("avg", "_gap|^eva_|_dinov3"), ("map", "_map|_siglip"))
# Names of architectures, as timm has them. Others that a training gives are not read.
_NAMES = re.compile(
    r"(vit|deit3?|eva_large)_\w*patch\d+_\w+|vit_\w+_(r|resnet)\d*\w+|"
    r"(flexivit|naflexvit)_\w+|test_vit\d?"
)
# Architectures with the arrays of others: they have another rotation, norms
# after the branches, or prefix tokens that are pooled.
_NOT_HERE = re.compile(r".*_rope_|vit_pe_|.*_rpn_|test_vit3")
# Entries of `model_args` that change what is computed from the same arrays, and
# the values that this package has.
_ONLY = {
    "pool_include_prefix": (False,),
    "rope_type": ("dinov3",),
    "rope_rotate_half": (True,),
    "rope_grid_offset": (0.0,),
    "rope_grid_indexing": ("ij",),
    "ref_feat_shape": (None,),
    "scale_attn_inner": (False,),
    "gated_attn": (False,),
    "norm_layer": (None, "layernorm", "layernormfp32"),
}


def model_arguments(arguments: Config) -> Config:
    """Returns the arguments of timm's `VisionTransformer` that JSON can hold.

    These are all but the classes of norms, activations and MLPs.
    """
    a = arguments
    prefixes = ("all", "none") if a["num_registers"] else POSITION_PREFIXES
    refuse_others(
        "timm",
        a,
        {
            "patch_bias": (not a["pre_norm"],),
            "position_prefix": prefixes,
            "pooling": ("token", "gap", "map", None),
        },
    )
    widened = 2 if a["activation"] == "swiglu" else 1
    return {
        "img_size": image_size(a),
        "patch_size": a["patch_size"],
        "in_chans": a["channels"],
        "num_classes": a["classes"] or 0,
        "global_pool": {"gap": "avg"}.get(a["pooling"], a["pooling"]),
        "embed_dim": a["hidden_size"],
        "depth": a["num_layers"],
        "num_heads": a["num_heads"],
        "mlp_ratio": widened * a["mlp_dim"] / a["hidden_size"],
        "qkv_bias": a["qkv_bias"],
        "qk_norm": a["qk_norm"],
        "init_values": a["layer_scale"],
        "class_token": a["class_token"],
        "no_embed_class": a["position_prefix"] == "none",
        "reg_tokens": a["num_registers"],
        "pre_norm": a["pre_norm"],
        "final_norm": a["final_norm"] != "none",
        "fc_norm": a["final_norm"] == "after_pooling",
    }


# Functions of timm that build any `VisionTransformer` from JSON arguments. They
# differ in what JSON cannot hold: the epsilon of norms, and distillation.
_ENTRY_POINTS = {
    (1e-6, False): "vit_{size}_patch16_224",
    (1e-5, False): "vit_base_patch16_clip_224",
    (1e-6, True): "deit_base_distilled_patch16_224",
}
_SIZES = {192: "tiny", 384: "small", 1024: "large"}  # by the width


def hub_config(
    arguments: Config,
    mode: Mode,
    file: str,
) -> Config:
    """Returns the entries of config.json with which timm builds a model."""
    mean, std = mean_and_std(mode, arguments["channels"])
    a, distilled = arguments, bool(arguments.get("distillation"))
    others = {a.get("activation")} - {"swiglu"}
    refuse_others(
        "timm",
        a,
        {
            "resnet_layers": (None,),
            "position_embedding": ("learned",),
            "position_placement": ("stem",),
            "norm_epsilon": (1e-6,) if distilled else (1e-6, 1e-5),
            "activation": tuple(others) or ("a class that JSON can name",),
        },
    )
    options = model_arguments(a)
    for name in ("num_classes", "in_chans"):  # from `pretrained_cfg`
        del options[name]
    if a["distillation"]:
        del options["class_token"]
    return {
        "architecture": _ENTRY_POINTS[a["norm_epsilon"], distilled].format(
            size=_SIZES.get(a["hidden_size"], "base")
        ),
        "num_classes": a["classes"] or 0,
        "num_features": a["hidden_size"],
        "global_pool": options["global_pool"],
        "model_args": {**options, "act_layer": a["activation"]},
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [a["channels"], *options["img_size"]],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "mean": list(mean),
            "std": list(std),
            "num_classes": a["classes"] or 0,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if a["distillation"] else "head",
            "hf_hub_filename": file,
        },
    }


def _model_args(name: str, given: Config, input_size: Any = None) -> Config:
    """Returns the arguments that the `model_args` of a config.json imply: what
    a model was given that its architecture does not say."""
    only = {**_ONLY, "act_layer": (given.get("act_layer"),)}
    if given.get("act_layer") == "leaky_relu":  # its slope is another in Keras
        only["act_layer"] = ("gelu",)
    for option, values in only.items():
        value = given.get(option, values[0])
        check_option(value in values, option, value, repr(values[0]))
    arguments: Config = {}
    if isinstance(given.get("num_heads"), int):
        arguments["num_heads"] = given["num_heads"]
    if isinstance(given.get("rope_temperature"), (int, float)):
        arguments["rope_base"] = float(given["rope_temperature"])
    if isinstance(given.get("no_embed_class"), bool):
        prefix = "none" if given["no_embed_class"] else "all"
        arguments["position_prefix"] = prefix
    patch = re.search(r"patch(\d+)", name)
    patch = given.get("patch_size") or (patch and int(patch[1]))
    size, patch = pair(given.get("img_size") or input_size), pair(patch)
    if size and patch:
        arguments["grid_size"] = (size[0] // patch[0], size[1] // patch[1])
    return arguments


def _features(paths: Collection[str]) -> set[str]:
    """Returns what the weights of a model have, of that by which architectures
    with the same arrays differ."""
    names = {
        "token": "class_token/tokens",
        "registers": "register_tokens/tokens",
        "scale": "block_0/scale_1/gamma",
        "bias": "block_0/attention/query/bias",
        "pre_norm": "pre_norm/gamma",
        "norm": "encoder_norm/gamma",
        "head_norm": "head_norm/gamma",
        "map": "pooling/probe",
    }
    return {name for name, path in names.items() if path in paths}


class Timm(Format):
    """huggingface/pytorch-image-models."""

    name = "timm"
    maps = _MAPS
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic_antialias",
    }
    stem = _HYBRID_CONSTANTS
    resnets = {"bit": (True, _BIT_CONSTANTS)}
    position_prefixes = {
        "": ("all", "class", "none"),
        "deit3": ("none",),
        naflex.TIMM: ("none",),
    }
    rotary_variants = dinov3.VARIANTS
    config_key = "architecture"

    def implied(self, variant: str, paths: Collection[str]) -> Config:
        others = dinov3.ARGUMENTS if variant in dinov3.VARIANTS else {}
        return {**self.arguments, **others}

    @staticmethod
    def look_alikes(variant: str, paths: Collection[str]) -> str | None:
        found = _features(paths)
        if "pre_norm" in found and (
            not {"token", "norm"} <= found or {"map", "scale"} & found
        ):
            return "timm's 'vit_pe_*'"
        if variant == "deit3":
            return "timm's 'vit_*_rope_ape_*'"
        if variant in dinov3.VARIANTS and "token" not in found:
            return "timm's 'vit_*_rope_reg*'"
        if not variant and {"map", "registers"} <= found:
            return "timm's 'test_vit3'"
        if "head_norm" in found and not {"token", "registers", "bias"} & found:
            return "timm's 'vit_*_rpn_*'"
        return None

    @staticmethod
    def unstored(variant: str, weights: dict[str, Array]) -> dict[str, str]:
        found, values = _features(weights), {}
        if {"token", "head_norm"} <= found:
            values["pooling"] = "'gap', as after MAE; it may be 'token', or a maximum"
        if "pre_norm" in found:
            values["activation"] = "'gelu'; it is 'quick_gelu' in OpenAI's CLIP"
            values["norm_epsilon"] = "1e-6; it is 1e-5 in models of CLIP"
        elif {"norm", "bias"} <= found and not found & {"token", "registers", "scale"}:
            values["activation"] = "'gelu'; it is 'gelu_tanh' in some of SigLIP"
        none = np.zeros((0, 0))
        inner, outer = (
            weights.get(f"block_0/mlp/dense_{i}/kernel", none) for i in (1, 2)
        )
        if not variant and inner.shape[1:] != outer.shape[:1]:
            values["activation"] = "'swiglu'; the gate of timm's `GluMlp` has others"
        if variant == naflex.TIMM:
            values["resampling"] = (
                "'bicubic_antialias'; it ends in '_square' in models whose positions "
                "preserve the aspect, and is 'bilinear_antialias' in SigLIP 2"
            )
        return values

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        if variant == naflex.TIMM:
            return naflex.values(arguments)
        if variant not in dinov3.VARIANTS:
            return {}
        return dinov3.timm_values(arguments)

    @staticmethod
    def read_config(config: Config) -> Config:
        """Returns the arguments that timm's config.json implies."""
        arguments = {}
        pooling = config.get("global_pool")
        if pooling:
            expected = f"one of {', '.join(map(repr, _POOLINGS))}"
            check_option(str(pooling) in _POOLINGS, "global_pool", pooling, expected)
            arguments["pooling"] = _POOLINGS[pooling]
        name = str(config["architecture"])
        stored = config.get("model_args")
        stored = stored if isinstance(stored, dict) else {}
        if name.startswith("naflexvit_"):
            arguments |= naflex.read_config(name, stored)
        elif _NOT_HERE.match(name):
            raise ValueError(
                f"This package has no {name!r:.100}, the architecture in its "
                "config.json or training checkpoint, although its arrays fit another "
                "model of timm's. Use timm, which wrote it."
            )
        else:
            shown = config.get("pretrained_cfg")
            shown = shown if isinstance(shown, dict) else {}
            # Position embeddings tell it of the others.
            size = shown.get("input_size") if "dinov3" in name else None
            size = size[1:] if isinstance(size, list) else None
            arguments |= _model_args(name, stored, size)
        activation = stored.get("act_layer")
        if "quickgelu" in name:
            activation = activation or "quick_gelu"
        if _TANH_SIGLIP.match(name):
            activation = activation or "gelu_tanh"
        if isinstance(activation, str):
            arguments["activation"] = activation
        if "_clip_" in name and not stored.get("norm_layer"):  # else 1e-6
            arguments["norm_epsilon"] = 1e-5
        # `no_embed_class`, if `model_args` do not have it
        if "position_prefix" in arguments:
            pass
        elif name.startswith(("deit3_", "flexivit_")) or "_reg" in name:
            arguments["position_prefix"] = "none"
        elif "dinov2" in name:
            arguments["position_prefix"] = "all"
        return arguments

    @staticmethod
    def training_config(path: StrPath) -> Config:
        config = read_training(weights_file(path))
        name = config.get("architecture", "")
        if not _NAMES.fullmatch(name):
            return {}
        if "global_pool" in config:
            usual = next((x for x, part in _USUAL if re.search(part, name)), "token")
            config["global_pool"] = config["global_pool"] or usual
        return config

    @staticmethod
    def after_reading(
        weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        weights, stored = naflex.after_reading(weights, stored, variant)
        has_head = "head/kernel" in weights and "head_norm/gamma" not in weights
        if variant in dinov3.VARIANTS and has_head:
            # All of timm's read the mean of the patches, after the last norm.
            stored = {"pooling": "gap", **stored}
        return dinov3.after_reading(weights, stored, variant)

    def before_writing(
        self, weights: dict[str, Array], arguments: Config, variant: str
    ) -> dict[str, Array]:
        weights = naflex.before_writing(weights, arguments, variant)
        return dinov3.before_writing(weights, arguments, variant, "timm")
