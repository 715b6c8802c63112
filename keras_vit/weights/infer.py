"""Inference of a model's architecture from the names and shapes of its weights.

Shapes are given as a dict of keras_vit paths to tuples. Arguments that do not
affect shapes (epsilons, activation, resampling) are not inferred here: they are
implied by the code base (see `formats`).
"""

import math
import re
from collections.abc import Collection
from typing import TypeAlias

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import StrPath
from keras_vit._warnings import warn
from keras_vit.config import POSITION_PREFIXES
from keras_vit.weights.weight_map import WeightMap

Shapes: TypeAlias = dict[str, tuple[int, ...]]
Grid: TypeAlias = tuple[int, ...] | None  # (rows, columns), if known
ImageGrid: TypeAlias = tuple[int | None, ...] | None

_REQUIRED_ARRAYS = {  # path: number of axes
    "patch_embedding/kernel": 4,
    "block_0/attention/query/kernel": 3,
    "block_0/mlp/dense_1/kernel": 2,
    "block_0/mlp/dense_2/kernel": 2,
}


def infer_architecture(
    shapes: Shapes,
    grid: Grid = None,
    image_grid: ImageGrid = None,
    class_token: bool | None = None,
    prefixes: tuple[str, ...] = POSITION_PREFIXES,
    configured_prefix: str | None = None,
) -> Config:
    """Infers the arguments of a Vision Transformer or a hybrid.

    They include `channels` and `num_positions`, the number of patches with a
    position embedding. Their `grid` and `class_token` are inferred if None;
    `image_grid`, that of the model's input, is used for positions that are no
    square. The most likely of `prefixes`, values of `position_prefix`, is the
    first; `configured_prefix` is the only one if the grid is then square.
    """
    _check_is_vit(shapes)
    *patch_size, channels, hidden_size = shapes["patch_embedding/kernel"]
    if class_token is None:
        class_token = "class_token/tokens" in shapes
    inferred = {
        "patch_size": tuple(patch_size),
        "channels": channels,
        "hidden_size": hidden_size,
        "num_layers": count_blocks(shapes, "block_"),
        "num_heads": shapes["block_0/attention/query/kernel"][1],
        "mlp_dim": shapes["block_0/mlp/dense_2/kernel"][0],
        "class_token": class_token,
        "num_registers": shapes.get("register_tokens/tokens", (1, 0))[1],
        "distillation": "distillation_token/tokens" in shapes,
        "mask_token": "mask_token/tokens" in shapes,
        "patch_bias": "patch_embedding/bias" in shapes,
        "qkv_bias": "block_0/attention/query/bias" in shapes,
        "key_bias": "block_0/attention/key/bias" in shapes
        or "block_0/attention/query/bias" not in shapes,
        "qk_norm": "block_0/attention/query_norm/gamma" in shapes,
        "layer_scale": 1e-5 if "block_0/scale_1/gamma" in shapes else None,
        "pre_norm": "pre_norm/gamma" in shapes,
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
        "classes": shapes.get("head/bias", (None,))[0],
    }
    if shapes["block_0/mlp/dense_1/kernel"][1] == 2 * inferred["mlp_dim"]:
        inferred["activation"] = "swiglu"
    inferred["final_norm"] = "none"
    for layer, place in (("head", "after"), ("encoder", "before")):
        if any(path.startswith(f"{layer}_norm/") for path in shapes):
            inferred["final_norm"] = f"{place}_pooling"
    inferred["pooling"] = _pooling(inferred, shapes)
    if family(shapes) == "hybrid":
        resnet = _resnet(shapes)
        del resnet["preactivation"]  # hybrids are never pre-activation
        inferred.update(resnet)
    mode, layer = _position_layer(shapes)
    inferred["position_embedding"] = mode
    inferred["position_placement"] = placement(layer) if layer else "stem"
    if mode == "rope":
        return {**inferred, "num_positions": None, "grid_size": None}
    if mode == "relative":
        count = (shapes[f"{layer}/offsets"][0] + 1) // 2
        grid = _grid(count, grid, image_grid)
        return {**inferred, "num_positions": count, "grid_size": grid}
    if mode == "learned_2d":
        return {**inferred, **_learned_2d(inferred, shapes, layer, prefixes)}
    shape = shapes.get(f"{layer}/embedding", ())
    if configured_prefix in prefixes and shape:
        prefix_tokens = num_tokens_with_position(configured_prefix, inferred)
        if _grid(shape[1] - prefix_tokens, grid, None):
            prefixes = (configured_prefix,)
    learned = _learned(inferred, shape, grid, image_grid, prefixes)
    return {**inferred, **learned}


