"""NaFlex, models of images as sequences of patches: timm's and transformers'.

Their patch embedding is a matrix of flat patches, whose values are ordered by
row, column and channel, and timm's positions are a grid.
"""

import math
from collections.abc import Mapping

from keras_vit.utils.types import Array, Config
from keras_vit.utils.warnings import warn
from keras_vit.weights.formats.format import Values, check_option, pair

# The map of `NaFlexVit`, and those of `Siglip2VisionModel` and
# `Siglip2ForImageClassification`.
TIMM, TOWER, CLASSIFIER = "naflex", "siglip2", "siglip2-classifier"
VARIANTS = (TIMM, TOWER, CLASSIFIER)
_KERNEL = "patch_embedding/kernel"
_POSITIONS = "position_embedding/embedding"
_ROWS, _COLUMNS = "position_embedding/rows", "position_embedding/columns"
# The options that architectures have whose name contains the key.
_NAMED = {
    "_siglip": {"pos_embed_interp_mode": "bilinear", "act_layer": "gelu_tanh"},
    "_par": {"pos_embed_ar_preserving": True},
    "_radio_": {
        "pos_embed_ar_preserving": True,
        "pos_embed_interp_mode": "bilinear",
        "pos_embed_antialias": False,
    },
    "base_patch16_radio_v3": {"pos_embed_align_corners": True},
    "huge_patch16_radio_v3": {"pos_embed_align_corners": True},
}
# These options of `NaFlexVit` change outputs, and have only these values here.
_DEFAULTS = {
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
    tables = [weights[path] for path in (_ROWS, _COLUMNS) if path in weights]
    if tables:
        square = str(stored.get("resampling")).endswith("_square")
        stored["resampling"] = "bilinear_square" if square else "bilinear"
        if square and len(tables[0]) != len(tables[-1]):
            raise ValueError(
                "Factorized positions that preserve the aspect must be those "
                f"of a square. Received: {len(tables[0])} x {len(tables[-1])}"
            )
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


def values(arguments: Config) -> Values:
    """Returns the values of arguments that timm's models may have."""
    values: Values = {"position_embedding": ("learned", "factorized", "none")}
    if arguments["position_embedding"] == "factorized":
        values["resampling"] = ("bilinear", "bilinear_square")
    return values


def read_config(name: str, model_args: Mapping[str, object]) -> Config:
    """Returns the arguments of `NaFlexVit` that timm's config.json implies: the
    name of the architecture, and its `model_args`."""
    given: Config = {}
    for part, options in _NAMED.items():
        given |= options if part in name else {}
    given |= model_args
    for option, default in _DEFAULTS.items():
        value = given.get(option)
        check_option(value in (None, default, "none"), option, value, repr(default))
    # The layer of positions refuses those that this package does not have.
    resampling = str(given.get("pos_embed_interp_mode", "bicubic"))
    if given.get("pos_embed_align_corners"):
        resampling += "_align_corners"
    if given.get("pos_embed_antialias", True):
        resampling += "_antialias"
    if given.get("pos_embed_ar_preserving"):
        resampling += "_square"
    arguments: Config = {"resampling": resampling}
    if isinstance(given.get("act_layer"), str):
        arguments["activation"] = given["act_layer"]
    if patch_size := pair(given.get("patch_size")):
        arguments["patch_size"] = patch_size
    return arguments
