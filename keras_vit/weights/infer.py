"""Inference of architectures from the names and shapes of weights, and from the
configs of layers or the metadata that a Keras file has.

Shapes are given as a dict of keras_vit paths to tuples. Arguments that do not
affect shapes (epsilons, activation, resampling) are stored in layers' configs
and metadata, or else are implied by the code base (see `formats`).
"""

import math
import re
from collections.abc import Collection
from typing import TypeAlias

from keras_vit.config import POSITION_PREFIXES
from keras_vit.utils.scaling import as_mode
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights.files.keras import KerasFile
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
# The root of a ResNet, on its own (BiT) or before a Vision Transformer
# (hybrid), and the first layers of its units.
_ROOT = "root_conv/kernel"
_UNIT = re.compile(r"stage_(\d+)_unit_(\d+)/conv_1/kernel")
# A layer or a weight that only models of a family have: detectors and segmenters, and
# models of pre-training.
DENSE = {
    "eomt": "eomt_head",
    "yolos": "detection_tokens",
    "fcos": "point_boxes",
    "linear_segmenter": "pixels",
}
_PRETRAINING = {
    "mpp": "predictor",
    "simmim": "decoder/pixels/kernel",
    "mae": "decoder/embedding/bias",
    "dino": "projection/last_layer/kernel",
    "mocov3": "prediction",
    "dual_encoder": "text",
}
_POSITION_LAYER = re.compile(r"position_embedding(?:_\d+|_shared)?")
_POSITION_MODES = {  # an array: the `position_embedding` that has it
    "embedding": "learned",
    "columns": "learned_2d",
    "offsets": "relative",
    "periods": "rope",
}


def encoder_family(paths: Collection[str]) -> str:
    """Returns the family of the encoder of a model with these weights: `"vit"`,
    `"hybrid"` or `"bit"`."""
    if _ROOT not in paths:
        return "vit"
    encoder = ("patch_embedding/", "block_")
    return "hybrid" if any(p.startswith(encoder) for p in paths) else "bit"


def family(paths: Collection[str], layers: Collection[str] = ()) -> str:
    """Returns the family of a model with weights of these paths and, if they are
    known, layers of these names."""
    names = {*paths, *layers, *(path.partition("/")[0] for path in paths)}
    marks = {**DENSE, **_PRETRAINING}
    if not layers:  # a format has all heads of MoCo v3, a .weights.h5 file not
        marks["mocov3"] = "prediction/dense_1/kernel"
    found = (family for family, mark in marks.items() if mark in names)
    return next(found, None) or encoder_family(paths)


def channels(shapes: Shapes) -> int:
    """Returns the number of channels of a model's images."""
    return shapes[_ROOT if _ROOT in shapes else "patch_embedding/kernel"][2]


def units_per_stage(paths: Collection[str]) -> tuple[int, ...]:
    """Returns a ResNet's number of units per stage, such as `(3, 4, 9)`."""
    stages = [int(match[1]) for match in map(_UNIT.fullmatch, paths) if match]
    # Gaps in the numbers are reported when the weights are loaded.
    return tuple(
        max(1, stages.count(stage)) for stage in range(1, len(set(stages)) + 1)
    )


