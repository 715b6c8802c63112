import keras

from keras_vit import _checks
from keras_vit.layers import _activation
from keras_vit.layers import _fast
from keras_vit.layers import _quantization
from keras_vit.layers import initializers
from keras_vit.layers._composite import CompositeLayer


@keras.saving.register_keras_serializable("keras_vit")
class MlpBlock(CompositeLayer):
    """Two dense layers with an activation between: the encoder's MLP.

    From "An Image is Worth 16x16 Words", Section 3.1
    (https://arxiv.org/abs/2010.11929). Dropout follows both dense layers.

    Args:
        mlp_dim: Integer. Width of the hidden layer.
        activation: "gelu_tanh" (Google's weights), "gelu" (exact: PyTorch's
            weights), "quick_gelu", "swiglu", or a Keras activation's name.
            "swiglu" makes the first layer twice as wide: its first half,
            through SiLU, gates the second (https://arxiv.org/abs/2002.05202).
        dropout: Float in [0, 1). Rate after both dense layers.

    Call arguments:
        inputs: Tensor of shape `(..., hidden_size)`.
        training: Boolean. Whether dropout is on.

    Output shape:
        That of `inputs`.
    """

    def __init__(self, mlp_dim, activation="gelu_tanh", dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = _checks.positive_int("mlp_dim", mlp_dim)
        self.activation = activation
        self.dropout = dropout = _checks.rate("dropout", dropout)
        self._activation = _activation.get(activation)
        self._dropout_1 = keras.layers.Dropout(
            dropout, dtype=self.dtype_policy, name="dropout_1"
        )
        self._dropout_2 = keras.layers.Dropout(
            dropout, dtype=self.dtype_policy, name="dropout_2"
        )

    def _dense(self, inputs, units, name):
        return _fast.Dense(
            units,
            kernel_initializer=initializers.glorot(inputs, units),
            bias_initializer=initializers.Normal(1e-6),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        hidden_size, gates = input_shape[-1], self.activation == "swiglu"
        units = self.mlp_dim * (1 + gates)
        self.dense_1 = self._dense(hidden_size, units, "dense_1")
        self.dense_1.build(input_shape)
        self.dense_2 = self._dense(self.mlp_dim, hidden_size, "dense_2")
        self.dense_2.build((*input_shape[:-1], self.mlp_dim))
        self.restore_trainable()

    def call(self, inputs, training=False):
        x = self.dense_1(_fast.rows(inputs))
        x = self._activation(x, training=training)
        if self.dropout > 0:
            x = self._dropout_1(x, training=training)
        x = self.dense_2(x)
        if self.dropout > 0:
            x = self._dropout_2(x, training=training)
        return _fast.rows_as(x, inputs)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_build_config(self):
        return _quantization.add(super().get_build_config(), self)

    def build_from_config(self, config):
        super().build_from_config(config)
        _quantization.restore(self, config)

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "dropout": self.dropout,
        }
