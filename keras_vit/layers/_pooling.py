import keras
from keras import ops

from keras_vit.layers import _checks


@keras.saving.register_keras_serializable("keras_vit")
class Pooling(keras.Layer):
    """Takes one vector an image from its tokens.

    Args:
        mode: "token" takes one token, "gap" the mean over the patches.
        index: Integer. Which token "token" takes.
        num_prefix_tokens: Integer. How many tokens before the patches "gap"
            leaves out.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.

    Output shape:
        `(batch, hidden_size)`
    """

    def __init__(self, mode="token", index=0, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.mode = _checks.one_of("mode", mode, ("token", "gap"))
        self.index = _checks.natural_int("index", index)
        self.num_prefix_tokens = _checks.natural_int(
            "num_prefix_tokens", num_prefix_tokens
        )

    def call(self, inputs):
        if self.mode == "token":
            return inputs[:, self.index]
        return ops.mean(inputs[:, self.num_prefix_tokens :], axis=1)

    def compute_output_shape(self, input_shape):
        _checks.rank("Pooling", input_shape, 3, "(batch, length, channels)")
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {
            **super().get_config(),
            "mode": self.mode,
            "index": self.index,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
