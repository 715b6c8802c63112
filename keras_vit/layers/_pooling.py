import keras
from keras import ops

from keras_vit import _checks

MODES = ("token", "gap", "token_gap", "first_patch")


@keras.saving.register_keras_serializable("keras_vit")
class Pooling(keras.Layer):
    """Takes one vector an image from its tokens.

    Args:
        mode: "token" takes one token, "gap" the mean over the patches,
            "token_gap" both, one behind the other (DINOv2's classifier),
            "first_patch" the token of the first patch, at the top left
            (big_vision's `pool_type="0"`).
        index: Integer. Which token "token" and "token_gap" take.
        num_prefix_tokens: Integer. How many tokens come before the patches.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.

    Output shape:
        `(batch, hidden_size)`, or twice as wide for "token_gap".
    """

    def __init__(self, mode="token", index=0, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.mode = _checks.one_of("mode", mode, MODES)
        self.index = _checks.natural_int("index", index)
        self.num_prefix_tokens = _checks.natural_int(
            "num_prefix_tokens", num_prefix_tokens
        )

    def build(self, input_shape):
        self.compute_output_shape(input_shape)

    def call(self, inputs):
        if self.mode == "first_patch":
            return inputs[:, self.num_prefix_tokens]
        token = inputs[:, self.index]
        if self.mode == "token":
            return token
        mean = ops.mean(inputs[:, self.num_prefix_tokens :], axis=1)
        if self.mode == "gap":
            return mean
        return ops.concatenate([token, mean], axis=-1)

    def compute_output_shape(self, input_shape):
        _checks.rank("Pooling", input_shape, 3, "(batch, length, channels)")
        batch, length, hidden_size = input_shape
        needed = self.index
        if self.mode in ("gap", "first_patch"):
            needed = self.num_prefix_tokens
        if length is not None and length <= needed:
            raise ValueError(
                f"Pooling({self.mode!r}) needs more than {needed} tokens. "
                f"Received: shape {tuple(input_shape)}"
            )
        both = self.mode == "token_gap"
        return (batch, 2 * hidden_size if both else hidden_size)

    def get_config(self):
        return {
            **super().get_config(),
            "mode": self.mode,
            "index": self.index,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
