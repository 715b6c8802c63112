"""Numbers of published models that layers and files of weights share."""

import numpy as np

from keras_vit.utils.types import Array

# mode of `preprocess_input`: mean and standard deviation of values in [0, 1];
# "torch" is ImageNet, "clip" is clip.py of https://github.com/openai/CLIP
PREPROCESSING = {
    "tf": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "torch": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    ),
}


def rotary_periods(base: float, head_size: int) -> Array:
    """Returns the periods of `RotaryPositionEmbs`, an array of
    `head_size / 4` float32 numbers."""
    exponents = np.arange(head_size // 4, dtype="float64") * 4 / head_size
    return (float(base) ** exponents).astype("float32")
