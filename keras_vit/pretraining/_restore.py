import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_vit")
class RestoreTokens(keras.Layer):
    """Puts kept tokens back in their places, and one vector in all others.

    From "Masked Autoencoders Are Scalable Vision Learners", Section 3
    (https://arxiv.org/abs/2111.06377).

    Args:
        num_prefix_tokens: Integer. Tokens at the front that stay there.

    Call arguments:
        inputs: Tokens `(batch, num_prefix_tokens + kept, hidden_size)`.
        places: Integers `(batch, num_patches)`: which of the kept tokens each
            patch takes; numbers beyond them take the vector.

    Output shape:
        `(batch, num_prefix_tokens + num_patches, hidden_size)`
    """

    def __init__(self, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, inputs_shape, places_shape=None):
        self.tokens = self.add_weight(
            shape=(1, 1, inputs_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="tokens",
        )

    def call(self, inputs, places):
        prefix = inputs[:, : self.num_prefix_tokens]
        kept = inputs[:, self.num_prefix_tokens :]
        batch, length = ops.shape(places)[0], places.shape[1]
        missing = ops.broadcast_to(
            ops.cast(self.tokens, inputs.dtype),
            (batch, length - kept.shape[1], kept.shape[2]),
        )
        patches = ops.take_along_axis(
            ops.concatenate([kept, missing], axis=1), places[..., None], axis=1
        )
        return ops.concatenate([prefix, patches], axis=1)

    def compute_output_shape(self, inputs_shape, places_shape):
        length = self.num_prefix_tokens + places_shape[1]
        return (inputs_shape[0], length, inputs_shape[2])

    def get_config(self):
        return {
            **super().get_config(),
            "num_prefix_tokens": self.num_prefix_tokens,
        }
