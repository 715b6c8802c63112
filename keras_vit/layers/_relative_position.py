import math

import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _position_store
from keras_vit.layers import initializers
from keras_vit.layers._patch_grid import size_of
from keras_vit.layers._position_fitting import fit_offsets
from keras_vit.layers.resampling import RESAMPLINGS


@keras.saving.register_keras_serializable("keras_vit")
class RelativePositionEmbs(keras.Layer):
    """Embeddings of how far patches are apart, for attention to ask.

    Patches are counted row by row, p = 0, 1, ...; for every pair of them the
    offset p_query - p_key has a learned embedding. `MultiHeadAttention` and
    `TransformerBlock` take the output as `relative`: its product with the
    queries is added to the logits before the softmax. From "An Image is Worth
    16x16 Words", Appendix D.4 (https://arxiv.org/abs/2010.11929), which leaves
    two things open. The heads share the embeddings, as in "Self-Attention with
    Relative Position Representations" (https://arxiv.org/abs/1803.02155), and
    tokens before the patches, which have no place, get no term.

    The embeddings are kept for one grid. Another, of any size and aspect,
    gets them resampled as a picture of steps in the plane.

    Args:
        head_size: Integer. Channels of a head: `hidden_size / num_heads`.
        grid_size: Integer or `(rows, columns)` of the learned embeddings.
            None takes the grid that the layer is built with.
        resampling: How to fit them to another grid; see `AddPositionEmbs`.

    Call arguments:
        grid: Tensor of shape `(batch, rows, columns, ...)` that the patches
            come from, such as the output of `PatchEmbedding`. Only its shape
            is read.

    Output shape:
        `(batch, 2 * rows * columns - 1, head_size)`, the same for all images,
        the most negative offset first.

    Example:

    >>> grid = keras_vit.layers.PatchEmbedding(768, 16)(images)
    >>> tokens = keras.ops.reshape(grid, (batch, -1, 768))
    >>> relative = keras_vit.layers.RelativePositionEmbs(64)(grid)
    >>> x = keras_vit.layers.TransformerBlock(12, 3072)(tokens, relative)
    """

    def __init__(
        self,
        head_size,
        grid_size=None,
        resampling="bilinear_align_corners",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.head_size = _checks.positive_int("head_size", head_size)
        self.grid_size = (
            None
            if grid_size is None
            else _checks.positive_pair("grid_size", grid_size)
        )
        self.resampling = _checks.one_of("resampling", resampling, RESAMPLINGS)

    def build(self, grid_shape):
        if len(grid_shape) < 3:
            raise ValueError(
                "RelativePositionEmbs takes the grid that patches come from, "
                "(batch, rows, columns, ...). Received: shape "
                f"{tuple(grid_shape)}"
            )
        self.built_grid = self.grid_size or tuple(grid_shape[1:3])
        if None in self.built_grid:
            raise ValueError(
                "RelativePositionEmbs cannot tell how many offsets to learn: "
                "give `grid_size=(rows, columns)`, or call the layer with a "
                f"grid whose size is known. Received: shape {grid_shape}"
            )
        rows, columns = self.built_grid
        # Resampling stays in the variable's precision: hence no autocast.
        self.offsets = self.add_weight(
            shape=(2 * rows * columns - 1, self.head_size),
            initializer=initializers.Normal(0.02),
            autocast=False,
            name="offsets",
        )

    def call(self, grid):
        offsets = fit_offsets(
            ops.convert_to_tensor(self.offsets),
            self.built_grid,
            size_of(grid, 1, 2),
            self.resampling,
            ops,
        )
        offsets = ops.cast(offsets, self.compute_dtype)[None]
        shape = (ops.shape(grid)[0], *ops.shape(offsets)[1:])
        return ops.broadcast_to(offsets, shape)

    def compute_output_shape(self, grid_shape):
        rows, columns = grid_shape[1:3]
        count = None if None in (rows, columns) else 2 * rows * columns - 1
        return (grid_shape[0], count, self.head_size)

    def stored(self):
        """Returns what is learned: `{name: variable}`."""
        return {"offsets": self.offsets}

    def fit(self, arrays, grid):
        """Fits arrays under the names of `stored`, made for the grid of so
        many `(rows, columns)`, to this layer's grid. NumPy."""
        offsets = fit_offsets(
            arrays["offsets"], grid, self.built_grid, self.resampling, np
        )
        return {"offsets": offsets}

    def save_own_variables(self, store):
        _position_store.save(self, store)

    def load_own_variables(self, store):
        _position_store.load(self, store, "relative positions")

    def get_config(self):
        return {
            **super().get_config(),
            "head_size": self.head_size,
            "grid_size": self.grid_size,
            "resampling": self.resampling,
        }


def relative_logits(query, relative):
    """Returns what the queries say to the offsets, (B, H, T, T), scaled as
    the logits of the contents are.

    Args:
        query: Tensor (B, T, H, d) whose last tokens are the N patches.
        relative: Tensor (B, 2 N - 1, d) from `RelativePositionEmbs`.
    """
    (length,), (width,) = size_of(query, 1), size_of(relative, 1)
    count = (width + 1) // 2
    prefix = length - count
    query = query[:, prefix:] / math.sqrt(query.shape[-1])
    # Turned round, so that the keys 0, 1, ... of a query follow each other:
    # in row q, key k is at N - 1 - q + k. With one column more, that is at
    # N - 1 + k in rows one shorter.
    logits = ops.einsum("BTHd,BOd->BHTO", query, ops.flip(relative, axis=1))
    logits = ops.pad(logits, ((0, 0), (0, 0), (0, 0), (0, 1)))
    heads = (ops.shape(logits)[0], logits.shape[1])
    logits = ops.reshape(logits, (*heads, 2 * count * count))
    logits = logits[..., count - 1 : count - 1 + count * width]
    logits = ops.reshape(logits, (*heads, count, width))[..., :count]
    if isinstance(prefix, int) and not prefix:
        return logits
    return ops.pad(logits, ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))
