"""Loading and description of a YOLOS."""

from typing import Any

import keras

from keras_vit.detection.yolos import YOLOS
from keras_vit.models.dense import dense_encoder, load_dense, required
from keras_vit.utils import checks
from keras_vit.utils.types import Config
from keras_vit.weights import Checkpoint

_CLASSES = "class_3"


def load_yolos(checkpoint: Checkpoint, classes: int | None = None) -> keras.Model:
    """Builds the YOLOS of a checkpoint, for images of any size that is a multiple of
    the patch size, and loads its weights; see `keras_vit.load`."""
    weights = checkpoint.weights
    required(checkpoint, "detection_tokens/tokens", f"{_CLASSES}/bias")
    model = YOLOS(
        dense_encoder(checkpoint),
        classes or len(weights[f"{_CLASSES}/bias"]) - 1,
        weights["detection_tokens/tokens"].shape[1],
        "mid_position_embedding_0/embedding" in weights,
        checkpoint.stored.get("loss_options"),
    )
    load_dense(model, checkpoint, weights, _CLASSES)
    return model


def describe_yolos(model: Any) -> Config:
    """Returns the arguments of a YOLOS besides those of its encoder."""
    tokens = model.get_layer("detection_tokens")
    classes = model.output["classes"].shape[-1] - 1
    names = checks.class_names(model.class_names, classes)
    layers = [layer.name for layer in model.layers]
    return {
        "queries": tokens.num_tokens,
        "mid_positions": "mid_position_embedding_0" in layers,
        "loss_options": tokens.loss_options,
        "class_names": names or [f"LABEL_{i}" for i in range(classes)],
    }
