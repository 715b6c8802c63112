import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _padding


@keras.saving.register_keras_serializable("keras_vit")
class MaxPool2D(keras.Layer):
    """Max pooling with the paddings that published ResNets have.

    They differ where values can be negative, as in BiT's root, which has no
    ReLU: a zero then wins over them and minus infinity never does. Channels
    come last whatever Keras's `image_data_format`.

    Args:
        pool_size: Integer or `(rows, columns)`.
        strides: Integer or `(rows, columns)`.
        padding: "same" (as TensorFlow pads, with minus infinity), "symmetric"
            (half a window of minus infinity on each side) or "zeros" (half a
            window of zeros on each side: BiT).

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), channels)`
    """

    def __init__(self, pool_size=3, strides=2, padding="same", **kwargs):
        super().__init__(**kwargs)
        self.pool_size = _checks.positive_pair("pool_size", pool_size)
        self.strides = _checks.positive_pair("strides", strides)
        self.padding = _checks.one_of(
            "padding", padding, ("same", "symmetric", "zeros")
        )

    def build(self, input_shape):
        self.compute_output_shape(input_shape)

    def call(self, inputs):
        zeros = self.padding == "zeros"
        inputs, padding = _padding.pad(
            inputs,
            self.pool_size,
            self.strides,
            "symmetric" if zeros else self.padding,
            0.0 if zeros else -float("inf"),
        )
        return _padding.channels_last(
            ops.max_pool,
            inputs,
            self.pool_size,
            self.strides,
            padding=padding,
        )

    def compute_output_shape(self, input_shape):
        shape = _padding.output_shape(
            "MaxPool2D", input_shape, self.pool_size, self.strides
        )
        return (*shape, input_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "pool_size": self.pool_size,
            "strides": self.strides,
            "padding": self.padding,
        }
