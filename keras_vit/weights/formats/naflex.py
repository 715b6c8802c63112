"""NaFlex, models of images as sequences of patches: timm's and transformers'.

Their patch embedding is a matrix of flat patches, whose values are ordered by
row, column and channel, and timm's positions are a grid.
"""

import math
from collections.abc import Mapping

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._warnings import warn

# The map of `NaFlexVit`, and those of `Siglip2VisionModel` and
# `Siglip2ForImageClassification`.
TIMM, TOWER, CLASSIFIER = "naflex", "siglip2", "siglip2-classifier"
VARIANTS = (TIMM, TOWER, CLASSIFIER)
_KERNEL = "patch_embedding/kernel"
_POSITIONS = "position_embedding/embedding"
_RESAMPLINGS = (
    *("bilinear", "bilinear_antialias", "bilinear_align_corners"),
    *("bicubic", "bicubic_antialias", "bicubic_align_corners"),
)
# These options of `NaFlexVit` change outputs, and have only these values here.
_DEFAULTS = {
    "pos_embed_ar_preserving": False,
    "pos_embed_use_grid_sample": False,
    "pool_include_prefix": False,
    "patchify_channels_last": True,
    "attn_pool_num_heads": None,
    "norm_layer": None,
    "rope_type": "",
    "attn_gated": False,
    "swiglu_mlp": False,
}


def after_reading(
    weights: dict[str, Array], stored: Config, variant: str
) -> tuple[dict[str, Array], Config]:
    """Returns the patch embedding as the kernel of a convolution, and positions
    as a sequence, with their grid in `stored`."""
    if variant not in VARIANTS:
        return weights, stored
    weights, stored = dict(weights), dict(stored)
    kernel, positions = weights.get(_KERNEL), weights.get(_POSITIONS)
    patch_size = stored.pop("patch_size", None)
    if kernel is not None and kernel.ndim == 2:
        size, hidden_size = kernel.shape
        # Without a config.json, patches are squares of 3 channels, or of 1.
        sides = math.isqrt(size // 3), math.isqrt(size)
        side = next((n for n in sides if size in (n * n, 3 * n * n)), 0)
        rows, columns = patch_size or (side, side)
        if not rows or size % (rows * columns):
            raise ValueError(
                f"The patches of {size} values have another size than "
                f"{patch_size or 'squares of 1 or 3 channels'}. Give it as "
                "'patch_size' in a config.json next to the file: as in "
                "transformers, or in 'model_args' as in timm."
            )
        shape = (rows, columns, size // (rows * columns), hidden_size)
        weights[_KERNEL] = kernel.reshape(shape)
    if positions is not None and positions.ndim == 4:
        _, rows, columns, hidden_size = positions.shape
        stored["grid_size"] = (rows, columns)
        weights[_POSITIONS] = positions.reshape(1, -1, hidden_size)
    return weights, stored


def before_writing(
    weights: dict[str, Array], arguments: Config, variant: str
) -> dict[str, Array]:
    """Returns flat kernels and, for timm, the grid of positions: the inverse of
    `after_reading`."""
    if variant not in VARIANTS:
        return weights
    weights = dict(weights)
    kernel, positions = weights[_KERNEL], weights.get(_POSITIONS)
    rows, columns, channels, hidden_size = kernel.shape
    weights[_KERNEL] = kernel.reshape(-1, hidden_size)
    if variant == TIMM and positions is not None:
        grid = (1, *arguments["grid_size"], hidden_size)
        weights[_POSITIONS] = positions.reshape(grid)
    if rows != columns or channels not in (1, 3):
        warn(
            f"The file does not store that its patches are of {rows} x "
            f"{columns} pixels and {channels} channels: give them when it is "
            "read, in a config.json."
        )
    return weights


def read_config(name: str, model_args: Mapping[str, object]) -> Config:
    """Returns the arguments of `NaFlexVit` that timm's config.json implies: the
    name of the architecture, and its `model_args`."""
    given = dict(model_args)
    if "_par" in name or "_radio_" in name:
        given.setdefault("pos_embed_ar_preserving", True)
    for option, default in _DEFAULTS.items():
        value = given.get(option)
        if value not in (None, default, "none"):
            raise ValueError(
                f"{option!r} of timm's NaFlexVit must be {default!r}, as this "
                f"package has no other. Received: {value!r:.100}"
            )
    linear = name.endswith("_siglip")
    mode = "bilinear" if linear else "bicubic"
    resampling = str(given.get("pos_embed_interp_mode", mode))
    if given.get("pos_embed_align_corners"):
        resampling += "_align_corners"
    if given.get("pos_embed_antialias", True):
        resampling += "_antialias"
    if resampling not in _RESAMPLINGS:
        raise ValueError(
            "'pos_embed_interp_mode', and '_align_corners' or '_antialias' if "
            "those options of timm's NaFlexVit are true, must be one of "
            f"{', '.join(_RESAMPLINGS)}. Received: {resampling:.100}"
        )
    arguments: Config = {"resampling": resampling}
    if linear:
        arguments["activation"] = "gelu_tanh"
    size = given.get("patch_size")
    pair = size if isinstance(size, (list, tuple)) else (size, size)
    if len(pair) == 2 and all(type(n) is int and n > 0 for n in pair):
        arguments["patch_size"] = tuple(pair)
    return arguments
