"""Attention maps, attention distance, attention rollout and token norms."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.inspection import tokens
from keras_vit.layers import AttentionPooling, Pooling, TransformerBlock
from keras_vit.layers.resampling import resample
from keras_vit.models.graph import Graph
from keras_vit.utils import checks
from keras_vit.utils.types import Array, ArrayLike, Tensor

# Each pooling weights one token, the mean of the patches and the first patch.
_POOLED = {
    "token": (1, 0, 0),
    "gap": (0, 1, 0),
    "token_gap": (0.5, 0.5, 0),
    "first_patch": (0, 0, 1),
}
_OUTLIER = 10  # times the mean attention that a token receives


def attention_maps(
    model: keras.Model,
    images: ArrayLike,
    layers: int | Sequence[int] | None = None,
) -> Array:
    """Returns the attention probabilities of all tokens.

    The model's fused attention does not materialize them, so they are computed
    separately from the model's queries and keys, in float32 regardless of the model's
    precision. The model is not modified. All models of this package with attention are
    supported, at any image size, including hybrids, models with registers, distilled
    and quantized models.

    Args:
        model: A functional model made by this package or from its layers.
        images: Array or tensor of shape `(batch, height, width, channels)`,
            preprocessed for the model.
        layers: Integer or list of integers. Indices of the blocks; negative
            ones count from the last. None for all blocks. Maps are large:
            those of ViT-L/16 at 384 pixels take 511 MB per image.

    Returns:
        Array of shape `(layers, batch, heads, queries, keys)`; the sum over
        keys is 1. `token_layout` describes the tokens.

    Raises:
        ValueError: if the model has no attention or no such layer, or if the
            images do not have the shape of its inputs.

    Example:

    >>> model = keras_vit.ViTB16(weights="imagenet21k", classes=10)
    >>> keras_vit.inspection.attention_maps(model, images, layers=-1).shape
    (1, 8, 12, 197, 197)
    """
    return np.stack(list(iterate_attention_maps(model, images, layers)))


def iterate_attention_maps(
    model: keras.Model,
    images: ArrayLike,
    layers: int | Sequence[int] | None = None,
) -> Iterator[Array]:
    """Yields the attention maps of each layer, `(B, heads, Q, K)`."""
    blocks = tokens.find_blocks(model, layers)
    images = tokens.check_images(model, images)
    graph = Graph(model)
    block_inputs = tokens.compute_tensors(
        graph, [graph.input(block) for block in blocks], images
    )
    for block, arrays in zip(blocks, block_inputs, strict=True):
        # Relative position embeddings are further inputs of a block.
        inputs = arrays if isinstance(arrays, list) else [arrays]
        yield keras.ops.convert_to_numpy(probabilities(block, *inputs))


def probabilities(block: TransformerBlock, x: Tensor, *relative: Tensor) -> Tensor:
    """Returns the attention probabilities of a block for its inputs."""
    return block.attention.probabilities(block.norm_1(x), None, *relative)


def token_norms(
    model: keras.Model,
    images: ArrayLike,
    layers: int | Sequence[int] | None = None,
) -> Array:
    """Returns the L2 norm of every token after each block.

    Large models store global information in the tokens of a few patches of
    little content. These tokens have much larger norms than others and make
    attention maps noisy. Models with registers do not have them ("Vision
    Transformers Need Registers", Section 2, https://arxiv.org/abs/2309.16588).

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        layers: As in `attention_maps`.

    Returns:
        Array of shape `(layers, batch, tokens)`.

    Raises:
        ValueError: as in `attention_maps`.
    """
    blocks = tokens.find_blocks(model, layers)
    images = tokens.check_images(model, images)
    graph = Graph(model)
    outputs = tokens.compute_tensors(
        graph, [graph.all_tokens(block) for block in blocks], images
    )
    return np.stack([np.linalg.norm(x.astype("float32"), axis=-1) for x in outputs])


def outlier_tokens(
    norms: Array, layout: tokens.TokenLayout, ratio: float = 3.0
) -> Array:
    """Finds the patches whose tokens have much larger norms than the others.

    Such patches hold information about the whole image instead of their own
    ("Vision Transformers Need Registers", Section 2,
    https://arxiv.org/abs/2309.16588). The paper's limit of 150 holds for one
    model, so the limit here is relative.

    Args:
        norms: The output of `token_norms`, `(layers, batch, tokens)`.
        layout: The output of `token_layout`. Tokens before the patches are never
            outliers, whatever their norms.
        ratio: Float above 1. Minimum norm of an outlier, as a multiple of the median
            over the patches of the same image after the same layer. In a DINOv2 S/14,
            which has no outliers, norms are up to 2.2 times the median.

    Returns:
        Boolean array of the shape of `norms`.

    Raises:
        ValueError: if an argument has another form or value.
    """
    tokens.check_is("norms", norms, 3, "the output of `token_norms`")
    tokens.check_is_layout(layout)
    checks.positive_float("ratio", ratio)
    patches = norms[..., layout.num_prefix :]
    found = np.zeros(norms.shape, bool)
    found[..., layout.num_prefix :] = patches >= ratio * np.median(
        patches, axis=-1, keepdims=True
    )
    return found


def attention_distance(
    model: keras.Model,
    images: ArrayLike,
    layers: int | Sequence[int] | None = None,
    batch_size: int = 16,
) -> Array:
    """Returns the mean attention distance of each head (Figure 7, right).

    It is the distance between the centers of the query's and the key's patch,
    weighted by attention and averaged over query patches and images. It is
    analogous to the receptive field size of a convolution. Tokens without a
    position in the image, such as the class token, are ignored, and the
    attention to patches is normalized to sum to 1.

    From "An Image is Worth 16x16 Words", Section 4.5 and Appendix D.7
    (https://arxiv.org/abs/2010.11929), which averages over 128 images.

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`; the batch may have any size, as it is split into
            batches of `batch_size`.
        layers: As in `attention_maps`.
        batch_size: Integer. Number of images processed together.

    Returns:
        Array of shape `(layers, heads)`, in pixels of `images`.

    Raises:
        ValueError: as in `attention_maps`.
    """
    checks.positive_int("batch_size", batch_size)
    images = tokens.check_images(model, images)
    layout = tokens.token_layout(model, images.shape[1:3])
    distance = patch_distances(layout)
    first = layout.num_prefix
    total = np.zeros(())
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        sums = []
        for maps in iterate_attention_maps(model, batch, layers):
            patches = maps[:, :, first:, first:]
            mean = np.einsum("bhqk,qk->bhq", patches, distance)
            sums.append((mean / patches.sum(-1)).mean(-1).sum(0))
        total = total + np.stack(sums)
    return (total / len(images)).astype("float32")


def patch_distances(layout: tokens.TokenLayout) -> Array:
    """Returns the distances between all patch centers, `(N, N)`, in pixels."""
    rows, columns = np.indices(layout.grid).reshape(2, -1, 1)
    down = (rows - rows.T) * layout.patch_size[0]
    right = (columns - columns.T) * layout.patch_size[1]
    return np.hypot(down, right)


def attention_heads(model: keras.Model, images: ArrayLike, layer: int = -1) -> Array:
    """Returns the attention of the model's output in one block, head by head.

    The query is the token that the model's pooling reads, or the weighted mean
    of the tokens, as in `attention_heatmap`. The heads of the last block of a
    self-supervised model outline objects ("Emerging Properties in
    Self-Supervised Vision Transformers", Figure 1,
    https://arxiv.org/abs/2104.14294).

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        layer: Integer. Index of the block.

    Returns:
        Array of shape `(batch, heads, rows, columns)`: the attention to the patches,
        without the attention to the class token and registers.

    Raises:
        ValueError: as in `attention_maps`.
    """
    images = tokens.check_images(model, images)
    layout = tokens.token_layout(model, images.shape[1:3])
    tokens.find_blocks(model, layer, "layer")
    (maps,) = iterate_attention_maps(model, images, layer)
    return _attended(model, images, layout, maps)


def _attended(
    model: keras.Model, images: Array, layout: tokens.TokenLayout, maps: Array
) -> Array:
    """Returns the attention of the pooled output to the patches, `(batch, ...,
    rows, columns)`, if that of tokens is `(batch, ..., queries, keys)`."""
    weights = pooling_weights(model, images, layout)
    weights = keras.ops.convert_to_numpy(weights)  # (B, Q) or (1, Q)
    weights = np.broadcast_to(weights, (len(maps), maps.shape[-2]))
    attended = np.einsum("bq,b...qk->b...k", weights, maps)
    attended = attended[..., layout.num_prefix :]
    return attended.reshape(*attended.shape[:-1], *layout.grid)


def attention_rollout(
    maps: Iterable[Tensor],
    residual: bool = True,
    outliers: str = "keep",
    num_prefix: int = 1,
) -> Array:
    """Accumulates attention over all layers by attention rollout.

    The maps of each layer are averaged over heads and multiplied by those of
    the previous layers. From "Quantifying Attention Flow in Transformers",
    Section 3 (https://arxiv.org/abs/2005.00928); used in "An Image is Worth
    16x16 Words", Figure 6 and Appendix D.8.

    Args:
        maps: Array of shape `(layers, batch, heads, tokens, tokens)` of all
            layers, the output of `attention_maps`; or an iterable over layers.
        residual: Boolean. Whether to average each matrix with the identity,
            to account for the residual connection.
        outliers: String. "keep", as published, or "mask", which removes, in each layer,
            the attention to patches that receive more than 10 times the mean attention;
            a token that then attends to no others attends to itself. In the first block
            of a trained DINOv2, a fifth of all attention falls on 10 of 576 patches,
            which show nothing in particular, and hides the rollout of the other blocks.
        num_prefix: Integer. Number of tokens before the patches, which are
            never masked.

    Returns:
        Array of shape `(batch, tokens, tokens)` whose rows sum to 1. Row 0
        belongs to the class token, if there is one.

    Raises:
        ValueError: if the maps have another shape, or `outliers` is neither
            "keep" nor "mask".
    """
    expected = (
        "the output of `attention_maps(model, images)`; `attention_heatmap(model, "
        "images)` computes both"
    )
    tokens.check_is("maps", maps, Iterable, expected)
    checks.one_of("outliers", outliers, ("keep", "mask"))
    checks.boolean("residual", residual)
    checks.non_negative_int("num_prefix", num_prefix)
    rolled: Any = None
    for layer in maps:
        shape = tuple(getattr(layer, "shape", ()))
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ValueError(
                "`maps` must be of shape (layers, batch, heads, tokens, "
                f"tokens). Received: a layer of shape {shape}"
            )
        layer = keras.ops.convert_to_numpy(layer)
        step = layer.mean(axis=1, dtype="float64")
        identity = np.eye(shape[-1])
        if outliers == "mask":
            received = step.mean(axis=1) * shape[-1]
            received[:, :num_prefix] = 0
            step = np.where(received[:, None] > _OUTLIER, 0, step)
            total = step.sum(axis=-1, keepdims=True)
            step = np.where(total > 0, step, identity)
            step /= np.where(total > 0, total, 1)
        if residual:
            step = (step + identity) / 2
        rolled = step if rolled is None else step @ rolled
    checks.require(rolled is not None, "maps", maps, expected)
    return rolled.astype("float32")


def attention_heatmap(
    model: keras.Model,
    images: ArrayLike,
    residual: bool = True,
    outliers: str = "keep",
) -> Array:
    """Returns the attention of the model's output to the image (Figure 6).

    The rows of the attention rollout are averaged with the weights that the
    model's pooling gives to the tokens:

    - class token: the row of the class token; with a distillation token, the
      mean of both rows;
    - mean of the patches: the mean of the patches' rows;
    - first patch: the row of the first patch;
    - attention pooling: the patches' rows, weighted by the probe's attention;
    - DINOv2's classifier: the mean of the class token's row and the mean of
      the patches' rows;
    - no pooling: the row of the class token or, without one, the mean of the
      patches' rows.

    Only the attention to patches is returned, not that to the class token and
    registers.

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        residual: As in `attention_rollout`.
        outliers: As in `attention_rollout`.

    Returns:
        Array of shape `(batch, height, width)`, bilinearly resized to the
        size of the images. The largest value of each image is 1.

    Raises:
        ValueError: as in `attention_maps`.
    """
    images = tokens.check_images(model, images)
    size = images.shape[1:3]
    layout = tokens.token_layout(model, size)
    rollout = attention_rollout(
        iterate_attention_maps(model, images),
        residual,
        outliers,
        layout.num_prefix,
    )
    attended = _attended(model, images, layout, rollout)
    grids = attended.transpose(1, 2, 0)  # (h, w, B)
    padded_size = [
        n * pixels for n, pixels in zip(layout.grid, layout.patch_size, strict=True)
    ]
    heat = resample(grids, padded_size, "bilinear", xp=np)
    heat = heat.transpose(2, 0, 1)[:, : size[0], : size[1]]  # without padding
    return (heat / heat.max((1, 2), keepdims=True)).astype("float32")


def pooling_weights(
    model: keras.Model, images: Tensor, layout: tokens.TokenLayout
) -> Tensor:
    """Returns the weight of each token in the pooled output, `(batch, tokens)`
    or `(1, tokens)`; PyTorch can trace it."""
    first, patches = layout.num_prefix, layout.grid[0] * layout.grid[1]
    pooling = tokens.find_layer(model, AttentionPooling)
    if pooling is not None:
        graph = Graph(model)
        x = keras.Model(graph.inputs[0], graph.input(pooling))(images)[:, first:]
        probe = keras.ops.cast(pooling.probe, x.dtype)
        probe = keras.ops.repeat(probe, x.shape[0], axis=0)
        weights = pooling.attention.probabilities(probe, x)
        weights = keras.ops.mean(weights, axis=(1, 2))  # of (B, heads, 1, N)
        return keras.ops.pad(weights, ((0, 0), (first, 0)))
    default = "token" if "class_token" in layout.prefix else "gap"
    modes = [
        (layer.mode, layer.index)
        for layer in model.layers
        if isinstance(layer, Pooling)
    ] or [(default, 0)]
    total = np.zeros((1, first + patches))
    for mode, index in modes:
        token, mean, one = _POOLED[mode]
        total[0, index] += token
        total[0, first:] += mean / patches
        total[0, first] += one
    return total / len(modes)
