"""The tables of Google's two code bases, which share an encoder."""

import itertools

from keras_vit.checkpoints._convert import Format
from keras_vit.checkpoints._kinds import FLAX
from keras_vit.checkpoints._resnet_formats import postactivation_rows


def _attention(ours, theirs):
    """Separate projections, as ours."""
    return tuple(
        (f"{ours}/{our_name}/*", f"{theirs}/{their_name}/*", kind)
        for our_name, their_name, kind in (
            ("query", "query", "heads"),
            ("key", "key", "heads"),
            ("value", "value", "heads"),
            ("attention_output", "out", "merge"),
        )
    )


def _mlp(ours, theirs):
    return (
        (f"{ours}/dense_1/*", f"{theirs}/Dense_0/*", "linear"),
        (f"{ours}/dense_2/*", f"{theirs}/Dense_1/*", "linear"),
    )


def _google(name, prefix, names, positions, pooling=None, scan=False, root=()):
    """One spelling: the names that differ are arguments.

    Without `{i}` on their side, a key holds the arrays of all blocks on a
    leading axis: big_vision's `scan=True`.
    """
    attention, norm_2, mlp = names
    block = "Transformer/encoderblock" + ("" if scan else "_{i}")
    pool = ()
    if pooling is not None:
        pool = (
            ("pooling/probe", f"{pooling}probe", "array"),
            *_attention(
                "pooling/attention",
                f"{pooling}MultiHeadDotProductAttention_0",
            ),
            ("pooling/norm/*", f"{pooling}LayerNorm_0/*", "norm"),
            *_mlp("pooling/mlp", f"{pooling}MlpBlock_0"),
        )
    return Format(
        name,
        FLAX,
        (
            *root,
            ("patch_embedding/*", "embedding/*", "conv"),
            ("class_token/tokens", "cls", "array"),
            ("position_embedding/embedding", positions, "array"),
            ("block_{i}/norm_1/*", f"{block}/LayerNorm_0/*", "norm"),
            *_attention("block_{i}/attention", f"{block}/{attention}"),
            ("block_{i}/norm_2/*", f"{block}/{norm_2}/*", "norm"),
            *_mlp("block_{i}/mlp", f"{block}/{mlp}"),
            ("encoder_norm/*", "Transformer/encoder_norm/*", "norm"),
            *pool,
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

# A hybrid's group norms have one axis in files of today's code.
VIT_JAX = tuple(
    _google(
        ",".join(filter(None, (prefix, name, group))),
        prefix,
        names,
        _INSIDE,
        root=postactivation_rows("flat_group" if group else "group"),
    )
    for prefix in ("", "opt/target/")
    for name, names in (("", _RELEASED), ("current", _CURRENT))
    for group in ("", "flat")
)

# Options of big_vision files; the first of each is what it writes today. Old
# files kept the positions elsewhere, and the pooling head at the top.
_PREFIXES = ("params/", "", "opt/target/", "params/img/")
_POSITIONS = {
    "": "pos_embedding",
    "posembed_input": _INSIDE,
    "inner": "Transformer/pos_embedding",
}
_POOLINGS = {"": "MAPHead_0/", "inline": ""}
_SCANS = {"": False, "scan": True}

BIG_VISION = tuple(
    _google(
        ",".join(
            filter(
                None,
                (
                    "" if prefix == _PREFIXES[0] else prefix or "bare",
                    positions,
                    pooling,
                    scan,
                ),
            )
        ),
        prefix,
        _CURRENT,
        _POSITIONS[positions],
        _POOLINGS[pooling],
        _SCANS[scan],
    )
    for prefix, positions, pooling, scan in itertools.product(
        _PREFIXES, _POSITIONS, _POOLINGS, _SCANS
    )
)
