import keras

from keras_vit import _checks


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(keras.Layer):
    """Multiplies each channel by a learned factor.

    On a residual branch and near zero at first, it lets a deep network start
    as the identity. From "Going deeper with Image Transformers", Section 2
    (https://arxiv.org/abs/2103.17239).

    Args:
        initial_value: Float. Where every factor starts. The paper takes 0.1
            up to 18 layers, 1e-5 up to 24, 1e-6 beyond.

    Call arguments:
        inputs: Tensor of shape `(..., channels)`.

    Output shape:
        That of `inputs`.
    """

    def __init__(self, initial_value=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = _checks.positive_float(
            "initial_value", initial_value
        )

    def build(self, input_shape):
        self.gamma = self.add_weight(
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
            name="gamma",
        )

    def call(self, inputs):
        return inputs * self.gamma

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial_value": self.initial_value}