def count_blocks(shapes: Shapes, start: str) -> int:
    """Returns the number of blocks whose paths begin with `start`, or raises a
    `ValueError` if their numbers have gaps."""
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


def _check_is_vit(shapes: Shapes) -> None:
    """Raises a `ValueError` if a Vision Transformer's arrays are missing."""
    wrong = [
        f"{path}, {axes} axes: "
        + (f"{shapes[path]}" if path in shapes else "missing")
        for path, axes in _REQUIRED_ARRAYS.items()
        if len(shapes.get(path, ())) != axes
    ]
    if wrong:
        raise ValueError(
            "These are not the weights of a Vision Transformer. It has:\n"
            + "\n".join(f"  {line}" for line in wrong)
        )


def _pooling(inferred: Config, shapes: Shapes) -> str:
    """Returns the pooling that the arrays imply."""
    if "pooling/probe" in shapes:
        return "map"
    width = shapes.get("head/kernel", (0,))[0]
    if inferred["representation_size"] is None and (
        width == 2 * inferred["hidden_size"]
    ):
        return "token_gap"
    after_pooling = inferred["final_norm"] == "after_pooling"
    return "token" if inferred["class_token"] and not after_pooling else "gap"


# Position embeddings: mode, placement, grid.
_POSITION_LAYER = re.compile(r"position_embedding(?:_\d+|_shared)?")
_POSITION_MODES = {  # an array: the `position_embedding` that has it
    "embedding": "learned",
    "columns": "learned_2d",
    "offsets": "relative",
    "periods": "rope",
}


def is_position_layer(name: str) -> bool:
    """Returns whether a layer with this name has position embeddings."""
    return _POSITION_LAYER.fullmatch(name) is not None


def placement(layer: str) -> str:
    """Returns the `position_placement` of a model, whose layer of position
    embeddings has the name `layer`."""
    suffix = layer.removeprefix("position_embedding")
    if not suffix:
        return "stem"
    return "every_layer" + ("_shared" if suffix == "_shared" else "")


def num_tokens_with_position(prefix: str, arguments: Config) -> int:
    """Returns the number of prefix tokens that have a position embedding if
    `position_prefix` is `prefix`."""
    tokens = arguments["class_token"] + arguments["distillation"]
    registers = arguments["num_registers"]
    return {"all": tokens + registers, "class": tokens, "none": 0}[prefix]


def _position_layer(shapes: Shapes) -> tuple[str, str]:
    """Returns `(mode, layer)`; ("none", "") if no positions are stored."""
    for path in shapes:
        layer, _, array = path.partition("/")
        if is_position_layer(layer) and array in _POSITION_MODES:
            return _POSITION_MODES[array], layer
    return "none", ""


def _learned_2d(
    inferred: Config, shapes: Shapes, layer: str, prefixes: tuple[str, ...]
) -> Config:
    """Infers the grid and `position_prefix` of `"learned_2d"` embeddings."""
    rows, columns = (
        shapes.get(f"{layer}/{name}", (0,))[0] for name in ("rows", "columns")
    )
    count = shapes.get(f"{layer}/prefix", (1, 0))[1]
    fitting = (
        prefix
        for prefix in prefixes
        if num_tokens_with_position(prefix, inferred) == count
    )
    return {
        "num_positions": rows * columns,
        "grid_size": (rows, columns),
        "position_prefix": next(fitting, prefixes[0]),
    }


