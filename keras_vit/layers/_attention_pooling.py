import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _fast
from keras_vit.layers import _quantization
from keras_vit.layers import initializers
from keras_vit.layers._attention import MultiHeadAttention
from keras_vit.layers._composite import CompositeLayer
from keras_vit.layers._mlp import MlpBlock


@keras.saving.register_keras_serializable("keras_vit")
class AttentionPooling(CompositeLayer):
    """Multi-head attention pooling: a learned probe asks all patches once.

    The probe's answer goes through an MLP on a residual. There is no norm
    before the attention and none after the MLP. From "Scaling Vision
    Transformers", Section 3.2 (https://arxiv.org/abs/2106.04560), as in
    big_vision's `MAPHead`.

    Args:
        num_heads: Integer. It must divide the hidden size.
        mlp_dim: Integer. Width of the MLP's hidden layer.
        activation: As in `MlpBlock`.
        norm_epsilon: Float. Epsilon of the norm before the MLP.
        qkv_bias: Boolean. Whether query, key and value have a bias.
        num_prefix_tokens: Integer. How many tokens before the patches are
            not asked.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.

    Output shape:
        `(batch, hidden_size)`
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        activation="gelu_tanh",
        norm_epsilon=1e-6,
        qkv_bias=True,
        num_prefix_tokens=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.activation = activation
        self.norm_epsilon = _checks.positive_float("norm_epsilon", norm_epsilon)
        self.qkv_bias = qkv_bias
        self.num_prefix_tokens = _checks.natural_int(
            "num_prefix_tokens", num_prefix_tokens
        )
        own = {"dtype": self.dtype_policy}
        self.attention = MultiHeadAttention(
            num_heads, qkv_bias=qkv_bias, name="attention", **own
        )
        self.norm = _fast.layer_norm(epsilon=norm_epsilon, name="norm", **own)
        self.mlp = MlpBlock(mlp_dim, activation=activation, name="mlp", **own)

    def build(self, input_shape):
        _checks.rank(
            "AttentionPooling", input_shape, 3, "(batch, length, channels)"
        )
        batch, _, hidden_size = input_shape
        self.probe = self.add_weight(
            shape=(1, 1, hidden_size),
            initializer=initializers.glorot(1, hidden_size),
            name="probe",
        )
        one = (batch, 1, hidden_size)
        self.attention.build(one, input_shape)
        self.norm.build(one)
        self.mlp.build(one)
        self.restore_trainable()

    def call(self, inputs):
        patches = inputs[:, self.num_prefix_tokens :]
        probe = ops.cast(self.probe, inputs.dtype)
        shape = (ops.shape(patches)[0], *self.probe.shape[1:])
        probe = ops.broadcast_to(probe, shape)
        x = self.attention(probe, patches)
        x = x + self.mlp(self.norm(x))
        return x[:, 0]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

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
            "num_prefix_tokens": self.num_prefix_tokens,
        }
