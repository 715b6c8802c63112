"""One table a layout: which of our layers is which of theirs.

A row is (our layer, their layer, kind). `*` stands for an array's name inside
the layer, `{i}` for a block's number, and a tuple on one side for arrays that
are one array on the other. Rows that match nothing are parts that a model does
not have.
"""

from keras_vit.converters._convert import Format
from keras_vit.converters._kinds import FLAX


def _vit_jax(attention, norm_2, mlp, prefix=""):
    """google-research/vision_transformer, `vit_jax/models_vit.py`."""
    block = "Transformer/encoderblock_{i}"
    return Format(
        FLAX,
        (
            ("patch_embedding/*", "embedding/*", "conv"),
            ("class_token/tokens", "cls", "array"),
            (
                "position_embedding/embedding",
                "Transformer/posembed_input/pos_embedding",
                "array",
            ),
            ("block_{i}/norm_1/*", f"{block}/LayerNorm_0/*", "norm"),
            *(
                (
                    f"block_{{i}}/attention/{ours}/*",
                    f"{block}/{attention}/{theirs}/*",
                    kind,
                )
                for ours, theirs, kind in (
                    ("query", "query", "heads"),
                    ("key", "key", "heads"),
                    ("value", "value", "heads"),
                    ("attention_output", "out", "merge"),
                )
            ),
            ("block_{i}/norm_2/*", f"{block}/{norm_2}/*", "norm"),
            ("block_{i}/mlp/dense_1/*", f"{block}/{mlp}/Dense_0/*", "linear"),
            ("block_{i}/mlp/dense_2/*", f"{block}/{mlp}/Dense_1/*", "linear"),
            ("encoder_norm/*", "Transformer/encoder_norm/*", "norm"),
            ("pre_logits/*", "pre_logits/*", "linear"),
            ("head/*", "head/*", "linear"),
        ),
        prefix,
    )


# The released files count all submodules of a block with one counter; today's
# code, and files it writes, count each class on its own.
_RELEASED = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
_CURRENT = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")

# layout: its spellings, the one that is written first
FORMATS = {
    "vit_jax": (
        _vit_jax(*_RELEASED),
        _vit_jax(*_CURRENT),
        _vit_jax(*_RELEASED, prefix="opt/target/"),
        _vit_jax(*_CURRENT, prefix="opt/target/"),
    ),
}
