"""Layers of maps against float64 NumPy and PyTorch's own."""

import keras
import numpy as np
import pytest
from scipy.special import erf

import keras_vit
from keras_vit.layers import SimpleFeaturePyramid, UpsampleMap
from keras_vit.layers.resampling import resample_maps
from tests.harness import numpy
from tests.small import images, tiny

RNG = np.random.default_rng(0)
MAP = RNG.normal(size=(2, 5, 6, 16)).astype("float32")


def make(**options):
    layer = SimpleFeaturePyramid(8, **options)
    layer.build(MAP.shape)
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return layer


def oracle(layer, x):
    """The pyramid in float64, from the kernels' definitions."""
    w = {v.path: numpy(v).astype("float64") for v in layer.weights}

    def get(name):
        return w[f"{layer.name}/{name}"]

    def up(x, name):  # each position becomes 2 x 2, which do not overlap
        y = np.einsum("bhwc,pqdc->bhpwqd", x, get(f"{name}/kernel"))
        b, h, _, v, _, d = y.shape
        return y.reshape(b, 2 * h, 2 * v, d) + get(f"{name}/bias")

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + layer.norm_epsilon)
        return x * get(f"{name}/gamma") + get(f"{name}/beta")

    def convolution(x, name):
        kernel = get(f"{name}/kernel")
        size = len(kernel)
        x = np.pad(x, ((0, 0), (size // 2,) * 2, (size // 2,) * 2, (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
        return np.einsum("bhwcpq,pqcd->bhwd", windows, kernel)

    x = x.astype("float64")
    y = norm(up(x, "p2_up_1"), "p2_norm")
    y = y * (1 + erf(y / 2**0.5)) / 2
    rows, columns = x.shape[1] // 2, x.shape[2] // 2
    pooled = x[:, : 2 * rows, : 2 * columns]
    pooled = pooled.reshape(len(x), rows, 2, columns, 2, -1).max((2, 4))
    maps = {"P2": up(y, "p2_up_2"), "P3": up(x, "p3_up"), "P4": x, "P5": pooled}
    for level, y in maps.items():
        for number in (1, 2):
            y = convolution(y, f"{level.lower()}_conv_{number}")
            y = norm(y, f"{level.lower()}_norm_{number}")
        maps[level] = y
    return maps


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_maps_are_the_oracles(epsilon):
    layer = make(norm_epsilon=epsilon)
    found, expected = layer(MAP), oracle(layer, MAP)
    sizes = {"P2": (20, 24), "P3": (10, 12), "P4": (5, 6), "P5": (2, 3)}
    assert list(found) == list(sizes)
    shapes = layer.compute_output_shape(MAP.shape)
    for level, size in sizes.items():
        assert tuple(found[level].shape) == (2, *size, 8) == shapes[level]
        np.testing.assert_allclose(numpy(found[level]), expected[level], atol=3e-5)


@pytest.mark.backends("torch")
def test_deconvolution_is_pytorchs():
    """Their kernels are (in, out, rows, columns), ours (rows, columns, out,
    in)."""
    import torch

    layer = make()
    with torch.device("cpu"), torch.no_grad():
        theirs = torch.nn.ConvTranspose2d(16, 8, 2, 2)
        kernel = numpy(layer.p3_up.kernel).transpose(3, 2, 0, 1)
        theirs.weight.copy_(torch.from_numpy(kernel.copy()))
        theirs.bias.copy_(torch.from_numpy(numpy(layer.p3_up.bias)))
        x = torch.from_numpy(MAP).permute(0, 3, 1, 2)
        expected = theirs(x).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(numpy(layer.p3_up(MAP)), expected, atol=1e-5)


@pytest.mark.suite("torch")
def test_on_a_model_of_any_size(tmp_path):
    maps = keras_vit.dense_features(tiny(num_layers=1), blocks=0)
    pyramid = SimpleFeaturePyramid(8, name="pyramid")(maps.output)
    model = keras.Model(maps.input, pyramid)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for size in ((8, 16), (16, 8)):
        x = images(1, *size, 3)
        found = model.predict(x, verbose=0)
        assert found["P2"].shape == (1, *size, 8)
        other = again.predict(x, verbose=0)
        for level, array in found.items():
            np.testing.assert_array_equal(other[level], array)
    again.compile("sgd", {level: "mse" for level in found})
    again.fit(x, {level: 0 * y for level, y in found.items()}, verbose=0)
    after = again.predict(x, verbose=0)
    assert all(np.abs(after[k] - found[k]).max() > 1e-6 for k in found)


@pytest.mark.parametrize("size", [(10, 18), (3, 2), (5, 7), (1, 1)])
def test_resampling_is_pytorchs(size):
    """Larger and smaller."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(MAP).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(x, size=size, mode="bilinear")
    expected = expected.permute(0, 2, 3, 1).numpy()
    found = resample_maps(keras.ops.convert_to_tensor(MAP), size)
    np.testing.assert_allclose(numpy(found), expected, atol=2e-6)


def test_upsampling_at_any_size():
    """Where the graph knows the sizes only when it runs, and of padded
    images."""
    inputs = [keras.Input((None, None, 16)), keras.Input((None, None, 3))]
    model = keras.Model(inputs, UpsampleMap((2, 3))(*inputs))
    expected = resample_maps(keras.ops.convert_to_tensor(MAP), (10, 18))
    for height, width in ((10, 18), (9, 16)):
        found = model.predict([MAP, np.zeros((2, height, width, 3))], verbose=0)
        np.testing.assert_allclose(
            found, numpy(expected)[:, :height, :width], atol=1e-5
        )
