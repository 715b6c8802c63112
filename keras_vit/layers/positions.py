"""Layers of absolute, relative and rotary position embeddings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers import initializers
from keras_vit.layers._utils import axis_sizes, cast_inputs, is_static
from keras_vit.layers.composite import Layer
from keras_vit.layers.resampling import (
    RESAMPLINGS,
    resample,
    resample_embedding,
    resample_offsets,
    resampling_matrices,
)
from keras_vit.utils import checks
from keras_vit.utils.published import rotary_periods
from keras_vit.utils.types import Array, Shape, Tensor


class _LearnedPositions(Layer):
    """Base class of layers of tables that are learned for one grid.

    A Keras file stores the grid, so that the tables can be loaded for another grid.
    """

    table_names: tuple[str, ...]
    built_grid: Any

    def check_grid(self, grid_shape: Shape | None, learns: bool = True) -> None:
        """Raises a `ValueError` if the grid is not known: as a whole or, for tables
        that the layer `learns`, one of its sides."""
        if not self.built_grid or (learns and None in self.built_grid):
            raise ValueError(
                f"{type(self).__name__} does not know the rows and columns of the "
                "patches: give `grid_size=(rows, columns)`, or call the layer with a "
                f"`grid` whose size is known. Received: grid_size=None, grid "
                f"shape {grid_shape}"
            )

    def embedding_variables(self) -> dict[str, keras.Variable]:
        """Returns a dict from the names of the learned variables to the variables."""
        tables = {name: getattr(self, name) for name in self.table_names}
        return {k: table for k, table in tables.items() if table is not None}

    def resample_arrays(
        self, arrays: Mapping[str, Array], grid: tuple[int, int]
    ) -> dict[str, Array]:
        """Resamples stored embeddings, with the keys of
        `embedding_variables()`, from a grid of `(rows, columns)` to the one
        that the layer was built with."""
        raise NotImplementedError

    def save_own_variables(self, store: Any) -> None:
        tables = self.embedding_variables()
        for name, table in tables.items():
            store[name] = np.asarray(ops.convert_to_numpy(table))
        if tables:
            store["grid_size"] = np.asarray(self.built_grid)

    def load_own_variables(self, store: Any) -> None:
        tables = self.embedding_variables()
        found = set(store.keys()) - {"grid_size"}
        if found != set(tables):
            raise ValueError(
                f"The positions {self.name!r} learn {sorted(tables)}. Received "
                f"positions of another kind: {sorted(found)}"
            )
        if tables:
            rows, columns = (int(n) for n in store["grid_size"])
            arrays = {name: np.asarray(store[name]) for name in tables}
            for name, array in self.resample_arrays(arrays, (rows, columns)).items():
                tables[name].assign(array)


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbs(_LearnedPositions):
    """Adds position embeddings to tokens, for a grid of patches of any size.

    Learned embeddings are stored for one grid, as one vector per patch in
    row-major order (the paper's 1-D embeddings). For tokens of another grid, of
    any size and aspect ratio, they are resampled; those of prefix tokens are
    not changed. Weights that were saved for one grid are resampled in the same
    way when they are loaded into a layer for another.

    From "An Image is Worth 16x16 Words", Sections 3.1 and 3.2 and Appendix
    D.4 (https://arxiv.org/abs/2010.11929); `sincos2d` is big_vision's
    `posemb_sincos_2d`, the fixed embedding of "Better plain ViT baselines for
    ImageNet-1k" (https://arxiv.org/abs/2205.01580).

    Args:
        kind: String. "learned"; "learned_2d" (a vector of half the hidden size
            for each column and for each row, concatenated); "factorized" (a
            vector for each row and for each column, added, as in
            https://arxiv.org/abs/2307.06304); "sincos2d", which has no weights
            and is computed for each grid; or "none", which adds nothing.
        grid_size: Integer or `(rows, columns)`. Grid for which embeddings are
            learned; None for the grid that the layer is built with.
        num_prefix_tokens: Integer. Number of tokens before the patches that
            have a position embedding (zeros for "sincos2d").
        num_skipped_tokens: Integer. Number of tokens without a position
            embedding between the prefix tokens and the patches.
        resampling: String. Method to resample learned embeddings to another
            grid: "bilinear_align_corners" (Google's code), "bilinear",
            "bicubic" (Hugging Face), "bicubic_antialias" (timm),
            "bicubic_align_corners" (torchvision), "bicubic_offset" (Meta's
            DINOv2 without registers), or, to preserve the aspect ratio of positions,
            "bicubic_antialias_square", "bilinear_square" or
            "bilinear_align_corners_square". These resample to a square of the longer
            side and take the top left part for a grid (timm's NaFlexVit).

    Call arguments:
        inputs: Tokens of shape `(batch, num_prefix_tokens +
            num_skipped_tokens + rows * columns, hidden_size)`.
        grid: Tensor of shape `(batch, rows, columns, ...)` that the patches
            come from, such as the output of `PatchEmbedding`. Only its shape
            is used. None for the grid that the layer was built with. Alternatively, the
            places of patches of images of several sizes, which `MixedSizes` returns:
            each image then has the positions of its own grid.

    Output shape:
        That of `inputs`.

    Raises:
        ValueError: if the grid is unknown, the number of tokens is not that of
            the grid, or the hidden size is odd for "learned_2d" or not a multiple of 4
            for "sincos2d".

    Example:

    >>> grid = keras_vit.layers.PatchEmbedding(768, 16)(images)
    >>> tokens = keras.ops.reshape(grid, (batch, -1, 768))
    >>> tokens = keras_vit.layers.AddPositionEmbs(grid_size=14)(tokens, grid)
    """

    table_names = ("embedding", "columns", "rows", "prefix")

    def __init__(
        self,
        kind: str = "learned",
        grid_size: int | tuple[int, int] | None = None,
        num_prefix_tokens: int = 0,
        resampling: str = "bilinear_align_corners",
        num_skipped_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        kinds = "learned", "learned_2d", "factorized", "sincos2d", "none"
        self.kind = checks.one_of("kind", kind, kinds)
        self.grid_size = (
            None if grid_size is None else checks.positive_pair("grid_size", grid_size)
        )
        self.num_prefix_tokens = checks.non_negative_int(
            "num_prefix_tokens", num_prefix_tokens
        )
        self.num_skipped_tokens = checks.non_negative_int(
            "num_skipped_tokens", num_skipped_tokens
        )
        self.resampling = checks.one_of("resampling", resampling, RESAMPLINGS)
        self.embedding = self.columns = self.rows = self.prefix = None

    def build(self, inputs_shape: Shape, grid_shape: Shape | None = None) -> None:
        checks.check_rank(self, inputs_shape, "(batch, length, channels)")
        hidden_size = inputs_shape[-1]
        self.built_grid = self.grid_size or tuple((grid_shape or ())[1:3])
        if self.kind == "none":
            return
        learns = self.kind != "sincos2d"
        self.check_grid(grid_shape, learns)
        if not learns:
            return
        rows, columns = self.built_grid
        if self.kind == "learned":
            length = self.num_prefix_tokens + rows * columns
            shape = (1, length, hidden_size)
            self.embedding = self._add_embedding("embedding", shape)
            return
        width = hidden_size
        if self.kind == "learned_2d":
            width = hidden_size // 2
        self.columns = self._add_embedding("columns", (columns, width))
        self.rows = self._add_embedding("rows", (rows, width))
        if self.num_prefix_tokens:
            shape = (1, self.num_prefix_tokens, hidden_size)
            self.prefix = self._add_embedding("prefix", shape)

    def _add_embedding(self, name: str, shape: Shape) -> keras.Variable:
        # No autocast: resampling is computed in the variable's precision.
        return self.add_weight(
            shape=shape,
            initializer=initializers.Normal(0.02),
            autocast=False,
            name=name,
        )

    def call(self, inputs: Tensor, grid: Tensor | None = None) -> Tensor:
        inputs = cast_inputs(self, inputs)
        if self.kind == "none":
            return inputs
        indices = None
        if _are_places(grid):
            row, column, *size = ops.unstack(grid, axis=-1)
            indices = row, column
        else:
            size = self.built_grid if grid is None else axis_sizes(grid, 1, 2)
        prefix, num_zeros = None, self.num_skipped_tokens
        if self.kind == "learned":
            prefix, patches = self._learned(size, indices)
        elif self.kind != "sincos2d":
            prefix, patches = self.prefix, self._learned_by_axis(size, indices)
        else:
            num_zeros += self.num_prefix_tokens
            if indices is None:
                sizes = size[0], size[1]
                patches = sincos_positions(sizes, inputs.shape[-1])
            else:
                row, column = indices
                patches = _sincos(row, column, inputs.shape[-1], True, ops)
        # (1, length, hidden_size), or of a batch
        patches = ops.cast(patches, inputs.dtype)
        count, _, hidden_size = ops.shape(patches)
        parts = [patches]
        if num_zeros:
            zeros = ops.zeros((count, num_zeros, hidden_size), inputs.dtype)
            parts.insert(0, zeros)
        if prefix is not None:
            prefix = ops.cast(prefix, inputs.dtype)
            shape = (count, *prefix.shape[1:])
            parts.insert(0, ops.broadcast_to(prefix, shape))
        return inputs + (ops.concatenate(parts, axis=1) if parts[1:] else patches)

    def _learned(
        self, size: Sequence[Any], indices: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor | None, Tensor]:
        """Returns the embeddings of the prefix tokens (None if they are part of
        those of the patches, or there are none) and of the patches."""
        count = self.num_prefix_tokens
        embedding = ops.convert_to_tensor(self.embedding)
        if self._is_built_grid(size):
            if not (count and self.num_skipped_tokens):
                return None, embedding  # the variable holds both, in this order
            return embedding[:, :count], embedding[:, count:]
        patches = embedding[0, count:]
        if indices is None:
            patches = ops.reshape(patches, (*self.built_grid, -1))
            patches = resample(patches, size, self.resampling)
            patches = ops.reshape(patches, (1, -1, patches.shape[-1]))
        else:
            # One matrix product with a weight for each stored patch.
            rows, columns = resampling_matrices(
                self.built_grid, size, self.resampling, indices
            )
            weights = rows[..., :, None] * columns[..., None, :]
            shape = (*ops.shape(rows)[:2], math.prod(self.built_grid))
            patches = _product(ops.reshape(weights, shape), patches)
        return embedding[:, :count] if count else None, patches

    def _learned_by_axis(
        self, size: Sequence[Any], indices: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Returns the sums of the embeddings of rows and columns; those of
        "learned_2d" have zeros in the channels of the other."""
        rows = ops.convert_to_tensor(self.rows)
        columns = ops.convert_to_tensor(self.columns)
        if self.kind == "learned_2d":
            half = rows.shape[-1]
            rows = ops.pad(rows, ((0, 0), (half, 0)))
            columns = ops.pad(columns, ((0, 0), (0, half)))
        if not self._is_built_grid(size):
            matrices = resampling_matrices(
                self.built_grid, size, self.resampling, indices
            )
            rows = _product(matrices[0], rows)
            columns = _product(matrices[1], columns)
        if indices is not None:
            return rows + columns
        patches = rows[:, None] + columns
        return ops.reshape(patches, (1, -1, patches.shape[-1]))

    def _is_built_grid(self, size: Sequence[Any]) -> bool:
        return is_static(size) and tuple(size) == self.built_grid

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def resample_arrays(
        self, arrays: Mapping[str, Array], grid: tuple[int, int]
    ) -> dict[str, Array]:
        arrays = dict(arrays)
        if "embedding" in arrays:
            arrays["embedding"] = resample_embedding(
                arrays["embedding"],
                grid,
                self.built_grid,
                self.resampling,
                self.num_prefix_tokens,
            )
        elif grid != self.built_grid:
            matrices = resampling_matrices(grid, self.built_grid, self.resampling)
            for name, matrix in zip(("rows", "columns"), matrices, strict=True):
                table = matrix @ arrays[name].astype("float64")
                arrays[name] = table.astype(arrays[name].dtype)
        return arrays


def sincos_positions(
    grid_size: tuple[Any, Any],
    hidden_size: int,
    num_prefix_tokens: int = 0,
    endpoint: bool = True,
) -> Tensor:
    """Computes fixed 2-D sine-cosine position embeddings of shape `(1,
    num_prefix_tokens + rows * columns, hidden_size)`.

    The channels are sines and cosines of the column, then of the row, at `hidden_size /
    4` frequencies from 1 down to 1e-4. With `endpoint`, 1e-4 is the last frequency, as
    in big_vision; otherwise it is excluded, as in MAE. The embeddings of the tokens
    before the patches are zero. The result is a NumPy array, or a tensor if `grid_size`
    contains tensors.
    """
    xp, dtype = (np, "float64") if is_static(grid_size) else (ops, "float32")
    rows, columns = (xp.arange(n, dtype=dtype) for n in grid_size)
    y = rows[:, None] + xp.zeros_like(columns)
    x = xp.zeros_like(rows)[:, None] + columns
    positions = _sincos(y, x, hidden_size, endpoint, xp)
    positions = xp.reshape(positions, (1, -1, hidden_size))
    prefix = xp.zeros((1, num_prefix_tokens, hidden_size), dtype)
    return xp.concatenate([prefix, positions], axis=1)


def _sincos(
    row: Tensor, column: Tensor, hidden_size: int, endpoint: bool, xp: Any
) -> Tensor:
    """Returns the sines and cosines (..., hidden_size) of places (...)."""
    checks.multiple_of_4("hidden_size", hidden_size)
    dtype = "float64" if xp is np else "float32"
    exponents = np.linspace(0, 1, hidden_size // 4, endpoint=endpoint)
    omega = 1e4 ** -exponents.astype(dtype)
    if xp is ops:
        omega = ops.array(omega)
        row, column = ops.cast(row, dtype), ops.cast(column, dtype)
    x, y = column[..., None] * omega, row[..., None] * omega
    parts = [xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)]
    return xp.concatenate(parts, axis=-1)


def _are_places(grid: Tensor | None) -> bool:
    """Returns whether a `grid` is the output of `MixedSizes`."""
    return grid is not None and len(grid.shape) == 3


def _product(weights: Tensor, table: Tensor) -> Tensor:
    """Computes the product with a table in the table's precision."""
    return ops.matmul(ops.cast(weights, table.dtype), table)


@keras.saving.register_keras_serializable("keras_vit")
class RelativePositionEmbs(_LearnedPositions):
    """Returns learned embeddings of the offsets between patches, for attention.

    Patches are numbered in row-major order, p = 0, 1, ..., and each value of
    the offset p_query - p_key has a learned embedding. `MultiHeadAttention` and
    `TransformerBlock` take the output as `relative` and add its scaled dot
    products with the queries to the attention logits. From "An Image is Worth
    16x16 Words", Appendix D.4 (https://arxiv.org/abs/2010.11929), which leaves
    two details open. Here all heads share the embeddings, as in
    "Self-Attention with Relative Position Representations"
    (https://arxiv.org/abs/1803.02155), and nothing is added to the logits of
    tokens before the patches, which have no position.

    The embeddings are stored for one grid. For another, of any size and aspect
    ratio, they are arranged by 2-D offset (rows, columns) and resampled.

    Args:
        head_size: Integer. Number of channels per head,
            `hidden_size / num_heads`.
        grid_size: Integer or `(rows, columns)`. Grid for which embeddings are
            learned; None for the grid that the layer is built with.
        resampling: String. Method to resample the embeddings to another grid;
            see `AddPositionEmbs`.

    Call arguments:
        grid: Tensor of shape `(batch, rows, columns, ...)` that the patches
            come from, such as the output of `PatchEmbedding`. Only its shape
            is used.

    Output shape:
        `(batch, 2 * rows * columns - 1, head_size)`, the same for all images,
        the most negative offset first.

    Raises:
        ValueError: if the size of the grid is unknown.

    Example:

    >>> grid = keras_vit.layers.PatchEmbedding(768, 16)(images)
    >>> tokens = keras.ops.reshape(grid, (batch, -1, 768))
    >>> relative = keras_vit.layers.RelativePositionEmbs(64)(grid)
    >>> x = keras_vit.layers.TransformerBlock(12, 3072)(tokens, relative)
    """

    table_names = ("offsets",)

    def __init__(
        self,
        head_size: int,
        grid_size: int | tuple[int, int] | None = None,
        resampling: str = "bilinear_align_corners",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.head_size = checks.positive_int("head_size", head_size)
        self.grid_size = (
            None if grid_size is None else checks.positive_pair("grid_size", grid_size)
        )
        methods = [x for x in RESAMPLINGS if not x.endswith("_square")]
        self.resampling = checks.one_of("resampling", resampling, methods)

    def build(self, grid_shape: Shape) -> None:
        self.built_grid = self.grid_size or tuple(grid_shape[1:3])
        self.check_grid(grid_shape)
        rows, columns = self.built_grid
        # No autocast: resampling is computed in the variable's precision.
        self.offsets = self.add_weight(
            shape=(2 * rows * columns - 1, self.head_size),
            initializer=initializers.Normal(0.02),
            autocast=False,
            name="offsets",
        )

    def call(self, grid: Tensor) -> Tensor:
        offsets = resample_offsets(
            ops.convert_to_tensor(self.offsets),
            self.built_grid,
            axis_sizes(grid, 1, 2),
            self.resampling,
            ops,
        )
        offsets = ops.cast(offsets, self.compute_dtype)[None]
        shape = (ops.shape(grid)[0], *ops.shape(offsets)[1:])
        return ops.broadcast_to(offsets, shape)

    def compute_output_shape(self, grid_shape: Shape) -> Shape:
        rows, columns = grid_shape[1:3]
        count = None if None in (rows, columns) else 2 * rows * columns - 1
        return (grid_shape[0], count, self.head_size)

    def resample_arrays(
        self, arrays: Mapping[str, Array], grid: tuple[int, int]
    ) -> dict[str, Array]:
        offsets = resample_offsets(
            arrays["offsets"], grid, self.built_grid, self.resampling, np
        )
        return {"offsets": offsets}


def relative_logits(query: Tensor, relative: Tensor) -> Tensor:
    """Computes the logits (B, H, T, T) of relative positions, for attention.

    They are scaled dot products of queries (B, T, H, d), whose last tokens are
    the N patches, and offset embeddings (B, 2 N - 1, d), and zero for tokens
    before the patches.
    """
    (length,) = axis_sizes(query, 1)
    (num_offsets,) = axis_sizes(relative, 1)
    num_patches = (num_offsets + 1) // 2
    prefix = length - num_patches
    query = query[:, prefix:] / math.sqrt(query.shape[-1])
    # With the offsets reversed, a query's logits for keys 0, 1, ... are
    # consecutive: in row q, key k is at N - 1 - q + k. A column of padding and
    # a reshape to rows of the former length move it to N - 1 + k.
    logits = ops.einsum("BTHd,BOd->BHTO", query, ops.flip(relative, axis=1))
    logits = ops.pad(logits, ((0, 0), (0, 0), (0, 0), (0, 1)))
    heads = (ops.shape(logits)[0], logits.shape[1])
    logits = ops.reshape(logits, (*heads, 2 * num_patches * num_patches))
    start = num_patches - 1
    logits = logits[..., start : start + num_patches * num_offsets]
    logits = ops.reshape(logits, (*heads, num_patches, num_offsets))
    logits = logits[..., :num_patches]
    if isinstance(prefix, int) and not prefix:
        return logits
    return ops.pad(logits, ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))


@keras.saving.register_keras_serializable("keras_vit")
class RotaryPositionEmbs(Layer):
    """Returns sines and cosines that rotate queries and keys by their position.

    A patch has the coordinates of its center, from -1 to 1 for the rows and for
    the columns of any grid, whatever its size and aspect ratio. The number of periods
    is a quarter of the number of a head's channels: two channels, one in each half of
    the head, are rotated by the angle 2 pi * row / period, and two others by 2 pi *
    column / period, so that the dot product of a query and a key depends on their
    offset. Tokens before the patches are not rotated. `MultiHeadAttention` and
    `TransformerBlock` take the output as `relative`.

    From "RoFormer: Enhanced Transformer with Rotary Position Embedding"
    (https://arxiv.org/abs/2104.09864), for images as in "DINOv3", Section 3.2
    (https://arxiv.org/abs/2508.10104). In training, the coordinates may be
    changed at random, with one change for all images of a batch.

    Args:
        head_size: Integer, a multiple of 4. Number of channels per head,
            `hidden_size / num_heads`.
        base: Float above 0. The periods are `base ** (4 * i / head_size)` for i
            = 0, 1, ..., up to `head_size / 4`. They are not trained, but they are saved
            with the weights.
        num_prefix_tokens: Integer. Number of tokens before the patches.
        shift: Float. In training, a uniform number in [-shift, shift] is added
            to the coordinates of the rows, and another to those of the
            columns; 0 for none.
        jitter: Float, 1 or more. In training, the coordinates of the rows are
            multiplied by a log-uniform number in [1 / jitter, jitter], and
            those of the columns by another; 1 for none.
        rescale: Float, 1 or more. In training, all coordinates are multiplied
            by one log-uniform number in [1 / rescale, rescale]; 1 for none.
        seed: Integer. Seed of the random numbers; None for a random one.

    Call arguments:
        grid: Tensor of shape `(batch, rows, columns, ...)` that the patches
            come from, such as the output of `PatchEmbedding`. Only its shape is used.
            Alternatively, the places of patches of images of several sizes, which
            `MixedSizes` returns.
        training: Boolean. Whether to change the coordinates.

    Output shape:
        `(batch, num_prefix_tokens + rows * columns, 2, head_size / 2)`, sines
        and cosines, the same for all images of one size.

    Raises:
        ValueError: if `head_size` is not a multiple of 4.

    Example:

    >>> grid = keras_vit.layers.PatchEmbedding(768, 16)(images)
    >>> tokens = keras.ops.reshape(grid, (batch, -1, 768))
    >>> rotary = keras_vit.layers.RotaryPositionEmbs(64)(grid)
    >>> x = keras_vit.layers.TransformerBlock(12, 3072)(tokens, rotary)
    """

    def __init__(
        self,
        head_size: int,
        base: float = 100.0,
        num_prefix_tokens: int = 0,
        shift: float = 0.0,
        jitter: float = 1.0,
        rescale: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.head_size = checks.multiple_of_4("head_size", head_size)
        self.base = checks.positive_float("base", base)
        self.num_prefix_tokens = checks.non_negative_int(
            "num_prefix_tokens", num_prefix_tokens
        )
        self.shift, self.jitter, self.rescale = shift, jitter, rescale
        self.seed = seed
        self._changes = shift > 0 or jitter > 1 or rescale > 1
        if self._changes:
            self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, grid_shape: Shape) -> None:
        # No autocast: angles are computed in the variable's precision.
        self.periods = self.add_weight(
            shape=(self.head_size // 4,),
            initializer=self._initial_periods,
            trainable=False,
            autocast=False,
            name="periods",
        )

    def _initial_periods(self, shape: Shape, dtype: str | None = None) -> Tensor:
        return ops.convert_to_tensor(rotary_periods(self.base, self.head_size), dtype)

    def call(self, grid: Tensor, training: bool = False) -> Tensor:
        periods = ops.convert_to_tensor(self.periods)
        dtype = keras.backend.result_type(periods.dtype, "float32")
        periods = ops.cast(periods, dtype)
        if _are_places(grid):  # (batch, length)
            row, column, rows, columns = ops.unstack(grid, axis=-1)
            y, x = _centers(row, rows, dtype), _centers(column, columns, dtype)
        else:  # (1, rows * columns)
            y, x = (
                _centers(ops.arange(0, n, dtype=dtype), n, dtype)
                for n in axis_sizes(grid, 1, 2)
            )
            y, x = ops.meshgrid(y, x, indexing="ij")
            y, x = ops.reshape(y, (1, -1)), ops.reshape(x, (1, -1))
        if training and self._changes:
            y, x = self._change(y, x)
        # (batch, length, head_size / 2)
        angles = ops.concatenate(
            [2 * math.pi * centers[..., None] / periods for centers in (y, x)],
            axis=-1,
        )
        prefix = (ops.shape(angles)[0], self.num_prefix_tokens)
        tables = []
        for function, of_prefix in ((ops.sin, 0.0), (ops.cos, 1.0)):
            first = ops.full((*prefix, self.head_size // 2), of_prefix, dtype)
            tables.append(ops.concatenate([first, function(angles)], axis=1))
        table = ops.cast(ops.stack(tables, axis=2), self.compute_dtype)
        shape = (ops.shape(grid)[0], *ops.shape(table)[1:])
        return ops.broadcast_to(table, shape)

    def _change(self, y: Tensor, x: Tensor) -> list[Tensor]:
        random = keras.random.uniform(
            (5,), -1, 1, dtype=y.dtype, seed=self.seed_generator
        )
        scale = ops.exp(random[4] * math.log(self.rescale))
        return [
            (centers + random[i] * self.shift)
            * ops.exp(random[2 + i] * math.log(self.jitter))
            * scale
            for i, centers in enumerate((y, x))
        ]

    def compute_output_shape(self, grid_shape: Shape) -> Shape:
        sizes = grid_shape[1:-1]  # the rows and columns, or the length
        length = None
        if None not in sizes:
            length = self.num_prefix_tokens + math.prod(sizes)
        return (grid_shape[0], length, 2, self.head_size // 2)

    def embedding_variables(self) -> dict[str, keras.Variable]:
        """Returns a dict of the variables to resample for a grid: none."""
        return {}


def _centers(index: Tensor, count: Any, dtype: str) -> Tensor:
    """Returns the coordinates, from -1 to 1, of patches among `count`."""
    centers = ops.cast(index, dtype) + 0.5
    return 2 * centers / ops.cast(count, dtype) - 1


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotates queries or keys of the first tokens, `(batch, length, num_heads,
    head_size)`, by the output of `RotaryPositionEmbs`."""
    (length,) = axis_sizes(x, 1)
    rotary = rotary[:, :length, :, None]  # (B, T, 2, 1, d / 2)
    sin, cos = rotary[:, :, 0], rotary[:, :, 1]
    first, second = ops.split(x, 2, axis=-1)
    return ops.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )
