"""One table a layout: which of our layers is which of theirs.

A row is (our layer, their layer, kind). `*` stands for an array's name inside
the layer, `{i}` for a block's number, and a tuple on one side for arrays that
are one array on the other. Rows that match nothing are parts that a model does
not have.
"""

from keras_vit.converters._convert import Format
from keras_vit.converters._kinds import FLAX
from keras_vit.converters._kinds import TORCH


def _flax_attention(ours, theirs):
    """Rows of Flax's attention: separate projections, as ours."""
    return tuple(
        (f"{ours}/{our_name}/*", f"{theirs}/{their_name}/*", kind)
        for our_name, their_name, kind in (
            ("query", "query", "heads"),
            ("key", "key", "heads"),
            ("value", "value", "heads"),
            ("attention_output", "out", "merge"),
        )
    )


def _flax_mlp(ours, theirs):
    return (
        (f"{ours}/dense_1/*", f"{theirs}/Dense_0/*", "linear"),
        (f"{ours}/dense_2/*", f"{theirs}/Dense_1/*", "linear"),
    )


def _google(attention, norm_2, mlp, positions, prefix=""):
    """The encoder that vit_jax (`models_vit.py`) and big_vision (`vit.py`)
    share, with the names that differ."""
    block = "Transformer/encoderblock_{i}"
    return Format(
        FLAX,
        (
            ("patch_embedding/*", "embedding/*", "conv"),
            ("class_token/tokens", "cls", "array"),
            ("position_embedding/embedding", positions, "array"),
            ("block_{i}/norm_1/*", f"{block}/LayerNorm_0/*", "norm"),
            *_flax_attention("block_{i}/attention", f"{block}/{attention}"),
            ("block_{i}/norm_2/*", f"{block}/{norm_2}/*", "norm"),
            *_flax_mlp("block_{i}/mlp", f"{block}/{mlp}"),
            ("encoder_norm/*", "Transformer/encoder_norm/*", "norm"),
            ("pooling/probe", "MAPHead_0/probe", "array"),
            *_flax_attention(
                "pooling/attention", "MAPHead_0/MultiHeadDotProductAttention_0"
            ),
            ("pooling/norm/*", "MAPHead_0/LayerNorm_0/*", "norm"),
            *_flax_mlp("pooling/mlp", "MAPHead_0/MlpBlock_0"),
            ("pre_logits/*", "pre_logits/*", "linear"),
            ("head/*", "head/*", "linear"),
        ),
        prefix,
    )


# The released files count all submodules of a block with one counter; today's
# code, and files it writes, count each class on its own.
_RELEASED = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
_CURRENT = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_INSIDE = "Transformer/posembed_input/pos_embedding"

_QKV = ("query", "key", "value")


def _torch_mlp(ours, theirs, names=("fc1", "fc2")):
    return tuple(
        (f"{ours}/{our_name}/*", f"{theirs}{their_name}.*", "linear")
        for our_name, their_name in zip(
            ("dense_1", "dense_2"), names, strict=True
        )
    )


TIMM = Format(
    TORCH,
    (
        ("patch_embedding/*", "patch_embed.proj.*", "conv"),
        ("class_token/tokens", "cls_token", "array"),
        ("distillation_token/tokens", "dist_token", "array"),
        ("register_tokens/tokens", "reg_token", "array"),
        ("position_embedding/embedding", "pos_embed", "array"),
        ("pre_norm/*", "norm_pre.*", "norm"),
        ("block_{i}/norm_1/*", "blocks.{i}.norm1.*", "norm"),
        (
            tuple(f"block_{{i}}/attention/{name}/*" for name in _QKV),
            "blocks.{i}.attn.qkv.*",
            "fused",
        ),
        (
            "block_{i}/attention/query_norm/*",
            "blocks.{i}.attn.q_norm.*",
            "norm",
        ),
        ("block_{i}/attention/key_norm/*", "blocks.{i}.attn.k_norm.*", "norm"),
        (
            "block_{i}/attention/attention_output/*",
            "blocks.{i}.attn.proj.*",
            "merge",
        ),
        ("block_{i}/scale_1/gamma", "blocks.{i}.ls1.gamma", "array"),
        ("block_{i}/norm_2/*", "blocks.{i}.norm2.*", "norm"),
        *_torch_mlp("block_{i}/mlp", "blocks.{i}.mlp."),
        ("block_{i}/scale_2/gamma", "blocks.{i}.ls2.gamma", "array"),
        ("encoder_norm/*", "norm.*", "norm"),
        ("pooling/probe", "attn_pool.latent", "array"),
        ("pooling/attention/query/*", "attn_pool.q.*", "heads"),
        (
            tuple(f"pooling/attention/{name}/*" for name in _QKV[1:]),
            "attn_pool.kv.*",
            "fused",
        ),
        ("pooling/attention/attention_output/*", "attn_pool.proj.*", "merge"),
        ("pooling/norm/*", "attn_pool.norm.*", "norm"),
        *_torch_mlp("pooling/mlp", "attn_pool.mlp."),
        ("head_norm/*", "fc_norm.*", "norm"),
        ("head/*", "head.*", "linear"),
        ("distillation_head/*", "head_dist.*", "linear"),
    ),
)