def infer_architecture(
    shapes: Shapes,
    grid: Grid = None,
    image_grid: ImageGrid = None,
    prefixes: tuple[str, ...] = POSITION_PREFIXES,
    configured_prefix: str | None = None,
) -> Config:
    """Infers the arguments of a model's function.

    They include `channels` and `num_positions`, the number of patches with a
    position embedding; `num_heads` of a ResNet alone is None. The `grid` of
    positions is inferred if None; `image_grid`, that of the model's input, is used for
    positions that do not form a square. The most likely of `prefixes`, values of
    `position_prefix`, is the first, unless `configured_prefix` fits.
    """
    classes, kind = shapes.get("head/bias", (None,))[0], encoder_family(shapes)
    resnet: Config = {}
    if kind != "vit":
        *_, channels, width = shapes[_ROOT]
        resnet = {
            "resnet_layers": units_per_stage(shapes),
            "width_factor": width / 64,
        }
    if kind == "bit":
        return {
            **resnet,
            "preactivation": "root_norm/gamma" not in shapes,
            "channels": channels,
            "classes": classes,
            "num_heads": None,
        }
    wrong = [
        f"{path} with {axes} axes"
        for path, axes in _REQUIRED_ARRAYS.items()
        if len(shapes.get(path, ())) != axes
    ]
    if wrong:
        raise ValueError(
            "These are not the weights of a Vision Transformer, which has "
            f"{', '.join(wrong)}."
        )
    layers = {path.partition("/")[0] for path in shapes}
    *patch_size, channels, hidden_size = shapes["patch_embedding/kernel"]
    inferred: Config = {
        "patch_size": tuple(patch_size),
        "hidden_size": hidden_size,
        "num_layers": _count_blocks(shapes, "block_"),
        "num_heads": shapes["block_0/attention/query/kernel"][1],
        "mlp_dim": shapes["block_0/mlp/dense_2/kernel"][0],
        "class_token": "class_token/tokens" in shapes,
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
        "classes": classes,
        "final_norm": "before_pooling"
        if "encoder_norm" in layers
        else "after_pooling"
        if "head_norm" in layers
        else "none",
        **resnet,
        # A hybrid's patches have the channels of a feature map.
        "channels": shapes[_ROOT][2] if resnet else channels,
    }
    if shapes["block_0/mlp/dense_1/kernel"][1] == 2 * inferred["mlp_dim"]:
        inferred["activation"] = "swiglu"
    if "pooling/probe" in shapes:
        inferred["pooling"] = "map"
    elif inferred["representation_size"] is None and (
        shapes.get("head/kernel", (0,))[0] == 2 * hidden_size
    ):
        inferred["pooling"] = "token_gap"
    else:
        before = inferred["final_norm"] != "after_pooling"
        inferred["pooling"] = "token" if inferred["class_token"] and before else "gap"
    layer, array = next(
        (
            (name, array)
            for name, _, array in (path.partition("/") for path in shapes)
            if is_position_layer(name) and array in _POSITION_MODES
        ),
        ("", ""),
    )
    shape = shapes.get(f"{layer}/embedding", (0, 0, 0))
    # Loading reports an array of another number of axes.
    mode = _POSITION_MODES.get(array, "none") if len(shape) == 3 else "none"
    if shapes.get(f"{layer}/columns", (0, 0))[-1] == hidden_size:
        mode = "factorized"
    inferred |= {
        "position_embedding": mode,
        "position_placement": placement(layer) if layer else "stem",
        "num_positions": None,
        "grid_size": None,
    }
    if mode in ("rope", "none"):  # any grid would do, so that a file says it
        inferred["grid_size"] = grid
    elif mode == "relative":
        count = (shapes[f"{layer}/offsets"][0] + 1) // 2
        grid = _grid(count, grid, image_grid)
        inferred |= {"num_positions": count, "grid_size": grid}
    elif mode in ("learned_2d", "factorized"):
        tables = (shapes.get(f"{layer}/{x}", (1,)) for x in ("rows", "columns"))
        grid = tuple(table[0] for table in tables)
        count = shapes.get(f"{layer}/prefix", (1, 0))[1]
        fitting = (x for x in prefixes if num_positioned(x, inferred) == count)
        inferred |= {
            "num_positions": math.prod(grid),
            "grid_size": grid,
            "position_prefix": next(fitting, prefixes[0]),
        }
    elif mode == "learned":
        counts = {x: shape[1] - num_positioned(x, inferred) for x in prefixes}
        grids = {
            prefix: found
            for prefix, count in counts.items()
            if (found := _grid(count, grid, image_grid))
        }
        if configured_prefix in grids:
            grids = {configured_prefix: grids[configured_prefix]}
        elif grid is None:
            _raise_if_ambiguous(inferred, counts, list(grids))
        chosen = next(iter(grids), prefixes[0])
        inferred |= {
            "num_positions": counts[chosen],
            "grid_size": grids.get(chosen),
            "position_prefix": chosen,
        }
    return inferred


def _count_blocks(shapes: Shapes, start: str) -> int:
    paths = [path for path in shapes if path.startswith(start)]
    return len({path[len(start) :].partition("/")[0] for path in paths})


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


def num_positioned(prefix: str, arguments: Config) -> int:
    """Returns the number of prefix tokens that have a position embedding if
    `position_prefix` is `prefix`."""
    tokens = arguments["class_token"] + arguments["distillation"]
    registers = arguments["num_registers"]
    return {"all": tokens + registers, "class": tokens, "none": 0}[prefix]


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
    inferred: Config, counts: dict[str, int], fitting: list[str]
) -> None:
    """Raises a `ValueError` or warns if position embeddings are ambiguous.

    N + 1 position embeddings can be those of a class token and N patches, or
    of N + 1 patches and a class token without a position embedding. In timm's
    models with registers, neither these nor the class token have one. In timm's
    models with layer scale, the class token has none in DeiT III, but has one
    in DINOv2.
    """
    first = next(iter(counts))
    chosen = fitting[0] if fitting else first
    several = len({counts[prefix] for prefix in fitting}) > 1
    is_first = counts[chosen] == counts[first]
    if not several and (is_first or inferred["num_registers"]):
        return
    possible = dict.fromkeys([*fitting, first])
    readings = " or ".join(
        f"`position_prefix={prefix!r}` and {counts[prefix]} patches"
        for prefix in {counts[x]: x for x in reversed(possible)}.values()
    )
    message = (
        f"The position embeddings can be read in two ways: {readings}. Give "
        "`position_prefix`, and for patches that are not a square the "
        "`input_shape` or `grid_size=(rows, columns)` (arguments of "
        "`converters.load`)."
    )
    if several or not inferred["layer_scale"]:
        raise ValueError(message)
    warn(f"{message} They are read as `{chosen}`, as in DeiT III.")


