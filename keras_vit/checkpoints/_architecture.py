"""What an architecture is, read from the shapes of its weights."""

import math

from keras_vit._warnings import warn
from keras_vit.checkpoints import _resnet
from keras_vit.checkpoints._positions import placement
from keras_vit.checkpoints._positions import positions_in

_NEEDED = {  # path: number of axes
    "patch_embedding/kernel": 4,
    "block_0/attention/query/kernel": 3,
    "block_0/mlp/dense_1/kernel": 2,
    "block_0/mlp/dense_2/kernel": 2,
}


def architecture(
    shapes,
    grid=None,
    image_grid=None,
    class_token=None,
    prefixes=("all", "class", "none"),
    configured=None,
):
    """Returns the arguments of `VisionTransformer` that weights tell, and of
    the ResNet before it.

    Args:
        shapes: Dict of our paths to shapes.
        grid: `(rows, columns)` of the position embeddings, if it is known.
        image_grid: `(rows, columns)` of the images that the model is for, to
            take if the position embeddings are no square.
        class_token: Boolean. Whether the model wanted has a class token; None
            if the weights have one.
        prefixes: The values of `position_prefix` that are possible, the
            likeliest first.
        configured: The value of `position_prefix` that the checkpoint's
            config names, or None. It is ignored if the rest is no square.

    Returns:
        Dict of arguments, and two that are none: `channels`, and
        `num_positions` of patches. What shapes cannot tell (epsilons, the
        kind of GELU, resampling) is not in it. `grid_size` is None if the
        positions are neither those of `grid` nor a square.

    Raises:
        ValueError: if the weights are not those of a Vision Transformer, or
            the positions can be read in two ways.
    """
    _raise_unless_vit(shapes)
    *patch_size, channels, hidden_size = shapes["patch_embedding/kernel"]
    if class_token is None:
        class_token = "class_token/tokens" in shapes
    facts = {
        "patch_size": tuple(patch_size),
        "channels": channels,
        "hidden_size": hidden_size,
        "num_layers": count_of(shapes, "block_"),
        "num_heads": shapes["block_0/attention/query/kernel"][1],
        "mlp_dim": shapes["block_0/mlp/dense_2/kernel"][0],
        "class_token": class_token,
        "num_registers": shapes.get("register_tokens/tokens", (1, 0))[1],
        "distillation": "distillation_token/tokens" in shapes,
        "mask_token": "mask_token/tokens" in shapes,
        "patch_bias": "patch_embedding/bias" in shapes,
        "qkv_bias": "block_0/attention/query/bias" in shapes,
        "qk_norm": "block_0/attention/query_norm/gamma" in shapes,
        "layer_scale": 1e-5 if "block_0/scale_1/gamma" in shapes else None,
        "pre_norm": "pre_norm/gamma" in shapes,
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
        "classes": shapes.get("head/bias", (None,))[0],
    }
    if shapes["block_0/mlp/dense_1/kernel"][1] == 2 * facts["mlp_dim"]:
        facts["activation"] = "swiglu"
    facts["final_norm"] = "none"
    for name, place in (("head", "after"), ("encoder", "before")):
        if any(path.startswith(f"{name}_norm/") for path in shapes):
            facts["final_norm"] = f"{place}_pooling"
    facts["pooling"] = _pooling(facts, shapes)
    if _resnet.family(shapes) == "hybrid":
        root = _resnet.facts(shapes)
        root.pop("preactivation")  # a hybrid's never is
        facts.update(root)
    kind, layer = positions_in(shapes)
    facts["position_embedding"] = kind
    facts["position_placement"] = placement(layer) if layer else "stem"
    if kind == "relative":
        count = (shapes[f"{layer}/offsets"][0] + 1) // 2
        grid = _grid(count, grid, image_grid)
        return {**facts, "num_positions": count, "grid_size": grid}
    if kind == "learned_2d":
        return {**facts, **_axes(facts, shapes, layer, prefixes)}
    shape = shapes.get(f"{layer}/embedding", ())
    if configured in prefixes:
        count = shape[1] - positioned(configured, facts) if shape else 0
        if _grid(count, grid, None):
            prefixes = (configured,)
    return {**facts, **_positions(facts, shape, grid, image_grid, prefixes)}


def _raise_unless_vit(shapes):
    wrong = [
        f"{path}, {axes} axes: "
        + (f"{shapes[path]}" if path in shapes else "missing")
        for path, axes in _NEEDED.items()
        if len(shapes.get(path, ())) != axes
    ]
    if wrong:
        raise ValueError(
            "These are not the weights of a Vision Transformer. It has:\n"
            + "\n".join(f"  {line}" for line in wrong)
        )


