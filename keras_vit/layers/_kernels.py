"""Backend-specific kernels that are faster than `keras.ops`, mostly on a CPU.

`_KERNELS` lists them. `keras.ops` is the reference implementation, which is
used where there is no kernel or the kernel does not support a tensor; tests
compare the two. TensorFlow has one kernel, which saves memory. Those of earlier
versions imitated patterns of its graph optimizer and saved 11 % of a training
step and 4 % of an inference (ViT-S/16, batch of 8, two idle cores, best of 4
and 6: 1.30 s instead of 1.46, 0.405 instead of 0.423).
"""

import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_vit.layers._utils import cast_inputs
from keras_vit.utils.types import Tensor

# On JAX, with this many tokens or more, attention runs one image at a time, so
# that its scores fit in the cache.
PER_IMAGE_MIN_TOKENS = 256
# On JAX and TensorFlow, with more queries than this, attention runs in chunks,
# so that memory is linear in their number.
CHUNKED_MIN_QUERIES = 1024
QUERY_CHUNK = 256


def dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Computes scaled dot-product attention of tensors `(batch, length,
    num_heads, head_size)`; `bias`, of `(batch, num_heads, length,
    context_length)`, is added to the scaled scores."""
    kernel = _kernel("attention", query) or ops.dot_product_attention
    return kernel(query, key, value, bias=bias)


def gelu(x: Tensor, approximate: bool) -> Tensor:
    """Computes GELU, exactly or with the tanh approximation."""
    kernel = _kernel("gelu", x) or ops.gelu
    return kernel(x, approximate=approximate)


@keras.saving.register_keras_serializable("keras_vit")
class LayerNormalization(keras.layers.LayerNormalization):
    """Normalizes tokens, as `keras.layers.LayerNormalization` does.

    A norm over the last axis with scale and offset is computed by the backend's
    fastest kernel. With PyTorch the normalized shape is static, without which
    `model.export(format="onnx")` fails. The class has the same name as Keras's,
    since `.weights.h5` files contain the class names of a model's layers.

    Args:
        **kwargs: Arguments of `keras.layers.LayerNormalization`.

    Call arguments:
        inputs: Tensor of shape `(..., channels)`.

    Output shape:
        That of `inputs`.

    Example:

    >>> keras_vit.layers.LayerNormalization(epsilon=1e-6)(tokens)
    """

    def call(self, inputs: Tensor) -> Tensor:
        inputs = cast_inputs(self, inputs)
        kernel = _kernel("layer_norm", inputs)
        is_usual = (
            self.axis in ([-1], [len(inputs.shape) - 1])
            and self.gamma is not None
            and self.beta is not None
        )
        if kernel is None or not is_usual:
            return super().call(inputs)
        return kernel(inputs, self.gamma, self.beta, self.epsilon, self.compute_dtype)


class _Projection(keras.Layer):
    """Mixin that computes a dense layer without activation by a fast kernel.

    The layer sums over the last `num_summed_axes` axes of its inputs and the
    first ones of its weights. LoRA and quantization work as in Keras's layers.
    """

    num_summed_axes = 1

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        kernel = _kernel("dense", inputs)
        if kernel is None:
            return super().call(inputs)
        return kernel(
            inputs,
            ops.convert_to_tensor(self.kernel),
            None if self.bias is None else ops.convert_to_tensor(self.bias),
            self.num_summed_axes,
        )

    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: object = None,
    ) -> None:
        # With its type check, Keras refuses to quantize a subclass.
        return super().quantize(mode, type_check=False, config=config)


class Dense(_Projection, keras.layers.Dense):
    """A `keras.layers.Dense` without an activation."""


class EinsumDense(_Projection, keras.layers.EinsumDense):
    """A `keras.layers.EinsumDense` without an activation.

    Its equation must sum over the last axes of the inputs and the first axes of
    the kernel, in the same order.
    """

    @property
    def num_summed_axes(self) -> int:
        operands, output = self.equation.split("->")
        return sum(axis not in output for axis in operands.split(",")[1])


# JAX. The expressions that XLA compiles well for a CPU differ from those for
# accelerators.


def _is_jax_cpu(x: Tensor) -> bool:
    # In half precision, Keras's operations accumulate in float32 where needed.
    if x.dtype not in ("float32", "float64"):
        return False
    import jax

    return jax.default_backend() == "cpu"


def _jax_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> Tensor:
    import jax

    batch, length = query.shape[:2]  # not integers if unknown
    is_static = isinstance(batch, int) and isinstance(length, int)
    attention, tensors = jax_attention, (query, key, value)
    if bias is not None:
        tensors = (*tensors, bias)
    elif isinstance(length, int) and length > CHUNKED_MIN_QUERIES:
        attention = jax_chunked_attention
    # With several devices, a loop over the images would gather a batch that is
    # split over them.
    per_image = (
        is_static
        and batch > 1
        and length >= PER_IMAGE_MIN_TOKENS
        and jax.device_count() == 1
    )
    if per_image:
        return jax_attention_per_image(attention, *tensors)
    return attention(*tensors)


def jax_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Computes attention with the head axis before the tokens.

    The softmax is normalized after multiplying by the values. XLA copies less
    than for Keras's einsums: a block of ViT-S/16 takes 7.7 ms instead of
    13.3 ms; with gradients, 37 ms instead of 45 ms.
    """
    import jax

    # B batch, T S tokens, H heads, d head size
    query = query / math.sqrt(query.shape[-1])
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    scores = query @ key.swapaxes(2, 3)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    # Subtracting a constant does not change the result, so no gradient is
    # needed.
    # With `initial`, `max` needs no proof that a number of tokens that is
    # unknown, as in an export for any image size, is not 0.
    largest = scores.max(axis=-1, keepdims=True, initial=-math.inf)
    largest = jax.lax.stop_gradient(largest)
    weights = ops.exp(scores - largest)
    x = (weights @ value) / weights.sum(axis=-1, keepdims=True)
    return x.swapaxes(1, 2)


