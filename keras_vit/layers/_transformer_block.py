import functools

import keras

from keras_vit import _checks
from keras_vit.layers import _fast
from keras_vit.layers import _quantization
from keras_vit.layers import _remat
from keras_vit.layers._attention import MultiHeadAttention
from keras_vit.layers._composite import CompositeLayer
from keras_vit.layers._layer_scale import LayerScale
from keras_vit.layers._mlp import MlpBlock


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(CompositeLayer):
    """A pre-norm encoder block: attention and an MLP, each on a residual.

    From "An Image is Worth 16x16 Words", Section 3.1, Equations 2 and 3
    (https://arxiv.org/abs/2010.11929). Dropout comes after the attention and
    after both dense layers of the MLP, as in the paper.

    Args:
        num_heads: Integer. It must divide the hidden size.
        mlp_dim: Integer. Width of the MLP's hidden layer.
        activation: "gelu_tanh" (Google's weights), "gelu" (exact: PyTorch's
            weights), "quick_gelu", or a Keras activation's name.
        norm_epsilon: Float. Epsilon of the layer norms: 1e-6 in most
            published weights, 1e-12 in some of Hugging Face's.
        qkv_bias: Boolean. Whether query, key and value have a bias.
        qk_norm: Boolean. Whether to normalise queries and keys.
        layer_scale: Float, or None for no `LayerScale`. Where its factors
            start.
        dropout: Float in [0, 1).
        attention_dropout: Float in [0, 1). Rate of dropping attention
            probabilities.
        drop_path: Float in [0, 1). Rate of leaving out a whole residual
            branch, image by image ("Deep Networks with Stochastic Depth",
            https://arxiv.org/abs/1603.09382).
        remat: Boolean. Whether training keeps only the block's inputs and
            computes the rest again for the gradients: less memory, about a
            third more time (https://arxiv.org/abs/1604.06174).

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.
        relative: Output of `RelativePositionEmbs`, or None.
        num_queries: Integer, or None for all. Number of output tokens to
            compute: the first ones, attending to all tokens of `inputs`. A
            model that pools only the class token needs no other token of its
            last block.
        training: Boolean. Whether dropout is on.

    Output shape:
        `(batch, length, hidden_size)`, or
        `(batch, num_queries, hidden_size)`.

    Raises:
        ValueError: if `num_queries` is not from 1 to the number of tokens, if
            `num_heads` does not divide the hidden size, or if the
            inputs carry a mask of an earlier layer: masks are not supported.
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        activation="gelu_tanh",
        norm_epsilon=1e-6,
        qkv_bias=True,
        qk_norm=False,
        layer_scale=None,
        dropout=0.0,
        attention_dropout=0.0,
        drop_path=0.0,
        remat=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.activation = activation
        self.norm_epsilon = _checks.positive_float("norm_epsilon", norm_epsilon)
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.layer_scale = layer_scale
        self.dropout = dropout = _checks.rate("dropout", dropout)
        self.attention_dropout = attention_dropout
        self.drop_path = drop_path = _checks.rate("drop_path", drop_path)
        self.remat = remat

        own = {"dtype": self.dtype_policy}
        norm = {"epsilon": norm_epsilon, **own}
        self.norm_1 = _fast.layer_norm(name="norm_1", **norm)
        self.attention = MultiHeadAttention(
            num_heads,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            dropout=_checks.rate("attention_dropout", attention_dropout),
            norm_epsilon=norm_epsilon,
            name="attention",
            **own,
        )
        self._dropout = keras.layers.Dropout(dropout, name="dropout", **own)
        self.norm_2 = _fast.layer_norm(name="norm_2", **norm)
        self.mlp = MlpBlock(
            mlp_dim, activation=activation, dropout=dropout, name="mlp", **own
        )
        self.scale_1 = self.scale_2 = None
        if layer_scale is not None:
            self.scale_1 = LayerScale(layer_scale, name="scale_1", **own)
            self.scale_2 = LayerScale(layer_scale, name="scale_2", **own)
        # One draw an image for all its tokens and channels.
        path = {"noise_shape": (None, 1, 1), **own}
        self._path_1 = keras.layers.Dropout(drop_path, name="path_1", **path)
        self._path_2 = keras.layers.Dropout(drop_path, name="path_2", **path)

    def build(self, inputs_shape, relative_shape=None):
        _checks.rank(
            "TransformerBlock", inputs_shape, 3, "(batch, length, channels)"
        )
        self.norm_1.build(inputs_shape)
        self.attention.build(inputs_shape, relative_shape=relative_shape)
        self.norm_2.build(inputs_shape)
        self.mlp.build(inputs_shape)
        if self.layer_scale is not None:
            self.scale_1.build(inputs_shape)
            self.scale_2.build(inputs_shape)
        self.restore_trainable()

    def call(
        self,
        inputs,
        relative=None,
        num_queries=None,
        training=False,
        mask=None,
    ):
        _checks.no_mask(self, mask)
        _check_num_queries(num_queries, inputs.shape[1])
        if self.remat and training:
            tensors = (inputs,) if relative is None else (inputs, relative)
            train = functools.partial(
                self._call, training=True, num_queries=num_queries
            )
            return _remat.call(self, train, *tensors)
        return self._call(inputs, relative, training, num_queries)

    def _call(self, inputs, relative=None, training=False, num_queries=None):
        x = self.norm_1(inputs)
        if num_queries is None:
            x = self.attention(x, relative=relative, training=training)
        else:
            inputs = inputs[:, :num_queries]
            if relative is None:
                x = self.attention(x[:, :num_queries], x, training=training)
            else:  # `relative` is of the last tokens, the patches
                x = self.attention(x, relative=relative, training=training)
                x = x[:, :num_queries]
        if self.dropout > 0:
            x = self._dropout(x, training=training)
        if self.scale_1 is not None:
            x = self.scale_1(x)
        if self.drop_path > 0:
            x = self._path_1(x, training=training)
        x = inputs + x
        y = self.mlp(self.norm_2(x), training=training)
        if self.scale_2 is not None:
            y = self.scale_2(y)
        if self.drop_path > 0:
            y = self._path_2(y, training=training)
        return x + y

    def compute_output_shape(
        self, inputs_shape, relative_shape=None, num_queries=None
    ):
        batch, length, channels = inputs_shape
        _check_num_queries(num_queries, length)
        return (batch, num_queries or length, channels)

    def compute_output_spec(
        self,
        inputs,
        relative=None,
        num_queries=None,
        training=False,
        mask=None,
    ):
        # Keras passes only the shapes of tensors to `compute_output_shape`.
        shape = self.compute_output_shape(inputs.shape, num_queries=num_queries)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

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
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "norm_epsilon": self.norm_epsilon,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "layer_scale": self.layer_scale,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "drop_path": self.drop_path,
            "remat": self.remat,
        }


def _check_num_queries(num_queries, length):
    if num_queries is None:
        return
    _checks.positive_int("num_queries", num_queries)
    if length is not None and num_queries > length:
        raise ValueError(
            f"`num_queries` must be at most the number of tokens, {length}. "
            f"Received: num_queries={num_queries}"
        )
