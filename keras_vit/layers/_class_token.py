import keras
from keras import ops

from keras_vit import _checks


@keras.saving.register_keras_serializable("keras_vit")
class ClassToken(keras.Layer):
    """Puts learned tokens into a sequence: class, distillation or registers.

    The class token is one token at the front, zero at first, whose output the
    head reads ("An Image is Worth 16x16 Words", Section 3.1,
    https://arxiv.org/abs/2010.11929). Registers are several tokens behind it
    that nothing reads ("Vision Transformers Need Registers",
    https://arxiv.org/abs/2309.16588): `ClassToken(4, index=1)`.

    Args:
        num_tokens: Integer. How many tokens to put in.
        index: Integer. How many of the sequence's tokens stay before them.
        initializer: Keras initializer of the tokens.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.

    Output shape:
        `(batch, length + num_tokens, hidden_size)`

    Example:

    >>> keras_vit.layers.ClassToken()(np.zeros((1, 196, 768))).shape
    (1, 197, 768)
    """

    def __init__(self, num_tokens=1, index=0, initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.num_tokens = _checks.positive_int("num_tokens", num_tokens)
        self.index = _checks.natural_int("index", index)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        self.tokens = self.add_weight(
            shape=(1, self.num_tokens, input_shape[-1]),
            initializer=self.initializer,
            name="tokens",
        )

    def call(self, inputs):
        # The cast keeps the sequence in the precision it came in: under
        # mixed precision the variable and the inputs can differ.
        tokens = ops.broadcast_to(
            ops.cast(self.tokens, inputs.dtype),
            (ops.shape(inputs)[0], *self.tokens.shape[1:]),
        )
        parts = [inputs[:, : self.index], tokens, inputs[:, self.index :]]
        return ops.concatenate(parts if self.index else parts[1:], axis=1)

    def compute_output_shape(self, input_shape):
        _checks.rank("ClassToken", input_shape, 3, "(batch, length, channels)")
        batch, length, hidden_size = input_shape
        if length is not None and length < self.index:
            raise ValueError(
                f"ClassToken(index={self.index}) needs at least {self.index} "
                f"tokens before it. Received: shape {tuple(input_shape)}"
            )
        longer = None if length is None else length + self.num_tokens
        return (batch, longer, hidden_size)

    def get_config(self):
        return {
            **super().get_config(),
            "num_tokens": self.num_tokens,
            "index": self.index,
            "initializer": keras.initializers.serialize(self.initializer),
        }
