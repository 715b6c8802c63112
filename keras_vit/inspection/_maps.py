import keras
import numpy as np

from keras_vit.inspection import _parts
from keras_vit.models.features import all_tokens


def attention_maps(model, images, layers=None):
    """Returns how much every token attends to every other one.

    The model computes attention in one fused step that has no probabilities.
    They are computed a second time, from the model's own queries and keys;
    the model is left as it is. Scores and softmax are in float32 whatever the
    model's precision. It works for every model of this package with attention,
    at any image size: hybrids, registers, distilled, quantised.

    Args:
        model: A model made by this package, or of its layers.
        images: Batch of images, as the model takes them.
        layers: Which blocks: an integer or several, negative ones from the
            end; None for all. Maps are large: of ViT-L/16 at 384 pixels,
            511 MB an image; layers are computed one at a time.

    Returns:
        Array of shape `(layers, batch, heads, queries, keys)`; the sum over
        keys is 1. `token_layout` tells which token is which.

    Raises:
        ValueError: if the model has no attention or no such layer, or takes
            no such images.

    Example:

    >>> model = keras_vit.ViTB16(weights="imagenet21k", classes=10)
    >>> keras_vit.inspection.attention_maps(model, images, layers=-1).shape
    (1, 8, 12, 197, 197)
    """
    return np.stack(list(each_map(model, images, layers)))


def each_map(model, images, layers=None):
    """Yields the maps of one layer after the other, `(B, heads, Q, K)`."""
    blocks = _parts.blocks_of(model, layers)
    images = _parts.as_images(model, images)
    inputs = _parts.run(model, [block.input for block in blocks], images)
    for block, arrays in zip(blocks, inputs, strict=True):
        # Relative positions come beside the tokens.
        tokens, *relative = arrays if isinstance(arrays, list) else [arrays]
        probabilities = block.attention.probabilities(
            block.norm_1(tokens), None, *relative
        )
        yield keras.ops.convert_to_numpy(probabilities)


def token_norms(model, images, layers=None):
    """Returns the length of every token after each block.

    Large models keep notes in a few patches of little content, whose tokens
    become many times longer than others and whose attention is noise; models
    with registers do not ("Vision Transformers Need Registers", Section 2,
    https://arxiv.org/abs/2309.16588).

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        layers: As in `attention_maps`.

    Returns:
        Array of shape `(layers, batch, tokens)`: the Euclidean norms.

    Raises:
        ValueError: as in `attention_maps`.
    """
    blocks = _parts.blocks_of(model, layers)
    images = _parts.as_images(model, images)
    outputs = _parts.run(model, [all_tokens(block) for block in blocks], images)
    return np.stack(
        [np.linalg.norm(x.astype("float32"), axis=-1) for x in outputs]
    )


def attention_distance(model, images, layers=None, batch_size=16):
    """Returns how far heads look: Figure 7, right, of the paper.

    For every patch, the distance from its centre to that of each other patch,
    weighted by the attention it pays; the mean over all patches and images.
    It is what the size of a filter is to a convolution. Class token and
    registers have no place in the image: they are left out, and what patches
    attend to is made to sum to 1 again.

    From "An Image is Worth 16x16 Words", Section 4.5 and Appendix D.7
    (https://arxiv.org/abs/2010.11929), which averages over 128 images.

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`, any number.
        layers: As in `attention_maps`.
        batch_size: Integer. How many images are computed at a time.

    Returns:
        Array of shape `(layers, heads)`, in pixels of `images`.

    Raises:
        ValueError: as in `attention_maps`.
    """
    images = _parts.as_images(model, images)
    layout = _parts.token_layout(model, images.shape[1:3])
    distance = patch_distances(layout)
    first = layout.num_prefix
    total = 0.0
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        sums = []
        for maps in each_map(model, batch, layers):
            patches = maps[:, :, first:, first:]
            mean = np.einsum("bhqk,qk->bhq", patches, distance)
            sums.append((mean / patches.sum(-1)).mean(-1).sum(0))
        total = total + np.stack(sums)
    return (total / len(images)).astype("float32")


def patch_distances(layout):
    """Pixels from each patch's centre to each other's, `(N, N)`."""
    rows, columns = np.indices(layout.grid).reshape(2, -1, 1)
    down = (rows - rows.T) * layout.patch_size[0]
    right = (columns - columns.T) * layout.patch_size[1]
    return np.hypot(down, right)