def _learned(
    inferred: Config,
    shape: tuple[int, ...],
    grid: Grid,
    image_grid: ImageGrid,
    prefixes: tuple[str, ...],
) -> Config:
    """Infers the grid and `position_prefix` of `"learned"` embeddings."""
    if len(shape) != 3:
        return {
            "num_positions": None,
            "grid_size": None,
            "position_embedding": "none",
        }
    counts = {
        prefix: shape[1] - num_tokens_with_position(prefix, inferred)
        for prefix in prefixes
    }
    grids = {
        prefix: found
        for prefix, count in counts.items()
        if (found := _grid(count, grid, image_grid))
    }
    if grid is None:
        _raise_if_ambiguous(inferred, prefixes, counts, grids)
    chosen = next(iter(grids), prefixes[0])
    return {
        "num_positions": counts[chosen],
        "grid_size": grids.get(chosen),
        "position_prefix": chosen,
    }


def _grid(count: int, grid: Grid, image_grid: ImageGrid) -> Grid:
    """Returns the grid of `count` patches; None if it cannot be inferred."""
    if grid is not None:
        fits = min(grid) > 0 and grid[0] * grid[1] == count
        return tuple(grid) if fits else None
    side = math.isqrt(max(count, 0))
    square = (side, side) if side and side * side == count else None
    sizes = tuple(n for n in image_grid or () if n is not None)
    if len(sizes) != 2 or sizes[0] * sizes[1] != count:
        return square
    if square not in (None, sizes):
        raise ValueError(
            f"The {count} position embeddings can be those of a square, "
            f"{side} x {side}, to be resampled, or of the image's own grid, "
            f"{sizes[0]} x {sizes[1]}. Give "
            f"`grid_size=({side}, {side})`, as released files have it, or "
            f"`grid_size={sizes}`."
        )
    return sizes


def _raise_if_ambiguous(
    inferred: Config,
    prefixes: tuple[str, ...],
    counts: dict[str, int],
    grids: dict[str, tuple[int, ...]],
) -> None:
    """Raises a `ValueError` or warns if position embeddings are ambiguous.

    N + 1 position embeddings can be those of a class token and N patches, or
    of N + 1 patches and a class token without a position embedding. In timm's
    models with registers, neither these nor the class token have one. In timm's
    models with layer scale, the class token has none in DeiT III, but has one
    in DINOv2.
    """
    first = prefixes[0]
    squares = {counts[p]: p for p in reversed(grids)}
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
    other = next(iter(grids), first)
    if other == first or counts[first] == counts[other]:
        return
    if inferred["layer_scale"] and not inferred["num_registers"]:
        rows, columns = grids[other]
        warn(
            f"The position embeddings are read as those of {rows} x {columns} "
            "patches and of no token before them, as in DeiT III. The file "
            f"is ambiguous: {counts[first]} patches and the tokens before "
            f"them are as many. Give `position_prefix={other!r}` if this is "
            f"right; else `position_prefix={first!r}` and `grid_size=(rows, "
            "columns)`."
        )
    elif not inferred["num_registers"]:
        raise ValueError(
            f"The position embeddings can be read in two ways: {first!r} "
            f"tokens before the patches have one, and {counts[first]} patches, "
            "which are no square grid (give `grid_size=(rows, columns)` or the "
            f"`input_shape`); or `position_prefix={other!r}`, and a grid of "
            f"{grids[other][0]} x {grids[other][1]}."
        )


# ResNets, on their own (BiT) or before a Vision Transformer (hybrid).
_ROOT = "root_conv/kernel"
_UNIT = re.compile(r"stage_(\d+)_unit_(\d+)/conv_1/kernel")


def family(paths: Collection[str]) -> str:
    """Returns the family of a model with these weights: `"vit"`, `"hybrid"` or
    `"bit"`."""
    if _ROOT not in paths:
        return "vit"
    encoder = ("patch_embedding/", "block_")
    return "hybrid" if any(p.startswith(encoder) for p in paths) else "bit"


def units_per_stage(paths: Collection[str]) -> tuple[int, ...]:
    """Returns a ResNet's number of units per stage, such as `(3, 4, 9)`."""
    stages = [int(match[1]) for match in map(_UNIT.fullmatch, paths) if match]
    # Gaps in the numbers are reported when the weights are loaded.
    return tuple(
        max(1, stages.count(stage)) for stage in range(1, len(set(stages)) + 1)
    )