def jax_chunked_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Computes attention sequentially, for `QUERY_CHUNK` queries at a time.

    Scores are recomputed for the gradients.
    """
    import jax

    attention = jax.checkpoint(lambda chunk: jax_attention(chunk, key, value))
    batch, length, *heads = query.shape
    count = length // QUERY_CHUNK
    chunked_length = count * QUERY_CHUNK
    chunks = query[:, :chunked_length]
    chunks = chunks.reshape(batch, count, QUERY_CHUNK, *heads).swapaxes(0, 1)
    x = jax.lax.map(attention, chunks).swapaxes(0, 1)
    x = x.reshape(batch, chunked_length, *heads)
    if chunked_length < length:
        x = ops.concatenate([x, attention(query[:, chunked_length:])], axis=1)
    return x


def jax_attention_per_image(
    attention: Callable[..., Tensor], *tensors: Tensor
) -> Tensor:
    """Computes attention for one image at a time.

    The scores of an image stay in the cache; they are recomputed for the
    gradients. A batch of 8 with 577 tokens on 2 cores takes 32 ms instead of
    71 ms; with gradients, 92 ms instead of 196 ms.
    """
    import jax

    def attention_of_one(tensors: Sequence[Tensor]) -> Tensor:
        return attention(*(x[None] for x in tensors))[0]

    return jax.lax.map(jax.checkpoint(attention_of_one), tensors)


def _jax_dense(
    x: Tensor, kernel: Tensor, bias: Tensor | None, num_summed_axes: int
) -> Tensor:
    """Computes a dense layer as a product of two matrices.

    For the gradients of a product of tensors with more axes, XLA would copy
    weights and activations into another memory layout.
    """
    leading = x.shape[: x.ndim - num_summed_axes]
    trailing = kernel.shape[num_summed_axes:]
    size = math.prod(kernel.shape[:num_summed_axes])
    x = x.reshape(-1, size) @ kernel.reshape(size, -1)
    if bias is not None:
        x = x + bias.reshape(-1)
    return x.reshape(*leading, *trailing)


def _jax_gelu(x: Tensor, approximate: bool) -> Tensor:
    """Computes GELU, storing only its input for the gradient.

    Otherwise XLA writes an MLP's hidden layer, the largest tensor of a model,
    to memory three times.
    """
    import jax

    return jax.checkpoint(lambda x: ops.gelu(x, approximate=approximate))(x)


def _jax_layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, dtype: str
) -> Tensor:
    """Computes a layer norm with a fast gradient.

    XLA fuses the gradient of a variance computed as the mean of squares minus
    the squared mean, but not that of a mean of squared differences. The former
    is as exact if the mean is subtracted from the inputs first.
    """
    import jax

    x = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    # Subtracting a constant does not change the result, so no gradient is
    # needed.
    x = x - jax.lax.stop_gradient(x.mean(axis=-1, keepdims=True))
    x = jax.nn.standardize(x, epsilon=epsilon)
    x = x * ops.cast(gamma, x.dtype) + ops.cast(beta, x.dtype)
    return ops.cast(x, dtype)


# PyTorch. Inference of ViT-S/16 (batch of 8, one core) takes 7 to 13 % less
# time than with Keras's operations; attention and dense layers contribute about
# half each.


def _is_torch_float(x: Tensor) -> bool:
    # In half precision, Keras's operations compute in float32 where needed.
    return keras.backend.standardize_dtype(x.dtype) in ("float32", "float64")


def _is_torch_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and _is_torch_float(x)


def _is_torch_linear(x: Tensor) -> bool:
    return _is_torch_float(x) or (
        keras.backend.standardize_dtype(x.dtype) == "bfloat16"
    )


def _torch_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Computes attention without copying tensors to `(B, H, T, d)`, as Keras
    does."""
    import torch

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    x = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias
    )
    return x.transpose(1, 2)


