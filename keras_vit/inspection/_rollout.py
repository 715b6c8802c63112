import keras
import numpy as np

from keras_vit.inspection import _parts
from keras_vit.inspection._maps import each_map
from keras_vit.layers import AttentionPooling
from keras_vit.layers import Pooling
from keras_vit.layers.resampling import resample


def attention_rollout(maps, residual=True):
    """Follows attention through all layers: what reaches which token.

    The maps of a layer are averaged over heads, and each layer's matrix is
    multiplied from the left to those before it. From "Quantifying Attention
    Flow in Transformers", Section 3 (https://arxiv.org/abs/2005.00928), which
    "An Image is Worth 16x16 Words", Figure 6 and Appendix D.8, uses.

    Args:
        maps: Array of shape `(layers, batch, heads, tokens, tokens)` of all
            layers, what `attention_maps` returns, or an iterable of its
            layers.
        residual: Boolean. Whether half of each matrix is the identity, for
            the residual connection.

    Returns:
        Array of shape `(batch, tokens, tokens)` whose rows sum to 1; row 0 is
        the class token's, if there is one.

    Raises:
        ValueError: if the maps are of another shape.
    """
    rolled = None
    for layer in maps:
        shape = tuple(layer.shape)
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ValueError(
                "`maps` must be of shape (layers, batch, heads, tokens, "
                f"tokens). Received: a layer of shape {shape}"
            )
        layer = keras.ops.convert_to_numpy(layer)
        step = layer.mean(axis=1, dtype="float64")
        if residual:
            step = (step + np.eye(shape[-1])) / 2
        rolled = step if rolled is None else step @ rolled
    if rolled is None:
        raise ValueError("`maps` must hold one layer or more. Received: none")
    return rolled.astype("float32")


def attention_heatmap(model, images, residual=True):
    """Returns where in each image the model's output comes from (Figure 6).

    The row of the attention rollout that the model's head reads: that of the
    class token; of class and distillation token, the mean of both; where the
    head reads the mean of the patches, the mean of their rows; with attention
    pooling, their mean weighted by its probe's attention; of DINOv2's
    classifier, half and half. A model that gives all tokens is asked for its
    class token, or for the mean without one. Of this row only the patches are
    kept, so neither class token nor registers are in the picture, whatever
    its aspect.

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        residual: As in `attention_rollout`.

    Returns:
        Array of shape `(batch, height, width)`, as large as the images
        (bilinear); of each image the largest value is 1.

    Raises:
        ValueError: as in `attention_maps`.
    """
    images = _parts.as_images(model, images)
    size = images.shape[1:3]
    layout = _parts.token_layout(model, size)
    rollout = attention_rollout(each_map(model, images), residual)
    read = _read_by_head(model, images, layout)  # (B, Q) or (1, Q)
    read = np.broadcast_to(read, rollout.shape[:2])
    seen = np.einsum("bq,bqk->bk", read, rollout)[:, layout.num_prefix :]
    grids = seen.reshape(-1, *layout.grid).transpose(1, 2, 0)  # (h, w, B)
    large = [
        n * pixels
        for n, pixels in zip(layout.grid, layout.patch_size, strict=True)
    ]
    heat = resample(grids, large, "bilinear", xp=np)
    heat = heat.transpose(2, 0, 1)[:, : size[0], : size[1]]  # without padding
    return (heat / heat.max((1, 2), keepdims=True)).astype("float32")


def _read_by_head(model, images, layout):
    """The share of every token in what the head reads, `(B or 1, Q)`."""
    pooling = _parts.part(model, AttentionPooling)
    if pooling is not None:
        return _read_by_probe(model, pooling, images, layout)
    poolings = [x for x in model.layers if isinstance(x, Pooling)]
    modes = [(layer.mode, layer.index) for layer in poolings]
    if not modes:
        modes = [("token" if "class_token" in layout.prefix else "gap", 0)]
    shares = []
    for mode, index in modes:
        length = layout.num_prefix + layout.grid[0] * layout.grid[1]
        token, mean = np.zeros((2, 1, length))
        token[:, index] = 1
        mean[:, layout.num_prefix :] = 1 / (length - layout.num_prefix)
        first = np.zeros((1, length))
        first[:, layout.num_prefix] = 1
        share = {
            "token": token,
            "gap": mean,
            "token_gap": (token + mean) / 2,
            "first_patch": first,
        }
        shares.append(share[mode])
    return np.mean(shares, axis=0)


def _read_by_probe(model, pooling, images, layout):
    (tokens,) = _parts.run(model, [pooling.input], images)
    patches = tokens[:, layout.num_prefix :]
    probe = keras.ops.convert_to_numpy(pooling.probe)
    probe = np.repeat(probe, len(images), axis=0).astype(tokens.dtype)
    asked = pooling.attention.probabilities(probe, patches)  # (B, heads, 1, N)
    asked = keras.ops.convert_to_numpy(asked).mean(axis=(1, 2))
    return np.pad(asked, ((0, 0), (layout.num_prefix, 0)))