def infer_bit(shapes: Shapes) -> Config:
    """Infers the arguments of `BiT`, plus `channels`, and `num_heads`, which is
    None."""
    return {
        **_resnet(shapes),
        "classes": shapes.get("head/bias", (None,))[0],
        "num_heads": None,
    }


def resnet_constants(configs: dict[str, Config]) -> Config:
    """Returns the constants of a model's ResNet, such as its epsilons, from
    the configs of its layers."""
    root, norm = configs["root_conv"], configs.get("root_norm")
    return {
        "group_norm_epsilon": norm["epsilon"]
        if norm
        else configs["stage_1_unit_1"]["group_norm_epsilon"],
        "std_epsilon": root["epsilon"],
        "std_epsilon_place": root["epsilon_place"],
        "conv_padding": root["padding"],
        "pool_padding": configs["root"]["padding"],
    }


def _resnet(shapes: Shapes) -> Config:
    """Infers the sizes of a ResNet."""
    root = shapes[_ROOT]
    if len(root) != 4:
        raise ValueError(
            f"The kernel of a ResNet's root has 4 axes. Received: {root}"
        )
    return {
        "resnet_layers": units_per_stage(shapes),
        "width_factor": root[3] / 64,
        "preactivation": "root_norm/gamma" not in shapes,
        "channels": root[2],
    }


# Prefixes of the weights that pre-training adds to an encoder: MAE's decoder,
# the head of masked image modelling ("mim"), that of masked patch prediction
# ("mpp"), and the other encoder and the heads of DINO and of MoCo v3.
DECODER = "decoder/"
PRETRAINING_PREFIXES = (
    DECODER,
    "predictor/",
    "student/",
    "teacher/",
    "projection/",
    "teacher_projection/",
    "prediction/",
    "center",
    "patch_center",
)
_MAE_MARKER = "decoder/embedding/bias"


def infer_pretraining(shapes: Shapes) -> Config:
    """Infers the arguments of a pre-training model, and `pretraining`: `"mae"`,
    `"mim"`, `"mpp"`, `"dino"` or `"mocov3"`.

    The dict is empty for an encoder without pre-training weights.
    """
    if "predictor/kernel" in shapes:
        return {"pretraining": "mpp"}
    if "decoder/pixels/kernel" in shapes:
        return {"pretraining": "mim"}
    if "projection/last_layer/kernel" in shapes:
        bottleneck, outputs = shapes["projection/last_layer/kernel"]
        return {
            "pretraining": "dino",
            "output_dim": outputs,
            "hidden_dim": shapes["projection/dense_1/kernel"][-1],
            "bottleneck_dim": bottleneck,
        }
    if "prediction/dense_2/kernel" in shapes:
        hidden, outputs = shapes["prediction/dense_2/kernel"]
        return {
            "pretraining": "mocov3",
            "output_dim": outputs,
            "hidden_dim": hidden,
        }
    if _MAE_MARKER not in shapes:
        return {}
    count = count_blocks(shapes, "decoder/block_")
    if not count:
        raise ValueError("decoder/block_0 is missing.")
    block = "decoder/block_0"
    return {
        "pretraining": "mae",
        "decoder_hidden_size": shapes[_MAE_MARKER][0],
        "decoder_num_layers": count,
        "decoder_num_heads": shapes[f"{block}/attention/query/kernel"][1],
        "decoder_mlp_dim": shapes[f"{block}/mlp/dense_2/kernel"][0],
    }


def drop_pretraining(weights: dict[str, Array]) -> dict[str, Array]:
    """Returns the weights of the encoder only."""
    return {
        path: array
        for path, array in weights.items()
        if not path.startswith(PRETRAINING_PREFIXES)
    }


# The number of heads, which PyTorch's layouts do not store.
# Published widths with heads that are not 64 channels wide: "Scaling Vision
# Transformers", Table 2; SoViT, https://arxiv.org/abs/2305.13035
_PUBLISHED_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
_NARROWEST_PUBLISHED = 192
# A quarter of a head's channels, in layouts that store it.
_PERIODS = "position_embedding_shared/periods"
_DECODER_HEADS = {512: 16}  # all of MAE's decoders


