"""Detectors and segmenters of a checkpoint: their encoder, and their weights."""

from typing import Any, cast

from keras_vit.config import ViTConfig
from keras_vit.layers.initializers import skip_init
from keras_vit.models.assigning import weights_by_path
from keras_vit.models.model import Model
from keras_vit.models.vit import VisionTransformer
from keras_vit.utils.types import Array
from keras_vit.weights import Checkpoint
from keras_vit.weights.weight_map import assign_all


def dense_encoder(checkpoint: Checkpoint) -> Model:
    """Returns the encoder of a checkpoint's detector or segmenter, for images of any
    size, with initial values of zero."""
    config = cast(ViTConfig, checkpoint.config)  # no ResNet is one
    if config.grid_size is None:
        raise ValueError(
            f"{checkpoint.path!r} has {checkpoint.arguments()['num_positions']} "
            "positions, which are not those of the images in its config.json. Give a "
            "folder whose config.json is that of the weights."
        )
    with skip_init():
        return VisionTransformer(
            config,
            include_top=False,
            pooling=None,
            input_shape=(None, None, checkpoint.channels),
        )


def required(checkpoint: Checkpoint, *paths: str) -> None:
    """Raises a `ValueError` if a checkpoint lacks arrays that say what its detector or
    segmenter is."""
    if missing := [path for path in paths if path not in checkpoint.weights]:
        raise ValueError(
            f"{checkpoint.path!r} lacks arrays of a model of the family "
            f"{checkpoint.family!r}: give the whole file or folder. Received: no "
            f"{', '.join(checkpoint.key(path) for path in missing)}"
        )


def load_dense(
    model: Any, checkpoint: Checkpoint, weights: dict[str, Array], head: str
) -> None:
    """Loads a checkpoint's weights into a detector or a segmenter, all of them or
    none, with the names of classes and the mode of pixels.

    The layer of classes, at the path `head`, keeps its initial values if the model
    has another number of classes.
    """
    variables = weights_by_path(model)
    bias = f"{head}/bias"
    if variables[bias].shape == weights[bias].shape:
        names = checkpoint.class_names(len(weights[bias]) - 1)
        model.class_names = names and tuple(names)
        new = set()
    else:
        new = {f"{head}/kernel", bias}
        weights = {path: x for path, x in weights.items() if path not in new}
    assign_all(
        variables,
        weights,
        lambda: f"{checkpoint.path!r} does not fit the model {model.name!r}.",
        checkpoint.key,
        new,
    )
    model.preprocess_mode = checkpoint.preprocess_mode
