import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _position_store
from keras_vit.layers import initializers
from keras_vit.layers._patch_grid import size_of
from keras_vit.layers._position_fitting import fit_axis
from keras_vit.layers._position_fitting import fit_embedding
from keras_vit.layers._position_fitting import known
from keras_vit.layers.resampling import RESAMPLINGS
from keras_vit.layers.resampling import resample

KINDS = ("learned", "learned_2d", "sincos2d", "none")


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbs(keras.Layer):
    """Adds position embeddings to tokens, for a grid of patches of any size.

    Learned embeddings (the paper's 1-D kind: one vector a patch, row by row)
    are kept for one grid. When the tokens come from another, of any size and
    aspect, they are resampled to it; rows of prefix tokens are kept as they
    are. Weights saved at one grid load at another the same way.

    From "An Image is Worth 16x16 Words", Sections 3.1 and 3.2 and Appendix
    D.4 (https://arxiv.org/abs/2010.11929); `sincos2d` is big_vision's
    `posemb_sincos_2d`, the fixed embedding of "Better plain ViT baselines for
    ImageNet-1k" (https://arxiv.org/abs/2205.01580).

    Args:
        kind: "learned"; "learned_2d" (a vector of half the size for each
            column and for each row, one behind the other); "sincos2d", which
            has no weights and is computed for the grid at hand; or "none",
            which adds nothing.
        grid_size: Integer or `(rows, columns)` of the learned embeddings.
            None takes the grid that the layer is built with.
        num_prefix_tokens: Integer. How many tokens before the patches have a
            row of their own (zeros for "sincos2d").
        num_skipped_tokens: Integer. How many tokens between those and the
            patches have no position.
        resampling: How to fit learned embeddings to another grid:
            "bilinear_align_corners" (Google's code), "bilinear",
            "bicubic" (Hugging Face), "bicubic_antialias" (timm),
            "bicubic_align_corners" (torchvision) or "bicubic_offset"
            (Meta's DINOv2 without registers).

    Call arguments:
        inputs: Tokens of shape `(batch, num_prefix_tokens +
            num_skipped_tokens + rows * columns, hidden_size)`.
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
        num_skipped_tokens=0,
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
        self.num_skipped_tokens = _checks.natural_int(
            "num_skipped_tokens", num_skipped_tokens
        )
        self.resampling = _checks.one_of("resampling", resampling, RESAMPLINGS)
        self.embedding = self.columns = self.rows = self.prefix = None

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
        if self.kind == "learned_2d":
            self._build_axes(rows, columns, hidden_size)
            return
        length = self.num_prefix_tokens + rows * columns
        self.embedding = self._table("embedding", (1, length, hidden_size))

    def _build_axes(self, rows, columns, hidden_size):
        if hidden_size % 2:
            raise ValueError(
                "Position embeddings of kind 'learned_2d' need an even hidden "
                f"size, half for columns and half for rows. Received: "
                f"{hidden_size}"
            )
        self.columns = self._table("columns", (columns, hidden_size // 2))
        self.rows = self._table("rows", (rows, hidden_size // 2))
        if self.num_prefix_tokens:
            shape = (1, self.num_prefix_tokens, hidden_size)
            self.prefix = self._table("prefix", shape)

    def _table(self, name, shape):
        # Resampling stays in the variable's precision: hence no autocast.
        return self.add_weight(
            shape=shape,
            initializer=initializers.Normal(0.02),
            autocast=False,
            name=name,
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
            positions = self._joined(*self._learned(size))
        elif self.kind == "learned_2d":
            positions = self._joined(*self._learned_2d(size))
        else:
            positions = sincos_positions(
                size,
                inputs.shape[-1],
                self.num_prefix_tokens + self.num_skipped_tokens,
            )
        return inputs + ops.cast(positions, inputs.dtype)

    def _joined(self, prefix, patches):
        """Rows of all tokens: (1, length, hidden_size)."""
        parts = [] if prefix is None else [prefix]
        if self.num_skipped_tokens:
            shape = (1, self.num_skipped_tokens, patches.shape[-1])
            parts.append(ops.zeros(shape, patches.dtype))
        parts.append(patches)
        return ops.concatenate(parts, axis=1) if len(parts) > 1 else patches

    def _learned(self, size):
        """Rows of the prefix tokens, or None, and of the patches."""
        prefix = self.num_prefix_tokens
        embedding = ops.convert_to_tensor(self.embedding)
        same = known(size) and tuple(size) == self.built_grid
        if same and not (prefix and self.num_skipped_tokens):
            return None, embedding  # of both, as they are
        patches = embedding[0, prefix:]
        if not same:
            patches = self._resampled(patches, size)
        return embedding[:, :prefix] if prefix else None, patches[None]

    def _learned_2d(self, size):
        x, y = (
            fit_axis(ops.convert_to_tensor(table), new, self.resampling, ops)
            for table, new in ((self.columns, size[1]), (self.rows, size[0]))
        )
        half = x.shape[-1]
        shape = (*size, half)
        x = ops.broadcast_to(x[None], shape)
        y = ops.broadcast_to(y[:, None], shape)
        patches = ops.concatenate([x, y], axis=-1)
        patches = ops.reshape(patches, (1, -1, 2 * half))
        prefix = None
        if self.prefix is not None:
            prefix = ops.convert_to_tensor(self.prefix)
        return prefix, patches

    def _resampled(self, patches, size):
        hidden_size = patches.shape[-1]
        patches = ops.reshape(patches, (*self.built_grid, hidden_size))
        patches = resample(patches, size, self.resampling)
        return ops.reshape(patches, (-1, hidden_size))

    def _raise_unless_fits(self, shape, size):
        if not known(size):
            return
        prefix = self.num_prefix_tokens + self.num_skipped_tokens
        expected = prefix + size[0] * size[1]
        if shape[1] is not None and shape[1] != expected:
            raise ValueError(
                f"AddPositionEmbs expected {expected} tokens: "
                f"{prefix} prefix tokens and a grid of "
                f"{size[0]} x {size[1]} patches. Received: shape "
                f"{tuple(shape)}. Pass the grid the patches come from as "
                "`grid` if it is not the one the layer was built with."
            )

    def compute_output_shape(self, inputs_shape, grid_shape=None):
        return inputs_shape

    def stored(self):
        """Returns what is learned: `{name: variable}`."""
        names = ("embedding", "columns", "rows", "prefix")
        tables = {name: getattr(self, name) for name in names}
        return {k: table for k, table in tables.items() if table is not None}

    def fit(self, arrays, grid):
        """Fits arrays under the names of `stored`, made for the grid of so
        many `(rows, columns)`, to this layer's grid. NumPy."""
        arrays = dict(arrays)
        if "embedding" in arrays:
            arrays["embedding"] = fit_embedding(
                arrays["embedding"],
                grid,
                self.built_grid,
                self.resampling,
                self.num_prefix_tokens,
            )
        for name, new in zip(("rows", "columns"), self.built_grid, strict=True):
            if name in arrays:
                arrays[name] = fit_axis(arrays[name], new, self.resampling, np)
        return arrays

    def save_own_variables(self, store):
        _position_store.save(self, store)

    def load_own_variables(self, store):
        _position_store.load(self, store, f"kind={self.kind!r}")

    def get_config(self):
        return {
            **super().get_config(),
            "kind": self.kind,
            "grid_size": self.grid_size,
            "num_prefix_tokens": self.num_prefix_tokens,
            "resampling": self.resampling,
            "num_skipped_tokens": self.num_skipped_tokens,
        }