def _pooling(facts, shapes):
    if "pooling/probe" in shapes:
        return "map"
    width = shapes.get("head/kernel", (0,))[0]
    if facts["representation_size"] is None and (
        width == 2 * facts["hidden_size"]
    ):
        return "token_gap"
    late = facts["final_norm"] == "after_pooling"
    return "token" if facts["class_token"] and not late else "gap"


def _axes(facts, shapes, layer, prefixes):
    """Of positions by column and row, whose shapes tell the grid."""
    rows, columns = (
        shapes.get(f"{layer}/{name}", (0,))[0] for name in ("rows", "columns")
    )
    count = shapes.get(f"{layer}/prefix", (1, 0))[1]
    fits = (p for p in prefixes if positioned(p, facts) == count)
    return {
        "num_positions": rows * columns,
        "grid_size": (rows, columns),
        "position_prefix": next(fits, prefixes[0]),
    }


def _positions(facts, shape, grid, image_grid, prefixes):
    """Which tokens have a position, and the grid of the others."""
    if len(shape) != 3:
        return {
            "num_positions": None,
            "grid_size": None,
            "position_embedding": "none",
        }
    counts = {
        prefix: shape[1] - positioned(prefix, facts) for prefix in prefixes
    }
    grids = {
        prefix: _grid(count, grid, image_grid)
        for prefix, count in counts.items()
    }
    if grid is None:
        _raise_if_ambiguous(facts, prefixes, counts, grids)
    chosen = next((p for p in prefixes if grids[p]), prefixes[0])
    return {
        "num_positions": counts[chosen],
        "grid_size": grids[chosen],
        "position_prefix": chosen,
    }


def _grid(count, grid, image_grid):
    """The grid of so many patches; None if there is no telling."""
    if grid is not None:
        fits = min(grid) > 0 and grid[0] * grid[1] == count
        return tuple(grid) if fits else None
    side = math.isqrt(max(count, 0))
    square = (side, side) if side and side * side == count else None
    fits = image_grid and None not in image_grid
    if not fits or image_grid[0] * image_grid[1] != count:
        return square
    image_grid = tuple(image_grid)
    if square not in (None, image_grid):
        raise ValueError(
            f"The {count} position embeddings can be those of a square, "
            f"{side} x {side}, to be resampled, or of the image's own grid, "
            f"{image_grid[0]} x {image_grid[1]}. Give "
            f"`grid_size=({side}, {side})`, as released files have it, or "
            f"`grid_size={image_grid}`."
        )
    return image_grid


def positioned(prefix, facts):
    """How many tokens before the patches have a position."""
    tokens = facts["class_token"] + facts["distillation"]
    registers = facts["num_registers"]
    return {"all": tokens + registers, "class": tokens, "none": 0}[prefix]


def _raise_if_ambiguous(facts, prefixes, counts, grids):
    """Refuses positions that can be read in two ways.

    A class token with a position and a grid that is no square looks like a
    square grid and a class token without. In timm's models, registers have no
    position, and neither has their class token; of those with layer
    scale, this is so in DeiT III but not in DINOv2.
    """
    first = prefixes[0]
    squares = {counts[p]: p for p in reversed(prefixes) if grids[p]}
    if len(squares) > 1:
        readings = " or ".join(
            f"`position_prefix={prefix!r}`, and a grid of "
            f"{grids[prefix][0]} x {grids[prefix][1]}"
            for prefix in squares.values()
        )
        raise ValueError(
            f"The position embeddings can be read in two ways: {readings}. "
            "Give `position_prefix`."
        )
    other = next((p for p in prefixes if grids[p]), first)
    if other == first or counts[first] == counts[other]:
        return
    if facts["layer_scale"] and not facts["num_registers"]:
        rows, columns = grids[other]
        warn(
            f"The position embeddings are read as those of {rows} x {columns} "
            "patches and of no token before them, as in DeiT III. The file "
            f"does not tell: {counts[first]} patches and the tokens before "
            f"them are as many. Give `position_prefix={other!r}` if this is "
            f"right; else `position_prefix={first!r}` and `grid_size=(rows, "
            "columns)`."
        )
    elif not facts["num_registers"]:
        raise ValueError(
            f"The position embeddings can be read in two ways: {first!r} "
            f"tokens before the patches have one, and {counts[first]} patches, "
            "which are no square grid (give `grid_size=(rows, columns)` or the "
            f"`input_shape`); or `position_prefix={other!r}`, and a grid of "
            f"{grids[other][0]} x {grids[other][1]}."
        )


def count_of(shapes, start):
    """Returns the number of blocks whose paths begin so.

    Raises:
        ValueError: if one of them is not there.
    """
    found = {
        path.removeprefix(start).split("/")[0]
        for path in shapes
        if path.startswith(start)
    }
    for number in range(len(found)):
        if str(number) not in found:
            raise ValueError(
                f"{start}{number} is missing, of {len(found) + 1} or more."
            )
    return len(found)
