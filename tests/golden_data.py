"""The golden cases: what they hold and the model that each needs."""

import json
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "golden"

# The README of the golden data: float32 ports of models without a ResNet.
TOLERANCE = 3e-5

_SIZES = {
    "hidden_size": 48,
    "num_layers": 3,
    "num_heads": 3,
    "mlp_dim": 96,
    "patch_size": 8,
}
_TIMM = {"activation": "gelu", "resampling": "bicubic_antialias"}
_HF = {"activation": "gelu", "norm_epsilon": 1e-12, "resampling": "bicubic"}

# case: (layout, arguments of VisionTransformer beyond the common sizes)
MODELS = {
    "vit_jax_token": ("vit_jax", {}),
    "vit_jax_token_linen": ("vit_jax", {}),
    "vit_jax_token_prelogits": (
        "vit_jax",
        {"patch_size": 16, "representation_size": 40},
    ),
    "vit_jax_gap": ("vit_jax", {"pooling": "gap"}),
    "big_vision_gap": (
        "big_vision",
        {
            "pooling": "gap",
            "representation_size": 40,
            "position_embedding": "sincos2d",
        },
    ),
    "big_vision_map": ("big_vision", {"pooling": "map"}),
    "big_vision_tok": ("big_vision", {"position_prefix": "none"}),
    "big_vision_siglip_img": (
        "big_vision",
        {"pooling": "map", "include_top": False},
    ),
    "timm_base": ("timm", _TIMM),
    "timm_avg": (
        "timm",
        {
            **_TIMM,
            "pooling": "gap",
            "class_token": True,
            "final_norm": "after_pooling",
        },
    ),
    "timm_deit_distilled": ("timm", {**_TIMM, "distillation": True}),
    "timm_dynamic": (
        "timm",
        {**_TIMM, "grid_size": 4, "input_shape": (None, None, 3)},
    ),
    "timm_map": ("timm", {**_TIMM, "pooling": "map"}),
    "timm_pre_norm": ("timm", {**_TIMM, "pre_norm": True, "patch_bias": False}),
    "timm_reg_ls_qknorm": (
        "timm",
        {
            **_TIMM,
            "num_registers": 4,
            "layer_scale": 1e-5,
            "qk_norm": True,
            "position_prefix": "none",
        },
    ),
    "hf_vit": ("huggingface", _HF),
    "hf_vit_interpolate": ("huggingface", {**_HF, "grid_size": 4}),
    "hf_vit_model_pooler": (
        "huggingface",
        {
            **_HF,
            "include_top": False,
            "pooling": "token",
            "representation_size": 48,
        },
    ),
    "torchvision_vit": ("torchvision", {"activation": "gelu"}),
}

# golden array: our layer, where the names differ
LAYERS = {
    "embedding": "patch_embedding",
    "patch_embed": "patch_embedding",
    "with_posemb": "position_embedding",
    "encoded": "encoder_norm",
    "last_hidden_state": "encoder_norm",
    "head_input": "pooling",
    "logits_cls": "head",
    "logits_dist": "distillation_head",
    "hidden_0": "position_embedding",
    "hidden_1": "block_0",
    "hidden_2": "block_1",
    "hidden_3": "block_2",
}


def folder(case):
    return FOLDER / case


def io(case):
    with np.load(folder(case) / "io.npz", allow_pickle=False) as archive:
        return dict(archive)


def config(case):
    return json.loads((folder(case) / "config.json").read_text())


def arrays(case):
    """The case's weights in the project's own layout."""
    for path in sorted(folder(case).glob("*.*")):
        if path.name == "weights.npz":
            with np.load(path, allow_pickle=False) as archive:
                return dict(archive)
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return load_file(path)
    raise FileNotFoundError(case)


def arguments(case):
    image = io(case)["image"]
    return {
        **_SIZES,
        "classes": 7,
        "input_shape": image.shape[1:],
        **MODELS[case][1],
    }