def sincos_positions(
    grid_size, hidden_size, num_prefix_tokens=0, endpoint=True
):
    """Return fixed 2-D position embeddings of sines and cosines.

    The channels are sines and cosines of the column, then of the row, at
    `hidden_size / 4` frequencies from 1 down to 1e-4.

    Args:
        grid_size: `(rows, columns)` of patches, integers or scalar tensors.
        hidden_size: Integer, a multiple of 4.
        num_prefix_tokens: Integer. Tokens before the patches, whose
            embeddings are zero.
        endpoint: Boolean. Whether 1e-4 is the last frequency, as in
            big_vision, or the first one left out, as in MAE.

    Returns:
        Array of shape `(1, num_prefix_tokens + rows * columns, hidden_size)`;
        a tensor if the grid is one.

    Raises:
        ValueError: if `hidden_size` is not a multiple of 4.
    """
    if hidden_size % 4:
        raise ValueError(
            "Positions of sines and cosines need a hidden size that is a "
            f"multiple of 4. Received: hidden_size={hidden_size}"
        )
    xp, dtype = (np, "float64") if known(grid_size) else (ops, "float32")
    exponents = np.linspace(0, 1, hidden_size // 4, endpoint=endpoint)
    omega = 1e4 ** -exponents.astype(dtype)
    rows, columns = (xp.arange(n, dtype=dtype) for n in grid_size)
    # (rows, columns, hidden_size / 4), x along the columns
    x = xp.zeros_like(rows)[:, None, None] + columns[None, :, None] * omega
    y = rows[:, None, None] * omega + xp.zeros_like(columns)[None, :, None]
    parts = [xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)]
    positions = xp.concatenate(parts, axis=-1)
    positions = xp.reshape(positions, (1, -1, hidden_size))
    prefix = xp.zeros((1, num_prefix_tokens, hidden_size), dtype)
    return xp.concatenate([prefix, positions], axis=1)
