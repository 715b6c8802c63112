"""Models and patch sizes for the flags `--model` and `--weights`."""

import dataclasses
import difflib
import pathlib
from typing import Any

import keras
import numpy as np

from keras_vit import converters, models
from keras_vit._types import StrPath
from keras_vit.config import BIT_VARIANTS, VARIANTS, ViTConfig, stride, variant_sizes
from keras_vit.converters import describe
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.protocols import height_and_width
from keras_vit.weights import Checkpoint, open_checkpoint, resolve_weights
from keras_vit.weights.files import read_config
from keras_vit.weights.formats import (
    check_representable,
    get_weight_map,
    implied_arguments,
)
from keras_vit.weights.infer import is_position_layer

PATCHES = range(2, 17)
# Patches per side. The cost of attention is proportional to their fourth power.
GRIDS = range(2, 25)
WANTED_GRID = 8
MIN_GRID = 4
# What programs read from the config.json of a run.
_RUN_CONFIG_TYPES = {
    "image_size": (int, str, list),
    "class_names": list,
    "multi_label": bool,
    "skip_bad_images": bool,
    "max_tokens": int,
    **dict.fromkeys(("dataset", "loss", "mode", "protocol", "test_split"), str),
}


def choose_patch_size(image_size: int | tuple[int, int]) -> int:
    """Returns the patch size, in pixels, that gives a grid closest to 8 x 8
    patches; raises a `ValueError` if none from 2 to 16 divides the image into 2
    to 24 patches per side."""
    sides = height_and_width(image_size)
    fitting = [
        patch
        for patch in PATCHES
        if all(n % patch == 0 and n // patch in GRIDS for n in sides)
    ]
    if not fitting:
        raise ValueError(
            f"No patch of {PATCHES[0]} to {PATCHES[-1]} pixels cuts an image "
            f"into {GRIDS[0]} to {GRIDS[-1]} patches a side: give an "
            "--image-size that is a multiple of 4, or a --patch-size. "
            f"Received: {size_text(image_size)}"
        )
    # If two sizes are equally close, the larger one is taken, as it gives
    # fewer patches and is faster.
    return min(
        reversed(fitting),
        key=lambda patch: abs(sum(sides) / (2 * patch) - WANTED_GRID),
    )


def check_patch_size(image_size: int | tuple[int, int], patch_size: int) -> None:
    """Raises a `ValueError` if the patch size does not divide the image size,
    both in pixels."""
    sides = height_and_width(image_size)
    if any(n % patch_size for n in sides):
        above = [-(-n // patch_size) * patch_size for n in sides]
        raise ValueError(
            f"Patches of {patch_size} pixels do not divide an image of "
            f"{size_text(image_size)}: give --image-size {size_text(above)}, "
            "or another patch size."
        )


def fine_tuning_size(spec: dict, side: int | None) -> int | tuple[int, int] | None:
    """Returns the image size at which a recipe fine-tunes weights by default.

    It is that of the weights, `spec` being what `resolve_model_spec` returns.
    For smaller images, of `side` pixels, it is their size, rounded up to whole
    patches, and at least `MIN_GRID` patches a side.
    """
    size = spec["image_size"]
    if not (spec["stride"] and side and isinstance(size, int)):
        return size
    patch = spec["patch_size"] * spec["stride"]
    return min(size, max(MIN_GRID, -(-side // patch)) * patch)


def size_text(image_size: int | tuple[int, ...] | list[int]) -> str:
    """Returns an image size as the flag `--image-size` takes it, such as "64"
    or, if height and width differ, "64x48"."""
    height, width = height_and_width(image_size)
    return str(height) if height == width else f"{height}x{width}"


def parse_image_size(
    value: Any, name: str = "--image-size"
) -> int | tuple[int, int] | None:
    """Returns the value of `--image-size`, such as 64, "64" or "64x48", as an
    integer or, if they differ, `(height, width)`; raises a `ValueError` if it
    is no size."""
    if value is None:
        return None
    sides = value if isinstance(value, tuple | list) else str(value).split("x")
    try:
        height, width = (
            2 * [int(n) for n in sides] if len(sides) == 1 else map(int, sides)
        )
        if min(height, width) < 1:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} must be 1 or more, such as 64, or height x width, such as "
            f"64x48. Received: {value}"
        ) from None
    return height if height == width else (height, width)


# Models that train in minutes on two CPU cores: name of the model function, its
# arguments, and the default image size in pixels.
_RESNET = {"resnet_layers": (1, 1), "width_factor": 0.5}
_NO_REGULARIZATION = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "drop_path": 0.0,
    "remat": False,
}
COMPACT = {
    "compact-vit": (
        "VisionTransformer",
        # Global average pooling is more accurate than a class token on so few
        # images: 0.986 on digits, where the token gave 0.978 (one seed).
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
# Smaller images than this have too few positions after the ResNet of
# compact-hybrid. Larger images than the maximum take too long from scratch.
MIN_HYBRID_SIZE, MAX_COMPACT_SIZE = 24, 64
HEADS = ("head", "distillation_head")
MODEL_NAMES = (*COMPACT, *VARIANTS, *BIT_VARIANTS)


def choose_model_and_size(
    model: str | None,
    image_size: int | tuple[int, int] | None,
    patch_size: int | None,
    side: int | None,
) -> tuple[str, int | tuple[int, int]]:
    """Returns a model to train from scratch, and an image size for it.

    On a few thousand images, a hybrid learns more than a plain Vision
    Transformer that costs as much (docs/finetune.md, "From scratch").
    """
    size = image_size or min(side or MAX_COMPACT_SIZE, MAX_COMPACT_SIZE)
    sides, multiple = height_and_width(size), 4
    stride = _stride(_sizes("compact-hybrid"))
    too_small = min(sides) < MIN_HYBRID_SIZE
    indivisible = image_size and any(n % stride for n in sides)
    if model or patch_size or too_small or indivisible:
        model = "compact-vit"
    else:
        model, multiple = "compact-hybrid", stride
    if image_size is None and patch_size is None and isinstance(size, int):
        size = max(1, (size + multiple // 2) // multiple) * multiple
    return model, size


def resolve_model_spec(
    model: str | None, weights: str | None, patch_size: int | None = None
) -> dict[str, Any]:
    """Returns the sizes and the pixel mode of a model before it is built.

    Args:
        model: String. One of `MODEL_NAMES`, or None.
        weights: String. Path, URL or name of weights, or None.
        patch_size: Integer. The requested patch size, or None.

    Returns:
        Dict with `mode`, that of `preprocess_input`; `stride`, the pixels per
        position of what is cut into patches, 0 for a ResNet; and `patch_size`,
        `image_size`, `num_layers` and `hidden_size`, each None if it is
        unspecified.

    Raises:
        ValueError: if there is no such model, or the arguments contradict
            each other.
        FileNotFoundError: if there is no file at `weights`.
        OSError: if weights could not be downloaded.
    """
    if model is not None and model not in MODEL_NAMES:
        close = difflib.get_close_matches(model, MODEL_NAMES)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(
            f"There is no model {model!r}.{hint} There are: {', '.join(MODEL_NAMES)}."
        )
    if weights is not None:
        return _checkpoint_spec(model, weights, patch_size)
    sizes = _sizes(model)
    if "resnet_layers" in sizes and patch_size is not None:
        raise ValueError(
            f"{model} cuts its patches from a ResNet's feature map: leave out "
            "the patch size."
        )
    return {
        "patch_size": patch_size or sizes.get("patch_size"),
        "image_size": COMPACT.get(model or "compact-vit", (0, 0, 224))[2],
        "stride": _stride(sizes),
        "num_layers": sizes.get("num_layers"),
        "hidden_size": sizes.get("hidden_size"),
        "mode": "tf",
    }


def _sizes(model: str | None) -> dict[str, Any]:
    """Returns the arguments of the model function that a name implies."""
    if model in VARIANTS or model in BIT_VARIANTS:
        return variant_sizes(model)
    return COMPACT[model or "compact-vit"][1]


def _stride(sizes: dict[str, Any]) -> int:
    if "hidden_size" not in sizes:
        return 0
    return stride(sizes["resnet_layers"]) if "resnet_layers" in sizes else 1


def open_weights(model: str | None, weights: str) -> Checkpoint:
    """Opens the checkpoint of weights: a file, a run's folder, a URL, or the
    name of released weights of `model`."""
    sizes = _sizes(model) if model else None
    checkpoint = resolve_weights(resolve_weights_path(weights), model, sizes)
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    return open_checkpoint(checkpoint)


def resolve_weights_path(weights: str) -> str:
    """Returns the path of the weights to fine-tune in a run's folder.

    Other arguments are returned unchanged.
    """
    folder = pathlib.Path(weights).expanduser()
    for name in ("encoder.keras", "model.npz", "model.keras"):
        if (folder / name).is_file():
            return str(folder / name)
    return weights


def config_of_run(path: StrPath) -> dict[str, Any]:
    """Returns the `config.json` of the run that wrote a file."""
    path = pathlib.Path(path)
    # Other files in the folder are not those of the run.
    names = ("encoder.keras", "model.keras", "model.npz", "model.weights.h5")
    return read_run_config(path.parent) if path.name in names else {}


def read_run_config(folder: StrPath) -> dict[str, Any]:
    """Returns the `config.json` of a recipe's run in a folder."""
    found = read_config(folder)
    config, data = found.get("config"), found.get("data", {})
    if not isinstance(config, dict) or not isinstance(data, dict):
        return {}
    wrong = [
        f"{name}={values[name]!r}"
        for values in (config, data)
        for name, kinds in _RUN_CONFIG_TYPES.items()
        if values.get(name) is not None and not isinstance(values[name], kinds)
    ]
    if wrong:
        raise ValueError(
            f"{str(pathlib.Path(folder) / 'config.json')!r} has values of "
            f"another type than a recipe writes: {', '.join(wrong)[:300]}. "
            "Remove the file, and give flags instead."
        )
    return found


def _checkpoint_spec(
    model: str | None, weights: str, patch_size: int | None
) -> dict[str, Any]:
    checkpoint = open_weights(model, weights)
    rows, columns = checkpoint.patch_size or (None, None)
    if rows != columns or patch_size not in (None, rows):
        raise ValueError(
            f"The patches of {weights!r} are {rows} x {columns} pixels. They "
            "must be square, and cannot be changed: leave out the patch size."
        )
    if model is not None:
        for name, size in _sizes(model).items():
            found = getattr(checkpoint.config, name, None)
            found = rows if name == "patch_size" else found
            if found != size and name != "pooling":
                raise ValueError(
                    f"{weights!r} does not hold a {model}: its {name} is "
                    f"{found} and not {size}. Leave out the model's name to "
                    "get the model that the file holds."
                )
    sizes, image_size = vars(checkpoint.config), None
    if "hidden_size" not in sizes:  # a BiT's weights are for images of any size
        image_size = config_of_run(checkpoint.path).get("config", {}).get("image_size")
        image_size = parse_image_size(image_size or 224)
    elif sizes["grid_size"] is not None and rows is not None:
        image_size = parse_image_size(
            [n * rows * checkpoint.stride for n in sizes["grid_size"]]
        )
    return {
        "patch_size": rows,
        "image_size": image_size,
        "stride": _stride(sizes),
        "num_layers": sizes.get("num_layers"),
        "hidden_size": sizes.get("hidden_size"),
        "mode": checkpoint.preprocess_mode or "tf",
    }


def build_model(
    model: str | None,
    weights: str | None,
    patch_size: int | None,
    seed: int = 0,
    mean_pooling: bool = False,
    keep_head: bool = False,
    **arguments: Any,
) -> keras.Model:
    """Builds the model that a recipe's flags specify.

    Args:
        model: String. One of `MODEL_NAMES`. None for the architecture of the
            checkpoint, or "compact-vit" if `weights` is None.
        weights: String. Path, URL or name of the weights to fine-tune, or
            None. The classification head is replaced, and its initial values
            are zero ("An Image is Worth 16x16 Words", Section 3.2).
        patch_size: Integer. Height and width of a patch, in pixels. It is
            used only for Vision Transformers without `weights`.
        seed: Integer. Seed of the initial position embeddings of compact-vit.
        mean_pooling: Boolean. Whether the head reads the mean of the patches
            instead of the class token of `weights`. The last layer norm is
            replaced by a new one after the mean, as in the fine-tuning of MAE
            (facebookresearch/mae, `global_pool` of models_vit.py).
        keep_head: Boolean. Whether to keep the classification head of
            `weights`, which must have the same number of classes.
        **arguments: `input_shape`, `classes`, and options of the encoder. If
            `weights` is None, also other arguments of the model function.

    Returns:
        A Keras model.

    Raises:
        ValueError: if an option is not that of the model, or if `keep_head` is
            True and the weights have no head of this number of classes, or
            one of another pooling than `mean_pooling` asks for.
    """
    if weights is None:
        model = model or "compact-vit"
        sizes = {}
        if "resnet_layers" not in _sizes(model):
            sizes["patch_size"] = patch_size
        if not _stride(_sizes(model)):
            arguments = _for_bit(arguments)
        name = model
        if model in COMPACT:
            name, sizes = COMPACT[model][0], {**COMPACT[model][1], **sizes}
            sizes["name"] = model.replace("-", "_")
        built = getattr(models, name)(**{**sizes, **arguments})
        if model in ("compact-vit", "compact-hybrid"):
            spread_positions(built, seed)
        return built
    checkpoint = open_weights(model, weights)
    if keep_head:
        bias = checkpoint.weights.get("head/bias", ())
        if len(bias) != arguments["classes"]:
            raise ValueError(
                f"--keep-head needs weights of {arguments['classes']} classes, "
                f"those of the dataset, and {weights!r} has a head of "
                f"{len(bias)} classes: leave out --keep-head."
            )
        if mean_pooling and _with_mean_pooling(checkpoint) is not checkpoint:
            pooling = vars(checkpoint.config)["pooling"]
            raise ValueError(
                "--keep-head keeps a head that does not read the mean of the "
                "patches: leave out --keep-head, or what asks for the mean "
                "(--pooling gap, --preset mae). Received: "
                f"pooling={pooling!r} in {weights!r}"
            )
    if checkpoint.family == "bit":
        arguments = _for_bit(arguments)
    else:  # what the flags say, not the rates that a file was trained with
        arguments = {**_NO_REGULARIZATION, **arguments}
        if not keep_head:
            # The paper removes the whole pre-training head: both of its layers.
            arguments["representation_size"] = None
            if mean_pooling:
                checkpoint = _with_mean_pooling(checkpoint)
    if checkpoint.build_arguments.get("preprocessing"):
        arguments = {**arguments, "preprocessing": False}  # datasets scale
    built = converters.load(checkpoint, include_top=True, **arguments)
    # `load` keeps the head if the number of classes is that of the checkpoint.
    if not keep_head:
        zero_init_head(built)
    return built


def _for_bit(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments without options of encoders, which a BiT has not."""
    options = ("remat", "dropout", "drop_path", "representation_size")
    options += ("position_embedding", "position_prefix", "distillation")
    for name in options:
        if arguments.get(name):
            flag = {"distillation": "distill token"}.get(name, name)
            raise ValueError(
                f"--{flag.replace('_', '-')} is for Vision Transformers and "
                "hybrids, and a BiT has no encoder: leave it out. Received: "
                f"{arguments[name]}"
            )
    return {k: v for k, v in arguments.items() if k not in options}


def check_classes(weights: str, data: ImageDataset) -> None:
    """Raises a `ValueError` if a run was of other classes than a dataset;
    weights that no recipe wrote do not name their classes."""
    found = config_of_run(resolve_weights_path(weights)).get("data", {})
    names = found.get("class_names", list(data.class_names))
    if names == list(data.class_names):
        return
    other = sorted(set(names) ^ set(data.class_names)) or names
    raise ValueError(
        f"--keep-head needs the classes of {weights!r}, in the same order. "
        f"{data.name!r} has others, such as {other[0]!r}: leave out "
        "--keep-head."
    )


def _with_mean_pooling(checkpoint: Checkpoint) -> Checkpoint:
    """Returns a checkpoint whose head reads the mean of the patches."""
    config = checkpoint.config
    if not isinstance(config, ViTConfig) or config.pooling == "gap":
        return checkpoint
    weights = {
        path: array
        for path, array in checkpoint.weights.items()
        if not path.startswith("encoder_norm/")
    }
    width = config.hidden_size
    weights["head_norm/gamma"] = np.ones(width, "float32")
    weights["head_norm/beta"] = np.zeros(width, "float32")
    pooling = {"pooling": "gap", "final_norm": "after_pooling"}
    return dataclasses.replace(
        checkpoint, weights=weights, stored={**checkpoint.stored, **pooling}
    )


def spread_positions(model: keras.Model, seed: int) -> None:
    """Initializes position embeddings with a standard deviation of 0.5."""
    # With the usual standard deviation of 0.02, position embeddings are too
    # small relative to the embeddings of small patches, and training on digits
    # is much slower: accuracy 0.91 after 800 steps, where a standard deviation
    # of 0.5 gives 0.97 after 600. All kinds of position embeddings have the
    # same one, wherever they are added.
    layers = [x for x in model.layers if is_position_layer(x.name)]
    tables = [table for x in layers for table in x.embedding_variables().values()]
    for i, table in enumerate(tables):
        table.assign(keras.random.normal(table.shape, stddev=0.5, seed=seed + i))


def initialize_positions(model: keras.Model, seed: int) -> None:
    """Initializes learned position embeddings as big_vision does: normally
    distributed with a standard deviation of 1 / sqrt(width)."""
    layer = model.get_layer("position_embedding")
    if layer.kind == "learned":
        shape = layer.embedding.shape
        generator = np.random.default_rng(seed)
        layer.embedding.assign(
            generator.normal(0, shape[-1] ** -0.5, shape).astype("float32")
        )


def freeze_weights(layer: keras.Layer) -> None:
    """Makes the weights of a layer not trainable, but not the layer.

    A file stores the flags of layers, not those of weights: the model that a
    run saves can be trained on.
    """
    for variable in layer.trainable_weights:
        variable.trainable = False


def set_trainable(model: keras.Model, train: str, lora_rank: int = 8) -> None:
    """Sets which variables of a model are trainable.

    Args:
        model: Model of this package that has not been compiled.
        train: String. "all"; "head", only the classification head; or "lora",
            the head and low-rank updates of the query and value kernels
            ("LoRA", https://arxiv.org/abs/2106.09685, Section 4.2).
        lora_rank: Integer. Rank of the low-rank updates.

    Raises:
        ValueError: if `train` is "lora" and the model has no encoder blocks.
    """
    if train == "all":
        return
    for layer in model.layers:
        if layer.name not in HEADS:
            freeze_weights(layer)
    if train == "head":
        return
    blocks = [
        layer
        for layer in model.layers
        if layer.name.startswith("block_") and hasattr(layer, "attention")
    ]
    if not blocks:
        raise ValueError(
            "--train lora updates the attention of Vision Transformers and "
            f"hybrids. {model.name} has none: use --train head or all."
        )
    for block in blocks:
        block.attention.query.enable_lora(lora_rank)
        block.attention.value.enable_lora(lora_rank)


def zero_init_head(model: keras.Model) -> None:
    """Sets all weights of the classification head to zero."""
    for layer in model.layers:
        if layer.name in HEADS:
            layer.set_weights([array * 0 for array in layer.get_weights()])


def init_head_bias(model: keras.Model, bias: float) -> None:
    """Sets all biases of the classification head to one value.

    With a sigmoid loss and a bias of -10, the initial probability of every
    class is close to 0, which is right for nearly all of them.
    """
    head = model.get_layer("head")
    head.bias.assign(keras.ops.full(head.bias.shape, bias))


def lossless_layout(model: keras.Model) -> str | None:
    """Returns the Google layout, "vit_jax" or "bit", that stores a model
    without loss; None if neither can, for example for DeiT, or for position
    embeddings of a grid that is not square."""
    weights, arguments, _ = describe(model)
    rows, columns = arguments.get("grid_size") or (1, 1)
    if rows != columns:
        return None
    for layout in ("vit_jax", "bit"):
        weight_map = get_weight_map(layout, weights)
        if weight_map.unmapped_paths(weights):
            continue
        try:
            check_representable(arguments, layout)
        except ValueError:
            continue
        implied = implied_arguments(layout, weight_map, weights)
        if all(arguments.get(k) == value for k, value in implied.items()):
            return layout
    return None
