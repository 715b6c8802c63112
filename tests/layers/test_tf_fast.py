"""TensorFlow's fast forms against the plain path: values and gradients."""

import concurrent.futures
import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from keras_vit.layers import _fast
from keras_vit.layers import _tf_fast
from tests.harness import numpy

pytestmark = pytest.mark.backends("tensorflow")
tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(0)
JIT = pytest.mark.parametrize("jit", [False, True])


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def outcome(function, arrays, jit, free=()):
    """What a function gives of arrays, and its gradients in them, in a graph
    that does not know the axes `free` of the first."""
    specs = [tf.TensorSpec(a.shape) for a in arrays]
    shape = [None if i in free else n for i, n in enumerate(arrays[0].shape)]
    specs[0] = tf.TensorSpec(shape)

    @tf.function(jit_compile=jit, input_signature=specs)
    def both(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            y = function(*arrays)
            pattern = tf.cos(tf.range(tf.size(y), dtype="float32"))
            total = tf.reduce_sum(tf.reshape(y, (-1,)) * pattern)
        return [y, *tape.gradient(total, arrays)]

    return [numpy(x) for x in both(*arrays)]


def assert_close(found, expected, tolerance=3e-6):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())


@JIT
@pytest.mark.parametrize("length", [7, 5])
@pytest.mark.parametrize("biased", [False, True])
def test_attention(length, biased, jit):
    arrays = [normal(2, 7, 3, 4), *normal(2, 2, length, 3, 4)]
    if biased:
        arrays.append(normal(2, 3, 7, length))

    def plain(query, key, value, bias=None):
        return ops.dot_product_attention(query, key, value, bias=bias)

    expected = outcome(plain, arrays, jit)
    assert_close(outcome(_tf_fast.attend, arrays, jit), expected)
    if not biased:
        in_parts = functools.partial(_tf_fast.attend_in_parts, size=3)
        assert_close(outcome(in_parts, arrays, jit), expected)


@JIT
@pytest.mark.parametrize("free", [(), (0,), (0, 1)])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_layer_norm(mean, free, jit):
    layer = _fast.layer_norm(epsilon=1e-3)
    x = normal(3, 5, 16) * 2 + mean
    layer.build(x.shape)
    layer.gamma.assign(normal(16))
    layer.beta.assign(normal(16))
    found = outcome(layer, [x], jit, free)
    plain_call = keras.layers.LayerNormalization.call
    exact = plain_call(layer, x.astype("float64"))
    # XLA takes the square of the mean from the mean of squares, as Flax does.
    tolerance = 8e-6 * (1 + mean) + 3e-7 * jit * mean**2
    np.testing.assert_allclose(found[0], numpy(exact), atol=tolerance)
    plain = outcome(lambda x: plain_call(layer, x), [x], jit, free)
    assert_close(found, plain, 2 * tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_precisions_take_the_plain_path(dtype):
    layer = _fast.layer_norm(epsilon=1e-3, dtype=dtype)
    x = ops.cast(normal(3, 5, 16), dtype)
    found = layer(x)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    expected = keras.layers.LayerNormalization.call(layer, x)
    np.testing.assert_array_equal(
        numpy(ops.cast(found, "float64")), numpy(ops.cast(expected, "float64"))
    )
    assert not _tf_fast.fits(x)


def test_plain_operations_are_for_one_thread_alone():
    """While one thread exports, what others trace does not change."""

    def operations():
        graph = (
            tf.function(lambda x: _fast.attend(x, x, x))
            .get_concrete_function(tf.TensorSpec((1, 4, 2, 8)))
            .graph
        )
        return sorted(node.type for node in graph.get_operations())

    before = operations()
    with concurrent.futures.ThreadPoolExecutor() as pool, _fast.plain():
        assert operations() != before
        assert pool.submit(operations).result() == before
    assert operations() == before


DENSE = {
    "Dense": (lambda: keras.layers.Dense(20), 1, (12,)),
    "into heads": (
        lambda: keras.layers.EinsumDense(
            "BTD,DHd->BTHd", (None, 3, 4), bias_axes="Hd"
        ),
        1,
        (12,),
    ),
    "out of heads": (
        lambda: keras.layers.EinsumDense(
            "BTHd,HdD->BTD", (None, 12), bias_axes="D"
        ),
        2,
        (3, 4),
    ),
}


def fast_of(layer, axes):
    """Returns the package's version of a dense layer of Keras."""
    kinds = {
        keras.layers.Dense: _fast.Dense,
        keras.layers.EinsumDense: _fast.EinsumDense,
    }
    fast = kinds[type(layer)].from_config(layer.get_config())
    fast.num_summed_axes = axes
    return fast


@JIT
@pytest.mark.parametrize("free", [(), (0,), (0, 1)])
@pytest.mark.parametrize("case", DENSE)
def test_dense(case, free, jit):
    make, axes, channels = DENSE[case]
    tokens = normal(2, 7, *channels)
    layer = fast_of(make(), axes)
    layer.build(tokens.shape)
    layer.kernel.assign(RNG.normal(size=layer.kernel.shape))
    layer.bias.assign(RNG.normal(size=layer.bias.shape))
    found = outcome(layer, [tokens], jit, free)
    plain = outcome(layer.reference_call, [tokens], jit, free)
    assert_close(found, plain)


def test_dense_layers_remain_keras_own():
    layer = layers.MlpBlock(16)
    tokens = normal(2, 3, 8)
    before = numpy(layer(tokens))
    layer.dense_1.enable_lora(2)
    shape = layer.dense_1.lora_kernel_b.shape
    layer.dense_1.lora_kernel_b.assign(RNG.normal(size=shape))
    assert np.abs(numpy(layer(tokens)) - before).max() > 1e-3
    layer = layers.MlpBlock(16)
    layer(tokens)
    layer.dense_1.quantize("int8")
    assert layer(tokens).shape == tokens.shape


@JIT
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(approximate, training, jit):
    x = np.linspace(-12, 12, 97, dtype="float32")
    found = outcome(lambda x: _tf_fast.gelu(x, approximate, training), [x], jit)
    plain = outcome(lambda x: ops.gelu(x, approximate=approximate), [x], jit)
    assert_close(found, plain)