# Prefixes of the weights that pre-training adds to an encoder: MAE's decoder, a text
# tower,
# the heads of masked image modeling and of masked patch prediction, and the other
# encoder and the heads of DINO and of MoCo v3.
PRETRAINING_PREFIXES = (
    "decoder/",
    "text/",
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


def infer_family(shapes: Shapes) -> Config:
    """Infers the `family` of a model, and the arguments of a model of pre-training
    that its arrays decide."""
    kind = family(shapes)
    found: Config = {"family": kind}
    if kind == "dino":
        bottleneck, outputs = shapes["projection/last_layer/kernel"]
        found["output_dim"] = outputs
        found["hidden_dim"] = shapes["projection/dense_1/kernel"][-1]
        found["bottleneck_dim"] = bottleneck
    elif "prediction/dense_2/kernel" in shapes:  # a .keras file numbers them
        hidden, outputs = shapes["prediction/dense_2/kernel"]
        found |= {"output_dim": outputs, "hidden_dim": hidden}
    elif kind == "mae":
        block = "decoder/block_0"
        found["decoder_hidden_size"] = shapes[_MAE_MARKER][0]
        found["decoder_num_layers"] = _count_blocks(shapes, "decoder/block_")
        found["decoder_num_heads"] = shapes[f"{block}/attention/query/kernel"][1]
        found["decoder_mlp_dim"] = shapes[f"{block}/mlp/dense_2/kernel"][0]
    return found


def drop_pretraining(weights: dict[str, Array]) -> dict[str, Array]:
    """Returns the weights of the encoder only."""
    return {
        path: array
        for path, array in weights.items()
        if not path.startswith(PRETRAINING_PREFIXES)
    }


# The number of heads, which PyTorch's formats do not store.
# Published widths with heads that are not 64 channels wide: "Scaling Vision
# Transformers", Table 2; SoViT, https://arxiv.org/abs/2305.13035
_PUBLISHED_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
# A quarter of a head's channels, in formats that store it.
_PERIODS = "position_embedding_shared/periods"


def infer_num_heads(
    arrays: dict[str, Array],
    weight_map: WeightMap,
    num_heads: int | None = None,
) -> int | None:
    """Infers the number of heads of a checkpoint, unless it is given: from the norms
    of queries, the rotary positions, the width of a published model, or 64 numbers a
    head.

    It is None if the shapes of the arrays contain it. A `ValueError` is raised
    if it cannot be inferred, or does not divide the width.
    """

    def find(path: str) -> Array | None:
        array = arrays.get(weight_map.key(path))
        return array if array is not None and array.ndim else None

    if weight_map.stores_heads:
        return None
    kernel = find("patch_embedding/kernel")
    if kernel is None:  # reported by `from_checkpoint`
        return num_heads or 1
    hidden_size = kernel.shape[0]
    divisors = [n for n in range(1, hidden_size + 1) if hidden_size % n == 0]
    remedy = f"Give `num_heads`. Possible: {', '.join(map(str, divisors))}."
    if num_heads is not None:
        if num_heads not in divisors:
            raise ValueError(
                f"num_heads={num_heads} does not divide the hidden size "
                f"{hidden_size}. {remedy}"
            )
        return num_heads
    norm = find("block_0/attention/query_norm/gamma")
    if norm is not None:
        return hidden_size // norm.shape[0]
    periods = find(_PERIODS)
    if periods is not None and periods.size:
        return hidden_size // (4 * periods.size)
    published = _published_num_heads(hidden_size, weight_map)
    if published is None:
        raise ValueError(
            f"The number of heads is not stored, and the hidden size {hidden_size} is "
            f"not a multiple of 64. {remedy}"
        )
    if hidden_size < 192:  # narrower than all published models
        warn(
            "The number of heads is not stored, and taken to be "
            f"{published}, of 64 channels each. If it is another: {remedy}"
        )
    return published


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
    if len(bias) != 512:
        raise ValueError(
            "The number of heads of the decoder is not stored, and its width "
            f"{len(bias)} is not MAE's 512. Give `decoder_num_heads`."
        )
    return 16


def warn_if_heads_ambiguous(
    arguments: Config, weight_map: WeightMap, target: StrPath
) -> None:
    """Warns if the number of heads cannot be inferred from a written file."""
    heads, hidden_size = arguments["num_heads"], arguments["hidden_size"]
    if (
        weight_map.stores_heads
        or arguments.get("qk_norm")
        or heads == _published_num_heads(hidden_size, weight_map)
        or not weight_map.unmapped_paths([_PERIODS])
    ):
        return
    warn(
        f"{str(target)!r} cannot store that it has {heads} heads of "
        f"{hidden_size // heads} channels each. Give `num_heads={heads}` when it "
        f"is read."
    )


def _published_num_heads(hidden_size: int, weight_map: WeightMap) -> int | None:
    """Returns the number of heads of published models of a width, or None."""
    published = {**_PUBLISHED_HEADS, **weight_map.published_heads}
    usual = None if hidden_size % 64 else hidden_size // 64
    return published.get(hidden_size, usual)


# Arguments that a .weights.h5 file written by Keras does not store. Without
# arrays of position embeddings, there may be fixed ones or none.
_OF_VIT = ("activation", "norm_epsilon", "resampling", "position_embedding")
_OF_RESNET = (
    "group_norm_epsilon",
    "std_epsilon",
    "std_epsilon_place",
    "conv_padding",
    "pool_padding",
)
HYPERPARAMETERS_NOT_IN_SHAPES = {
    "vit": _OF_VIT,
    "hybrid": (*_OF_VIT, *_OF_RESNET),
    "bit": _OF_RESNET,
}
SIZES = (
    "patch_size",
    "channels",
    "hidden_size",
    "num_layers",
    "num_heads",
    "mlp_dim",
    "classes",
    "representation_size",
    "num_registers",
    "resnet_layers",
    "width_factor",
)


def arguments_of(file: KerasFile) -> tuple[Config, Config]:
    """Returns `(arguments, built)` of the model in a file: those of its config,
    and the others that it was built with.

    A file without a config, such as one of Keras's `save_weights`, says no more
    than its arrays.
    """
    shapes = {name: array.shape for name, array in file.weights.items()}
    try:
        config = file.config.get("config", {})
        encoder = config["encoder"]["config"] if "encoder" in config else config
        if file.config:
            architecture = encoder.get("architecture")
            built = built_of({name: x["config"] for name, x in file.layers.items()})
            if encoder is config:
                built["name"] = config["name"]
        else:
            architecture = file.metadata.get("architecture")
            built = _with_tuples(file.metadata.get("built", {}))
        if architecture is not None:
            arguments = fields_of(architecture)
        else:
            arguments = infer_architecture(shapes, file.grid)
            # Without arrays, there may be fixed position embeddings or none.
            has_positions = arguments.get("position_embedding", "none") != "none"
            kept = ("position_embedding",) if has_positions else ()
            arguments = {name: arguments[name] for name in kept}
        if file.grid is not None:
            arguments["grid_size"] = file.grid
        return arguments | pretraining_options(config), built
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        # Unexpected configs or shapes; the error's cause shows where.
        raise ValueError(
            "Its contents are not what keras_vit writes "
            f"({type(error).__name__}: {error})."
        ) from error


def fields_of(architecture: Config) -> Config:
    """Returns what is known of a model's arguments from its config, as `to_json`
    returns it; arrays determine sizes, about which a config may be wrong."""
    fields = {
        name: value
        for name, value in _with_tuples(architecture).items()
        if value is not None and name not in (*SIZES, "class")
    }
    if "position_prefix" in fields:
        tokens = {"num_registers": architecture["num_registers"], **fields}
        count = num_positioned(str(fields["position_prefix"]), tokens)
        # The first of prefixes with the same number of positions is taken.
        fields["position_prefix"] = next(
            x for x in POSITION_PREFIXES if num_positioned(x, tokens) == count
        )
    return fields


def _with_tuples(values: Config) -> Config:
    """Returns values of JSON, in which tuples are lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def built_of(configs: dict[str, Config]) -> Config:
    """Returns what a model was built with besides its architecture, given the
    configs of its layers."""
    pooling = configs.get("pooling")
    # The pooling of a ResNet alone is a layer of Keras, which has no mode.
    other = "gap" if "root_conv" in configs else "map"
    built: Config = {"pooling": pooling and pooling.get("mode", other)}
    if "batch_shape" in configs.get("images", {}):
        *size, channels = configs["images"]["batch_shape"][1:]
        preprocessing = configs.get("preprocessing")
        if preprocessing is not None:
            built["preprocessing"] = as_mode(preprocessing["mode"])
            size = preprocessing["image_size"] or (None, None)
        built["input_shape"] = (*size, channels)
    activation = configs.get("head", {}).get("activation")
    if isinstance(activation, str) and activation != "linear":
        built["classifier_activation"] = activation
    return built


def pretraining_options(config: Config) -> Config:
    """Returns the arguments of a pre-training model in its config that are not
    sizes."""
    return {x: config[x] for x in ("mask_ratio", "norm_pixels") if x in config}
