"""What pre-training adds to an encoder: tables, sizes and heads of a decoder.

Our paths of it begin with `decoder/`; MAE's holds blocks of its own width.
"""

from keras_vit.checkpoints._architecture import count_of

DECODER = "decoder/"
# Also the head of masked patch prediction, which no other code has.
PARTS = (DECODER, "predictor/")
# MAE's decoders, of all sizes, are 512 wide with 16 heads.
_HEADS = {512: 16}
_SIGN = "decoder/embedding/bias"


def decoder_rows(table, blocks, ours, prefix=""):
    """Returns the rows of MAE's decoder, whose blocks are an encoder's.

    Args:
        table: The `Format` of the encoder.
        blocks: What the names of its blocks begin with.
        ours: What those of the decoder's begin with instead.
        prefix: String before the decoder's other names.
    """
    moved = tuple(
        (_begin(mine, "", DECODER), _begin(theirs, blocks, ours), kind)
        for mine, theirs, kind in table.rows
        if "".join(mine).startswith("block_")
    )
    return (
        ("decoder/embedding/*", f"{prefix}decoder_embed.*", "linear"),
        ("decoder/mask_token/tokens", f"{prefix}mask_token", "array"),
        (
            "decoder/position_embedding/embedding",
            f"{prefix}decoder_pos_embed",
            "array",
        ),
        *moved,
        ("decoder/norm/*", f"{prefix}decoder_norm.*", "norm"),
        ("decoder/prediction/*", f"{prefix}decoder_pred.*", "linear"),
    )


def _begin(names, old, new):
    if isinstance(names, tuple):
        return tuple(_begin(name, old, new) for name in names)
    return new + names.removeprefix(old)


def without_decoder(weights):
    """Returns weights by our paths, less what is no encoder's."""
    return {
        path: array
        for path, array in weights.items()
        if not path.startswith(PARTS)
    }


def drop_decoder(arrays, format):
    """Returns a checkpoint's arrays, less those of a decoder."""
    theirs = {
        key
        for paths, keys, _ in format.moves(format.paths(arrays))
        if paths[0].startswith(PARTS)
        for key in keys
    }
    return {key: array for key, array in arrays.items() if key not in theirs}


def decoder_heads(arrays, format, wanted=None):
    """Returns the number of heads of MAE's decoder; None without one.

    Raises:
        ValueError: if it cannot be told.
    """
    bias = arrays.get(format.key(_SIGN))
    if bias is None or not bias.ndim or wanted is not None:
        return wanted
    if bias.shape[0] in _HEADS:
        return _HEADS[bias.shape[0]]
    raise ValueError(
        "The number of heads of the decoder is not stored, and its width "
        f"{bias.shape[0]} is not MAE's 512. Give `decoder_num_heads`."
    )


def decoder_facts(shapes):
    """Returns the arguments of a pre-training model that weights tell, and
    `pretraining`: "mae", "mim" or "mpp"; nothing of an encoder alone."""
    if "predictor/kernel" in shapes:
        return {"pretraining": "mpp"}
    if "decoder/pixels/kernel" in shapes:
        return {"pretraining": "mim"}
    if _SIGN not in shapes:
        return {}
    count = count_of(shapes, "decoder/block_")
    if not count:
        raise ValueError("decoder/block_0 is missing.")
    block = "decoder/block_0"
    return {
        "pretraining": "mae",
        "decoder_hidden_size": shapes[_SIGN][0],
        "decoder_num_layers": count,
        "decoder_num_heads": shapes[f"{block}/attention/query/kernel"][1],
        "decoder_mlp_dim": shapes[f"{block}/mlp/dense_2/kernel"][0],
    }
