"""Multi-head attention and attention pooling."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers import _kernels, initializers
from keras_vit.layers._utils import cast_inputs
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.positions import relative_logits, rotate
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class MultiHeadAttention(CompositeLayer):
    """Computes multi-head attention.

    It uses Keras's fused `dot_product_attention`, which is flash attention where the
    backend supports it, or a kernel that is faster on a CPU. Training with attention
    dropout, which no fused kernel supports, computes the probabilities explicitly. The
    projections have the same names and shapes as in `keras.layers.MultiHeadAttention`.

    From "Attention Is All You Need", Section 3.2.2
    (https://arxiv.org/abs/1706.03762); query and key norm from "Scaling
    Vision Transformers to 22 Billion Parameters", Section 2.1
    (https://arxiv.org/abs/2302.05442).

    Args:
        num_heads: Integer. Number of heads, which must divide the hidden size.
        qkv_bias: Boolean. Whether the query, key and value projections have a
            bias.
        key_bias: Boolean. Whether the key projection has a bias, if
            `qkv_bias`.
        qk_norm: Boolean. Whether to normalize queries and keys over each
            head's channels.
        dropout: Float in [0, 1). Dropout rate of the attention probabilities.
        norm_epsilon: Float above 0. Epsilon of the query and key norms.
        kernel_regularizer: Keras regularizer of the four kernels, or None.

    Call arguments:
        inputs: Query tokens of shape `(batch, length, hidden_size)`.
        context: Key and value tokens of shape
            `(batch, context_length, hidden_size)`; None for `inputs`
            (self-attention).
        relative: Output of `RelativePositionEmbs` for N patches, of shape
            `(batch, 2 * N - 1, head_size)`, or None. The patches must be the
            last N tokens. Or the output of `RotaryPositionEmbs` for all tokens
            of `context`, of shape `(batch, context_length, 2, head_size / 2)`;
            `inputs` are then these tokens, or the first ones.
        training: Boolean. Whether to apply dropout.
        mask: Tensor of shape `(batch, length, context_length)` or `(batch,
            num_heads, length, context_length)`, whose sizes may also be 1, or
            None. A boolean mask is True where a query attends to a key; a
            mask of floats is added to the scaled scores. A query that may not attend to
            any key attends to all keys equally.

    Output shape:
        That of `inputs`.

    Raises:
        ValueError: if `num_heads` does not divide the hidden size, `relative`
            or `mask` has the wrong shape, or the inputs carry a mask of an
            earlier layer, `(batch, length)`, which is not supported.

    Example:

    >>> tokens = np.zeros((2, 197, 384))
    >>> causal = np.tril(np.ones((1, 197, 197), bool))
    >>> keras_vit.layers.MultiHeadAttention(6)(tokens, mask=causal).shape
    (2, 197, 384)
    """

    def __init__(
        self,
        num_heads: int,
        *,  # Keras's layer of this name takes another second argument
        qkv_bias: bool = True,
        qk_norm: bool = False,
        dropout: float = 0.0,
        norm_epsilon: float = 1e-6,
        kernel_regularizer: Any = None,
        key_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.qkv_bias = qkv_bias
        self.key_bias = key_bias
        self.qk_norm = qk_norm
        self.dropout = checks.rate("dropout", dropout)
        self.norm_epsilon = checks.positive_float("norm_epsilon", norm_epsilon)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self._dropout = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, name="dropout"
        )

    def build(
        self,
        inputs_shape: Shape,
        context_shape: Shape | None = None,
        relative_shape: Shape | None = None,
    ) -> None:
        checks.check_rank(self, inputs_shape, "(batch, length, channels)")
        hidden_size = inputs_shape[-1]
        if hidden_size % self.num_heads:
            raise ValueError(
                f"`num_heads` must divide the hidden size {hidden_size}. "
                f"Received: num_heads={self.num_heads}"
            )
        # B batch, T S tokens, D hidden size, H heads, d head size
        heads = (self.num_heads, hidden_size // self.num_heads)
        if relative_shape is not None:
            _check_relative_shape(relative_shape, inputs_shape[1], heads[1])
        context_shape = context_shape or inputs_shape
        for name, shape in (
            ("query", inputs_shape),
            ("key", context_shape),
            ("value", context_shape),
        ):
            has_bias = self.qkv_bias and (name != "key" or self.key_bias)
            layer = self._projection(
                "BTD,DHd->BTHd",
                heads,
                "Hd" if has_bias else None,
                hidden_size,
                name,
            )
            layer.build(shape)
            setattr(self, name, layer)
        self.attention_output = self._projection(
            "BTHd,HdD->BTD",
            (hidden_size,),
            "D",
            hidden_size,
            "attention_output",
        )
        self.attention_output.build((*inputs_shape[:2], *heads))
        if self.qk_norm:
            self.query_norm = self._norm("query_norm")
            self.query_norm.build((*inputs_shape[:2], *heads))
            self.key_norm = self._norm("key_norm")
            self.key_norm.build((*context_shape[:2], *heads))
        self.restore_sublayers()

    def _projection(
        self,
        equation: str,
        output_shape: tuple[int, ...],
        bias_axes: str | None,
        hidden_size: int,
        name: str,
    ) -> _kernels.EinsumDense:
        return _kernels.EinsumDense(
            equation,
            output_shape=(None, *output_shape),
            bias_axes=bias_axes,
            # That of a (hidden_size, hidden_size) matrix.
            kernel_initializer=initializers.glorot_uniform(hidden_size, hidden_size),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name: str) -> _kernels.LayerNormalization:
        return _kernels.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def call(
        self,
        inputs: Tensor,
        context: Tensor | None = None,
        relative: Tensor | None = None,
        training: bool = False,
        mask: Tensor | None = None,
    ) -> Tensor:
        check_mask(self, mask)
        inputs = cast_inputs(self, inputs)
        context = inputs if context is None else cast_inputs(self, context)
        query, key = self.query_and_key(inputs, context)
        if _is_rotary(relative):
            query, key = rotate(query, relative), rotate(key, relative)
            relative = None
        value = self.value(context)
        bias = self._bias(query, key, relative, mask)
        if training and self.dropout > 0:
            x = _probabilities(query, key, bias)  # (B, H, T, T)
            x = ops.cast(x, value.dtype)
            x = self._dropout(x, training=True)
            x = ops.einsum("BHTS,BSHd->BTHd", x, value)
        else:
            x = _kernels.dot_product_attention(query, key, value, bias)
        return self.attention_output(x)  # (B, T, H, d) to (B, T, D)

    def _bias(
        self,
        query: Tensor,
        key: Tensor,
        relative: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor | None:
        """Returns what is added to the scaled scores, of 4 axes, or None."""
        bias = None
        if relative is not None:
            bias = relative_logits(query, relative)  # (B, H, T, T)
        if mask is None:
            return bias
        mask = additive_mask(mask, query)  # (B, 1 or H, 1 or T, 1 or S)
        return mask if bias is None else bias + mask

    def probabilities(
        self,
        inputs: Tensor,
        context: Tensor | None = None,
        relative: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Computes the attention probabilities.

        A call does not return them, since fused attention does not store them.
        Queries and keys are computed as in a call, in the layer's precision
        and with its quantized weights, if any; scores and softmax are computed
        in at least float32.

        Args:
            inputs: As in a call.
            context: As in a call.
            relative: As in a call.
            mask: As in a call.

        Returns:
            Tensor of shape `(batch, num_heads, length, context_length)`,
            which sums to 1 over the last axis.
        """
        # Keras converts the inputs of a call, but not of this method.
        inputs, context = (
            ops.convert_to_tensor(x, self.compute_dtype)
            for x in (inputs, inputs if context is None else context)
        )
        query, key = self.query_and_key(inputs, context)
        dtype = keras.backend.result_type(query.dtype, "float32")
        query, key = ops.cast(query, dtype), ops.cast(key, dtype)
        if relative is not None:
            relative = ops.cast(ops.convert_to_tensor(relative), dtype)
        if _is_rotary(relative):
            query, key = rotate(query, relative), rotate(key, relative)
            relative = None
        if mask is not None:
            mask = ops.convert_to_tensor(mask)
        bias = self._bias(query, key, relative, mask)
        return _probabilities(query, key, bias)

    def query_and_key(self, inputs: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Computes queries and keys, for calls and for `probabilities`.

        A subclass overrides it to change both, for example to rotate them by
        their positions.

        Args:
            inputs: As in a call. In the last block of a model that pools only
                the first tokens, these are those tokens alone.
            context: As in a call.

        Returns:
            Tensors of shape `(batch, length, num_heads, head_dim)` and
            `(batch, context_length, num_heads, head_dim)`.
        """
        query, key = self.query(inputs), self.key(context)
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key

    def compute_output_shape(
        self,
        inputs_shape: Shape,
        context_shape: Shape | None = None,
        relative_shape: Shape | None = None,
    ) -> Shape:
        return inputs_shape

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> None:
        # When a model is built, Keras calls this method instead of `call`.
        check_mask(self, previous_mask)


@keras.saving.register_keras_serializable("keras_vit")
class AttentionPooling(CompositeLayer):
    """Pools tokens by attention of one learned query to all patches.

    An MLP with a pre-norm and a residual connection follows the attention.
    There is no norm before the attention and none after the MLP. From "Scaling
    Vision Transformers", Section 3.2 (https://arxiv.org/abs/2106.04560), as in
    big_vision's `MAPHead`.

    Args:
        num_heads: Integer. Number of heads, which must divide the hidden size.
        mlp_dim: Integer. Width of the MLP's hidden layer.
        activation: String. Activation of the MLP; see `MlpBlock`.
        norm_epsilon: Float above 0. Epsilon of the norm before the MLP.
        qkv_bias: Boolean. Whether the query, key and value projections have a
            bias.
        num_prefix_tokens: Integer. Number of tokens before the patches, to
            which the query does not attend.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.
        valid: Boolean tensor of shape `(batch, number of patches)`, False for
            patches that are padding, or None. The query does not attend to
            them.

    Output shape:
        `(batch, hidden_size)`
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        qkv_bias: bool = True,
        num_prefix_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.activation = activation
        self.norm_epsilon = checks.positive_float("norm_epsilon", norm_epsilon)
        self.qkv_bias = qkv_bias
        self.num_prefix_tokens = checks.non_negative_int(
            "num_prefix_tokens", num_prefix_tokens
        )
        dtype = self.dtype_policy
        self.attention = MultiHeadAttention(
            num_heads, qkv_bias=qkv_bias, dtype=dtype, name="attention"
        )
        self.norm = _kernels.LayerNormalization(
            epsilon=norm_epsilon, dtype=dtype, name="norm"
        )
        self.mlp = MlpBlock(mlp_dim, activation=activation, dtype=dtype, name="mlp")

    def build(self, inputs_shape: Shape, **others: Shape) -> None:
        checks.check_rank(self, inputs_shape, "(batch, length, channels)")
        batch, _, hidden_size = inputs_shape
        self.probe = self.add_weight(
            shape=(1, 1, hidden_size),
            initializer=initializers.glorot_uniform(1, hidden_size),
            name="probe",
        )
        probe_shape = (batch, 1, hidden_size)
        self.attention.build(probe_shape, inputs_shape)
        self.norm.build(probe_shape)
        self.mlp.build(probe_shape)
        self.restore_sublayers()

    def call(self, inputs: Tensor, valid: Tensor | None = None) -> Tensor:
        inputs = cast_inputs(self, inputs)
        patches = inputs[:, self.num_prefix_tokens :]
        probe = ops.cast(self.probe, inputs.dtype)
        shape = (ops.shape(patches)[0], *self.probe.shape[1:])
        probe = ops.broadcast_to(probe, shape)
        mask = None if valid is None else valid[:, None]
        x = self.attention(probe, patches, mask=mask)
        x = x + self.mlp(self.norm(x))
        return x[:, 0]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[2])


def check_mask(layer: keras.Layer, mask: Tensor | None) -> None:
    """Checks that a mask has a value per pair of tokens, or is None.

    Keras passes a mask of an earlier layer, with one value per token, under the same
    name. It is rejected: such a mask would also have to reach the layers after this
    one.
    """
    if mask is not None and len(mask.shape) not in (3, 4):
        raise ValueError(
            f"{type(layer).__name__} {layer.name!r} takes a `mask` of shape "
            "(batch, length, context_length) or (batch, num_heads, length, "
            "context_length), and does not support masks of an earlier layer. "
            "For padding, give `mask=padding[:, None, :]`; leave out the mask "
            "of an earlier layer with `Embedding(..., mask_zero=False)`. "
            f"Received: a mask of shape {tuple(mask.shape)}"
        )


def additive_mask(mask: Tensor, query: Tensor) -> Tensor:
    """Returns a mask of 4 axes to add to scores `(B, H, T, S)`, with the
    query's batch size and precision."""
    if len(mask.shape) == 3:
        mask = mask[:, None]
    if keras.backend.standardize_dtype(mask.dtype) == "bool":
        # Finite, so that a row that is masked as a whole is not NaN. float16
        # has no larger numbers than 65504.
        dtype = keras.backend.standardize_dtype(query.dtype)
        lowest = -3e4 if dtype == "float16" else -1e9
        mask = ops.where(mask, 0.0, lowest)
    mask = ops.cast(mask, query.dtype)
    return ops.broadcast_to(mask, (ops.shape(query)[0], *ops.shape(mask)[1:]))


def _is_rotary(relative: Tensor | None) -> bool:
    return relative is not None and len(relative.shape) == 4


def _check_relative_shape(
    relative_shape: Shape, length: int | None, head_size: int
) -> None:
    """Checks the shape of relative position embeddings for `length` tokens."""
    _, count, *channels = relative_shape
    rotary = len(relative_shape) == 4
    fits = channels == ([2, head_size // 2] if rotary else [head_size])
    if count is not None and length is not None:
        fits = fits and (
            count >= length if rotary else count % 2 and count < 2 * length
        )
    expected = (
        f"(batch, {length}, 2, {head_size // 2}) for rotary positions"
        if rotary
        else f"(batch, 2 * patches - 1, {head_size}), with no more patches than the "
        f"{length} tokens"
    )
    if not fits:
        raise ValueError(
            f"`relative` must be of shape {expected}. Received: shape "
            f"{tuple(relative_shape)}. Keys and values both come from `context`: "
            "self-attention is `layer(inputs)`."
        )


def _probabilities(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """Computes the softmax of the scaled scores in at least float32, as fused
    kernels do in half precision."""
    dtype = keras.backend.result_type(query.dtype, "float32")
    query, key = ops.cast(query, dtype), ops.cast(key, dtype)
    if bias is not None:
        bias = ops.cast(bias, dtype)
    query = query / math.sqrt(query.shape[-1])
    scores = ops.einsum("BTHd,BSHd->BHTS", query, key)
    return ops.softmax(scores if bias is None else scores + bias)
