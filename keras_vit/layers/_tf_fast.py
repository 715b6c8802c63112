"""What TensorFlow runs faster than what Keras calls, without XLA on a CPU.

Keras compiles nothing with XLA there. It takes and computes what the plain path
does, and the tests hold it to that. TensorFlow is imported only where it is the
backend.
"""

import contextvars
import functools
import math

import keras
from keras import ops

# See `_fast.plain`. Each thread has its own value.
is_plain = contextvars.ContextVar("is_plain", default=False)


def fits(x):
    """Whether an accelerator's own kernels are none of the question."""
    if (
        # First, since `torch.compile` cannot trace the `get` below.
        keras.config.backend() != "tensorflow"
        or is_plain.get()
        or keras.backend.standardize_dtype(x.dtype) != "float32"
    ):
        return False
    import tensorflow as tf

    devices = tf.config.list_physical_devices()
    return all(device.device_type == "CPU" for device in devices)


def shared(array):
    """A tensor in the memory of a NumPy array that starts at 64 bytes, where
    TensorFlow otherwise copies twice."""
    import tensorflow as tf

    # A strategy's variables are one a device: each has a copy.
    if not tf.executing_eagerly() or tf.distribute.has_strategy():
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def attend(query, key, value, bias=None):
    """Heads first, for products of plain matrices."""
    import tensorflow as tf

    # B batch, T S tokens, H heads, d head size
    query = query / math.sqrt(query.shape[-1])
    query, key, value = (
        tf.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)
    )
    scores = tf.matmul(query, key, transpose_b=True)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    x = tf.matmul(tf.nn.softmax(scores), value)
    return tf.transpose(x, (0, 2, 1, 3))


def attend_in_parts(query, key, value, size):
    """Attention with `size` queries at a time; gradients keep all scores."""
    starts = range(0, query.shape[1], size)
    parts = [attend(query[:, i : i + size], key, value) for i in starts]
    return ops.concatenate(parts, axis=1)


def layer_norm(layer, inputs):
    """A layer norm over the last axis, as a batch norm of a batch of channels.

    TensorFlow makes one kernel of this; its own mean and variance are many.
    """
    if not fits(inputs):
        return keras.layers.LayerNormalization.call(layer, inputs)
    import tensorflow as tf

    width = inputs.shape[-1]
    # Were their number known, the ones would be constants, and not fused. A
    # default that is a constant is one that tf2onnx knows.
    zero = tf.raw_ops.PlaceholderWithDefault(input=0, shape=())
    rows = tf.size(inputs) // width + zero
    none = tf.constant([], "float32")
    x = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(inputs, (1, -1, width, 1)),
        scale=tf.ones((rows,)),
        offset=tf.zeros((rows,)),
        mean=none,
        variance=none,
        epsilon=layer.epsilon,
        data_format="NCHW",
        is_training=True,
    ).y
    return shaped(x, inputs) * layer.gamma + layer.beta


def dense(layer, axes, x, training=None):
    """A product of two matrices and a bias, which TensorFlow makes one kernel,
    with a GELU that follows."""
    if layer.bias is None or not fits(x):
        return layer.reference_call(x)
    import tensorflow as tf

    kernel, bias = map(ops.convert_to_tensor, (layer.kernel, layer.bias))
    size = math.prod(kernel.shape[:axes])
    after = kernel.shape[axes:]
    product = tf.matmul(
        tf.reshape(x, (-1, size)), tf.reshape(kernel, (size, -1))
    )
    product = tf.nn.bias_add(product, tf.reshape(bias, (-1,)))
    return shaped(product, x, axes, after)


def gelu(x, approximate, training):
    """GELU, in the form that is fused with the product before it, or the one
    whose gradient takes the fewest passes over memory."""
    import tensorflow as tf

    if not training:
        # Its name must sort after that of the layer before: TensorFlow sorts
        # operands by name, and then knows the pattern in one order only.
        return tf.nn.gelu(x, approximate=approximate, name="gelu")

    @tf.custom_gradient
    def train(x):
        value, gradient = _compiled_gelu(approximate)
        return value(x), lambda dy: gradient(x, dy)

    return train(x)


@functools.cache
def _compiled_gelu(approximate):
    """Returns GELU and its gradient, each one pass over memory by XLA: the
    passes of their parts are a tenth of a training step."""
    import tensorflow as tf

    @tf.function(jit_compile=True, autograph=False)
    def value(x):
        return tf.nn.gelu(x, approximate=approximate)

    @tf.function(jit_compile=True, autograph=False)
    def gradient(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.gelu(x, approximate=approximate)
        return tape.gradient(y, x, dy)

    return value, gradient


def rows(x):
    """A matrix of the last axis: what is fused must all be matrices."""
    return ops.reshape(x, (-1, x.shape[-1]))


def shaped(x, like, axes=0, after=()):
    """Returns `x` in the shape of `like`, whose last axes become `after`."""
    import tensorflow as tf

    before = list(like.shape)[: like.shape.rank - axes]
    if x.shape.rank == 2 == len(before) + len(after):
        return x  # even a reshape that does nothing would part what is fused
    if before.count(None) > 1:
        sizes = tf.shape(like)[: len(before)]
        shaped = tf.reshape(x, tf.concat([sizes, after], 0))
        shaped.set_shape((*before, *after))
        return shaped
    return tf.reshape(x, [-1 if n is None else n for n in (*before, *after)])
