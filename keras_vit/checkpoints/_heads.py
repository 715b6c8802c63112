"""The number of heads, which PyTorch's layouts do not store."""

from keras_vit._warnings import warn

# Published widths whose heads are not 64 channels wide.
# "Scaling Vision Transformers", Table 2; SoViT, arXiv 2305.13035.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
_NARROWEST = 192  # of the published widths


def number_of_heads(arrays, spelling, wanted=None):
    """Returns the number of heads of a checkpoint.

    Args:
        arrays: Dict of its keys to arrays.
        spelling: The `Format` that it is in.
        wanted: Integer that wins, or None.

    Returns:
        Integer; None if the layout stores it in the shapes of its arrays.

    Raises:
        ValueError: if it cannot be told, or does not divide the hidden size.
    """
    if _stores_heads(spelling):
        return None
    kernel = arrays.get(spelling.key("patch_embedding/kernel"))
    if kernel is None or not kernel.ndim:  # which the reader then names
        return wanted
    hidden_size = kernel.shape[0]
    if wanted is not None:
        if hidden_size % wanted:
            raise ValueError(
                f"num_heads={wanted} does not divide the hidden size "
                f"{hidden_size}. {_candidates(hidden_size)}"
            )
        return wanted
    norm = arrays.get(spelling.key("block_0/attention/query_norm/gamma"))
    if norm is not None and norm.ndim:
        return hidden_size // norm.shape[0]
    if found := _usual(hidden_size):
        if hidden_size < _NARROWEST:
            warn(
                f"The number of heads is not stored, and taken to be {found}, "
                "of 64 channels each. If it is another, give `num_heads` "
                "(`--set num_heads=N` on the command line). "
                f"{_candidates(hidden_size)}"
            )
        return found
    raise ValueError(
        "The number of heads is not stored, and the hidden size "
        f"{hidden_size} is no multiple of 64. Give `num_heads` (`--set "
        "num_heads=N` on the command line). "
        f"{_candidates(hidden_size)}"
    )


def warn_if_another(told, spelling, target):
    """Says it if a file's readers would take another number of heads.

    Args:
        told: Dict of arguments of `VisionTransformer`.
        spelling: The `Format` of the file.
        target: Its path.
    """
    heads, hidden_size = told["num_heads"], told["hidden_size"]
    if (
        _stores_heads(spelling)
        or told.get("qk_norm")
        or heads == _usual(hidden_size)
    ):
        return
    warn(
        f"{str(target)!r} cannot say that it has {heads} heads of "
        f"{hidden_size // heads} channels each. Give num_heads={heads} when it "
        f"is read (`--set num_heads={heads}` on the command line)."
    )


def _stores_heads(spelling):
    # Flax stores projections by head; their pattern leaves them alone.
    return spelling.kinds["heads"]["kernel"][1] == "... -> ..."


def _usual(hidden_size):
    """The number of heads that a width has in what was published, or None."""
    if hidden_size in _HEADS:
        return _HEADS[hidden_size]
    return None if hidden_size % 64 else hidden_size // 64


def _candidates(hidden_size):
    divisors = [n for n in range(1, hidden_size + 1) if hidden_size % n == 0]
    return f"Possible: {', '.join(map(str, divisors))}."
