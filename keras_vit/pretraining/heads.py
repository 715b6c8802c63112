"""Projection and prediction heads of DINO and of MoCo v3."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers import initializers
from keras_vit.layers.composite import CompositeLayer, Layer
from keras_vit.layers.replicated import BatchNormalization
from keras_vit.pretraining.base import float32_output_policy
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class WeightNormalizedDense(Layer):
    """Linear layer without bias whose weights have fixed norms.

    It computes the cosine of its inputs, if these are unit vectors too, with
    each of the learned directions. It is the last layer of DINO's head:
    PyTorch's `weight_norm` of a linear layer with norms of 1 (`norm_last_layer=True` in
    facebookresearch/dino, vision_transformer.py). Other norms can be loaded, but are
    not trained. No gradient flows into the kernel while `frozen`.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = checks.positive_int("units", units)

    def build(self, input_shape: Shape) -> None:
        # PyTorch's default for a linear layer: uniform below 1 / sqrt(inputs).
        limit = input_shape[-1] ** -0.5
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.units),
            initializer=initializers.Uniform(limit),
            name="kernel",
        )
        self.norm = self.add_weight(
            shape=(self.units,),
            initializer="ones",
            trainable=False,
            name="norm",
        )

    def call(self, inputs: Tensor, frozen: Tensor | None = None) -> Tensor:
        kernel = ops.convert_to_tensor(self.kernel)
        if frozen is not None:
            constant = ops.stop_gradient(kernel)
            trained = 1 - ops.cast(frozen, kernel.dtype)
            # The difference is exactly 0, and its gradient is that of `kernel`.
            kernel = constant + trained * (kernel - constant)
        kernel = ops.normalize(kernel, axis=0)
        return ops.matmul(inputs, kernel * ops.cast(self.norm, kernel.dtype))

    def compute_output_shape(
        self, inputs_shape: Shape, frozen_shape: Shape | None = None
    ) -> Shape:
        return (*inputs_shape[:-1], self.units)


@keras.saving.register_keras_serializable("keras_vit")
class DINOHead(CompositeLayer):
    """Projection head of DINO: an MLP and a weight-normalized linear layer.

    Three linear layers with GELU in between are followed by a normalization to
    unit length and a `WeightNormalizedDense`. From facebookresearch/dino,
    vision_transformer.py, without its batch norms, which ViTs do not use.

    Args:
        output_dim: Integer. Number of outputs.
        hidden_dim: Integer. Width of the two hidden layers.
        bottleneck_dim: Integer. Width before the last layer.

    Call arguments:
        inputs: Tensor of shape `(..., channels)`.
        frozen: Boolean tensor. Whether to stop the gradient of the kernel of the last
            layer.

    Output shape:
        `(..., output_dim)`
    """

    def __init__(
        self,
        output_dim: int = 65536,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.output_dim = output_dim
        self.hidden_dim = hidden_dim
        self.bottleneck_dim = bottleneck_dim

        def dense(units: int, activation: str | None, name: str) -> keras.layers.Dense:
            return keras.layers.Dense(
                units,
                activation=activation,
                # Not truncated: PyTorch's truncation at 2 is never reached.
                kernel_initializer=initializers.Normal(0.02),
                dtype=self.dtype_policy,
                name=name,
            )

        self.dense_1 = dense(hidden_dim, "gelu", "dense_1")
        self.dense_2 = dense(hidden_dim, "gelu", "dense_2")
        self.dense_3 = dense(bottleneck_dim, None, "dense_3")
        self.last_layer = WeightNormalizedDense(
            output_dim,
            dtype=float32_output_policy(self.dtype_policy),
            name="last_layer",
        )

    def build(self, input_shape: Shape) -> None:
        for layer in (
            self.dense_1,
            self.dense_2,
            self.dense_3,
            self.last_layer,
        ):
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)
        self.restore_sublayers()

    def call(self, inputs: Tensor, frozen: Tensor | None = None) -> Tensor:
        x = self.dense_3(self.dense_2(self.dense_1(inputs)))
        x = ops.normalize(ops.cast(x, self.last_layer.compute_dtype), axis=-1)
        return self.last_layer(x, frozen=frozen)

    def compute_output_shape(
        self, inputs_shape: Shape, frozen_shape: Shape | None = None
    ) -> Shape:
        return (*inputs_shape[:-1], self.output_dim)


@keras.saving.register_keras_serializable("keras_vit")
class MoCoHead(CompositeLayer):
    """Projection or prediction head of MoCo v3: an MLP with batch norms.

    It consists of linear layers without biases, each followed by a batch norm and,
    except for the last one, a ReLU. The last batch norm has no scale and offset. From
    facebookresearch/moco-v3, moco/builder.py.

    Batch statistics are those of the whole batch: under TensorFlow they are
    synchronized over devices, and under JAX a batch that is split over devices
    is one array.

    Args:
        output_dim: Integer. Number of outputs.
        hidden_dim: Integer. Width of the hidden layers.
        num_layers: Integer. Number of linear layers: 3 for the projection
            head, 2 for the prediction head.

    Call arguments:
        inputs: Tensor of shape `(batch, channels)`.
        training: Boolean. Whether to normalize by the statistics of the batch.

    Output shape:
        `(batch, output_dim)`
    """

    def __init__(
        self,
        output_dim: int = 256,
        hidden_dim: int = 4096,
        num_layers: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.output_dim = output_dim
        self.hidden_dim = hidden_dim
        self.num_layers = checks.positive_int("num_layers", num_layers)
        self.linear, self.norms = [], []
        policy = float32_output_policy(self.dtype_policy)
        for i in range(1, num_layers + 1):
            is_last = i == num_layers
            linear = keras.layers.Dense(
                output_dim if is_last else hidden_dim,
                use_bias=False,
                dtype=policy if is_last else self.dtype_policy,
                name=f"dense_{i}",
            )
            norm = BatchNormalization(
                momentum=0.9,
                epsilon=1e-5,
                center=not is_last,
                scale=not is_last,
                dtype=policy if is_last else self.dtype_policy,
                name=f"norm_{i}",
            )
            self.linear.append(linear)
            self.norms.append(norm)

    def build(self, input_shape: Shape) -> None:
        for linear, norm in zip(self.linear, self.norms, strict=True):
            # PyTorch's default for a linear layer.
            bound = input_shape[-1] ** -0.5
            linear.kernel_initializer = initializers.Uniform(bound)
            linear.build(input_shape)
            input_shape = linear.compute_output_shape(input_shape)
            norm.build(input_shape)
        self.restore_sublayers()

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        x = inputs
        layers = list(zip(self.linear, self.norms, strict=True))
        for linear, norm in layers[:-1]:
            x = ops.relu(norm(linear(x), training=training))
        linear, norm = layers[-1]
        return norm(linear(x), training=training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.output_dim)
