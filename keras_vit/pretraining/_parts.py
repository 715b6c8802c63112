"""An encoder taken apart: what pre-training does between its layers."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.patches import grid_size


class Parts:
    """The layers of a `VisionTransformer`, which stay its own.

    Args:
        encoder: A `VisionTransformer` whose output is all tokens.

    Raises:
        ValueError: if it is another model.
    """

    def __init__(self, encoder):
        _check(encoder)
        layers = {layer.name: layer for layer in encoder.layers}
        names = list(layers)
        first, body = names.index("tokens"), names.index("dropout")
        self.embedding = layers["patch_embedding"]
        self.positions = layers["position_embedding"]
        self._between = [layers[name] for name in names[first + 1 : body]]
        self._body = [layers[name] for name in names[body:]]

        block = layers["block_0"]
        self.activation = block.activation
        self.norm_epsilon = block.norm_epsilon
        self.patch_size = self.embedding.patch_size
        self.hidden_size = self.embedding.hidden_size
        rows, columns, self.channels = encoder.input_shape[1:]
        self.grid_size = grid_size((rows, columns), self.patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.num_prefix = encoder.output_shape[1] - self.num_patches
        self.patch_area = (
            self.patch_size[0] * self.patch_size[1] * self.channels
        )

    # `training` is passed on explicitly: under JAX, Keras's trainer runs
    # `call` without the context from which layers otherwise take it.
    def embed(self, images, change=None, training=None):
        """Images to tokens with positions (B, P + N, D); `change` gets the
        patches' vectors (B, N, D) before anything is added to them."""
        grid = self.embedding(images)
        x = ops.reshape(grid, (-1, self.num_patches, self.hidden_size))
        if change is not None:
            x = change(x)
        for layer in self._between:
            inputs = (x, grid) if layer is self.positions else (x,)
            x = layer(*inputs, training=training)
        return x

    def encode(self, tokens, training=None):
        """Tokens with positions, any number of them, through the blocks."""
        for layer in self._body:
            tokens = layer(tokens, training=training)
        return tokens

    def cut(self, images):
        """Images to patches (B, N, rows * columns * channels), float32."""
        (rows, columns), (p, q) = self.grid_size, self.patch_size
        x = ops.cast(images, "float32")
        x = ops.reshape(x, (-1, rows, p, columns, q, self.channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, self.num_patches, self.patch_area))

    def join(self, patches):
        """The way back: patches to images."""
        (rows, columns), (p, q) = self.grid_size, self.patch_size
        x = ops.reshape(patches, (-1, rows, columns, p, q, self.channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, rows * p, columns * q, self.channels))


def _check(encoder):
    names = [layer.name for layer in getattr(encoder, "layers", ())]
    wanted = ("patch_embedding", "tokens", "position_embedding", "block_0")
    missing = [name for name in wanted if name not in names]
    wrong = None
    if missing or "root_conv" in names:
        wrong = "It must be made by `keras_vit.VisionTransformer`"
    elif len(encoder.output_shape) != 3 or "pooling" in names:
        wrong = (
            "Its output must be all tokens: build it with "
            "`include_top=False, pooling=None`"
        )
    elif "mask_token" in names:
        wrong = "It must have no mask token of its own: `mask_token=False`"
    elif None in encoder.input_shape[1:]:
        wrong = (
            "It must be made for images of one size, so that as many patches "
            "are masked in each: give `input_shape`"
        )
    if wrong is None:
        return
    raise ValueError(
        f"`encoder` does not fit. {wrong}. Received: "
        f"{getattr(encoder, 'name', encoder)!r} with the output shape "
        f"{getattr(encoder, 'output_shape', None)}"
    )


def head_policy(policy):
    """The precision of a last layer: losses want float32."""
    half = policy.compute_dtype in ("float16", "bfloat16")
    return keras.DTypePolicy("float32") if half else policy


def sincos_positions(grid_size, hidden_size, num_prefix):
    """Returns MAE's fixed positions, `(1, num_prefix + patches, hidden)`.

    `sincos2d` of `AddPositionEmbs` is big_vision's, with frequencies down to
    1e-4; here they end just before. Rows of prefix tokens are zero. MAE's
    code has square grids alone; of others, each axis counts its own rows or
    columns.
    """
    if hidden_size % 4:
        raise ValueError(
            "Positions of sines and cosines need a hidden size that is a "
            f"multiple of 4. Received: {hidden_size}. Give "
            "`positions='learned'`."
        )
    quarter = hidden_size // 4
    omega = 1e4 ** (-np.arange(quarter) / quarter)
    y, x = np.meshgrid(*map(np.arange, grid_size), indexing="ij")
    angles = [axis.reshape(-1, 1) * omega for axis in (x, y)]
    parts = [f(angle) for angle in angles for f in (np.sin, np.cos)]
    patches = np.concatenate(parts, axis=1)
    prefix = np.zeros((num_prefix, hidden_size))
    return np.concatenate([prefix, patches])[None].astype("float32")
