"""XLA's fast forms against the plain path: values and gradients."""

import functools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import _fast
from keras_vit.layers import _jax_fast
from tests.harness import numpy

pytestmark = pytest.mark.backends("jax")

RNG = np.random.default_rng(0)
# A mean of 100 leaves float32 five digits of what is normalised.
TOLERANCES = {"float32": 8e-5, "bfloat16": 8e-2, "float16": 8e-3}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_layer_norm(dtype, mean):
    import jax

    def outcome(call):
        def scalar(x):
            y = call(x).astype("float32")
            return (y * np.cos(np.arange(y.size)).reshape(y.shape)).sum(), y

        return jax.value_and_grad(scalar, has_aux=True)(x)

    with jax.enable_x64(dtype == "float32"):
        layer = _fast.layer_norm(epsilon=1e-3, dtype=dtype)
        x = RNG.normal(mean, 2, (3, 5, 16))
        x = ops.convert_to_tensor(x, dtype)
        layer.build(x.shape)
        layer.gamma.assign(RNG.normal(size=16))
        layer.beta.assign(RNG.normal(size=16))
        (_, found), gradient = outcome(layer)
        plain = keras.layers.LayerNormalization.call
        (_, expected), wanted = outcome(lambda x: plain(layer, x))
        assert layer(x).dtype == x.dtype
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(found, expected, atol=tolerance)
    np.testing.assert_allclose(
        numpy(gradient.astype("float32")),
        numpy(wanted.astype("float32")),
        atol=tolerance,
    )


def test_second_and_forward_derivatives():
    import jax

    layer = _fast.layer_norm(epsilon=1e-6)
    x = ops.convert_to_tensor(RNG.normal(size=(2, 8)).astype("float32"))
    layer.build(x.shape)
    plain = keras.layers.LayerNormalization.call
    found = jax.hessian(lambda x: (layer(x) ** 3).sum())(x)
    wanted = jax.hessian(lambda x: (plain(layer, x) ** 3).sum())(x)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("length", [7, 5])
@pytest.mark.parametrize("biased", [False, True])
def test_attention(length, biased):
    import jax

    query = RNG.normal(size=(2, 7, 3, 4)).astype("float32")
    keys = RNG.normal(size=(2, 2, length, 3, 4)).astype("float32")
    arrays = [query, *keys]
    if biased:
        arrays.append(RNG.normal(size=(2, 3, 7, length)).astype("float32"))

    def outcome(attend):
        def scalar(*arrays):
            y = attend(*arrays)
            return (y * np.cos(np.arange(y.size)).reshape(y.shape)).sum(), y

        (_, y), gradients = jax.value_and_grad(
            scalar, argnums=tuple(range(len(arrays))), has_aux=True
        )(*map(ops.convert_to_tensor, arrays))
        return [y, *gradients]

    def plain(query, key, value, bias=None):
        return ops.dot_product_attention(query, key, value, bias=bias)

    expected = outcome(plain)
    forms = [_jax_fast.attend]
    if not biased:
        # 7 queries are two parts and a shorter one, or one part.
        forms += [
            functools.partial(_jax_fast.attend_in_parts, size=size)
            for size in (3, 7)
        ]
    forms += [functools.partial(_jax_fast.image_by_image, f) for f in forms]
    for form in forms:
        for a, b in zip(outcome(form), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)


def test_many_queries_are_taken_in_parts(monkeypatch):
    monkeypatch.setattr(_fast, "LONG", 6)
    sizes = []
    monkeypatch.setattr(
        _jax_fast,
        "attend_in_parts",
        lambda query, key, value, size: sizes.append(size),
    )
    for length in (6, 7):
        _fast.attend(*[ops.ones((1, length, 2, 4))] * 3)
    assert sizes == [_fast.PART]


def test_images_of_many_tokens_are_taken_one_by_one(monkeypatch):
    monkeypatch.setattr(_fast, "MANY", 7)
    forms = []
    monkeypatch.setattr(
        _jax_fast,
        "image_by_image",
        lambda attend, *tensors: forms.append((attend, len(tensors))),
    )
    for batch, length in ((2, 6), (1, 7), (2, 7)):
        _fast.attend(*[ops.ones((batch, length, 2, 4))] * 3)
    _fast.attend(*[ops.ones((2, 7, 2, 4))] * 3, ops.ones((2, 2, 7, 7)))
    assert forms == [(_jax_fast.attend, 3), (_jax_fast.attend, 4)]


_SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras_vit.layers import _fast
assert jax.device_count() == 4
sharding = NamedSharding(
    Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch")
)
query = jax.device_put(np.ones((8, 260, 2, 16), "float32"), sharding)
attend = jax.jit(lambda x: _fast.attend(x, x, x))
text = attend.lower(query).compile().as_text()
found = [name for name in ("all-gather", "all-to-all") if name in text]
assert not found, found
assert attend(query).sharding.spec[0] == "batch", attend(query).sharding
"""


def test_a_batch_that_devices_share_is_not_gathered():
    flags = "--xla_force_host_platform_device_count=4"
    found = subprocess.run(
        [sys.executable, "-c", _SHARDED],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr


def test_the_kernel_that_ran_is_logged(caplog):
    with caplog.at_level("DEBUG", logger="keras_vit"):
        _fast.attend(*[ops.ones((2, 257, 2, 4))] * 3)
    assert "_jax_fast" in caplog.text and "image by image" in caplog.text


def test_attention_of_large_scores_is_finite():
    query = ops.full((1, 3, 1, 4), 1e3)
    found = _jax_fast.attend(query, query, query)
    np.testing.assert_allclose(found, query)
    assert _jax_fast.fits(query)
    assert not _jax_fast.fits(ops.cast(query, "bfloat16"))