def _huggingface(prefix):
    """transformers' ViT; a bare `ViTModel` has no prefix."""
    layer = f"{prefix}encoder.layer.{{i}}"
    return Format(
        TORCH,
        (
            (
                "patch_embedding/*",
                f"{prefix}embeddings.patch_embeddings.projection.*",
                "conv",
            ),
            ("class_token/tokens", f"{prefix}embeddings.cls_token", "array"),
            (
                "position_embedding/embedding",
                f"{prefix}embeddings.position_embeddings",
                "array",
            ),
            ("block_{i}/norm_1/*", f"{layer}.layernorm_before.*", "norm"),
            *(
                (
                    f"block_{{i}}/attention/{name}/*",
                    f"{layer}.attention.attention.{name}.*",
                    "heads",
                )
                for name in _QKV
            ),
            (
                "block_{i}/attention/attention_output/*",
                f"{layer}.attention.output.dense.*",
                "merge",
            ),
            ("block_{i}/norm_2/*", f"{layer}.layernorm_after.*", "norm"),
            *_torch_mlp(
                "block_{i}/mlp",
                f"{layer}.",
                ("intermediate.dense", "output.dense"),
            ),
            ("encoder_norm/*", f"{prefix}layernorm.*", "norm"),
            ("pre_logits/*", f"{prefix}pooler.dense.*", "linear"),
            ("head/*", "classifier.*", "linear"),
        ),
    )


def _torchvision(mlp):
    layer = "encoder.layers.encoder_layer_{i}"
    return Format(
        TORCH,
        (
            ("patch_embedding/*", "conv_proj.*", "conv"),
            ("class_token/tokens", "class_token", "array"),
            ("position_embedding/embedding", "encoder.pos_embedding", "array"),
            ("block_{i}/norm_1/*", f"{layer}.ln_1.*", "norm"),
            (
                tuple(f"block_{{i}}/attention/{name}/*" for name in _QKV),
                f"{layer}.self_attention.in_proj_*",
                "fused",
            ),
            (
                "block_{i}/attention/attention_output/*",
                f"{layer}.self_attention.out_proj.*",
                "merge",
            ),
            ("block_{i}/norm_2/*", f"{layer}.ln_2.*", "norm"),
            *_torch_mlp("block_{i}/mlp", f"{layer}.mlp.", mlp),
            ("encoder_norm/*", "encoder.ln.*", "norm"),
            ("pre_logits/*", "heads.pre_logits.*", "linear"),
            ("head/*", "heads.head.*", "linear"),
        ),
    )


# layout: its spellings, the one that is written first
FORMATS = {
    "vit_jax": tuple(
        _google(*names, _INSIDE, prefix)
        for prefix in ("", "opt/target/")
        for names in (_RELEASED, _CURRENT)
    ),
    "big_vision": tuple(
        _google(*_CURRENT, "pos_embedding", prefix)
        for prefix in ("", "params/", "opt/target/", "params/img/")
    ),
    "timm": (TIMM,),
    "huggingface": (_huggingface("vit."), _huggingface("")),
    "torchvision": (
        _torchvision(("0", "3")),
        _torchvision(("linear_1", "linear_2")),
    ),
}
