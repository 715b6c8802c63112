"""Loading and description of an EoMT."""

from typing import Any

import keras
import numpy as np

from keras_vit.layers import TransformerBlock
from keras_vit.models.dense import dense_encoder, load_dense, required
from keras_vit.segmentation.eomt import EoMT
from keras_vit.utils import checks
from keras_vit.utils.types import Config
from keras_vit.weights import Checkpoint

_CLASSES = "eomt_head/class"


def load_eomt(
    checkpoint: Checkpoint, classes: int | None = None, masked: bool | None = None
) -> keras.Model:
    """Builds the EoMT of a checkpoint, for images of any size, and loads its weights;
    see `keras_vit.load`."""
    weights, stored = dict(checkpoint.weights), checkpoint.stored
    masks = [path for path in weights if path.endswith("/probability")]
    required(checkpoint, "queries/tokens", f"{_CLASSES}/bias")
    blocks = len(masks) or stored["blocks"]
    if not masks:  # transformers begins with probabilities of 1
        masks = [f"query_mask_{i}/probability" for i in range(blocks)]
        weights |= dict.fromkeys(masks, np.ones((), "float32"))
    if masked is None:
        masked = any(weights[path] > 0 for path in masks)
    for path in () if masked else masks:
        del weights[path]
    model = EoMT(
        dense_encoder(checkpoint),
        classes or len(weights[f"{_CLASSES}/bias"]) - 1,
        queries=weights["queries/tokens"].shape[1],
        blocks=blocks,
        masked=masked,
        num_upscales=sum(path.endswith("/deconvolution/kernel") for path in weights),
        loss_options=stored.get("loss_options"),
    )
    load_dense(model, checkpoint, weights, _CLASSES)
    return model


def describe_eomt(model: Any) -> Config:
    """Returns the arguments of an EoMT besides those of its encoder."""
    head, queries = model.get_layer("eomt_head"), model.get_layer("queries")
    names = checks.class_names(model.class_names, head.classes)
    last = model.layers[model.layers.index(queries) :]
    return {
        "queries": queries.num_tokens,
        "blocks": sum(isinstance(x, TransformerBlock) for x in last),
        "num_upscales": head.num_upscales,
        "loss_options": head.loss_options,
        "class_names": names or [f"LABEL_{i}" for i in range(head.classes)],
    }
