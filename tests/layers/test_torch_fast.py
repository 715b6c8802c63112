"""PyTorch's kernels against the plain path: values and gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from keras_vit.layers import _fast
from keras_vit.layers import _torch_fast
from tests.harness import numpy

pytestmark = pytest.mark.backends("torch")

RNG = np.random.default_rng(0)
TOLERANCES = {"float32": 2e-6, "bfloat16": 2e-2}


def outcome(function, *arrays):
    """What a function gives of arrays, and the gradients in them."""
    tensors = [
        ops.convert_to_tensor(a.astype("float32")).requires_grad_()
        for a in arrays
    ]
    result = function(*tensors)
    pattern = np.cos(np.arange(result.numel())).reshape(result.shape)
    (
        result.float() * ops.convert_to_tensor(pattern, "float32")
    ).sum().backward()
    return [numpy(result.float()), *(numpy(t.grad) for t in tensors)]


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())


def test_attention():
    query, key, value = RNG.normal(size=(3, 2, 7, 3, 4))
    expected = outcome(ops.dot_product_attention, query, key, value)
    found = outcome(_torch_fast.attend, query, key, value)
    assert_close(found, expected, 2e-6)
    bias = RNG.normal(size=(2, 3, 7, 7))
    found = outcome(_torch_fast.attend, query, key, value, bias)

    def plain(query, key, value, bias):
        return ops.dot_product_attention(query, key, value, bias=bias)

    expected = outcome(plain, query, key, value, bias)
    assert_close(found, expected, 2e-6)


DENSE = {
    "Dense": (lambda p: keras.layers.Dense(20, dtype=p), 1, (12,)),
    "into heads": (
        lambda p: keras.layers.EinsumDense(
            "BTD,DHd->BTHd", (None, 3, 4), bias_axes="Hd", dtype=p
        ),
        1,
        (12,),
    ),
    "out of heads": (
        lambda p: keras.layers.EinsumDense(
            "BTHd,HdD->BTD", (None, 12), bias_axes="D", dtype=p
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


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("case", DENSE)
def test_dense(case, policy):
    make, axes, channels = DENSE[case]
    tokens = RNG.normal(size=(2, 7, *channels))
    plain = make(policy)
    plain(tokens)
    fast = fast_of(make(policy), axes)
    fast(tokens)
    for old, new in zip(plain.weights, fast.weights, strict=True):
        old.assign(RNG.normal(size=old.shape))
        new.assign(old)

    def gradients(layer):
        layer.zero_grad()
        found = outcome(layer, tokens)
        return [*found, *(numpy(w.value.grad) for w in layer.weights)]

    tolerance = TOLERANCES[plain.compute_dtype]
    assert_close(gradients(fast), gradients(plain), tolerance)


def test_dense_layers_remain_keras_own():
    """Adapters, quantisation and hooks reach them as before."""
    layer = layers.MlpBlock(16)
    tokens = ops.convert_to_tensor(RNG.normal(size=(2, 3, 8)), "float32")
    layer(tokens)
    dense = layer.dense_1
    assert isinstance(dense, keras.layers.Dense)
    called = []
    dense.register_forward_hook(lambda *arguments: called.append(True))
    before = numpy(layer(tokens).detach())
    assert called
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(RNG.normal(size=dense.lora_kernel_b.shape))
    assert np.abs(numpy(layer(tokens).detach()) - before).max() > 1e-3
    layer = layers.MlpBlock(16)
    layer(tokens)
    layer.dense_1.quantize("int8")
    assert layer(tokens).shape == tokens.shape
