"""The text towers of CLIP and SigLIP, built from the blocks of a Vision Transformer."""

from typing import Any

import keras
from keras import ops

from keras_vit.config import TextConfig
from keras_vit.layers import LayerNormalization, TransformerBlock, initializers
from keras_vit.layers.composite import Layer
from keras_vit.models import Model
from keras_vit.models.model import unique_name
from keras_vit.utils.types import Shape, Tensor


def TextEncoder(config: TextConfig, name: str | None = None) -> Model:
    """Builds a text tower as a functional Keras model.

    From "Learning Transferable Visual Models From Natural Language Supervision",
    Section 2.4 (https://arxiv.org/abs/2103.00020), and "Sigmoid Loss for Language
    Image Pre-Training" (https://arxiv.org/abs/2303.15343).

    Args:
        config: A `keras_vit.config.TextConfig`.
        name: String. Name of the model. None for "text_encoder", with a number from its
            second use on.

    Returns:
        A `keras.Model` that maps token ids `(batch, length)`, with a length of up to
        `config.context_length`, to embeddings `(batch, projection_size)`.

    Example:

    >>> config = keras_vit.config.TextConfig(num_layers=2)
    >>> keras_vit.text.TextEncoder(config)(np.array([[49406, 320, 49407]])).shape
    (1, 512)
    """
    c = config
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(
        c.vocabulary_size,
        c.hidden_size,
        embeddings_initializer=initializers.Normal(0.02),
        name="token_embedding",
    )(ids)  # (B, T, D)
    x = TokenPositions(c.context_length, name="position_embedding")(x)
    mask = CausalMask(name="causal_mask")(x) if c.causal else None
    for i in range(c.num_layers):
        x = TransformerBlock(**c.block_arguments(i), name=f"block_{i}")(x, mask=mask)
    x = LayerNormalization(epsilon=c.norm_epsilon, name="encoder_norm")(x)
    x = TokenPooling(c.pooling, c.end_id, name="pooling")(x, ids)  # (B, D)
    if c.projection_size is not None:
        x = keras.layers.Dense(
            c.projection_size,
            use_bias=c.projection_bias,
            kernel_initializer=initializers.Normal(c.hidden_size**-0.5),
            name="head",
        )(x)
    model = Model(ids, x, name=name or unique_name("text_encoder"))
    model.config = c
    return model


@keras.saving.register_keras_serializable("keras_vit")
class TokenPositions(Layer):
    """Adds learned embeddings of the positions 0, 1, ... to tokens.

    Args:
        context_length: Integer. Maximum number of tokens in a text.

    Call arguments:
        inputs: Tensor of shape `(batch, length, hidden_size)`.

    Output shape:
        That of `inputs`.
    """

    def __init__(self, context_length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.context_length = context_length

    def build(self, input_shape: Shape) -> None:
        self.embedding = self.add_weight(
            shape=(1, self.context_length, input_shape[-1]),
            initializer=initializers.Normal(0.01),
            name="embedding",
        )

    def call(self, inputs: Tensor) -> Tensor:
        length = inputs.shape[1]
        if length is not None and length > self.context_length:
            raise ValueError(
                f"A text has at most {self.context_length} tokens. Received: ids of "
                f"shape {tuple(inputs.shape[:2])}. Cut them, as "
                "`keras_vit.text.Tokenizer` does."
            )
        return inputs + self.embedding[:, : ops.shape(inputs)[1]]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable("keras_vit")
class CausalMask(Layer):
    """Returns a boolean mask `(1, length, length)` for tokens `(batch, length,
    hidden_size)`, with which a token attends to itself and those before it."""

    def call(self, inputs: Tensor) -> Tensor:
        positions = ops.arange(ops.shape(inputs)[1])
        return (positions[:, None] >= positions[None])[None]

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        length = inputs.shape[1]
        return keras.KerasTensor((1, length, length), "bool")


@keras.saving.register_keras_serializable("keras_vit")
class TokenPooling(Layer):
    """Returns one token of each text.

    Args:
        kind: String. The `pooling` of `TextConfig`.
        end_id: Integer. Its `end_id`.

    Call arguments:
        inputs: Tensor of shape `(batch, length, hidden_size)`.
        ids: Integers of shape `(batch, length)`.

    Output shape:
        `(batch, hidden_size)`
    """

    def __init__(self, kind: str, end_id: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.end_id = end_id

    def call(self, inputs: Tensor, ids: Tensor) -> Tensor:
        if self.kind == "last":
            return inputs[:, -1]
        if self.kind == "first_end":
            ids = ops.cast(ops.equal(ids, self.end_id), "int32")
        place = ops.argmax(ids, axis=1)  # the first of several
        length = ops.shape(inputs)[1]
        chosen = ops.arange(length, dtype=place.dtype)[None] == place[:, None]
        return ops.sum(inputs * ops.cast(chosen, inputs.dtype)[..., None], axis=1)

    def compute_output_shape(self, inputs_shape: Shape, ids_shape: Shape) -> Shape:
        return (inputs_shape[0], inputs_shape[2])
