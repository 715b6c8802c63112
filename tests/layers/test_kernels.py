"""A backend's own kernels against Keras's operations: values and gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from keras_vit.layers import _kernels
from tests.harness import numpy

RNG = np.random.default_rng(0)
BACKEND = keras.config.backend()
HAVE_KERNELS = pytest.mark.backends("jax", "torch")
JAX = pytest.mark.backends("jax")
TENSORFLOW = pytest.mark.backends("tensorflow")


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def outcome(function, arrays, variables=()):
    """Returns a function's result, and its gradients with respect to arrays
    and to the values of variables."""
    values = [ops.convert_to_tensor(v.value) for v in variables]

    def scalar(arrays, values):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            y = ops.cast(function(*arrays), "float32")
        pattern = np.cos(np.arange(np.prod(y.shape))).reshape(y.shape)
        return ops.sum(y * ops.convert_to_tensor(pattern, "float32")), y

    arrays = [ops.convert_to_tensor(x) for x in arrays]
    if BACKEND == "jax":
        import jax

        (_, y), gradients = jax.value_and_grad(scalar, argnums=(0, 1), has_aux=True)(
            arrays, values
        )
        gradients = [*gradients[0], *gradients[1]]
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch([*arrays, *values])
            total, y = scalar(arrays, values)
        gradients = tape.gradient(total, [*arrays, *values])
    else:
        inputs = [x.detach().clone().requires_grad_() for x in arrays]
        values = [x.detach().clone().requires_grad_() for x in values]
        total, y = scalar(inputs, values)
        total.backward()
        gradients = [x.grad for x in (*inputs, *values)]
    return [numpy(ops.cast(ops.stop_gradient(x), "float32")) for x in (y, *gradients)]


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())


# Backend: functions, and functions that support no bias.
ATTENTION = {
    "jax": (
        [
            _kernels.jax_attention,
            lambda *tensors: _kernels.jax_attention_per_image(
                _kernels.jax_attention, *tensors
            ),
        ],
        [
            _kernels.jax_chunked_attention,
            lambda *tensors: _kernels.jax_attention_per_image(
                _kernels.jax_chunked_attention, *tensors
            ),
        ],
    ),
    "tensorflow": (
        [_kernels._tensorflow_attention],
        [_kernels.tensorflow_chunked_attention],
    ),
    "torch": ([_kernels._torch_attention], []),
}


def attention(query, key, value, bias=None):
    """The reference implementation."""
    return ops.dot_product_attention(query, key, value, bias=bias)


@pytest.mark.parametrize("length, biased", [(7, False), (5, True)])
def test_attention_kernels_match_keras(length, biased, monkeypatch):
    # 7 queries are two chunks of 3 and one query.
    monkeypatch.setattr(_kernels, "QUERY_CHUNK", 3)
    arrays = [normal(2, 7, 3, 4), *normal(2, 2, length, 3, 4)]
    if biased:
        arrays.append(normal(2, 3, 7, length))
    expected = outcome(attention, arrays)
    kernels, without_bias = ATTENTION[BACKEND]
    for kernel in kernels if biased else kernels + without_bias:
        assert_close(outcome(kernel, arrays), expected, 3e-6)
    assert_close(outcome(_kernels.dot_product_attention, arrays), expected, 3e-6)


# In half precision, the gradients of keys and values are sums over the chunks,
# each of which is rounded.
CHUNKED_TOLERANCES = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}


@TENSORFLOW
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize(
    "length, dtype",
    [
        *((7, dtype) for dtype in CHUNKED_TOLERANCES),
        (6, "float32"),
        pytest.param(6, "float16", marks=pytest.mark.nightly),
        pytest.param(6, "bfloat16", marks=pytest.mark.nightly),
    ],
)
def test_chunked_attention_matches_in_every_mode(length, mode, dtype, monkeypatch):
    """Compare values and gradients, in `tf.function` with an unknown batch
    size."""
    import tensorflow as tf

    monkeypatch.setattr(_kernels, "CHUNKED_MIN_QUERIES", 5)
    monkeypatch.setattr(_kernels, "QUERY_CHUNK", 3)
    tensors = [ops.cast(normal(2, length, 3, 4), dtype) for _ in range(3)]

    def outcome_of(function):
        def run(*tensors):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                y = function(*tensors)
                total = tf.reduce_sum(tf.cast(y, "float32") ** 2)
            return y, *tape.gradient(total, tensors)

        spec = tf.TensorSpec((None, length, 3, 4), dtype)
        if mode != "eager":
            run = tf.function(run, [spec] * 3, jit_compile=mode == "xla")
        results = run(*tensors)
        assert all(x.dtype == dtype for x in results)
        return [numpy(ops.cast(x, "float32")) for x in results]

    found = outcome_of(_kernels.dot_product_attention)
    assert_close(found, outcome_of(attention), CHUNKED_TOLERANCES[dtype])


@TENSORFLOW
def test_chunked_attention_limits_the_score_shapes(monkeypatch):
    monkeypatch.setattr(_kernels, "CHUNKED_MIN_QUERIES", 5)
    monkeypatch.setattr(_kernels, "QUERY_CHUNK", 3)
    softmax, shapes = ops.softmax, set()

    def recorded(scores):
        shapes.add(tuple(scores.shape))
        return softmax(scores)

    monkeypatch.setattr(ops, "softmax", recorded)
    _kernels.dot_product_attention(*[ops.ones((2, 61, 4, 8))] * 3)
    assert shapes == {(2, 4, 3, 61), (2, 4, 1, 61)}


DENSE = {
    "Dense": (keras.layers.Dense, _kernels.Dense, {"units": 20}, (12,)),
    "Dense without bias": (
        keras.layers.Dense,
        _kernels.Dense,
        {"units": 20, "use_bias": False},
        (12,),
    ),
    "into heads": (
        keras.layers.EinsumDense,
        _kernels.EinsumDense,
        {
            "equation": "BTD,DHd->BTHd",
            "output_shape": (None, 3, 4),
            "bias_axes": "Hd",
        },
        (12,),
    ),
    "out of heads": (
        keras.layers.EinsumDense,
        _kernels.EinsumDense,
        {
            "equation": "BTHd,HdD->BTD",
            "output_shape": (None, 12),
            "bias_axes": "D",
        },
        (3, 4),
    ),
}


@HAVE_KERNELS
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("case", DENSE)
def test_dense_kernels_match_keras(case, policy):
    reference, ours, arguments, channels = DENSE[case]
    tokens = normal(2, 7, *channels)
    reference = reference(**arguments, dtype=policy)
    layer = ours(**arguments, dtype=policy)
    reference(tokens), layer(tokens)
    for a, b in zip(reference.weights, layer.weights, strict=True):
        a.assign(normal(*a.shape))
        b.assign(a)
    tolerance = 3e-6 if policy == "float32" else 2e-2
    assert_close(
        outcome(layer, [tokens], layer.weights),
        outcome(reference, [tokens], reference.weights),
        tolerance,
    )


# A mean of 100 leaves float32 five digits of what is normalized.
TOLERANCES = {"float32": 8e-5, "bfloat16": 8e-2, "float16": 8e-3}


@HAVE_KERNELS
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_layer_norm_matches_keras(dtype, mean):
    x = ops.cast(normal(3, 5, 16) * 2 + mean, dtype)
    layer = layers.LayerNormalization(epsilon=1e-3, dtype=dtype)
    layer.build(x.shape)
    layer.gamma.assign(RNG.normal(size=16))
    layer.beta.assign(RNG.normal(size=16))
    assert layer(x).dtype == x.dtype
    found = outcome(layer, [x])
    expected = outcome(lambda x: keras.layers.LayerNormalization.call(layer, x), [x])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCES[dtype])


@pytest.mark.parametrize(
    "arguments", [{"center": False}, {"scale": False}, {"axis": [1, 2]}]
)
def test_layer_norm_accepts_keras_arguments(arguments):
    x = normal(3, 5, 16)
    found, expected = (
        ops.convert_to_numpy(base(**arguments)(x))
        for base in (layers.LayerNormalization, keras.layers.LayerNormalization)
    )
    np.testing.assert_array_equal(found, expected)


@JAX
@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_matches_keras(approximate):
    x = np.linspace(-12, 12, 97, dtype="float32")
    found = outcome(lambda x: _kernels.gelu(x, approximate), [x])
    expected = outcome(lambda x: ops.gelu(x, approximate=approximate), [x])
    assert_close(found, expected, 1e-6)


@JAX
def test_attention_of_large_scores_is_finite():
    query = ops.full((1, 3, 1, 4), 1e3)
    found = _kernels.dot_product_attention(query, query, query)
    np.testing.assert_allclose(found, query)
