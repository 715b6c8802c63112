"""Filters of the patch embedding and similarity of position embeddings."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.inspection import tokens
from keras_vit.layers import AddPositionEmbs, PatchEmbedding
from keras_vit.utils import checks
from keras_vit.utils.types import Array


def embedding_filters(model: keras.Model, count: int = 28) -> Array:
    """Returns principal components of the embedding filters (Figure 7, left).

    These are the filters of the patch embedding or, for a hybrid or a BiT, of
    the first convolution. From "An Image is Worth 16x16 Words", Section 4.5
    (https://arxiv.org/abs/2010.11929). The sign of a component is arbitrary;
    it is chosen such that the value of largest magnitude is positive.

    Args:
        model: A functional model made by this package or from its layers.
        count: Integer. Maximum number of components; 28 in the paper.

    Returns:
        Array of shape `(count, rows, columns, channels)`, in order of
        decreasing variance, each scaled to [0, 1] over pixels and channels.

    Raises:
        ValueError: if the model has no such layer.
    """
    tokens.check_is_model(model)
    checks.positive_int("count", count)
    layers = {layer.name: layer for layer in model.layers}
    first = layers.get("root_conv") or tokens.find_layer(model, PatchEmbedding)
    tokens.check_has(first, model, "was not made by keras_vit", PatchEmbedding)
    kernel = keras.ops.convert_to_numpy(first.kernel)  # (rows, columns, C, D)
    kernel = kernel.astype("float64")
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    filters = filters - filters.mean(axis=0)
    components = np.linalg.svd(filters, full_matrices=False)[2][:count]
    largest = np.abs(components).argmax(axis=1)[:, None]
    components = components * np.sign(np.take_along_axis(components, largest, axis=1))
    low = components.min(axis=1, keepdims=True)
    high = components.max(axis=1, keepdims=True)
    span = np.where(high > low, high - low, 1)
    scaled = (components - low) / span
    return scaled.reshape(-1, *kernel.shape[:3]).astype("float32")


def position_similarity(
    model: keras.Model, grid_size: Sequence[int] | None = None
) -> Array:
    """Returns the cosine similarity of position embeddings (Figure 7, center).

    If each block adds separate embeddings, those of the first block are
    compared. From "An Image is Worth 16x16 Words", Section 4.5
    (https://arxiv.org/abs/2010.11929).

    Args:
        model: A functional model made by this package or from its layers.
        grid_size: `(rows, columns)` of the patches, to which learned
            embeddings are resampled; None for the grid for which they were learned.

    Returns:
        Array of shape `(rows, columns, rows, columns)`: element `[i, j]`
        compares the patch in row i and column j with all patches.

    Raises:
        ValueError: if the model adds no position embeddings to its patches,
            or if they are computed for any grid and `grid_size` is None.
    """
    layer = tokens.find_layer(model, AddPositionEmbs)
    if layer is None or layer.kind == "none":
        raise ValueError(
            f"The model {model.name!r} adds no position embeddings to its patches."
        )
    if grid_size is not None:
        grid_size = checks.positive_pair("grid_size", grid_size)
    grid_size = grid_size or layer.built_grid
    if not grid_size or None in grid_size:
        raise ValueError(
            f"The position embeddings of {model.name!r} are computed for "
            "images of any size: give `grid_size=(rows, columns)`."
        )
    rows, columns = grid_size
    before = layer.num_prefix_tokens + layer.num_skipped_tokens
    length = before + rows * columns
    width = tokens.find_layer(model, PatchEmbedding).hidden_size
    # Adding to zeros returns the embeddings, of whatever kind. `call` is used
    # directly, as `__call__` would cast to the layer's compute dtype.
    zeros = np.zeros((1, length, width), "float32")
    grid = np.zeros((1, rows, columns, 1), "float32")
    added = layer.call(*map(keras.ops.convert_to_tensor, (zeros, grid)))
    added = keras.ops.convert_to_numpy(added)[0, before:]
    norms = np.linalg.norm(added, axis=-1, keepdims=True)
    unit = added / np.maximum(norms, 1e-12)
    return (unit @ unit.T).reshape(rows, columns, rows, columns)
