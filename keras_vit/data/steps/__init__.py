"""Steps from a file to a batch, for the argument `steps` of `ImageDataset.train`.

A step is a function `step(example, seed)` that takes an example, a dict, and returns
the modified example. The functions here make steps from their other arguments.
"""

from keras_vit.data.steps.base import Step, step
from keras_vit.data.steps.crops import (
    bicubic_center_crop,
    inception_crop,
    random_resized_crop,
    random_translation,
    resize,
    resize_and_crop,
)
from keras_vit.data.steps.general import (
    augment,
    decode,
    erase,
    flip,
    layer,
    normalize,
    one_hot,
    weigh,
)
from keras_vit.data.steps.mixing import mix
from keras_vit.data.steps.multi_crops import multi_crop
from keras_vit.data.steps.places import scale_crop, scale_whole

__all__ = [
    "augment", "bicubic_center_crop", "decode", "erase", "flip", "inception_crop",
    "layer", "mix", "multi_crop", "normalize", "one_hot", "random_resized_crop",
    "random_translation", "resize", "resize_and_crop", "scale_crop", "scale_whole",
    "Step", "step", "weigh",
]  # fmt: skip
