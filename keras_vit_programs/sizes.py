"""Models and patch sizes for the flags `--model` and `--weights`."""

import contextlib
import functools
import pathlib
from typing import Any

from keras_vit.config import BIT_VARIANTS, VARIANTS, stride, variant_sizes
from keras_vit.data.protocols import height_and_width, parse_image_size, size_text
from keras_vit.evaluation.runs import (
    check_model,
    config_of_run,
    open_weights,
    resolve_weights_path,
)
from keras_vit.utils.text import nearest
from keras_vit.weights import Checkpoint

PATCHES = range(2, 17)
# Patches per side. The cost of attention is proportional to their fourth power.
GRIDS = range(2, 25)
WANTED_GRID = 8
MIN_GRID = 4


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


# Models that train in minutes on two CPU cores: name of the model function, its
# arguments, and the default image size in pixels.
_RESNET = {"resnet_layers": (1, 1), "width_factor": 0.5}
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
MODEL_NAMES = (*COMPACT, *VARIANTS, *BIT_VARIANTS)


def choose_model_and_size(
    model: str | None,
    image_size: int | tuple[int, int] | None,
    patch_size: int | None,
    side: int | None,
) -> tuple[str, int | tuple[int, int]]:
    """Returns a model to train from scratch, and an image size for it.

    On a few thousand images, a hybrid learns more than a plain Vision
    Transformer that costs as much (docs/decisions.md).
    """
    size = image_size or min(side or MAX_COMPACT_SIZE, MAX_COMPACT_SIZE)
    sides, multiple = height_and_width(size), 4
    stride = stride_of(sizes_of("compact-hybrid"))
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
        Dict with `mode`, that of `preprocess_input`, or None if weights do not say it;
        `stride`, the pixels per position of what is cut into patches, 0 for a ResNet;
        and `patch_size`, `image_size`, `num_layers`, `hidden_size` and `name`, the
        model's, each None if it is unspecified.

    Raises:
        ValueError: if there is no such model, or the arguments contradict
            each other.
        FileNotFoundError: if there is no file at `weights`.
        OSError: if weights could not be downloaded.
    """
    if model is not None and model not in MODEL_NAMES:
        close = nearest(model, MODEL_NAMES)
        hint = f" Did you mean {close}?" if close else ""
        raise ValueError(
            f"There is no model {model!r}.{hint} There are: {', '.join(MODEL_NAMES)}."
        )
    if weights is not None:
        path = pathlib.Path(resolve_weights_path(weights)).expanduser()
        # Settings are read from the files beside the weights, too.
        beside = path.parent.glob("*.json") if path.is_file() else path.glob("*")
        files = [each for each in (path, *beside) if each.exists()]
        written = max((each.stat().st_mtime_ns for each in files), default=0)
        return {**_checkpoint_spec(model, weights, patch_size, written)}
    sizes = sizes_of(model)
    if "resnet_layers" in sizes and patch_size is not None:
        raise ValueError(
            f"{model} cuts its patches from a ResNet's feature map: leave out "
            "the patch size."
        )
    return {
        "patch_size": patch_size or sizes.get("patch_size"),
        "image_size": COMPACT.get(model or "compact-vit", (0, 0, 224))[2],
        "stride": stride_of(sizes),
        "num_layers": sizes.get("num_layers"),
        "hidden_size": sizes.get("hidden_size"),
        "name": model,
        "mode": "tf",
    }


def check_is_vit(model: str | None) -> None:
    """Raises a `ValueError` if a model is not a Vision Transformer."""
    if resolve_model_spec(model, None)["stride"] != 1:
        raise ValueError(
            f"{model} is not a Vision Transformer: give one, such as ViTB16."
        )


def sizes_of(model: str | None) -> dict[str, Any]:
    """Returns the arguments of the model function that a name implies."""
    if model in VARIANTS or model in BIT_VARIANTS:
        return variant_sizes(model)
    return COMPACT[model or "compact-vit"][1]


def stride_of(sizes: dict[str, Any]) -> int:
    if "hidden_size" not in sizes:
        return 0
    return stride(sizes["resnet_layers"]) if "resnet_layers" in sizes else 1


@functools.lru_cache  # settings ask several times of a file of gigabytes
def _checkpoint_spec(
    model: str | None, weights: str, patch_size: int | None, written: int
) -> dict[str, Any]:
    """Does what `resolve_model_spec` does, of weights that were `written` then."""
    checkpoint = open_weights(model, weights, sizes_of(model))
    rows, columns = checkpoint.patch_size or (None, None)
    if rows != columns or patch_size not in (None, rows):
        raise ValueError(
            f"The patches of {weights!r} are {rows} x {columns} pixels. They "
            "must be square, and cannot be changed: leave out the patch size."
        )
    if model is not None:
        check_model(checkpoint, model, sizes_of(model))
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
        "stride": stride_of(sizes),
        "num_layers": sizes.get("num_layers"),
        "hidden_size": sizes.get("hidden_size"),
        "name": model or _name_of(checkpoint),
        "mode": checkpoint.preprocess_mode or ("tf" if checkpoint.saved else None),
    }


def _name_of(checkpoint: Checkpoint) -> str | None:
    """Returns the name of the published model that a checkpoint holds, or None."""
    for name in (*VARIANTS, *BIT_VARIANTS):
        with contextlib.suppress(ValueError):
            check_model(checkpoint, name, variant_sizes(name))
            return name
    return None
