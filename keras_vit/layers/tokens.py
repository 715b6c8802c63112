"""Layers that add, replace and pool tokens."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers._utils import cast_inputs
from keras_vit.layers.composite import NumberedLayer
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class ClassToken(NumberedLayer):
    """Inserts learned tokens into a sequence: a class token or registers.

    The class token is one token at the front, initially zero, whose output is
    the input of the head ("An Image is Worth 16x16 Words", Section 3.1,
    https://arxiv.org/abs/2010.11929). Registers are several tokens after it
    whose outputs are discarded ("Vision Transformers Need Registers",
    https://arxiv.org/abs/2309.16588): `ClassToken(4, index=1)`.

    Args:
        num_tokens: Integer. Number of tokens to insert.
        index: Integer. Number of tokens before the inserted ones.
        initializer: Keras initializer of the tokens.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.

    Output shape:
        `(batch, length + num_tokens, hidden_size)`

    Raises:
        ValueError: if `inputs` has fewer than `index` tokens.

    Example:

    >>> keras_vit.layers.ClassToken()(np.zeros((1, 196, 768))).shape
    (1, 197, 768)
    """

    def __init__(
        self,
        num_tokens: int = 1,
        index: int = 0,
        initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_tokens = checks.positive_int("num_tokens", num_tokens)
        self.index = checks.non_negative_int("index", index)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)
        self.tokens = self.add_weight(
            shape=(1, self.num_tokens, input_shape[-1]),
            initializer=self.initializer,
            name="tokens",
        )

    def call(self, inputs: Tensor) -> Tensor:
        inputs = cast_inputs(self, inputs)
        tokens = ops.broadcast_to(
            ops.cast(self.tokens, inputs.dtype),
            (ops.shape(inputs)[0], *self.tokens.shape[1:]),
        )
        parts = [inputs[:, : self.index], tokens, inputs[:, self.index :]]
        return ops.concatenate(parts if self.index else parts[1:], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        checks.check_rank(self, input_shape, "(batch, length, channels)")
        batch, length, hidden_size = input_shape
        new_length = None if length is None else length + self.num_tokens
        return (batch, new_length, hidden_size)


@keras.saving.register_keras_serializable("keras_vit")
class MaskToken(NumberedLayer):
    """Replaces masked patches with one learned vector.

    From "BEiT: BERT Pre-Training of Image Transformers", Section 2.3
    (https://arxiv.org/abs/2106.08254). DINOv2's checkpoints contain such a vector, too.
    Without a mask, nothing is replaced, and the vector gets no gradient.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.
        masked: Tensor of shape `(batch, length)`, 1 or True where a token is
            to be replaced; None for no mask.

    Output shape:
        That of `inputs`.
    """

    def build(self, inputs_shape: Shape, masked_shape: Shape | None = None) -> None:
        checks.check_rank(self, inputs_shape, "(batch, length, channels)")
        self.tokens = self.add_weight(
            shape=(1, 1, inputs_shape[-1]), initializer="zeros", name="tokens"
        )

    def call(self, inputs: Tensor, masked: Tensor | None = None) -> Tensor:
        inputs = cast_inputs(self, inputs)
        if masked is None:
            return inputs
        replaced = ops.cast(masked, inputs.dtype)[..., None]
        tokens = ops.cast(self.tokens, inputs.dtype)
        return inputs * (1 - replaced) + tokens * replaced

    def compute_output_shape(
        self, inputs_shape: Shape, masked_shape: Shape | None = None
    ) -> Shape:
        return inputs_shape


@keras.saving.register_keras_serializable("keras_vit")
class Pooling(NumberedLayer):
    """Pools the tokens of an image into one vector.

    Args:
        mode: String. "token" (one token), "gap" (mean of the patches),
            "token_gap" (both, concatenated: DINOv2's classifier) or
            "first_patch" (the token of the top left patch: big_vision's
            `pool_type="0"`).
        index: Integer. Index of the token for "token" and "token_gap".
        num_prefix_tokens: Integer. Number of tokens before the patches.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.
        valid: Boolean tensor of shape `(batch, number of patches)`, False for
            patches that are padding, or None. They are not pooled.
        places: The places of these patches, which `MixedSizes` returns; "first_patch"
            uses them to find the top left patch. None if it is the first valid patch.

    Output shape:
        `(batch, hidden_size)`, or `(batch, 2 * hidden_size)` for "token_gap".

    Raises:
        ValueError: if `inputs` has too few tokens.
    """

    def __init__(
        self,
        mode: str = "token",
        index: int = 0,
        num_prefix_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = checks.one_of(
            "mode", mode, ("token", "gap", "token_gap", "first_patch")
        )
        self.index = checks.non_negative_int("index", index)
        self.num_prefix_tokens = checks.non_negative_int(
            "num_prefix_tokens", num_prefix_tokens
        )

    def build(self, inputs_shape: Shape, **others: Shape) -> None:
        self.compute_output_shape(inputs_shape)

    def call(
        self,
        inputs: Tensor,
        valid: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        inputs = cast_inputs(self, inputs)
        if self.mode == "token":
            return inputs[:, self.index]
        patches = inputs[:, self.num_prefix_tokens :]
        if self.mode == "first_patch":
            if valid is None:
                return patches[:, 0]
            if places is not None:
                is_corner = ops.all(places[..., :2] == 0, axis=-1)
                valid = ops.logical_and(valid, is_corner)
            first = ops.argmax(ops.cast(valid, "int32"), axis=1)
            return ops.take_along_axis(patches, first[:, None, None], 1)[:, 0]
        if valid is None:
            mean = ops.mean(patches, axis=1)
        else:
            # The sum is in float32, since one in float16 could overflow.
            dtype = keras.backend.result_type(inputs.dtype, "float32")
            valid = ops.cast(valid, dtype)[..., None]
            total = ops.sum(ops.cast(patches, dtype) * valid, axis=1)
            mean = total / ops.maximum(ops.sum(valid, axis=1), 1)
            mean = ops.cast(mean, inputs.dtype)
        if self.mode == "gap":
            return mean
        return ops.concatenate([inputs[:, self.index], mean], axis=-1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        checks.check_rank(self, input_shape, "(batch, length, channels)")
        batch, length, hidden_size = input_shape
        needed = self.index
        if self.mode in ("gap", "first_patch"):
            needed = self.num_prefix_tokens
        if length is not None and length <= needed:
            raise ValueError(
                f"Pooling({self.mode!r}) needs more than {needed} tokens. "
                f"Received: shape {tuple(input_shape)}"
            )
        width = 2 if self.mode == "token_gap" else 1
        return (batch, width * hidden_size)
