"""Models and patch sizes that the flags `--model` and `--weights` name."""

import difflib
import json
import pathlib

import keras
import numpy as np

from keras_vit import converters
from keras_vit import models
from keras_vit.checkpoints import Checkpoint
from keras_vit.checkpoints import open_checkpoint
from keras_vit.checkpoints import resolve_weights
from keras_vit.checkpoints.formats import check_representable
from keras_vit.checkpoints.formats import get_weight_map
from keras_vit.checkpoints.formats import implied_arguments
from keras_vit.checkpoints.infer import is_position_layer
from keras_vit.checkpoints.infer import stride
from keras_vit.checkpoints.released import ALIASES
from keras_vit.checkpoints.released import RELEASED
from keras_vit.converters import describe
from keras_vit.models import BIT_VARIANTS
from keras_vit.models import VARIANTS

PATCHES = range(2, 17)
GRIDS = range(2, 25)  # patches a side; attention costs the fourth power
WANTED_GRID = 8


def choose_patch_size(image_size):
    """Returns the patch that cuts an image closest to 8 x 8 patches.

    Raises:
        ValueError: if none of 2 to 16 pixels gives 2 to 24 patches a side.
    """
    fitting = [
        patch
        for patch in PATCHES
        if image_size % patch == 0 and image_size // patch in GRIDS
    ]
    if not fitting:
        below = max(4, image_size // 4 * 4)
        raise ValueError(
            f"No patch of {PATCHES[0]} to {PATCHES[-1]} pixels cuts an image "
            f"of {image_size} x {image_size} into {GRIDS[0]} to {GRIDS[-1]} "
            f"patches a side. Use --image-size {below} or {below + 4}, or give "
            f"a --patch-size that divides {image_size}: "
            f"{_divisors(image_size)}."
        )
    # The larger patch wins a draw: it is the cheaper one.
    return min(
        reversed(fitting),
        key=lambda patch: abs(image_size // patch - WANTED_GRID),
    )


def check_patch_size(image_size, patch_size):
    """Raises a `ValueError` if the patch does not divide the image."""
    if image_size % patch_size:
        below = image_size // patch_size * patch_size
        sizes = [str(n) for n in (below, below + patch_size) if n]
        raise ValueError(
            f"Patches of {patch_size} pixels do not divide an image of "
            f"{image_size} x {image_size}. Use --image-size "
            f"{' or '.join(sizes)}, or a patch of {_divisors(image_size)}."
        )


def choose_sizes(image_sizes, patch_size, stride):
    """Returns the image's and the patch's size, which go together.

    Args:
        image_sizes: Sizes of which the first that is not None is taken.
        patch_size: Integer; None chooses one.
        stride: How many pixels a patch counts a side; 0 without patches.

    Raises:
        ValueError: if the patch does not divide the image.
    """
    image_size = next(size for size in image_sizes if size)
    if stride:
        if patch_size is None:
            patch_size = choose_patch_size(image_size)
        check_patch_size(image_size, patch_size * stride)
    return image_size, patch_size


def _divisors(size):
    return ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)


# For minutes on two CPU cores: the function, its arguments, pixels.
_RESNET = {"resnet_layers": (1, 1), "width_factor": 0.5}
COMPACT = {
    "compact-vit": (
        "VisionTransformer",
        # The mean of the patches is steadier than a class token on so few
        # images: 0.986 on digits where the token gave 0.978 (one seed).
        {"hidden_size": 64, "num_layers": 4, "num_heads": 4, "pooling": "gap"},
        None,
    ),
    "compact-hybrid": (
        "HybridVisionTransformer",
        {
            **_RESNET,
            "patch_size": 1,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "mlp_dim": 128,
        },
        32,
    ),
    "compact-bit": ("BiT", _RESNET, 32),
}
MODEL_NAMES = (*COMPACT, *VARIANTS, *BIT_VARIANTS)


def model_facts(model, weights, patch_size=None):
    """Returns what a model is made for.

    Args:
        model: One of `MODEL_NAMES`, or None.
        weights: Path or name of weights, or None.
        patch_size: The patch that is wanted, or None.

    Returns:
        Dict of `patch_size` and `image_size`, None where nothing tells;
        `stride`: how many pixels a side a patch counts, 0 without patches;
        `mode`, that of `preprocess_input`; and without weights `hidden_size`,
        None for a ResNet.

    Raises:
        ValueError: if there is no such model, or the three do not go
            together.
        FileNotFoundError: if there is no file at `weights`.
        OSError: if weights could not be downloaded.
    """
    if model is not None and model not in MODEL_NAMES:
        close = difflib.get_close_matches(model, MODEL_NAMES)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(
            f"There is no model {model!r}.{hint} There are: "
            f"{', '.join(MODEL_NAMES)}."
        )
    if weights is not None:
        return _checkpoint_facts(model, weights, patch_size)
    sizes, image_size = _sizes(model), 224
    if model is None or model in COMPACT:
        image_size = COMPACT[model or "compact-vit"][2]
    fixed = "resnet_layers" in sizes
    if fixed and patch_size is not None:
        raise ValueError(
            f"{model} cuts its patches from a ResNet's feature map: leave out "
            "the patch size."
        )
    return {
        "patch_size": patch_size or sizes.get("patch_size"),
        "image_size": image_size,
        "stride": _stride(model, sizes),
        "hidden_size": sizes.get("hidden_size"),
        "mode": "tf",
    }


def _sizes(model):
    """Arguments of a model's function that it stands for."""
    if model in VARIANTS:
        return VARIANTS[model].sizes()
    if model in BIT_VARIANTS:
        layers, width = BIT_VARIANTS[model]
        return {"resnet_layers": layers, "width_factor": width}
    return COMPACT[model or "compact-vit"][1]


def _stride(model, sizes):
    if "resnet_layers" not in sizes:
        return 1
    return stride(sizes["resnet_layers"]) if "hidden_size" in sizes else 0


def opened(model, weights):
    """Returns the checkpoint of weights by path, address or name."""
    sizes = _sizes(model) if model else None
    checkpoint = resolve_weights(place_of(weights), model, sizes)
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    return open_checkpoint(checkpoint)


def place_of(weights):
    """Returns the path of weights, of which a run's folder has several."""
    folder = pathlib.Path(weights).expanduser()
    for name in ("encoder.keras", "model.npz", "model.keras"):
        if (folder / name).is_file():
            return str(folder / name)
    return weights


def _mode_of_run(checkpoint):
    """How a run of a recipe, whose file it is, read pixels; None if it is
    another file."""
    facts = pathlib.Path(checkpoint.path).with_name("config.json")
    if checkpoint.layout != "keras" or not facts.is_file():
        return None
    config = json.loads(facts.read_text()).get("config")
    return config.get("mode") if isinstance(config, dict) else None


def _checkpoint_facts(model, weights, patch_size):
    checkpoint = opened(model, weights)
    facts = checkpoint.arguments()
    rows, columns = facts.get("patch_size", (None, None))
    if rows != columns or patch_size not in (None, rows):
        raise ValueError(
            f"The patches of {weights!r} are {rows} x {columns} pixels. They "
            "must be square, and cannot be changed: leave out the patch size."
        )
    if model is not None:
        for name, size in _sizes(model).items():
            found = rows if name == "patch_size" else facts.get(name)
            if found != size and name != "pooling":
                raise ValueError(
                    f"{weights!r} does not hold a {model}: its {name} is "
                    f"{found} and not {size}. Leave out the model's name to "
                    "get the model that the file holds."
                )
    row = RELEASED.get((model, ALIASES.get(weights, weights)))
    by_layout = "torch" if checkpoint.layout in ("dinov2", "mae") else "tf"
    by_layout = _mode_of_run(checkpoint) or by_layout
    mode = {"mode": row.preprocess_mode if row else by_layout}
    grid = facts.get("grid_size")
    if checkpoint.family == "bit":
        return {"patch_size": None, "image_size": 224, "stride": 0, **mode}
    return {
        "patch_size": rows,
        "image_size": grid and grid[0] * rows * checkpoint.stride,
        "stride": checkpoint.stride,
        **mode,
    }


def build_model(model, weights, patch_size, seed=0, **arguments):
    """Builds the model that a recipe's flags name.

    Args:
        model: One of `MODEL_NAMES`; None for what the weights hold, or
            without any "compact-vit".
        weights: Path or name of weights whose body to take, or None. The head
            starts at zero ("An Image is Worth 16x16 Words", Section 3.2).
        patch_size: Integer, or None.
        seed: Integer.
        **arguments: `input_shape`, `classes`, `remat`, `dropout`; without
            weights also any other of the model's function.

    Raises:
        ValueError: if `remat` is asked of a BiT.
    """
    if weights is None:
        built = _build_new(model or "compact-vit", patch_size, arguments)
        if model in (None, "compact-vit"):
            _spread_positions(built, seed)
        return built
    checkpoint = opened(model, weights)
    if checkpoint.family == "bit":
        arguments = _without_remat(arguments)
    else:
        # The paper takes the whole pre-training head away, both its layers.
        arguments["representation_size"] = None
    built = converters.load(checkpoint, include_top=True, **arguments)
    # Also where the number of classes stays the same.
    zero_head(built)
    return built


def _build_new(model, patch_size, arguments):
    sizes = {} if model in VARIANTS or model in BIT_VARIANTS else _sizes(model)
    name = COMPACT[model][0] if model in COMPACT else model
    if "resnet_layers" not in _sizes(model):
        sizes = {**sizes, "patch_size": patch_size}
    if name == "BiT" or model in BIT_VARIANTS:
        arguments = _without_remat(arguments)
    if model in COMPACT:
        arguments = {**arguments, "name": model.replace("-", "_")}
    return getattr(models, name)(**{**sizes, **arguments})


def _without_remat(arguments):
    """Returns the arguments for a BiT, which has no `remat`."""
    if arguments.get("remat"):
        raise ValueError(
            "--remat computes the blocks of a Vision Transformer or a hybrid "
            "twice. A BiT has none: leave it out."
        )
    return {k: v for k, v in arguments.items() if k != "remat"}


def _spread_positions(model, seed):
    # Positions that start at the usual 0.02 are lost beside the content of
    # small patches: digits then learn far slower (0.91 after 800 steps, and
    # 0.97 after 600 with 0.5). All kinds start alike, wherever they are added.
    layers = [x for x in model.layers if is_position_layer(x.name)]
    tables = [
        table for x in layers for table in x.embedding_variables().values()
    ]
    for i, table in enumerate(tables):
        table.assign(
            keras.random.normal(table.shape, stddev=0.5, seed=seed + i)
        )


def initialize_positions(model, seed):
    """Sets learned positions to N(0, 1 / sqrt(width)), as big_vision does."""
    layer = model.get_layer("position_embedding")
    if layer.kind == "learned":
        shape = layer.embedding.shape
        generator = np.random.default_rng(seed)
        layer.embedding.assign(
            generator.normal(0, shape[-1] ** -0.5, shape).astype("float32")
        )


def set_trainable(model, train, lora_rank=8):
    """Chooses the variables of a model that are trained.

    Args:
        model: Model of this package that has not been compiled.
        train: String. "all"; "head", the classification head alone; or
            "lora", the head and low-rank updates of the query and value
            kernels ("LoRA", https://arxiv.org/abs/2106.09685, Section 4.2).
        lora_rank: Integer. Rank of the updates.

    Raises:
        ValueError: if the model has no encoder blocks to update.
    """
    if train == "all":
        return
    heads = [
        layer
        for layer in model.layers
        if layer.name in ("head", "distillation_head")
    ]
    blocks = [
        layer
        for layer in model.layers
        if layer.name.startswith("block_") and hasattr(layer, "attention")
    ]
    for layer in model.layers:
        layer.trainable = layer in heads
    if train == "head":
        return
    if not blocks:
        raise ValueError(
            "--train lora updates the attention of Vision Transformers and "
            f"hybrids. {model.name} has none: use --train head or all."
        )
    for block in blocks:
        block.trainable = True
        block.attention.query.enable_lora(lora_rank)
        block.attention.value.enable_lora(lora_rank)
        for variable in block.trainable_variables:
            variable.trainable = "lora" in variable.path


def zero_head(model):
    """Makes the classification head zero, as at the start of fine-tuning."""
    for layer in model.layers:
        if layer.name in ("head", "distillation_head"):
            layer.set_weights([array * 0 for array in layer.get_weights()])


def bias_head(model, bias):
    """Sets all biases of the classification head to one number.

    With -10 and a sigmoid, training begins at "none of the classes", which
    is nearly right (`init_head_bias` of the published code).
    """
    head = model.get_layer("head")
    head.bias.assign(keras.ops.full(head.bias.shape, bias))


def layout_of(model):
    """Returns a layout of Google's whose reader gets the same model again;
    None if there is none, such as for weights of DeiT."""
    weights, told, _ = describe(model)
    for layout in ("vit_jax", "bit"):
        weight_map = get_weight_map(layout, weights)
        if weight_map.unmapped_paths(weights):
            continue
        try:
            check_representable(told, layout)
        except ValueError:
            continue
        implied = implied_arguments(layout, weight_map, weights)
        if all(told.get(name) == value for name, value in implied.items()):
            return layout
    return None
