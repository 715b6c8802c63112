"""Models of batches with images of several sizes."""

import math
from typing import Any

import keras

from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import AttentionPooling
from keras_vit.layers import ClassToken
from keras_vit.layers import MixedSizes
from keras_vit.layers import PatchEmbedding
from keras_vit.layers import Pooling
from keras_vit.layers import RelativePositionEmbs
from keras_vit.layers import RotaryPositionEmbs
from keras_vit.layers import TransformerBlock
from keras_vit.models.features import check_takes_images
from keras_vit.models.features import for_another_size
from keras_vit.models.model import Model


def mixed_sizes(model: keras.Model, name: str | None = None) -> Model:
    """Builds a model of batches with images of several sizes, from one of
    images of one size.

    Images are sequences of patches, which are padded to one length. Each image
    has the positions of its own grid, resampled from those that are learned,
    or computed, and no token attends to padding, which is not pooled either:
    the output for an image is that of `model` for the image alone. Under JAX,
    each length is compiled once, so use few.

    The new model has the layers and weights of `model`, which both share: to
    train one is to train the other. It saves, loads, converts and trains as
    any other. From "Patch n' Pack: NaViT, a Vision Transformer for any Aspect
    Ratio and Resolution" (https://arxiv.org/abs/2307.06304) and, with one image
    per sequence, from NaFlex of "SigLIP 2" (https://arxiv.org/abs/2502.14786).

    Args:
        model: A functional `keras.Model` of this package without a ResNet and
            without `preprocessing`, such as `ViTB16()`, or a
            `feature_extractor` of it.
        name: String. Name of the model; None for that of `model`.

    Returns:
        A `keras.Model` of three inputs, `[patches, coordinates, valid]`:
        patches of shape `(batch, length, patch_rows * patch_columns *
        channels)`, with the pixel values that `model` takes; their rows and
        columns, integers of shape `(batch, length, 2)`; and booleans of shape
        `(batch, length)`, False for padding. `keras_vit.data.pack_images`
        makes them of images. Its outputs are those of `model`; if these are
        all tokens, padded ones have no meaning.

    Raises:
        ValueError: if the model has a ResNet, relative positions or
            `preprocessing`, or was not made by this package.

    Example:

    >>> model = keras_vit.load("siglip2-base-patch16-naflex")
    >>> mixed = keras_vit.mixed_sizes(model)
    >>> vectors = mixed.predict(keras_vit.data.pack_images(photos, 16))
    """
    check_takes_images(model)
    layers = list(model.layers)
    is_embedding = [isinstance(x, PatchEmbedding) for x in layers]
    relative = any(isinstance(x, RelativePositionEmbs) for x in layers)
    if is_embedding[:2] != [False, True] or relative:
        raise ValueError(
            "`model` must be a Vision Transformer whose first layer is its "
            "patch embedding, without a ResNet, `preprocessing` and relative "
            f"positions. Received: {model.name!r} with the layers "
            f"{', '.join(x.name for x in layers[:8])} ..."
        )
    embedding = layers[1]
    size = math.prod(embedding.patch_size) * model.inputs[0].shape[-1]
    inputs = [
        keras.Input((None, size), dtype=model.inputs[0].dtype, name="patches"),
        keras.Input((None, 2), dtype="int32", name="coordinates"),
        keras.Input((None,), dtype="bool", name="valid"),
    ]
    num_prefix_tokens = sum(
        x.num_tokens for x in layers if isinstance(x, ClassToken)
    )
    sequences = MixedSizes(
        embedding.patch_size,
        num_prefix_tokens,
        dtype=embedding.dtype_policy,
        name="mixed_sizes",
    )
    images, places, mask = sequences(*inputs)
    # By the id of a tensor of `model`, that of the new one.
    new = {id(embedding.output): embedding(images)}
    shared: Any = None
    x: Any = None
    for layer in layers[2:]:
        old: list[Any] = keras.tree.flatten(layer.input)
        if isinstance(layer, TransformerBlock) and id(old[0]) not in new:
            new[id(old[0])] = shared(x, places)  # shared positions, once more
        args = [new[id(tensor)] for tensor in old]
        if isinstance(layer, RotaryPositionEmbs):
            x = layer(places)
        elif isinstance(layer, AddPositionEmbs):
            shared, x = layer, layer(args[0], places)
        elif isinstance(layer, TransformerBlock):
            x = layer(*args, mask=mask)
        elif isinstance(layer, (Pooling, AttentionPooling)):
            x = layer(args[0], inputs[-1])
        else:
            several = isinstance(layer.input, list)
            x = for_another_size(layer)(args if several else args[0])
        new[id(layer.output)] = x
    outputs = keras.tree.map_structure(lambda x: new[id(x)], model.output)
    return Model(inputs, outputs, name=name or model.name)
