import keras
from keras import ops

from keras_vit import _checks


@keras.saving.register_keras_serializable("keras_vit")
class MaskToken(keras.Layer):
    """Puts one learned vector in place of masked patches.

    From "BEiT: BERT Pre-Training of Image Transformers", Section 2.3
    (https://arxiv.org/abs/2106.08254). DINOv2's checkpoints hold one too.
    Without a mask nothing is replaced, and the token does not learn.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.
        masked: Tensor of shape `(batch, length)`, 1 or True where the vector
            replaces a token; None replaces none.

    Output shape:
        That of `inputs`.
    """

    def build(self, inputs_shape, masked_shape=None):
        _checks.rank("MaskToken", inputs_shape, 3, "(batch, length, channels)")
        self.tokens = self.add_weight(
            shape=(1, 1, inputs_shape[-1]), initializer="zeros", name="tokens"
        )

    def call(self, inputs, masked=None):
        if masked is None:
            return inputs
        masked = ops.cast(masked, inputs.dtype)[..., None]
        tokens = ops.cast(self.tokens, inputs.dtype)
        return inputs * (1 - masked) + tokens * masked

    def compute_output_shape(self, inputs_shape, masked_shape=None):
        return inputs_shape
