"""The encoder block and `LayerScale`."""

from collections.abc import Callable
from typing import Any

import keras

from keras_vit.layers import _kernels
from keras_vit.layers._utils import cast_inputs
from keras_vit.layers.attention import MultiHeadAttention, additive_mask, check_mask
from keras_vit.layers.composite import CompositeLayer, Layer
from keras_vit.layers.mlp import MlpBlock
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(Layer):
    """Multiplies each channel by a learned factor.

    With factors near zero on every residual branch, a deep network is close to
    the identity at the start of training. From "Going deeper with Image
    Transformers", Section 2 (https://arxiv.org/abs/2103.17239).

    Args:
        initial_value: Float above 0. Initial value of all factors. The paper
            uses 0.1 up to 18 layers, 1e-5 up to 24, and 1e-6 beyond.

    Call arguments:
        inputs: Tensor of shape `(..., channels)`.

    Output shape:
        That of `inputs`.
    """

    def __init__(self, initial_value: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial_value = checks.positive_float("initial_value", initial_value)

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.add_weight(
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
            name="gamma",
        )

    def call(self, inputs: Tensor) -> Tensor:
        return cast_inputs(self, inputs) * self.gamma

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(CompositeLayer):
    """Applies attention and an MLP, each with a pre-norm and a residual.

    From "An Image is Worth 16x16 Words", Section 3.1, Equations 2 and 3
    (https://arxiv.org/abs/2010.11929).

    Args:
        num_heads: Integer. Number of heads, which must divide the hidden size.
        mlp_dim: Integer. Width of the MLP's hidden layer.
        activation: String. Activation of the MLP: "gelu_tanh" (Google's
            weights), "gelu" (exact: PyTorch's weights), "quick_gelu",
            "swiglu", or the name of a Keras activation; see `MlpBlock`.
        norm_epsilon: Float above 0. Epsilon of the layer norms: 1e-6 in most
            published weights, 1e-12 in some of Hugging Face's.
        qkv_bias: Boolean. Whether the query, key and value projections have a
            bias.
        key_bias: Boolean. Whether the key projection has a bias, if
            `qkv_bias`.
        qk_norm: Boolean. Whether to normalize queries and keys.
        layer_scale: Float above 0. Initial value of the factors of
            `LayerScale`; None for no `LayerScale`.
        dropout: Float in [0, 1). Dropout rate after the attention and after
            both dense layers of the MLP.
        attention_dropout: Float in [0, 1). Dropout rate of the attention
            probabilities.
        drop_path: Float in [0, 1). Probability of dropping a residual branch,
            per image ("Deep Networks with Stochastic Depth",
            https://arxiv.org/abs/1603.09382).
        remat: Boolean. Whether training stores only the block's inputs and
            recomputes the rest for the gradients, which needs less memory and
            about a third more time (https://arxiv.org/abs/1604.06174).
        kernel_regularizer: Keras regularizer of the kernels of attention and
            MLP, or None.

    Call arguments:
        inputs: Tokens of shape `(batch, length, hidden_size)`.
        relative: Output of `RelativePositionEmbs` or `RotaryPositionEmbs`, or
            None.
        num_queries: Integer. Number of output tokens to compute: the first
            ones, which attend to all tokens of `inputs`. None for all. A model
            that pools only the class token needs no other output token of its
            last block.
        training: Boolean. Whether to apply dropout and stochastic depth.
        mask: Attention mask of shape `(batch, length, length)` or `(batch, num_heads,
            length, length)`; see `MultiHeadAttention`. None for no mask.

    Output shape:
        `(batch, length, hidden_size)`, or
        `(batch, num_queries, hidden_size)`.

    Raises:
        ValueError: if `num_heads` does not divide the hidden size, if `mask` has
            the wrong shape, or if the inputs carry a mask of an earlier layer,
            `(batch, length)`, which is not supported.

    To use another attention, norm or MLP, override `make_attention`,
    `make_norm` or `make_mlp` in a subclass; `VisionTransformer(block=...)`
    builds a model with it. A registered subclass is saved, loaded and cloned
    like the block itself:

    >>> @keras.saving.register_keras_serializable("my_package")
    ... class RMSNormBlock(keras_vit.layers.TransformerBlock):
    ...     def make_norm(self, name):
    ...         return keras.layers.RMSNormalization(
    ...             epsilon=self.norm_epsilon,
    ...             dtype=self.dtype_policy,
    ...             name=name,
    ...         )
    ...
    ...     def make_attention(self, name):
    ...         return keras.layers.GroupQueryAttention(
    ...             head_dim=64,
    ...             num_query_heads=self.num_heads,
    ...             num_key_value_heads=self.num_heads // 2,
    ...             dtype=self.dtype_policy,
    ...             name=name,
    ...         )
    >>> x = RMSNormBlock(num_heads=6, mlp_dim=1536)(np.ones((1, 197, 384)))
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        layer_scale: float | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        remat: bool = False,
        kernel_regularizer: Any = None,
        key_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.mlp_dim = checks.positive_int("mlp_dim", mlp_dim)
        self.activation = activation
        self.norm_epsilon = checks.positive_float("norm_epsilon", norm_epsilon)
        self.qkv_bias = qkv_bias
        self.key_bias = key_bias
        self.qk_norm = qk_norm
        if layer_scale is not None:
            checks.positive_float("layer_scale", layer_scale)
        self.layer_scale = layer_scale
        self.dropout = checks.rate("dropout", dropout)
        self.attention_dropout = checks.rate("attention_dropout", attention_dropout)
        self.drop_path = checks.rate("drop_path", drop_path)
        self.remat = remat
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

        dtype = self.dtype_policy
        self.norm_1 = self.make_norm("norm_1")
        self.attention = self.make_attention("attention")
        self._dropout = keras.layers.Dropout(self.dropout, dtype=dtype, name="dropout")
        self.norm_2 = self.make_norm("norm_2")
        self.mlp = self.make_mlp("mlp")
        self.scale_1 = self.scale_2 = None
        if layer_scale is not None:
            self.scale_1 = LayerScale(layer_scale, dtype=dtype, name="scale_1")
            self.scale_2 = LayerScale(layer_scale, dtype=dtype, name="scale_2")
        # Keras's dropout is drop path with this shape of its noise: one random
        # number per image, broadcast over tokens and channels.
        self._path_1, self._path_2 = (
            keras.layers.Dropout(
                self.drop_path,
                noise_shape=(None, 1, 1),
                dtype=dtype,
                name=name,
            )
            for name in ("path_1", "path_2")
        )

    def make_norm(self, name: str) -> keras.Layer:
        """Returns the norm before the attention or the MLP.

        Args:
            name: String. Name of the layer: "norm_1" or "norm_2".

        Returns:
            A layer that maps tokens `(batch, length, hidden_size)` to the
            same shape.
        """
        return _kernels.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def make_attention(self, name: str) -> keras.Layer:
        """Returns the attention layer.

        Args:
            name: String. Name of the layer: "attention".

        Returns:
            A layer that takes query tokens and key and value tokens, both
            `(batch, length, hidden_size)`, and returns a tensor of the shape
            of the query tokens. Its `build` takes both shapes. If the block is
            called with `relative`, `call` must take the keyword `relative`
            and `build` the keyword `relative_shape`. If it is called with
            `mask`, `call` must take the keyword `mask`.
        """
        return MultiHeadAttention(
            self.num_heads,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            dropout=self.attention_dropout,
            norm_epsilon=self.norm_epsilon,
            kernel_regularizer=self.kernel_regularizer,
            key_bias=self.key_bias,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_mlp(self, name: str) -> keras.Layer:
        """Returns the MLP.

        Args:
            name: String. Name of the layer: "mlp".

        Returns:
            A layer that maps tokens `(batch, length, hidden_size)` to the
            same shape.
        """
        return MlpBlock(
            self.mlp_dim,
            activation=self.activation,
            dropout=self.dropout,
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, inputs_shape: Shape, relative_shape: Shape | None = None) -> None:
        checks.check_rank(self, inputs_shape, "(batch, length, channels)")
        relative = {}
        if relative_shape is not None:
            relative["relative_shape"] = relative_shape
        self.norm_1.build(inputs_shape)
        self.attention.build(inputs_shape, inputs_shape, **relative)
        self.norm_2.build(inputs_shape)
        self.mlp.build(inputs_shape)
        for scale in (self.scale_1, self.scale_2):
            if scale is not None:
                scale.build(inputs_shape)
        self.restore_sublayers()

    def call(
        self,
        inputs: Tensor,
        relative: Tensor | None = None,
        num_queries: int | None = None,
        training: bool = False,
        mask: Tensor | None = None,
    ) -> Tensor:
        inputs = cast_inputs(self, inputs)
        check_mask(self, mask)
        if mask is not None and self.remat:
            # TensorFlow has no gradient of a function of booleans.
            mask = additive_mask(mask, inputs)
        tensors = {"inputs": inputs, "relative": relative, "mask": mask}
        tensors = {k: x for k, x in tensors.items() if x is not None}
        if self.remat and training:

            def function(*values: Tensor) -> Tensor:
                named = dict(zip(tensors, values, strict=True))
                return self._call(**named, training=True, num_queries=num_queries)

            return _rematerialized(self, function, *tensors.values())
        return self._call(**tensors, training=training, num_queries=num_queries)

    def _call(
        self,
        inputs: Tensor,
        relative: Tensor | None = None,
        mask: Tensor | None = None,
        training: bool = False,
        num_queries: int | None = None,
    ) -> Tensor:
        x = self.norm_1(inputs)
        options = {"training": training}
        if mask is not None:
            options["mask"] = mask
        if relative is not None:
            options["relative"] = relative
        if relative is not None and len(relative.shape) == 3:
            # The embeddings belong to the last tokens, the patches, so the
            # attention must get all tokens as queries.
            x = self.attention(x, x, **options)
            x = x if num_queries is None else x[:, :num_queries]
        elif num_queries is not None:
            if mask is not None and mask.shape[-2] != 1:
                options["mask"] = mask[..., :num_queries, :]
            x = self.attention(x[:, :num_queries], x, **options)
        else:
            x = self.attention(x, x, **options)
        if num_queries is not None:
            inputs = inputs[:, :num_queries]
        return self.after_attention(inputs, x, training)

    def after_attention(
        self, inputs: Tensor, x: Tensor, training: bool = False
    ) -> Tensor:
        """Computes the block's output from its inputs and the output `x` of
        its attention for them."""
        if self.dropout > 0:
            x = self._dropout(x, training=training)
        if self.scale_1 is not None:
            x = self.scale_1(x)
        if self.drop_path > 0:
            x = self._path_1(x, training=training)
        x = inputs + x
        y = self.mlp(self.norm_2(x), training=training)
        if self.scale_2 is not None:
            y = self.scale_2(y)
        if self.drop_path > 0:
            y = self._path_2(y, training=training)
        return x + y

    def compute_output_shape(
        self,
        inputs_shape: Shape,
        relative_shape: Shape | None = None,
        num_queries: int | None = None,
    ) -> Shape:
        batch, length, channels = inputs_shape
        return (batch, num_queries or length, channels)

    def compute_output_spec(
        self,
        inputs: Tensor,
        relative: Tensor | None = None,
        num_queries: int | None = None,
        training: bool = False,
        mask: Tensor | None = None,
    ) -> keras.KerasTensor:
        # Keras would pass the shapes of tensors to `compute_output_shape`, but
        # not `num_queries`.
        shape = self.compute_output_shape(inputs.shape, num_queries=num_queries)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> None:
        # When a model is built, Keras calls this method instead of `call`.
        check_mask(self, previous_mask)


def _rematerialized(
    layer: keras.Layer, function: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """Calls a function of tensors and recomputes its intermediate values for
    gradients.

    `keras.remat` alone would sample other random numbers in the recomputation
    (TensorFlow, PyTorch), or leave a traced state behind (JAX). Therefore the
    state of the layer's random generators is an argument and a result of the
    rematerialized function.
    """
    count = len(inputs)
    weight_ids = {id(weight) for weight in layer.weights}
    states = [v for v in layer.variables if id(v) not in weight_ids]
    traced_weights = []
    if keras.config.backend() == "jax":
        # A stateless scope does not see the values of an enclosing scope.
        traced_weights = [(weight, weight.value) for weight in layer.weights]

    def stateless_function(*values: Tensor) -> tuple[Tensor, ...]:
        inputs, states_in = values[:count], values[count:]
        mapping = [*traced_weights, *zip(states, states_in, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            outputs = function(*inputs)
            states_out = [scope.get_current_value(state) for state in states]
        return outputs, *states_out

    # Copies, because the variables are assigned to below.
    states_in = [state.value * 1 for state in states]
    outputs, *states_out = keras.remat(stateless_function)(*inputs, *states_in)
    for state, value in zip(states, states_out, strict=True):
        state.assign(value)
    return outputs
