"""The MLP of an encoder block, and its activation functions."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers import _kernels, initializers
from keras_vit.layers.composite import CompositeLayer
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor


def _gelu_tanh(x: Tensor) -> Tensor:
    return _kernels.gelu(x, approximate=True)


def _gelu(x: Tensor) -> Tensor:
    return _kernels.gelu(x, approximate=False)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * ops.sigmoid(1.702 * x)


def _swiglu(x: Tensor) -> Tensor:
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


# Google's code uses the tanh approximation of GELU (Flax's default); timm,
# Hugging Face, torchvision and Meta use exact GELU; CLIP-style models the
# sigmoid approximation; DINOv2's giant model SwiGLU.
_ACTIVATIONS = {
    "gelu_tanh": _gelu_tanh,
    "gelu": _gelu,
    "quick_gelu": _quick_gelu,
    "swiglu": _swiglu,
}


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if isinstance(name, str) and name in _ACTIVATIONS:
        return _ACTIVATIONS[name]
    if isinstance(name, str):  # only names can be saved
        with contextlib.suppress(ValueError):
            return keras.activations.get(name)
    raise ValueError(
        f"`activation` must be one of {', '.join(map(repr, _ACTIVATIONS))}, or the "
        f"name of a Keras activation. Received: activation={name!r}"
    )


@keras.saving.register_keras_serializable("keras_vit")
class MlpBlock(CompositeLayer):
    """Applies the MLP of an encoder block: dense, activation, dense.

    From "An Image is Worth 16x16 Words", Section 3.1
    (https://arxiv.org/abs/2010.11929).

    Args:
        mlp_dim: Integer. Width of the hidden layer.
        activation: String. "gelu_tanh" (Google's weights), "gelu" (exact:
            PyTorch's weights), "quick_gelu", "swiglu", or the name of a Keras
            activation. With "swiglu" the first layer is twice as wide: SiLU of
            its first half is multiplied by its second half
            (https://arxiv.org/abs/2002.05202).
        dropout: Float in [0, 1). Dropout rate after both dense layers.
        kernel_regularizer: Keras regularizer of both kernels, or None.

    Call arguments:
        inputs: Tensor of shape `(..., hidden_size)`.
        training: Boolean. Whether to apply dropout.

    Output shape:
        That of `inputs`.
    """

    def __init__(
        self,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        dropout: float = 0.0,
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mlp_dim = checks.positive_int("mlp_dim", mlp_dim)
        self.activation = activation
        self.dropout = dropout = checks.rate("dropout", dropout)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self._activation = _activation(activation)
        self._dropout_1 = keras.layers.Dropout(
            dropout, dtype=self.dtype_policy, name="dropout_1"
        )
        self._dropout_2 = keras.layers.Dropout(
            dropout, dtype=self.dtype_policy, name="dropout_2"
        )

    def build(self, input_shape: Shape) -> None:
        hidden_size = input_shape[-1]
        units = self.mlp_dim * (2 if self.activation == "swiglu" else 1)
        self.dense_1 = self._dense(hidden_size, units, "dense_1")
        self.dense_1.build(input_shape)
        self.dense_2 = self._dense(self.mlp_dim, hidden_size, "dense_2")
        self.dense_2.build((*input_shape[:-1], self.mlp_dim))
        self.restore_sublayers()

    def _dense(self, inputs: int, units: int, name: str) -> _kernels.Dense:
        return _kernels.Dense(
            units,
            kernel_initializer=initializers.glorot_uniform(inputs, units),
            bias_initializer=initializers.Normal(1e-6),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        x = self._activation(self.dense_1(inputs))
        if self.dropout > 0:
            x = self._dropout_1(x, training=training)
        x = self.dense_2(x)
        if self.dropout > 0:
            x = self._dropout_2(x, training=training)
        return x

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape
