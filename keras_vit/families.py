"""The families of models: the function that builds each family from a checkpoint, its
arguments, and the format in which a model is written."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_vit import converters, pretraining
from keras_vit.detection.files import describe_yolos, load_yolos
from keras_vit.models.keras_file import load_keras_file
from keras_vit.segmentation.files import describe_eomt, load_eomt
from keras_vit.text.files import load_dual_encoder
from keras_vit.utils.types import Config
from keras_vit.weights import Checkpoint

__all__ = ["build", "FAMILIES", "Family"]


class Family(NamedTuple):
    """A family of models.

    Attributes:
        load: Function that builds the model of a `Checkpoint` and loads its weights;
            None if only Keras can load the model, as it was saved.
        options: Names of the arguments of `keras_vit.load` that `load` takes.
        format: String. The format of the folder that `keras_vit.save` writes;
            None if only Keras's own files can hold the model.
        describe: Function that takes a model and returns the arguments of its head,
            which a folder stores.
    """

    load: Callable[..., keras.Model] | None
    options: tuple[str, ...] = ()
    format: str | None = "huggingface"
    describe: Callable[[keras.Model], Config] = lambda model: {}


_SIZES = ("input_shape", "dropout", "drop_path")
_CLASSIFIER = Family(
    converters.load, (*_SIZES, "include_top", "classes", "pooling", "preprocessing")
)
_MASKED = Family(pretraining.load, (*_SIZES, "mask_ratio"))
_MOMENTUM = Family(pretraining.load, _SIZES)
_SAVED = Family(None, format=None)
FAMILIES = {
    "vit": _CLASSIFIER,
    "hybrid": _CLASSIFIER,
    "bit": _CLASSIFIER,
    "mae": Family(pretraining.load, (*_MASKED.options, "norm_pixels")),
    "simmim": _MASKED,
    "mpp": _MASKED,
    "dino": _MOMENTUM,
    "mocov3": _MOMENTUM,
    "linear_segmenter": _SAVED,
    "eomt": Family(load_eomt, ("classes", "masked"), "eomt", describe_eomt),
    "yolos": Family(load_yolos, ("classes",), "yolos", describe_yolos),
    "fcos": _SAVED,
    "dual_encoder": Family(load_dual_encoder),
}


def build(checkpoint: Checkpoint, **arguments: Any) -> keras.Model:
    """Builds the model of a checkpoint of any family and loads its weights. Arguments
    of the family's function take precedence over the file."""
    load = FAMILIES[checkpoint.family].load
    opening = ("num_heads", "decoder_num_heads")  # with which the file was read
    arguments = {x: y for x, y in arguments.items() if x not in opening}
    if load is not None and not checkpoint.is_fixed:
        return load(checkpoint, **arguments)
    if arguments:
        checkpoint.raise_if_fixed()
    return load_keras_file(checkpoint.path)
