"""`preprocess_input` of arrays, of tensors and in graphs."""

import json
import warnings

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import ImagePreprocessing
from keras_vit.preprocessing import preprocess_input

ON_TORCH = pytest.mark.backends("torch")
PIXELS = np.arange(256, dtype="uint8").reshape(2, 8, 16)
EXPECTED = (np.arange(256) / 127.5 - 1).reshape(2, 8, 16)
LIBRARIES = ("jax", "tensorflow", "torch")


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def check(scaled):
    # Compilers may multiply by 1 / 127.5: 255 comes out as 1.0000001.
    np.testing.assert_allclose(scaled, EXPECTED, rtol=0, atol=1e-6)


def tensor_of(library, array):
    """Returns a tensor of any library, and its class."""
    module = pytest.importorskip(library)
    if library == "jax":
        return module.numpy.asarray(array), module.Array
    make = module.constant if library == "tensorflow" else module.tensor
    return make(array), module.Tensor


@ON_TORCH
@pytest.mark.parametrize(
    "dtype",
    [
        *("uint8", "uint16", "int16", "int64", "float32", "float64"),
        *("float16", ml_dtypes.bfloat16),
    ],
)
def test_numpy_arrays_of_every_dtype_and_rank(dtype):
    images = PIXELS.astype(dtype)
    images.setflags(write=False)
    scaled = preprocess_input(images)
    assert type(scaled) is np.ndarray and scaled.dtype == "float32"
    check(scaled)
    assert (scaled.min(), scaled.max()) == (-1, 1)
    np.testing.assert_array_equal(images, PIXELS.astype(dtype))
    for shape in ((0, 4, 4, 3), (), (3,), (2, 1, 2, 2, 3)):
        scaled = preprocess_input(np.full(shape, 255, dtype))
        assert isinstance(scaled, np.ndarray) and scaled.dtype == "float32"
        np.testing.assert_array_equal(scaled, np.ones(shape))


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CLIP = (
    [0.48145466, 0.4578275, 0.40821073],
    [0.26862954, 0.26130258, 0.27577711],
)
SATELLITE = [0.430, 0.411, 0.296], [0.213, 0.156, 0.143]
MANY = np.linspace(0.1, 0.8, 16), np.linspace(0.3, 0.2, 16)


@pytest.mark.parametrize(
    "given, channels, mean_std, mode",
    [
        ({"mode": "torch"}, 3, IMAGENET, "torch"),
        ({"mode": "clip"}, 3, CLIP, "clip"),
        ({"mode": IMAGENET}, 3, IMAGENET, "torch"),
        # The channel of gray images is repeated.
        ({"mode": "torch"}, 1, IMAGENET, "torch"),
        ({"mode": SATELLITE}, 1, SATELLITE, tuple(map(tuple, SATELLITE))),
        ({"mean": CLIP[0], "std": CLIP[1]}, 3, CLIP, "clip"),
        ({"mean": [0.5] * 4, "std": 0.5}, 4, (0.5, 0.5), "tf"),
        ({"mean": 0.0, "std": 1.0}, 3, (0, 1), ((0.0,), (1.0,))),
        ({"mean": [0.2, 0.2], "std": 0.3}, 1, (0.2, 0.3), ((0.2,), (0.3,))),
        ({"mean": 0.1, "std": [0.2, 0.3]}, 2, (0.1, [0.2, 0.3]), None),
        ({"mean": MANY[0], "std": MANY[1]}, 16, MANY, None),
    ],
)
def test_means_and_standard_deviations(given, channels, mean_std, mode):
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, channels), "uint8")
    expected = (images / 255 - mean_std[0]) / mean_std[1]
    inputs = keras.Input((None, None, channels))
    layer = ImagePreprocessing(**given)
    if mode is not None:
        assert layer.mode == mode
    saved = json.loads(json.dumps(layer.get_config()))
    again = ImagePreprocessing.from_config(saved)
    assert again.mode == layer.mode
    assert layer(inputs).shape[-1] == expected.shape[-1]
    model = keras.Model(inputs, preprocess_input(inputs, **given))
    found = [
        preprocess_input(images, **given),
        model.predict(images.astype("float32"), verbose=0),
        ops.convert_to_numpy(layer(images)),
        ops.convert_to_numpy(again(images)),
    ]
    for library in LIBRARIES:
        tensor, _ = tensor_of(library, images)
        found.append(np.asarray(preprocess_input(tensor, **given)))
    for scaled in found:
        assert scaled.dtype == "float32"
        np.testing.assert_allclose(scaled, expected, rtol=2e-7, atol=1e-6)


