"""Classifiers built from words, without training images."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import converters
from keras_vit.config import ViTConfig
from keras_vit.models import Model, VisionTransformer, config_of
from keras_vit.models.assigning import weights_by_path
from keras_vit.text.dual_encoder import DualEncoder
from keras_vit.text.templates import TEMPLATES
from keras_vit.utils.checks import one_of
from keras_vit.weights.weight_map import assign_all

_BATCH = 256  # texts


def zero_shot(
    model: DualEncoder,
    class_names: Sequence[str],
    templates: str | Sequence[str] = "photo",
) -> Model:
    """Builds a classifier whose classes are described by words.

    It is an ordinary Vision Transformer of this package, which can predict and be
    trained, explained, exported and saved without the text tower. The weights of its
    head are the mean embedding of each class's texts, scaled to length 1, times the
    scale of the logits. The head reads image embeddings of length 1 (`unit_norm=True`).
    Its logits equal those of the dual encoder.

    From "Learning Transferable Visual Models From Natural Language Supervision",
    Section 3.1 (https://arxiv.org/abs/2103.00020).

    Args:
        model: A `DualEncoder` with a tokenizer, whose image tower is a Vision
            Transformer.
        class_names: Sequence of strings, such as ["cat", "dog"].
        templates: Sequence of strings with "{}" in place of the name, such as ["a photo
            of a {}.", "a drawing of a {}."]; or the name of a published set: "photo",
            which is "a photo of a {}.", or OpenAI's "imagenet-7" or "imagenet-80".

    Returns:
        A `keras.Model` that maps images to logits `(batch, classes)` and has the
        `class_names`. Its weights are copies.

    Raises:
        ValueError: if the model has no tokenizer, or its image tower is not a Vision
            Transformer.

    Example:

    >>> model = keras_vit.load("clip-vit-base-patch32")
    >>> classifier = keras_vit.zero_shot(model, ["cat", "dog"])
    >>> classifier.save("cats_and_dogs.keras")
    """
    names = [class_names] if isinstance(class_names, str) else [*class_names]
    if isinstance(templates, str):
        templates = TEMPLATES[one_of("templates", templates, tuple(TEMPLATES))]
    encoder, config = model.encoder, config_of(model)
    if not isinstance(config, ViTConfig) or config.representation_size:
        raise ValueError(
            "`zero_shot` takes a dual encoder with the image tower of CLIP or SigLIP. "
            f"Received: {config}"
        )
    texts = [template.format(name) for name in names for template in templates]
    kernel, bias = _head(model, texts, len(templates))
    weights, _, built = converters.describe(encoder)
    projection = None
    if "head/kernel" in weights:
        projection = len(weights["head/bias"])
        for name in ("kernel", "bias"):
            weights[f"pre_logits/{name}"] = weights.pop(f"head/{name}")
    config = dataclasses.replace(
        config,
        pooling=built["pooling"],
        representation_size=projection,
        unit_norm=True,
    )
    classifier = VisionTransformer(
        config,
        classes=len(names),
        input_shape=built["input_shape"],
        preprocessing=built.get("preprocessing", False),
    )
    assign_all(
        weights_by_path(classifier),
        {**weights, "head/kernel": kernel, "head/bias": bias},
        lambda: f"The image tower {encoder.name!r} is not a plain Vision Transformer.",
    )
    classifier.class_names = tuple(names)
    mode = getattr(encoder, "preprocess_mode", None)
    classifier.preprocess_mode = classifier.preprocess_mode or mode
    return classifier


def _head(model: DualEncoder, texts: list[str], count: int) -> tuple[Any, Any]:
    """Returns the kernel and the bias of a head, for `count` texts of each class."""
    ids = keras.ops.convert_to_numpy(model.ids_of(texts))
    tower: Any = model.text_encoder
    found = tower.predict(ids, batch_size=_BATCH, verbose=0)
    found = found.astype("float64").reshape(len(texts) // count, count, -1)
    found = _unit(np.mean(_unit(found), axis=1))
    to_numpy = keras.ops.convert_to_numpy
    scale = np.exp(to_numpy(model.logit_scale).astype("float64"))
    bias = 0.0 if model.logit_bias is None else float(to_numpy(model.logit_bias))
    return (scale * found.T).astype("float32"), np.full(len(found), bias, "float32")


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
