"""timm's `Eva` with rotary positions: DINOv3 (variants of the layout "timm").

https://github.com/huggingface/pytorch-image-models, timm/models/eva.py
"""

import functools
from typing import Any

from keras_vit._types import Config
from keras_vit.weights.formats import rotary
from keras_vit.weights.formats.format import Checkpoint
from keras_vit.weights.formats.format import Reference
from keras_vit.weights.formats.format import ReferenceUnavailable
from keras_vit.weights.formats.format import Values
from keras_vit.weights.formats.reference import image_size
from keras_vit.weights.formats.reference import load_state_dict
from keras_vit.weights.weight_map import TORCH
from keras_vit.weights.weight_map import WeightMap

_TYPES = {
    **TORCH,
    "gated": rotary.GATED,
    "fused_kernel": {"kernel": ("weight", "(n h d) i -> n i h d")},
    "head_bias": {"": ("", "(h d) -> h d")},
}
VARIANTS = ("dinov3", "dinov3-gated")


def _map(variant: str, first: tuple[str, ...]) -> WeightMap:
    path, block = "block_{i}", "blocks.{i}"
    attention = f"{path}/attention"
    qkv = tuple(f"{attention}/{name}/*" for name in ("query", "key", "value"))
    keys = tuple(f"{block}.mlp.{name}.*" for name in first)
    layers = (
        ("patch_embedding/*", "patch_embed.proj.*", "conv"),
        ("class_token/tokens", "cls_token", "array"),
        ("register_tokens/tokens", "reg_token", "array"),
        (f"{path}/norm_1/*", f"{block}.norm1.*", "norm"),
        (qkv, f"{block}.attn.qkv.*", "fused_kernel"),
        (f"{attention}/query/bias", f"{block}.attn.q_bias", "head_bias"),
        (f"{attention}/value/bias", f"{block}.attn.v_bias", "head_bias"),
        (f"{attention}/query_norm/*", f"{block}.attn.q_norm.*", "norm"),
        (f"{attention}/key_norm/*", f"{block}.attn.k_norm.*", "norm"),
        (f"{attention}/attention_output/*", f"{block}.attn.proj.*", "merge"),
        (f"{path}/scale_1/gamma", f"{block}.gamma_1", "array"),
        (f"{path}/norm_2/*", f"{block}.norm2.*", "norm"),
        (f"{path}/mlp/dense_1/*", keys, "gated" if len(keys) > 1 else "linear"),
        (f"{path}/mlp/dense_2/*", f"{block}.mlp.fc2.*", "linear"),
        (f"{path}/scale_2/gamma", f"{block}.gamma_2", "array"),
        ("encoder_norm/*", "norm.*", "norm"),
        ("head_norm/*", "fc_norm.*", "norm"),
        ("head/*", "head.*", "linear"),
    )
    published = rotary.PUBLISHED_HEADS
    return WeightMap(variant, _TYPES, layers, published_heads=published)


MAPS = (_map(VARIANTS[0], ("fc1",)), _map(VARIANTS[1], ("fc1_g", "fc1_x")))
ARGUMENTS = {"norm_epsilon": 1e-5, "rope_base": rotary.BASE}


def values(arguments: Config) -> Values:
    """Returns the values of arguments, as `Format.values`."""
    biases = (False,) if arguments["qkv_bias"] else (True, False)
    return {"activation": ("gelu", "swiglu"), "key_bias": biases}


def reference(
    checkpoint: Checkpoint, arguments: Config, output: str
) -> Reference:
    """Builds a checkpoint's model in timm, as `Format.reference`."""
    model = build(arguments)
    load_state_dict(model, checkpoint)
    return run_of(model, output)


def run_of(model: Any, output: str) -> Reference:
    """Returns the result of `Format.reference` for a model of timm."""
    import timm

    run = model.forward_features if output == "tokens" else model
    return f"timm {timm.__version__}", run


def build(arguments: Config) -> Any:
    """Builds timm's model for arguments of `VisionTransformer`."""
    from timm.models.eva import Eva
    from torch.nn import LayerNorm

    a = arguments
    for name, possible in values(a).items():
        if a[name] not in possible:
            raise ReferenceUnavailable(f"timm cannot have {name}={a[name]!r}")
    return Eva(
        img_size=image_size(a),
        patch_size=a["patch_size"],
        in_chans=a["channels"],
        num_classes=a["classes"] or 0,
        global_pool={"gap": "avg"}.get(a["pooling"], a["pooling"] or ""),
        embed_dim=a["hidden_size"],
        depth=a["num_layers"],
        num_heads=a["num_heads"],
        qkv_bias=a["qkv_bias"],
        qk_norm=a["qk_norm"],
        mlp_ratio=(a["mlp_dim"] + 0.5) / a["hidden_size"],  # is rounded down
        swiglu_mlp=a["activation"] == "swiglu",
        swiglu_align_to=1,
        init_values=a["layer_scale"],
        class_token=a["class_token"],
        num_reg_tokens=a["num_registers"],
        norm_layer=functools.partial(LayerNorm, eps=a["norm_epsilon"]),
        use_abs_pos_emb=False,
        use_rot_pos_emb=True,
        rope_type="dinov3",
        rope_temperature=a["rope_base"],
        rope_rotate_half=True,
        use_post_transformer_norm=a["final_norm"] == "before_pooling",
        use_fc_norm=a["final_norm"] == "after_pooling",
        dynamic_img_size=True,
    )