def _torch_dense(
    x: Tensor, kernel: Tensor, bias: Tensor | None, num_summed_axes: int
) -> Tensor:
    """Computes the product and the bias of a dense layer in one operation.

    Two operations would allocate two tensors, and those of an MLP are the
    largest of a model.
    """
    import torch

    leading = x.shape[:-num_summed_axes]
    trailing = kernel.shape[num_summed_axes:]
    size = math.prod(kernel.shape[:num_summed_axes])
    x = torch.nn.functional.linear(
        x.reshape(*leading, size),
        kernel.reshape(size, -1).t(),
        None if bias is None else bias.reshape(-1),
    )
    return x.reshape(*leading, *trailing)


def _torch_layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, dtype: str
) -> Tensor:
    """Computes a layer norm whose normalized shape is static.

    Keras takes the shape from the inputs, where it consists of tensors while
    PyTorch traces for ONNX.
    """
    import torch

    shape = tuple(gamma.shape)
    # Keras casts neither the inputs of this layer nor its weights.
    gamma, beta = (ops.cast(weight, x.dtype) for weight in (gamma, beta))
    x = torch.nn.functional.layer_norm(x, shape, gamma, beta, epsilon)
    return ops.cast(x, dtype)


# TensorFlow. Unlike PyTorch, it has no fused attention, on any device.


def _has_many_queries(query: Tensor) -> bool:
    length = query.shape[1]  # None in a function of images of any size
    return length is not None and length > CHUNKED_MIN_QUERIES


def _tensorflow_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> Tensor:
    if bias is not None:  # as large as all scores
        return ops.dot_product_attention(query, key, value, bias=bias)
    return tensorflow_chunked_attention(query, key, value)


def tensorflow_chunked_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Computes attention sequentially, for `QUERY_CHUNK` queries at a time.

    Scores are recomputed for the gradients. As in Keras's operation, they are
    at least float32.
    """
    import tensorflow as tf

    # B batch, T S tokens, H heads, d head size
    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))
    heads, length, size = query.shape[1:]  # B may be unknown

    @tf.recompute_grad
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = tf.matmul(query, key, transpose_b=True)  # (B, H, T, S)
        dtype = keras.backend.result_type(scores.dtype, "float32")
        weights = ops.softmax(ops.cast(scores, dtype) / math.sqrt(size))
        return tf.matmul(ops.cast(weights, value.dtype), value)

    count = length // QUERY_CHUNK
    chunked_length = count * QUERY_CHUNK
    chunks = query[:, :, :chunked_length]
    chunks = ops.reshape(chunks, (-1, heads, count, QUERY_CHUNK, size))
    chunks = ops.moveaxis(chunks, 2, 0)

    def add_chunk(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        chunk = attention(chunks[i], key, value)
        return i + 1, tf.tensor_scatter_nd_update(x, [[i]], chunk[None])

    # `tf.map_fn` has operations that LiteRT lacks for unknown batch sizes.
    _, x = tf.while_loop(
        lambda i, x: i < count,
        add_chunk,
        (0, tf.zeros_like(chunks)),
        parallel_iterations=1,
        maximum_iterations=count,
    )
    x = ops.moveaxis(x, 0, 2)
    x = ops.reshape(x, (-1, heads, chunked_length, size))
    if chunked_length < length:
        rest = attention(query[:, :, chunked_length:], key, value)
        x = ops.concatenate([x, rest], axis=2)
    return ops.swapaxes(x, 1, 2)


# (backend, operation): (function: whether a tensor is supported, kernel)
_KERNELS = {
    ("jax", "attention"): (_is_jax_cpu, _jax_attention),
    ("jax", "dense"): (_is_jax_cpu, _jax_dense),
    ("jax", "gelu"): (_is_jax_cpu, _jax_gelu),
    ("jax", "layer_norm"): (lambda x: True, _jax_layer_norm),
    ("tensorflow", "attention"): (_has_many_queries, _tensorflow_attention),
    ("torch", "attention"): (_is_torch_cpu, _torch_attention),
    ("torch", "dense"): (_is_torch_linear, _torch_dense),
    ("torch", "layer_norm"): (_is_torch_float, _torch_layer_norm),
}


def _kernel(operation: str, x: Tensor) -> Callable[..., Tensor] | None:
    """Returns the kernel of an operation for a tensor, or None if there is
    none."""
    found = _KERNELS.get((keras.config.backend(), operation))
    if found is None:
        return None
    is_supported, kernel = found
    return kernel if is_supported(x) else None
