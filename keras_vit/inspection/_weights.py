import keras
import numpy as np

from keras_vit.inspection import _parts
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import PatchEmbedding


def embedding_filters(model, count=28):
    """Returns the patch embedding's main filters: Figure 7, left.

    Principal components of the filters that the first layer projects patches
    with: those that tell most of them, in decreasing order. Of a hybrid or a
    BiT it is the first convolution. From "An Image is Worth 16x16 Words",
    Section 4.5 (https://arxiv.org/abs/2010.11929). A component's sign means
    nothing: its largest value is made positive.

    Args:
        model: A model made by this package, or of its layers.
        count: Integer. How many components, 28 in the paper; fewer are
            returned if there are no more.

    Returns:
        Array of shape `(count, rows, columns, channels)`, each component
        scaled to [0, 1] over all its channels: a picture if these are RGB.

    Raises:
        ValueError: if `count` is below 1, or the model has no such layer.
    """
    if count < 1:
        raise ValueError(f"`count` must be 1 or more. Received: {count}")
    kernel = _first_kernel(model).astype("float64")  # (rows, columns, C, D)
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    filters = filters - filters.mean(axis=0)
    components = np.linalg.svd(filters, full_matrices=False)[2][:count]
    largest = np.abs(components).argmax(axis=1)[:, None]
    components = components * np.sign(
        np.take_along_axis(components, largest, axis=1)
    )
    low = components.min(axis=1, keepdims=True)
    high = components.max(axis=1, keepdims=True)
    span = np.where(high > low, high - low, 1)
    scaled = (components - low) / span
    return scaled.reshape(-1, *kernel.shape[:3]).astype("float32")


def _first_kernel(model):
    layers = {layer.name: layer for layer in model.layers}
    first = layers.get("root_conv") or _parts.part(model, PatchEmbedding)
    if first is None:
        raise ValueError(
            f"The model {model.name!r} was not made by keras_vit: it has "
            "neither a PatchEmbedding nor a ResNet's `root_conv`."
        )
    return keras.ops.convert_to_numpy(first.kernel)


def position_similarity(model, grid_size=None):
    """Returns how alike position embeddings are: Figure 7, centre.

    The cosine of the angle between the position embedding of every patch and
    that of every other. From "An Image is Worth 16x16 Words", Section 4.5
    (https://arxiv.org/abs/2010.11929).

    Args:
        model: A model made by this package, or of its layers.
        grid_size: `(rows, columns)` of patches, to which learned embeddings
            are resampled as for images of that size; None for those they
            were learned for.

    Returns:
        Array of shape `(rows, columns, rows, columns)`: [i, j] is a picture
        of the patch in row i and column j with all others. Where each block
        adds its own, those of the first.

    Raises:
        ValueError: if the model adds no position embeddings to its patches,
            or they are computed and `grid_size` is needed to say for which.
    """
    layer = _parts.part(model, AddPositionEmbs)
    if layer is None or layer.kind == "none":
        raise ValueError(
            f"The model {model.name!r} adds no position embeddings to its "
            "patches."
        )
    grid_size = grid_size or layer.built_grid
    if not grid_size or None in grid_size:
        raise ValueError(
            f"The position embeddings of {model.name!r} are computed for "
            "images of any size: give `grid_size=(rows, columns)`."
        )
    rows, columns = grid_size
    before = layer.num_prefix_tokens + layer.num_skipped_tokens
    length = before + rows * columns
    width = _parts.part(model, PatchEmbedding).hidden_size
    # Added to zeros, embeddings of any kind come out as they are. Not by
    # calling the layer: that would round the zeros, and so them, to its
    # precision.
    zeros = np.zeros((1, length, width), "float32")
    grid = np.zeros((1, rows, columns, 1), "float32")
    added = layer.call(*map(keras.ops.convert_to_tensor, (zeros, grid)))
    added = keras.ops.convert_to_numpy(added)[0, before:]
    norms = np.linalg.norm(added, axis=-1, keepdims=True)
    unit = added / np.maximum(norms, 1e-12)
    return (unit @ unit.T).reshape(rows, columns, rows, columns)
