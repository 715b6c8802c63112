import math

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _fast
from keras_vit.layers import _quantization
from keras_vit.layers import initializers
from keras_vit.layers._composite import CompositeLayer
from keras_vit.layers._relative_position import relative_logits


@keras.saving.register_keras_serializable("keras_vit")
class MultiHeadAttention(CompositeLayer):
    """Multi-head attention whose variables are laid out as Keras's own.

    Separate projections and Keras's fused `dot_product_attention`, which is
    flash attention where the backend has it. With attention dropout, which no
    fused kernel offers, training takes a plain second path.

    From "Attention Is All You Need", Section 3.2.2
    (https://arxiv.org/abs/1706.03762); query and key norm from "Scaling
    Vision Transformers to 22 Billion Parameters", Section 2.1
    (https://arxiv.org/abs/2302.05442).

    Args:
        num_heads: Integer. It must divide the hidden size.
        qkv_bias: Boolean. Whether query, key and value have a bias.
        qk_norm: Boolean. Whether to normalise queries and keys over each
            head's channels.
        dropout: Float in [0, 1). Rate of dropping attention probabilities.
        norm_epsilon: Float. Epsilon of the query and key norms.

    Call arguments:
        inputs: Tokens that ask, of shape `(batch, length, hidden_size)`.
        context: Tokens that are asked; None for `inputs` (self-attention).
        relative: Output of `RelativePositionEmbs` for the patches, which are
            the last of the tokens, or None.
        training: Boolean. Whether dropout is on.

    Output shape:
        That of `inputs`.

    Raises:
        ValueError: if `num_heads` does not divide the hidden size, or
            `relative` does not fit the tokens.
    """

    def __init__(
        self,
        num_heads,
        qkv_bias=True,
        qk_norm=False,
        dropout=0.0,
        norm_epsilon=1e-6,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.dropout = dropout = _checks.rate("dropout", dropout)
        self.norm_epsilon = _checks.positive_float("norm_epsilon", norm_epsilon)
        self._dropout = keras.layers.Dropout(
            dropout, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, inputs_shape, context_shape=None, relative_shape=None):
        _checks.rank(
            "MultiHeadAttention", inputs_shape, 3, "(batch, length, channels)"
        )
        hidden_size = inputs_shape[-1]
        if hidden_size % self.num_heads:
            divisors = [
                n for n in range(1, hidden_size + 1) if hidden_size % n == 0
            ]
            near = sorted(divisors, key=lambda n: abs(n - self.num_heads))[:4]
            raise ValueError(
                f"`num_heads` must divide the hidden size {hidden_size}. "
                f"Received: num_heads={self.num_heads}. "
                f"{', '.join(map(str, sorted(near)))} would work."
            )
        # B batch, T S tokens, D hidden size, H heads, d head size
        heads = (self.num_heads, hidden_size // self.num_heads)
        if relative_shape is not None:
            _raise_unless_fits(relative_shape, inputs_shape[1], heads[1])
        context_shape = context_shape or inputs_shape
        for name, shape in (
            ("query", inputs_shape),
            ("key", context_shape),
            ("value", context_shape),
        ):
            layer = self._dense("BTD,DHd->BTHd", heads, hidden_size, name)
            layer.build(shape)
            setattr(self, name, layer)
        self.attention_output = self._dense(
            "BTHd,HdD->BTD", (hidden_size,), hidden_size, "attention_output"
        )
        self.attention_output.build((*inputs_shape[:2], *heads))
        if self.qk_norm:
            self.query_norm = self._norm("query_norm")
            self.query_norm.build((*inputs_shape[:2], *heads))
            self.key_norm = self._norm("key_norm")
            self.key_norm.build((*context_shape[:2], *heads))
        self.restore_trainable()

    def _dense(self, equation, output_shape, hidden_size, name):
        bias = self.qkv_bias or name == "attention_output"
        # For the (hidden_size, hidden_size) matrix. Given the 3-D kernel,
        # Keras's GlorotUniform would take the first axis for a convolution's
        # window and start far too small.
        start = initializers.glorot(hidden_size, hidden_size)
        layer = _fast.EinsumDense(
            equation,
            output_shape=(None, *output_shape),
            bias_axes=("D" if len(output_shape) == 1 else "Hd")
            if bias
            else None,
            kernel_initializer=start,
            bias_initializer=initializers.Constant(0.0),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.num_summed_axes = 3 - len(output_shape)
        return layer

    def _norm(self, name):
        return _fast.layer_norm(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def call(
        self, inputs, context=None, relative=None, training=False, mask=None
    ):
        _checks.no_mask(self, mask)
        context = inputs if context is None else context
        query, key = self._query_and_key(inputs, context)
        value = self.value(context)
        bias = None
        if relative is not None:
            bias = relative_logits(query, relative)  # (B, H, T, T)
        if training and self.dropout > 0:
            x = _probabilities(query, key, bias)  # (B, H, T, T)
            x = ops.cast(x, value.dtype)
            x = self._dropout(x, training=True)
            x = ops.einsum("BHTS,BSHd->BTHd", x, value)
        else:
            x = _fast.attend(query, key, value, bias)  # (B, T, H, d)
        return self.attention_output(x)

    def probabilities(self, inputs, context=None, relative=None):
        """Returns how much each token takes of each, which a call does not.

        A second path beside the fused one, for looking inside. Queries and
        keys are the call's own, in the layer's precision, quantised or not;
        scores and softmax are computed in float32 at least.

        Args:
            inputs: As in a call.
            context: As in a call.
            relative: As in a call.

        Returns:
            Tensor of shape `(batch, num_heads, length, context_length)`,
            whose rows sum to 1.
        """
        # As Keras does for a call, which this is not.
        inputs, context = (
            ops.convert_to_tensor(x, self.compute_dtype)
            for x in (inputs, inputs if context is None else context)
        )
        query, key = self._query_and_key(inputs, context)
        dtype = keras.backend.result_type(query.dtype, "float32")
        query, key = ops.cast(query, dtype), ops.cast(key, dtype)
        bias = None
        if relative is not None:
            bias = relative_logits(query, ops.cast(relative, dtype))
        return _probabilities(query, key, bias)

    def _query_and_key(self, inputs, context):
        query, key = self.query(inputs), self.key(context)
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key

    def compute_output_shape(
        self, inputs_shape, context_shape=None, relative_shape=None
    ):
        return inputs_shape

    def compute_mask(self, inputs, previous_mask):
        # Keras asks for it when a model is built, without a call.
        _checks.no_mask(self, previous_mask)

    def get_build_config(self):
        return _quantization.add(super().get_build_config(), self)

    def build_from_config(self, config):
        super().build_from_config(config)
        _quantization.restore(self, config)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "dropout": self.dropout,
            "norm_epsilon": self.norm_epsilon,
        }


def _raise_unless_fits(relative_shape, length, head_size):
    """Whether offsets can be those of the last tokens."""
    _, count, channels = relative_shape
    fits = None in (count, length) or (count % 2 and count < 2 * length)
    if channels != head_size or not fits:
        raise ValueError(
            "`relative` must be of shape (batch, 2 * patches - 1, "
            f"{head_size}), with no more patches than the {length} tokens. "
            f"Received: shape {tuple(relative_shape)}"
        )


def _probabilities(query, key, bias):
    """Returns the softmax of the scaled scores, in float32 at least, as the
    fused kernels compute it under half precision."""
    dtype = keras.backend.result_type(query.dtype, "float32")
    query, key = ops.cast(query, dtype), ops.cast(key, dtype)
    if bias is not None:
        bias = ops.cast(bias, dtype)
    query = query / math.sqrt(query.shape[-1])
    scores = ops.einsum("BTHd,BSHd->BHTS", query, key)
    return ops.softmax(scores if bias is None else scores + bias)
