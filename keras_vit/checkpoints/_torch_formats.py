"""The tables of PyTorch's code bases."""

from dataclasses import replace

from keras_vit.checkpoints._convert import Format
from keras_vit.checkpoints._decoder import decoder_rows
from keras_vit.checkpoints._kinds import TORCH
from keras_vit.checkpoints._resnet_formats import TIMM_BIT
from keras_vit.checkpoints._resnet_formats import timm_rows

QKV = ("query", "key", "value")


def _mlp(ours, theirs, names=("fc1", "fc2")):
    return tuple(
        (f"{ours}/{our_name}/*", f"{theirs}{their_name}.*", "linear")
        for our_name, their_name in zip(
            ("dense_1", "dense_2"), names, strict=True
        )
    )


def _timm(
    name="", mlp=("fc1", "fc2"), scales=("ls1.gamma", "ls2.gamma"), root=()
):
    """timm, and what took over its names: DeiT, MAE, DINOv2."""
    block = "blocks.{i}"
    return Format(
        name,
        TORCH,
        (
            *root,
            ("patch_embedding/*", "patch_embed.proj.*", "conv"),
            ("class_token/tokens", "cls_token", "array"),
            ("distillation_token/tokens", "dist_token", "array"),
            ("register_tokens/tokens", "reg_token", "array"),
            ("position_embedding/embedding", "pos_embed", "array"),
            ("pre_norm/*", "norm_pre.*", "norm"),
            ("block_{i}/norm_1/*", f"{block}.norm1.*", "norm"),
            (
                tuple(f"block_{{i}}/attention/{name}/*" for name in QKV),
                f"{block}.attn.qkv.*",
                "fused",
            ),
            (
                "block_{i}/attention/query_norm/*",
                f"{block}.attn.q_norm.*",
                "norm",
            ),
            (
                "block_{i}/attention/key_norm/*",
                f"{block}.attn.k_norm.*",
                "norm",
            ),
            (
                "block_{i}/attention/attention_output/*",
                f"{block}.attn.proj.*",
                "merge",
            ),
            ("block_{i}/scale_1/gamma", f"{block}.{scales[0]}", "array"),
            ("block_{i}/norm_2/*", f"{block}.norm2.*", "norm"),
            *_mlp("block_{i}/mlp", f"{block}.mlp.", mlp),
            ("block_{i}/scale_2/gamma", f"{block}.{scales[1]}", "array"),
            ("encoder_norm/*", "norm.*", "norm"),
            ("pooling/probe", "attn_pool.latent", "array"),
            ("pooling/attention/query/*", "attn_pool.q.*", "heads"),
            (
                tuple(f"pooling/attention/{name}/*" for name in QKV[1:]),
                "attn_pool.kv.*",
                "fused",
            ),
            (
                "pooling/attention/attention_output/*",
                "attn_pool.proj.*",
                "merge",
            ),
            ("pooling/norm/*", "attn_pool.norm.*", "norm"),
            *_mlp("pooling/mlp", "attn_pool.mlp."),
            ("head_norm/*", "fc_norm.*", "norm"),
            ("head/*", "head.*", "linear"),
            ("distillation_head/*", "head_dist.*", "linear"),
        ),
    )


def _without(table, *layers):
    """A table for code that has no such layers."""
    rows = tuple(
        (ours, theirs, kind)
        for ours, theirs, kind in table.rows
        if not "".join(ours).startswith(layers)
    )
    return replace(table, rows=rows)


# A hybrid whose ResNet is the root alone has one level less in its names.
_BACKBONE = "patch_embed.backbone."
TIMM = (
    _timm(),
    _timm("deit3", scales=("gamma_1", "gamma_2")),
    _timm("root", root=timm_rows(_BACKBONE, root="", stages=False)),
    _timm("hybrid", root=timm_rows(_BACKBONE)),
    TIMM_BIT,
)
# Meta's MAE is timm's ViT; what tells its pre-training files is the decoder.
_TIMMS_OWN = (
    "distillation",
    "pooling/",
    "pre_norm",
    *(f"block_{{i}}/attention/{name}_norm" for name in QKV[:2]),
)
_MAE = _without(_timm(), *_TIMMS_OWN, "register", "block_{i}/scale")
MAE = (
    replace(
        _MAE,
        rows=(*_MAE.rows, *decoder_rows(_MAE, "blocks.", "decoder_blocks.")),
        signs=("decoder_embed.weight",),
    ),
)


def _with_masks(table, **renamed):
    """A table that also has DINOv2's mask token, and other names."""
    rows = tuple(
        (ours, renamed.get(theirs, theirs), kind)
        for ours, theirs, kind in table.rows
    )
    mask = ("mask_token/tokens", "mask_token", "vector")
    return replace(table, rows=(*rows, mask), signs=("mask_token",))


DINOV2 = tuple(
    _with_masks(
        _without(_timm(*spelled), *_TIMMS_OWN, "head"),
        reg_token="register_tokens",
    )
    for spelled in ((), ("swiglu", ("w12", "w3")))
)


def _torchvision(name, mlp):
    layer = "encoder.layers.encoder_layer_{i}"
    return Format(
        name,
        TORCH,
        (
            ("patch_embedding/*", "conv_proj.*", "conv"),
            ("class_token/tokens", "class_token", "array"),
            ("position_embedding/embedding", "encoder.pos_embedding", "array"),
            ("block_{i}/norm_1/*", f"{layer}.ln_1.*", "norm"),
            (
                tuple(f"block_{{i}}/attention/{name}/*" for name in QKV),
                f"{layer}.self_attention.in_proj_*",
                "fused",
            ),
            (
                "block_{i}/attention/attention_output/*",
                f"{layer}.self_attention.out_proj.*",
                "merge",
            ),
            ("block_{i}/norm_2/*", f"{layer}.ln_2.*", "norm"),
            *_mlp("block_{i}/mlp", f"{layer}.mlp.", mlp),
            ("encoder_norm/*", "encoder.ln.*", "norm"),
            ("pre_logits/*", "heads.pre_logits.*", "linear"),
            ("head/*", "heads.head.*", "linear"),
        ),
    )


TORCHVISION = (
    _torchvision("", ("0", "3")),
    _torchvision("old", ("linear_1", "linear_2")),
)
