"""Models for batches with images of several sizes."""

import math
from typing import Any

import keras

from keras_vit.layers import (
    AddPositionEmbs,
    AttentionPooling,
    ClassToken,
    MixedSizes,
    PatchEmbedding,
    Pooling,
    RelativePositionEmbs,
    RotaryPositionEmbs,
    TransformerBlock,
)
from keras_vit.models.features import check_takes_images, for_another_size
from keras_vit.models.graph import Graph
from keras_vit.models.model import Model, copy_attributes


def mixed_sizes(model: keras.Model, name: str | None = None) -> Model:
    """Builds a model for batches with images of several sizes from a model for images
    of one size.

    Images are sequences of patches, padded to one length. Each has the
    positions of its own grid, no token attends to padding, and padding is not
    pooled: the output for an image is that of `model` for the image alone.
    JAX compiles the model for each length, so use few.

    Both models share their layers and weights: training one also trains the other. The
    new model can be saved, loaded, converted and trained like any other. From "Patch n'
    Pack: NaViT" (https://arxiv.org/abs/2307.06304) and, with one image per sequence,
    from NaFlex of "SigLIP 2", Section 2.4.2 (https://arxiv.org/abs/2502.14786).

    Args:
        model: A functional `keras.Model` of this package without a ResNet and without
            `preprocessing`, such as `ViTB16()`, or a `feature_extractor` of such a
            model.
        name: String. Name of the model; None for that of `model`.

    Returns:
        A `keras.Model` with the three inputs that `keras_vit.data.pack_images` makes,
        `[patches, coordinates, valid]`, from images with the pixel values that `model`
        takes. It has the same outputs as `model`; outputs for padding have no meaning.

    Raises:
        ValueError: if the model has a ResNet, relative positions or
            `preprocessing`, or was not made by this package.

    Example:

    >>> model = keras_vit.load("siglip2-base-patch16-naflex")
    >>> mixed = keras_vit.mixed_sizes(model)
    >>> vectors = mixed.predict(keras_vit.data.pack_images(photos, 16))
    """
    check_takes_images(model)
    embedding, *others = model.layers[1:] or [None]
    relative = any(isinstance(x, RelativePositionEmbs) for x in others)
    if not isinstance(embedding, PatchEmbedding) or relative:
        raise ValueError(
            "`model` must be a Vision Transformer whose first layer is its "
            "patch embedding, without a ResNet, `preprocessing` and relative "
            f"positions. Received: {model.name!r} with the layers "
            f"{', '.join(x.name for x in model.layers[:8])} ..."
        )
    (images,) = model.inputs
    size = math.prod(embedding.patch_size) * images.shape[-1]
    inputs = [
        keras.Input((None, size), dtype=images.dtype, name="patches"),
        keras.Input((None, 2), dtype="int32", name="coordinates"),
        valid := keras.Input((None,), dtype="bool", name="valid"),
    ]
    images, places, mask = MixedSizes(
        embedding.patch_size,
        sum(x.num_tokens for x in others if isinstance(x, ClassToken)),
        dtype=embedding.dtype_policy,
        name="mixed_sizes",
    )(*inputs)
    # This maps the id of a tensor of a copy of the graph to the new tensor.
    new: dict[int, Any] = {}

    def renew(structure: Any) -> Any:
        return keras.tree.map_structure(lambda x: new.get(id(x), x), structure)

    graph = Graph(model)
    for layer, args, kwargs, output in graph.calls:
        args, kwargs = renew((args, kwargs))
        if isinstance(layer, PatchEmbedding):
            args = (images,)
        elif isinstance(layer, RotaryPositionEmbs):
            args = (places,)
        elif isinstance(layer, AddPositionEmbs):
            args = (args[0], places)
        elif isinstance(layer, TransformerBlock):
            kwargs["mask"] = mask
        elif isinstance(layer, AttentionPooling):
            args = (args[0], valid)
        elif isinstance(layer, Pooling):
            args = (args[0], valid, places)
        new[id(output)] = for_another_size(layer)(*args, **kwargs)
    built = Model(inputs, renew(graph.outputs), name=name or model.name)
    copy_attributes(model, built)
    built.one_size = lambda: model  # Keras would track a model as a layer
    return built


def one_size(model: Any) -> keras.Model:
    """Returns the model from which `mixed_sizes` made a model, or any other model
    itself."""
    return getattr(model, "one_size", lambda: model)()