@ON_TORCH
@pytest.mark.parametrize(
    "given",
    [
        {"mode": "caffe"},
        {"mode": "0.5/0.5"},
        {"mean": 0.5},
        {"std": 0.5},
        {"mean": 0.5, "std": 0.0},
        {"mean": [0.5, float("nan")], "std": 0.5},
        {"mean": [0.5] * 17, "std": 0.5},
        {"mean": [0.5] * 2, "std": [0.5] * 3},
        {"mean": [[0.5]], "std": 0.5},
        {"mean": "0.5", "std": True},
        {"mode": ([0.5], [0.5], [0.5])},
        {"mode": {"mean": 0.5, "std": 0.5}},
    ],
)
def test_wrong_modes_raise(given):
    images = np.zeros((2, 4, 5, 3), "uint8")
    for call in (lambda **x: preprocess_input(images, **x), ImagePreprocessing):
        with pytest.raises(
            ValueError, match=r"must be one of.*\(mean, std\).*Received"
        ):
            call(**given)


@ON_TORCH
def test_other_channels_than_those_of_the_mode_raise():
    for mode, channels in (("torch", 4), (SATELLITE, 2), ((MANY[0], 0.5), 3)):
        images = np.zeros((2, 4, 5, channels), "uint8")
        for call in (preprocess_input, lambda x, y: ImagePreprocessing(None, y)(x)):
            with pytest.raises(ValueError, match=rf"channels.*\(2, 4, 5, {channels}\)"):
                call(images, mode)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bfloat16"])
def test_backend_tensors(dtype):
    images = ops.convert_to_tensor(PIXELS, dtype=dtype)
    scaled = preprocess_input(images)
    assert ops.is_tensor(scaled)
    assert keras.backend.standardize_dtype(scaled.dtype) == "float32"
    check(ops.convert_to_numpy(scaled))
    if dtype in ("uint8", "float32"):
        inputs = keras.Input((8, 16), dtype=dtype)
        outputs = preprocess_input(inputs)
        assert isinstance(outputs, keras.KerasTensor)
        assert outputs.dtype == "float32"
        model = keras.Model(inputs, outputs)
        check(model.predict(PIXELS.astype(dtype), verbose=0))


@ON_TORCH
@pytest.mark.parametrize("library", LIBRARIES)
def test_tensors_of_every_library(library):
    images, kind = tensor_of(library, PIXELS)
    scaled = preprocess_input(images)
    assert isinstance(scaled, kind)
    assert keras.backend.standardize_dtype(scaled.dtype) == "float32"
    check(np.asarray(scaled))
    # PyTorch's `ToTensor` gives values in [0, 1].
    array = np.array([[0.0, 0.5], [0.25, 1.0]], "float32")
    with pytest.warns(UserWarning, match=r"floats in \[0, 1\]") as caught:
        preprocess_input(tensor_of(library, array)[0])
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="from -1 to 1"):
        preprocess_input(tensor_of(library, array * 2 - 1)[0])


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_tf_data(dtype):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(PIXELS.astype(dtype))
    data = data.map(preprocess_input, num_parallel_calls=2).batch(2)
    assert data.element_spec.dtype == tf.float32
    check(next(data.as_numpy_iterator()))
    data = tf.data.Dataset.from_generator(
        lambda: iter([PIXELS.astype(dtype)]),
        output_signature=tf.TensorSpec(None, dtype),
    )
    data = data.map(lambda image: (preprocess_input(image), 0))
    check(next(data.as_numpy_iterator())[0])


@pytest.mark.slow
def test_traced_tensors_are_not_checked():
    scaled = np.array([[0.0, 0.5], [0.25, 1.0]], "float32")
    backend = keras.config.backend()
    module = pytest.importorskip(backend)
    if backend == "jax":
        module.jit(preprocess_input)(scaled)
        check(module.jit(preprocess_input)(PIXELS))
    elif backend == "tensorflow":
        module.function(preprocess_input)(module.constant(scaled))
    else:
        compiled = module.compile(preprocess_input, backend="eager", fullgraph=True)
        compiled(module.tensor(scaled))


@ON_TORCH
def test_values_in_0_to_1_warn_once_per_line():
    for images in (np.array([0.0, 0.5, 1.0]), np.array([[0.25]], "float16")):
        with pytest.warns(UserWarning, match=r"floats in \[0, 1\]") as caught:
            scaled = preprocess_input(images)
        expected = images.astype("float64") / 127.5 - 1
        np.testing.assert_allclose(scaled, expected, atol=1e-6)
        assert [x.filename for x in caught] == [__file__]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for value in (0.25, 0.5, 0.75):
            preprocess_input(np.full((2, 2, 3), value))
    assert len(caught) == 1
    for images in (
        np.zeros((2, 2, 3)),
        np.array([0.0, 1.0]),
        np.array([0.5, 1.5]),
        np.array([0, 1], "uint8"),
        np.array([-2e-5, 255.00003], "float32"),  # rounded by a resize
    ):
        expected = images.astype("float64").clip(0, 255) / 127.5 - 1
        np.testing.assert_allclose(preprocess_input(images), expected, atol=1e-6)


def test_other_inputs_raise():
    with pytest.raises(ValueError, match="Received: .*bool"):
        preprocess_input(ops.convert_to_tensor([True]))
    tf = pytest.importorskip("tensorflow")
    for wrong in (tf.constant("cat.jpg"), tf.constant([True])):
        with pytest.raises(ValueError, match="integers or floats"):
            preprocess_input(wrong)
