"""Numbers of published models that layers and files of weights share."""

import numpy as np

from keras_vit.utils.types import Array


def rotary_periods(base: float, head_size: int) -> Array:
    """Returns the periods of `RotaryPositionEmbs`, an array of
    `head_size / 4` float32 numbers."""
    exponents = np.arange(head_size // 4, dtype="float64") * 4 / head_size
    return (float(base) ** exponents).astype("float32")
