import keras
import numpy as np
from keras import ops

from keras_vit.layers import _checks
from keras_vit.layers._patch_grid import size_of
from keras_vit.layers._resampling import RESAMPLINGS
from keras_vit.layers._resampling import resample

KINDS = ("learned", "sincos2d", "none")


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbs(keras.Layer):
    """Adds position embeddings to tokens, for a grid of patches of any size.

    Learned embeddings (the paper's 1-D kind: one vector a patch, row by row)
    are kept for one grid. When the tokens come from another, of any size and
    aspect, they are resampled to it; rows of prefix tokens are kept as they
    are. Weights saved at one grid load at another the same way.

    From "An Image is Worth 16x16 Words", Sections 3.1 and 3.2
    (https://arxiv.org/abs/2010.11929); `sincos2d` is big_vision's
    `posemb_sincos_2d`, the fixed embedding of "Better plain ViT baselines for
    ImageNet-1k" (https://arxiv.org/abs/2205.01580).

    Args:
        kind: "learned"; "sincos2d", which has no weights and is computed for
            the grid at hand; or "none", which adds nothing.
        grid_size: Integer or `(rows, columns)` of the learned embeddings.
            None takes the grid that the layer is built with.
        num_prefix_tokens: Integer. How many tokens before the patches have a
            row of their own (zeros for "sincos2d").
        resampling: How to fit learned embeddings to another grid:
            "bilinear_align_corners" (Google's code), "bilinear",
            "bicubic" (Hugging Face), "bicubic_antialias" (timm),
            "bicubic_align_corners" (torchvision) or "bicubic_offset"
            (Meta's DINOv2 without registers).

    Call arguments:
        inputs: Tokens of shape `(batch, num_prefix_tokens + rows * columns,
            hidden_size)`.
        grid: Tensor of shape `(batch, rows, columns, ...)` that the patches
            come from, such as the output of `PatchEmbedding`. Only its shape
            is read. None means that the grid is `grid_size`.

    Output shape:
        That of `inputs`.

    Example:

    >>> grid = keras_vit.layers.PatchEmbedding(768, 16)(images)
    >>> tokens = keras.ops.reshape(grid, (batch, -1, 768))
    >>> tokens = keras_vit.layers.AddPositionEmbs(grid_size=14)(tokens, grid)
    """

    def __init__(
        self,
        kind="learned",
        grid_size=None,
        num_prefix_tokens=0,
        resampling="bilinear_align_corners",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.kind = _checks.one_of("kind", kind, KINDS)
        self.grid_size = (
            None
            if grid_size is None
            else _checks.positive_pair("grid_size", grid_size)
        )
        self.num_prefix_tokens = _checks.natural_int(
            "num_prefix_tokens", num_prefix_tokens
        )
        self.resampling = _checks.one_of("resampling", resampling, RESAMPLINGS)
        self.embedding = None

    def build(self, inputs_shape, grid_shape=None):
        _checks.rank(
            "AddPositionEmbs", inputs_shape, 3, "(batch, length, channels)"
        )
        hidden_size = inputs_shape[-1]
        self.built_grid = self.grid_size or tuple((grid_shape or ())[1:3])
        if self.kind == "none":
            return
        if self.kind == "sincos2d":
            if hidden_size % 4 or hidden_size < 8:
                raise ValueError(
                    "Position embeddings of kind 'sincos2d' need a hidden "
                    "size that is a multiple of 4, 8 or more. Received: "
                    f"{hidden_size}"
                )
            return
        if not self.built_grid or None in self.built_grid:
            raise ValueError(
                "AddPositionEmbs cannot tell how many positions to learn: "
                "give `grid_size=(rows, columns)`, or call the layer with a "
                f"`grid` whose size is known. Received: grid_size=None, grid "
                f"shape {grid_shape}"
            )
        rows, columns = self.built_grid
        # Resampling stays in the variable's precision: hence no autocast.
        self.embedding = self.add_weight(
            shape=(1, self.num_prefix_tokens + rows * columns, hidden_size),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
            name="embedding",
        )

    def call(self, inputs, grid=None):
        if self.kind == "none":
            return inputs
        size = self.built_grid if grid is None else size_of(grid, 1, 2)
        if not size:
            raise ValueError(
                "AddPositionEmbs cannot tell the rows and columns of the "
                "patches: call it with the `grid` they come from, or give "
                "`grid_size`."
            )
        self._raise_unless_fits(inputs.shape, size)
        if self.kind == "learned":
            positions = self._learned(size)
        else:
            positions = self._sincos2d(size, inputs.shape[-1])
        return inputs + ops.cast(positions, inputs.dtype)

    def _learned(self, size):
        prefix = self.num_prefix_tokens
        embedding = ops.convert_to_tensor(self.embedding)
        if _known(size) and tuple(size) == self.built_grid:
            return embedding
        patches = self._resampled(embedding[0, prefix:], size)[None]
        if not prefix:
            return patches
        return ops.concatenate([embedding[:, :prefix], patches], axis=1)

    def _resampled(self, patches, size):
        hidden_size = patches.shape[-1]
        patches = ops.reshape(patches, (*self.built_grid, hidden_size))
        patches = resample(patches, size, self.resampling)
        return ops.reshape(patches, (-1, hidden_size))

    def _sincos2d(self, size, hidden_size):
        xp, dtype = (np, "float64") if _known(size) else (ops, "float32")
        omega = 1e4 ** -np.linspace(0, 1, hidden_size // 4).astype(dtype)
        rows, columns = (xp.arange(n, dtype=dtype) for n in size)
        # (rows, columns, hidden_size / 4), x along the columns
        x = xp.zeros_like(rows)[:, None, None] + columns[None, :, None] * omega
        y = rows[:, None, None] * omega + xp.zeros_like(columns)[None, :, None]
        parts = [xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)]
        positions = xp.concatenate(parts, axis=-1)
        positions = xp.reshape(positions, (1, -1, hidden_size))
        prefix = xp.zeros((1, self.num_prefix_tokens, hidden_size), dtype)
        return xp.concatenate([prefix, positions], axis=1)

    def _raise_unless_fits(self, shape, size):
        if not _known(size):
            return
        expected = self.num_prefix_tokens + size[0] * size[1]
        if shape[1] is not None and shape[1] != expected:
            raise ValueError(
                f"AddPositionEmbs expected {expected} tokens: "
                f"{self.num_prefix_tokens} prefix tokens and a grid of "
                f"{size[0]} x {size[1]} patches. Received: shape "
                f"{tuple(shape)}. Pass the grid the patches come from as "
                "`grid` if it is not the one the layer was built with."
            )

    def compute_output_shape(self, inputs_shape, grid_shape=None):
        return inputs_shape

    def save_own_variables(self, store):
        if self.embedding is not None:
            store["embedding"] = np.asarray(
                ops.convert_to_numpy(self.embedding)
            )
            store["grid_size"] = np.asarray(self.built_grid)

    def load_own_variables(self, store):
        if ("embedding" in store) != (self.embedding is not None):
            raise ValueError(
                f"The layer {self.name!r} has kind={self.kind!r}, and the "
                "file was saved with "
                + ("learned" if "embedding" in store else "no learned")
                + " position embeddings."
            )
        if self.embedding is None:
            return
        embedding = np.asarray(store["embedding"])
        grid = tuple(int(n) for n in store["grid_size"])
        self.embedding.assign(
            fit_embedding(
                embedding,
                grid,
                self.built_grid,
                self.resampling,
                self.num_prefix_tokens,
            )
        )

    def get_config(self):
        return {
            **super().get_config(),
            "kind": self.kind,
            "grid_size": self.grid_size,
            "num_prefix_tokens": self.num_prefix_tokens,
            "resampling": self.resampling,
        }


def _known(size):
    """Whether a size is known now, and not only while the graph runs."""
    return all(isinstance(n, int) for n in size)


def fit_embedding(embedding, old, new, method, num_prefix_tokens):
    """Resamples stored position embeddings to another grid, in NumPy.

    Args:
        embedding: Array of shape `(1, num_prefix_tokens + rows * columns,
            hidden_size)` for the grid `old`.
        old: `(rows, columns)` of the array.
        new: The wanted `(rows, columns)`.
        method: A key of `RESAMPLINGS`.
        num_prefix_tokens: Integer. Rows to keep as they are.

    Returns:
        The array for the grid `new`, of the same type; unchanged if the grid
        is.
    """
    length = num_prefix_tokens + old[0] * old[1]
    if embedding.shape[:2] != (1, length):
        raise ValueError(
            f"Position embeddings of {num_prefix_tokens} prefix tokens and a "
            f"grid of {old[0]} x {old[1]} patches have the shape (1, {length}, "
            f"hidden_size). Received: {embedding.shape}"
        )
    if tuple(old) == tuple(new):
        return embedding
    prefix, patches = np.split(embedding[0], [num_prefix_tokens])
    grid = patches.reshape(*old, -1).astype("float64")
    patches = resample(grid, new, method, xp=np).reshape(-1, grid.shape[-1])
    return np.concatenate([prefix, patches])[None].astype(embedding.dtype)
