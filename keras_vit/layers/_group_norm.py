import keras
from keras import ops

from keras_vit import _checks


@keras.saving.register_keras_serializable("keras_vit")
class GroupNorm(keras.Layer):
    """Normalises groups of channels over rows, columns and the group.

    Computes what Keras's `GroupNormalization` does, with the same weights, in
    two steps: rows and columns are reduced channel by channel, and only the
    results are grouped, which is faster than to reshape the images. Each
    group's mean is subtracted before values are squared, so that the result
    is exact where the mean is large. Statistics are computed in float32 at
    least. Channels come last.

    From "Group Normalization" (https://arxiv.org/abs/1803.08494).

    Args:
        groups: Integer. It must divide the number of channels.
        epsilon: Float above 0. It has no default: 1e-6 in
            google-research/vision_transformer, 1e-5 in BiT and timm.
        gamma_initializer: Where the scales start.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        That of `inputs`.

    Raises:
        ValueError: if `groups` does not divide the channels.
    """

    def __init__(
        self, groups=32, *, epsilon, gamma_initializer="ones", **kwargs
    ):
        super().__init__(**kwargs)
        self.groups = _checks.positive_int("groups", groups)
        self.epsilon = _checks.positive_float("epsilon", epsilon)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        if channels is None or channels % self.groups:
            raise ValueError(
                f"GroupNorm needs a number of channels that its {self.groups} "
                f"groups divide. Received: shape {tuple(input_shape)}"
            )
        for name, initializer in (
            ("gamma", self.gamma_initializer),
            ("beta", "zeros"),
        ):
            weight = self.add_weight(
                shape=(channels,),
                initializer=initializer,
                autocast=False,
                name=name,
            )
            setattr(self, name, weight)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, inputs):
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.cast(inputs, dtype)
        # Where the mean is large, the mean of squares minus the squared mean
        # has no correct digits. The output does not change if a constant is
        # subtracted from a group, so this one needs no gradient.
        x = x - ops.stop_gradient(self._grouped(ops.mean(x, axis=(1, 2))))
        # What is left of the mean is a rounding error of the first.
        mean = self._grouped(ops.mean(x, axis=(1, 2)))
        square = self._grouped(ops.mean(ops.square(x), axis=(1, 2)))
        variance = ops.maximum(square - ops.square(mean), 0.0)
        scale = ops.rsqrt(variance + self.epsilon) * ops.cast(self.gamma, dtype)
        x = x * scale + (ops.cast(self.beta, dtype) - mean * scale)
        return ops.cast(x, inputs.dtype)

    def _grouped(self, means):
        """Averages channels' means (B, C) over groups, to (B, 1, 1, C)."""
        channels = means.shape[-1]
        size = channels // self.groups
        means = ops.reshape(means, (-1, self.groups, size))
        means = ops.mean(means, axis=2, keepdims=True)
        means = ops.repeat(means, size, axis=2)
        return ops.reshape(means, (-1, 1, 1, channels))

    def compute_output_shape(self, input_shape):
        _checks.rank(
            "GroupNorm", input_shape, 4, "(batch, height, width, channels)"
        )
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "groups": self.groups,
            "epsilon": self.epsilon,
            "gamma_initializer": keras.initializers.serialize(
                self.gamma_initializer
            ),
        }
