"""What the layouts of models with rotary positions share."""

import numpy as np

from keras_vit._published import rotary_periods
from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._warnings import warn

# Path of the periods, which only some code bases store.
PERIODS = "position_embedding_shared/periods"
BASE = 100.0  # of all published models
# Where heads are not 64 channels wide, or other than in `infer.py`.
PUBLISHED_HEADS = {1280: 20, 4096: 32}
# A parameter type: a gate and a projection, which are one layer of keras_vit.
GATED = {
    "kernel": ("weight", "n o i -> i (n o)"),
    "bias": ("bias", "n o -> (n o)"),
}


def add_periods(weights: dict[str, Array], stored: Config) -> dict[str, Array]:
    """Returns weights with the periods that a code base computes."""
    kernel = weights.get("block_0/attention/query/kernel")
    if kernel is None or kernel.ndim != 3:  # reported later
        return weights
    base = stored.get("rope_base", BASE)
    return {**weights, PERIODS: rotary_periods(base, kernel.shape[2])}


def drop_periods(
    weights: dict[str, Array], arguments: Config, name: str
) -> dict[str, Array]:
    """Returns weights without periods, for code that computes them.

    Warns if the code's would be others.
    """
    weights = dict(weights)
    periods = weights.pop(PERIODS, None)
    if periods is not None:
        base = arguments.get("rope_base", BASE)
        computed = rotary_periods(base, 4 * periods.size)
        error = np.abs(periods / computed - 1).max()
        if error > 1e-6:
            warn(
                f"{name} computes the periods of rotary positions from "
                f"rope_base={base:g}; those of the model differ from them by "
                f"up to {error:.1%}, so that its outputs will differ."
            )
    return weights


def add_mask_token(weights: dict[str, Array]) -> dict[str, Array]:
    """Returns weights with a mask token, of zeros if they have none."""
    token = np.zeros_like(weights["class_token/tokens"][:, :1])
    return {"mask_token/tokens": token, **weights}
