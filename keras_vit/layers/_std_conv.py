import math

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _padding
from keras_vit.layers import initializers


@keras.saving.register_keras_serializable("keras_vit")
class StdConv2D(keras.Layer):
    """A convolution whose kernel is standardised: weight standardisation.

    Each filter is shifted and scaled to mean 0 and variance 1 over its rows,
    columns and input channels, once a call and not once an image. The kernel
    is stored raw, and its statistics are computed in float32 at least, also
    under mixed precision. There is no bias. Channels come last whatever
    Keras's `image_data_format`.

    From "Micro-Batch Training with Batch-Channel Normalization and Weight
    Standardization" (https://arxiv.org/abs/1903.10520), as in BiT
    (https://arxiv.org/abs/1912.11370, Section 3.3).

    Args:
        filters: Integer. Number of output channels.
        kernel_size: Integer or `(rows, columns)`.
        strides: Integer or `(rows, columns)`.
        padding: "same" (as TensorFlow pads: where the stride leaves one zero
            too many, it goes to the bottom and the right), "symmetric" (half
            a kernel on each side whatever the stride) or "valid" (none).
        epsilon: Float above 0. What keeps the division finite.
        epsilon_place: "std" divides by `std + epsilon`
            (google-research/vision_transformer), "variance" by
            `sqrt(variance + epsilon)` (BiT, timm).

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, new_height, new_width, filters)`

    Raises:
        ValueError: if an argument is wrong, or the number of channels is
            unknown.

    Example:

    >>> layer = keras_vit.layers.StdConv2D(64, 7, strides=2)
    >>> layer(np.zeros((1, 224, 224, 3))).shape
    (1, 112, 112, 64)
    """

    def __init__(
        self,
        filters,
        kernel_size,
        strides=1,
        padding="same",
        epsilon=1e-5,
        epsilon_place="std",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = _checks.positive_int("filters", filters)
        self.kernel_size = _checks.positive_pair("kernel_size", kernel_size)
        self.strides = _checks.positive_pair("strides", strides)
        self.padding = _checks.one_of(
            "padding", padding, ("same", "symmetric", "valid")
        )
        self.epsilon = _checks.positive_float("epsilon", epsilon)
        self.epsilon_place = _checks.one_of(
            "epsilon_place", epsilon_place, ("std", "variance")
        )

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        if channels is None:
            raise ValueError(
                "StdConv2D must know the number of channels. Received: "
                f"shape {tuple(input_shape)}. Give the last size, for example "
                "`keras.Input((None, None, 3))`."
            )
        self.kernel = self.add_weight(
            shape=(*self.kernel_size, channels, self.filters),
            initializer=initializers.lecun(
                math.prod(self.kernel_size) * channels
            ),
            autocast=False,
            name="kernel",
        )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def standardised_kernel(self):
        """Returns the kernel with which the call convolves."""
        kernel = ops.convert_to_tensor(self.kernel)
        dtype = keras.backend.result_type(kernel.dtype, "float32")
        kernel = ops.cast(kernel, dtype)
        axes = (0, 1, 2)
        kernel = kernel - ops.mean(kernel, axis=axes, keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=axes, keepdims=True)
        if self.epsilon_place == "variance":
            return kernel * ops.rsqrt(variance + self.epsilon)
        # The square root of 0 has no finite gradient.
        std = ops.sqrt(ops.maximum(variance, 1e-30))
        return kernel / (std + self.epsilon)

    def call(self, inputs):
        kernel = ops.cast(self.standardised_kernel(), inputs.dtype)
        if self.kernel_size == (1, 1):  # no zeros to add
            return self._project(inputs, kernel[0, 0])
        inputs, padding = _padding.pad(
            inputs, self.kernel_size, self.strides, self.padding
        )
        return _padding.channels_last(
            ops.conv, inputs, kernel, strides=self.strides, padding=padding
        )

    def _project(self, inputs, kernel):
        """A product of matrices, which is faster than a convolution."""
        if self.strides != (1, 1):
            inputs = inputs[:, :: self.strides[0], :: self.strides[1]]
        pixels = ops.reshape(inputs, (-1, inputs.shape[-1]))
        # Keras's product of float64 is float32.
        x = ops.cast(ops.matmul(pixels, kernel), inputs.dtype)
        return ops.reshape(x, (*ops.shape(inputs)[:3], self.filters))

    def compute_output_shape(self, input_shape):
        shape = _padding.output_shape(
            "StdConv2D",
            input_shape,
            self.kernel_size,
            self.strides,
            valid=self.padding == "valid",
        )
        return (*shape, self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "epsilon": self.epsilon,
            "epsilon_place": self.epsilon_place,
        }
