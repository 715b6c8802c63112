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


@pytest.fixture(params=[0, 64], ids=["many", "few"])
def channels(request, monkeypatch):
    """12 channels are taken to be many, or few."""
    monkeypatch.setattr(_torch_fast, "EXACT", request.param)


def test_group_norm(channels):
    layer = layers.GroupNorm(4, epsilon=1e-3)
    images = RNG.normal(1, 2, size=(2, 5, 3, 12))
    layer.build(images.shape)
    gamma, beta = RNG.normal(size=(2, 12))
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    found = outcome(layer.call, images)
    assert_close(found, outcome(layer._plain, images), 2e-6)
    with_weights = outcome(
        lambda x, g, b: _torch_fast.group_norm(x, 4, g, b, 1e-3),
        images,
        gamma,
        beta,
    )
    assert_close(with_weights[:2], found, 1e-6)


def test_group_norm_keeps_the_memory_in_order(channels):
    images = ops.convert_to_tensor(RNG.normal(size=(2, 5, 3, 12)), "float32")
    assert layers.GroupNorm(4, epsilon=1e-3)(images).is_contiguous()
    images.requires_grad_()
    assert layers.GroupNorm(4, epsilon=1e-3)(images).is_contiguous()
    half = ops.cast(images, "bfloat16")
    assert _torch_fast.fits(images) and not _torch_fast.fits(half)


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


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("case", DENSE)
def test_dense(case, policy):
    make, axes, channels = DENSE[case]
    tokens = RNG.normal(size=(2, 7, *channels))
    plain = make(policy)
    plain(tokens)
    fast = _fast.dense(make(policy), axes)
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
    assert type(dense) is keras.layers.Dense
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


def test_memory_is_reused_only_without_gradients():
    import torch

    x, y = ops.convert_to_tensor([-1.0, 2.0]), ops.convert_to_tensor([1.0, 3.0])
    assert _torch_fast.relu(x).tolist() == [0, 2]
    assert _torch_fast.add(x, y).tolist() == [0, 5]
    assert x.tolist() == [-1, 2]
    with torch.no_grad():
        assert _torch_fast.relu(x).data_ptr() == x.data_ptr()
        assert _torch_fast.add(x, y).data_ptr() == x.data_ptr()
    assert x.tolist() == [1, 5] and y.tolist() == [1, 3]


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(approximate):
    import torch

    x = ops.convert_to_tensor(RNG.normal(size=(3, 5)).astype("float32"))
    expected = ops.gelu(x, approximate=approximate)
    assert torch.equal(_torch_fast.gelu(x, approximate), expected)
    with torch.no_grad():
        found = _torch_fast.gelu(x, approximate)
    assert found.data_ptr() == x.data_ptr()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", [(700, 400), (3, 0), (2, 3, 5)])
def test_gelu_in_parts(shape):
    """More than one part, none, and extreme values."""
    import torch

    x = torch.linspace(-100, 100, int(np.prod(shape))).reshape(shape)
    expected = ops.gelu(x, approximate=True)
    turned = x.transpose(0, 1).clone().transpose(0, 1)  # not contiguous
    with torch.no_grad():
        for given in (x, turned):
            found = _torch_fast.gelu(given, approximate=True)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_gelu_is_one_operation_in_what_is_exported():
    """Written in parts, an ONNX file kept each: 1.2 GB of a model of 23 MB."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, x):
            return _torch_fast.gelu(x + 1, True)

    with torch.no_grad():
        graph = torch.export.export(Module(), (torch.ones(2, 3),)).graph
    called = [str(x.target) for x in graph.nodes if x.op == "call_function"]
    assert called == ["aten.add.Tensor", "aten.gelu.default"]


def test_what_wants_the_call():
    """Layers inside a block are called without Keras's wrapping unless they
    have something that it is for."""
    block = layers.TransformerBlock(2, 16)
    tokens = ops.convert_to_tensor(RNG.normal(size=(2, 3, 8)), "float32")
    expected = numpy(block(tokens).detach())
    assert _torch_fast.may_skip_call(block.mlp, block)
    called = []
    hook = block.mlp.register_forward_hook(lambda *_: called.append(True))
    assert not _torch_fast.may_skip_call(block.mlp, block)
    np.testing.assert_array_equal(numpy(block(tokens).detach()), expected)
    assert called
    hook.remove()
    assert _torch_fast.may_skip_call(block.mlp, block)
    block.mlp.dense_1.quantize("int8")
    assert not _torch_fast.may_skip_call(block.mlp.dense_1, block.mlp)
    half = layers.TransformerBlock(2, 16, dtype="mixed_bfloat16")
    half(tokens)
    assert not _torch_fast.may_skip_call(half.mlp, half)
