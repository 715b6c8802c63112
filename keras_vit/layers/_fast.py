"""Each backend's fastest forms, and the plain path where it has none.

What a backend has of its own is in `_jax_fast`, `_tf_fast` and `_torch_fast`.
Every form computes what the plain path does, which is the tests' oracle.
"""

import contextlib
import functools
import logging

import keras
from keras import ops

from keras_vit.layers import _drawing
from keras_vit.layers import _jax_fast
from keras_vit.layers import _tf_fast
from keras_vit.layers import _torch_fast
from keras_vit.layers import initializers

MANY = 256  # tokens, from which a batch's scores are too many for the cache
LONG = 1024  # queries, beyond which scores are the largest of all tensors
PART = 256  # of them at a time

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def plain():
    """Within it, TensorFlow computes with Keras's operations alone, which
    converters know. Other threads are not affected."""
    token = _tf_fast.is_plain.set(True)
    try:
        yield
    finally:
        _tf_fast.is_plain.reset(token)


def lent(array, own=False):
    """Returns an array as what Keras copies once into a variable; if it is
    nobody else's, not once where the backend can have it so."""
    backend = keras.config.backend()
    if backend == "torch":
        return _torch_fast.shared(array)
    # TensorFlow copies twice, but takes memory that starts as this does, and
    # JAX with it: only a copy is nobody else's.
    if backend == "jax" or (
        backend == "tensorflow" and array.dtype == "float32"
    ):
        if not (own and _drawing.is_aligned(array)):
            array = _drawing.copy(array)
        return _drawing.given(array)
    return array


@keras.saving.register_keras_serializable("keras_vit")
class LayerNormalization(keras.layers.LayerNormalization):
    """A `keras.layers.LayerNormalization` over the last axis, computed by the
    backend's fastest kernel.

    Under PyTorch its normalised shape is static, without which
    `model.export(format="onnx")` fails.

    It has the name of Keras's class, since `.weights.h5` files list the layers
    of a model by the names of their classes.
    """

    def call(self, inputs):
        kernels = _drawing.FORMS.get(keras.config.backend())
        if kernels is None:
            return super().call(inputs)
        return kernels.layer_norm(self, inputs)


def layer_norm(**arguments):
    """Returns a `LayerNormalization` whose initial values NumPy makes."""
    return LayerNormalization(
        gamma_initializer=initializers.Constant(1.0),
        beta_initializer=initializers.Constant(0.0),
        **arguments,
    )


def is_watched(layer):
    """Returns whether code outside the package may see the inputs and outputs
    of a layer or of a layer inside it: by a `call` that was replaced in the
    instance, or by hooks of PyTorch."""
    is_torch = keras.config.backend() == "torch"
    return any(
        "call" in vars(part) or (is_torch and _torch_fast.has_hooks(part))
        for part in (layer, *layer._flatten_layers(include_self=False))
    )


class _FusedBias:
    """Computes a dense layer by a kernel that adds the bias while it sums.

    The layer has no activation. It sums over the last `num_summed_axes` axes of
    its inputs. Quantised, it computes what Keras's layer does.
    """

    num_summed_axes = 1

    def call(self, inputs, training=None):
        kernels = _drawing.FORMS.get(keras.config.backend())
        if kernels is None:
            return self.reference_call(inputs)
        return kernels.dense(self, self.num_summed_axes, inputs)

    def reference_call(self, inputs):
        """Computes the layer with Keras's own operations."""
        return super().call(inputs)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras quantises a subclass only without the check of its type.
        return super().quantize(mode, type_check=False, config=config)


class Dense(_FusedBias, keras.layers.Dense):
    """A `keras.layers.Dense` that a kernel of the backend computes."""


class EinsumDense(_FusedBias, keras.layers.EinsumDense):
    """A `keras.layers.EinsumDense` that a kernel of the backend computes."""


def gelu(x, approximate, training=False):
    """Computes GELU, exact or by its tanh approximation."""
    if _tf_fast.fits(x):
        return _tf_fast.gelu(x, approximate, training)
    if _jax_fast.fits(x):
        return _jax_fast.gelu(x, approximate)
    return ops.gelu(x, approximate=approximate)


def attend(query, key, value, bias=None):
    """Attention of queries (B, T, H, d) to keys and values (B, S, H, d).

    `bias`, (B, H, T, S), is added to the scaled scores. Many queries are
    taken some at a time, so that memory grows by their number and not by its
    square; other kernels than those here do so of themselves.
    """
    # With PyTorch, Keras before 3.14 takes no bias.
    if _torch_fast.fits(query) or (bias is not None and _torch_fast.is_on()):
        return _torch_fast.attend(query, key, value, bias)
    for form in (_jax_fast, _tf_fast):
        if form.fits(query):
            return _attend(form, query, key, value, bias)
    return ops.dot_product_attention(query, key, value, bias=bias)


def _attend(form, query, key, value, bias):
    batch, length = query.shape[:2]  # no integers where sizes are free
    attend, tensors = form.attend, (query, key, value)
    kernel = "all queries"
    if bias is not None:
        tensors = (*tensors, bias)
    elif isinstance(length, int) and length > LONG:
        kernel = f"{PART} queries at a time"
        attend = functools.partial(form.attend_in_parts, size=PART)
    by_image = (
        form is _jax_fast
        and isinstance(batch, int)
        and isinstance(length, int)
        and batch > 1
        and length >= MANY
        # A loop over images that several devices share would gather them.
        and form.has_one_device()
    )
    # Not under PyTorch: `torch.compile` cannot trace a call of a logger.
    _logger.debug(
        "Attention kernel of %s for queries of shape %s: %s%s",
        form.__name__,
        tuple(query.shape),
        kernel,
        ", image by image" if by_image else "",
    )
    if by_image:
        return form.image_by_image(attend, *tensors)
    return attend(*tensors)


def rows(x):
    """Returns (..., D) as a matrix, where that is faster; see `rows_as`."""
    return _tf_fast.rows(x) if _tf_fast.fits(x) else x


def rows_as(x, inputs):
    """Returns what came of `rows(inputs)` in the shape of the inputs."""
    return _tf_fast.shaped(x, inputs) if _tf_fast.fits(inputs) else x
