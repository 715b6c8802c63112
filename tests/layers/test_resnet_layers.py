"""The layers of the ResNets against NumPy."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests.harness import numpy
from tests.markers import on_all

RNG = np.random.default_rng(0)


def windows(x, kernel, strides, sides, value=0.0):
    """Cuts (B, rows, columns, kernel rows, kernel columns, C) of images."""
    x = np.pad(
        x.astype("float64"),
        [(0, 0), *sides, (0, 0)],
        constant_values=value,
    )
    cut = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(1, 2))
    cut = cut[:, :: strides[0], :: strides[1]]
    return cut.transpose(0, 1, 2, 4, 5, 3)


def sides_of(padding, size, kernel, strides):
    """(before, after) of rows and of columns."""
    if padding == "valid":
        return [(0, 0), (0, 0)]
    if padding != "same":
        return [((k - 1) // 2, k // 2) for k in kernel]
    sides = []
    for n, k, s in zip(size, kernel, strides, strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        sides.append((total // 2, total - total // 2))
    return sides


def standardized(kernel, epsilon, placement):
    kernel = kernel.astype("float64")
    axes = (0, 1, 2)
    centered = kernel - kernel.mean(axes, keepdims=True)
    if placement == "std":
        return centered / (kernel.std(axes, keepdims=True) + epsilon)
    return centered / np.sqrt(kernel.var(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize(
    "padding,placement,epsilon",
    [
        ("same", "std", 0.3),
        ("symmetric", "variance", 0.2),
        ("valid", "variance", 0.2),
    ],
)
@pytest.mark.parametrize(
    "size,kernel,strides",
    on_all(
        [
            ((8, 6), (3, 3), (1, 1)),
            ((8, 6), (3, 3), (2, 2)),
            ((9, 7), (3, 3), (2, 2)),
            ((12, 9), (7, 7), (2, 2)),
            ((8, 5), (1, 1), (2, 2)),
            ((8, 5), (4, 2), (1, 3)),
        ],
        [((9, 7), (3, 3), (2, 2)), ((8, 5), (4, 2), (1, 3))],
    ),
)
def test_std_conv_matches_numpy(size, kernel, strides, padding, placement, epsilon):
    layer = layers.StdConv2D(5, kernel, strides, padding, epsilon, placement)
    x = RNG.normal(size=(2, *size, 3)).astype("float32")
    layer.build(x.shape)
    raw = (0.5 + RNG.normal(size=(*kernel, 3, 5))).astype("float32")
    layer.kernel.assign(raw)
    found = numpy(layer(x))
    cut = windows(x, kernel, strides, sides_of(padding, size, kernel, strides))
    expected = np.einsum(
        "bhwyxi,yxio->bhwo", cut, standardized(raw, epsilon, placement)
    )
    assert found.shape == expected.shape
    assert layer.compute_output_shape((2, *size, 3)) == expected.shape
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("padding", ["same", "symmetric", "zeros"])
@pytest.mark.parametrize("size", [(8, 6), (9, 7), (1, 2)])
def test_max_pool_matches_numpy(size, padding):
    x = RNG.normal(size=(2, *size, 3)).astype("float32") - 3
    value = 0.0 if padding == "zeros" else -np.inf
    kernel, strides = (3, 3), (2, 2)
    sides = sides_of(padding, size, kernel, strides)
    expected = windows(x, kernel, strides, sides, value).max((3, 4))
    found = numpy(layers.MaxPool2D(padding=padding)(x))
    np.testing.assert_array_equal(found, expected.astype("float32"))


@pytest.mark.backends("jax")
@pytest.mark.parametrize("padding", ["same", "symmetric", "zeros"])
def test_inference_pools_with_slices_of_the_same_result(padding):
    """jax2onnx writes no working pooling with channels last."""
    import jax

    x = RNG.normal(size=(2, 9, 8, 3)).astype("float32")
    layer = layers.MaxPool2D(padding=padding)
    np.testing.assert_array_equal(numpy(layer(x)), numpy(layer(x, training=True)))
    assert "reduce_window" not in str(jax.make_jaxpr(layer)(x))


def test_group_norm_matches_keras():
    x = (RNG.normal(size=(2, 5, 4, 12)) * 3 + 7).astype("float32")
    ours = layers.GroupNorm(4, epsilon=0.1)
    keras_own = keras.layers.GroupNormalization(4, epsilon=0.1)
    for layer in (ours, keras_own):
        layer(x)
        for weight, value in zip(
            layer.weights, (np.arange(12), -np.arange(12)), strict=True
        ):
            weight.assign(value)
    np.testing.assert_allclose(
        numpy(ours(x)), numpy(keras_own(x)), rtol=1e-5, atol=2e-5
    )


@pytest.mark.parametrize("channels, mean", [(64, 1), (64, 10000), (128, 10000)])
def test_group_norm_is_exact_when_the_mean_is_large(channels, mean):
    """The standard deviation is 1: a variance computed as the mean of squares
    minus the squared mean would lose all its digits."""
    x = (mean + RNG.normal(size=(2, 8, 8, channels))).astype("float32")
    groups = x.astype("float64").reshape(2, 64, 32, channels // 32)
    centered = groups - groups.mean((1, 3), keepdims=True)
    variance = groups.var((1, 3), keepdims=True)
    expected = (centered / np.sqrt(variance + 1e-6)).reshape(x.shape)
    layer = layers.GroupNorm(epsilon=1e-6)
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-5)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    found = model.predict(x, verbose=0)  # compiled, and without gradients
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_group_norm_gradients_match_keras():
    x = (3 + RNG.normal(size=(2, 5, 4, 6))).astype("float32")
    y = RNG.normal(size=(2, 5, 4, 12)).astype("float32")
    start = RNG.normal(size=(1, 1, 6, 12))
    trained = []
    for norm in (
        layers.GroupNorm(4, epsilon=0.1),
        keras.layers.GroupNormalization(4, epsilon=0.1),
    ):
        conv = keras.layers.Conv2D(12, 1)
        model = keras.Sequential([keras.Input(x.shape[1:]), conv, norm])
        conv.kernel.assign(start)
        model.compile(keras.optimizers.SGD(1.0), "mse")
        model.fit(x, y, verbose=0)
        assert np.abs(numpy(conv.kernel) - start).max() > 1e-3
        trained.append([numpy(w) for w in model.weights])
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_group_norm_of_a_constant_is_finite():
    """Rounding can make the variance negative, whose square root is NaN."""
    x = np.full((1, 7, 7, 32), 1234.567, "float32")
    found = numpy(layers.GroupNorm(epsilon=1e-6)(x))
    assert np.isfinite(found).all()


def test_filter_of_one_weight_has_finite_gradients():
    """The variance of one weight is 0, where the square root has no finite
    slope."""
    model = keras.Sequential([keras.Input((4, 4, 1)), layers.StdConv2D(2, 1)])
    model.compile("sgd", "mse")
    x = RNG.normal(size=(1, 4, 4, 1)).astype("float32")
    model.fit(x, np.ones((1, 4, 4, 2)), verbose=0)
    assert np.isfinite(numpy(model.layers[0].kernel)).all()


def test_statistics_stay_in_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    layer = layers.StdConv2D(4, 3)
    layer(np.zeros((1, 4, 4, 8)))
    raw = 1 + 1e-3 * RNG.normal(size=(3, 3, 8, 4))  # equal in bfloat16
    layer.kernel.assign(raw)
    found = numpy(layer.standardized_kernel())
    assert found.dtype == "float32"
    expected = standardized(raw.astype("float32"), 1e-5, "std")
    np.testing.assert_allclose(found, expected, atol=1e-3)