def infer_num_heads(
    arrays: dict[str, Array],
    weight_map: WeightMap,
    num_heads: int | None = None,
) -> int | None:
    """Infers the number of heads of a checkpoint, unless it is given.

    It is None if the shapes of the arrays contain it. A `ValueError` is raised
    if it cannot be inferred, or does not divide the width.
    """
    if _stores_num_heads(weight_map):
        return None
    kernel = arrays.get(weight_map.key("patch_embedding/kernel"))
    if kernel is None or not kernel.ndim:  # reported by `from_checkpoint`
        return num_heads
    hidden_size = kernel.shape[0]
    if num_heads is not None:
        if hidden_size % num_heads:
            raise ValueError(
                f"num_heads={num_heads} does not divide the hidden size "
                f"{hidden_size}. {_candidates(hidden_size)}"
            )
        return num_heads
    norm = arrays.get(weight_map.key("block_0/attention/query_norm/gamma"))
    if norm is not None and norm.ndim:
        return hidden_size // norm.shape[0]
    periods = arrays.get(weight_map.key(_PERIODS))
    if periods is not None and periods.size:
        return hidden_size // (4 * periods.size)
    if published := _published_num_heads(hidden_size, weight_map):
        if hidden_size < _NARROWEST_PUBLISHED:
            warn(
                "The number of heads is not stored, and taken to be "
                f"{published}, of 64 channels each. If it is another, give "
                "`num_heads` (`--set num_heads=N` on the command line). "
                f"{_candidates(hidden_size)}"
            )
        return published
    raise ValueError(
        "The number of heads is not stored, and the hidden size "
        f"{hidden_size} is no multiple of 64. Give `num_heads` (`--set "
        "num_heads=N` on the command line). "
        f"{_candidates(hidden_size)}"
    )


def infer_decoder_num_heads(
    arrays: dict[str, Array],
    weight_map: WeightMap,
    num_heads: int | None = None,
) -> int | None:
    """Infers the number of heads of MAE's decoder, as `infer_num_heads` does;
    it is `num_heads` if the checkpoint has no decoder."""
    bias = arrays.get(weight_map.key(_MAE_MARKER))
    if bias is None or not bias.ndim or num_heads is not None:
        return num_heads
    if bias.shape[0] in _DECODER_HEADS:
        return _DECODER_HEADS[bias.shape[0]]
    raise ValueError(
        "The number of heads of the decoder is not stored, and its width "
        f"{bias.shape[0]} is not MAE's 512. Give `decoder_num_heads`."
    )


def warn_if_heads_ambiguous(
    arguments: Config, weight_map: WeightMap, target: StrPath
) -> None:
    """Warns if the number of heads cannot be inferred from a written file."""
    heads, hidden_size = arguments["num_heads"], arguments["hidden_size"]
    if (
        _stores_num_heads(weight_map)
        or arguments.get("qk_norm")
        or heads == _published_num_heads(hidden_size, weight_map)
        or not weight_map.unmapped_paths([_PERIODS])
    ):
        return
    warn(
        f"{str(target)!r} cannot store that it has {heads} heads of "
        f"{hidden_size // heads} channels each. Give num_heads={heads} when it "
        f"is read (`--set num_heads={heads}` on the command line)."
    )


def _stores_num_heads(weight_map: WeightMap) -> bool:
    """Returns whether the arrays of a layout have an axis of heads."""
    # The pattern of such kernels, which are Flax's, is the identity.
    return weight_map.parameter_types["heads"]["kernel"][1] == "... -> ..."


def _published_num_heads(hidden_size: int, weight_map: WeightMap) -> int | None:
    """Returns the number of heads of published models of a width, or None."""
    if hidden_size in weight_map.published_heads:
        return weight_map.published_heads[hidden_size]
    if hidden_size in _PUBLISHED_HEADS:
        return _PUBLISHED_HEADS[hidden_size]
    return None if hidden_size % 64 else hidden_size // 64


def _candidates(hidden_size: int) -> str:
    """Returns the possible numbers of heads for a message."""
    divisors = [n for n in range(1, hidden_size + 1) if hidden_size % n == 0]
    return f"Possible: {', '.join(map(str, divisors))}."
