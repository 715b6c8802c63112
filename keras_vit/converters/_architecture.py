"""What an architecture is, read from the shapes of its weights."""

import math


def architecture(shapes, grid=None, class_token=None):
    """Returns the arguments of `VisionTransformer` that weights tell.

    Args:
        shapes: Dict of our paths to shapes.
        grid: `(rows, columns)` to take if it has as many cells as there are
            position embeddings; else they are taken for a square.
        class_token: Boolean. Whether the model wanted has a class token, and
            so its position; None if the weights have one.

    Returns:
        Dict of arguments, and two that are none: `channels`, and
        `num_positions` of patches. What shapes cannot tell (epsilons, the
        kind of GELU, resampling) is not in it. `grid_size` is None if the
        positions are neither those of `grid` nor a square.

    Raises:
        ValueError: if the weights are not those of a Vision Transformer.
    """
    absent = [
        name
        for name in (
            "patch_embedding/kernel",
            "block_0/attention/query/kernel",
            "block_0/mlp/dense_1/kernel",
        )
        if name not in shapes
    ]
    if absent:
        raise ValueError(
            "These are not the weights of a Vision Transformer: "
            f"{', '.join(absent)} missing."
        )
    for name, axes in (
        ("patch_embedding/kernel", 4),
        ("block_0/attention/query/kernel", 3),
        ("block_0/mlp/dense_1/kernel", 2),
    ):
        if len(shapes[name]) != axes:
            raise ValueError(
                "These are not the weights of a Vision Transformer: "
                f"{name} has the shape {shapes[name]}, and not {axes} axes."
            )
    *patch_size, channels, hidden_size = shapes["patch_embedding/kernel"]
    if class_token is None:
        class_token = "class_token/tokens" in shapes
    facts = {
        "patch_size": tuple(patch_size),
        "hidden_size": hidden_size,
        "num_layers": 1 + max(_block_numbers(shapes)),
        "num_heads": shapes["block_0/attention/query/kernel"][1],
        "mlp_dim": shapes["block_0/mlp/dense_1/kernel"][1],
        "channels": channels,
        "class_token": class_token,
        "pooling": "token" if class_token else "gap",
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
        "classes": shapes.get("head/bias", (None,))[0],
        "num_positions": None,
        "grid_size": None,
    }
    if len(shapes.get("position_embedding/embedding", ())) == 3:
        count = shapes["position_embedding/embedding"][1] - class_token
        facts["num_positions"] = count
        facts["grid_size"] = _grid(count, grid)
    return facts


def _grid(count, grid):
    if grid is not None and None not in grid and grid[0] * grid[1] == count:
        return tuple(grid)
    side = math.isqrt(max(count, 0))
    return (side, side) if side * side == count else None


def _block_numbers(shapes):
    for path in shapes:
        if path.startswith("block_"):
            yield int(path.split("/")[0].removeprefix("block_"))
