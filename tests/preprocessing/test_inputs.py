import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.preprocessing import preprocess_input

PIXELS = np.arange(256, dtype="uint8").reshape(2, 8, 16)
EXPECTED = (np.arange(256) / 127.5 - 1).reshape(2, 8, 16)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def check(scaled):
    # Compilers may multiply by 1 / 127.5: 255 comes out as 1.0000001.
    np.testing.assert_allclose(scaled, EXPECTED, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "int16", "int64", "float32", "float64"]
)
def test_numpy_arrays_of_every_dtype(dtype):
    images = PIXELS.astype(dtype)
    scaled = preprocess_input(images)
    assert type(scaled) is np.ndarray
    assert scaled.dtype == "float32"
    check(scaled)
    assert scaled.min() == -1
    assert scaled.max() == 1
    assert images.dtype == dtype
    np.testing.assert_array_equal(images, PIXELS)


def test_numpy_half_precision():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ("float16", ml_dtypes.bfloat16):
        check(preprocess_input(PIXELS.astype(dtype)))
    with pytest.raises(ValueError, match="from nan to nan"):
        preprocess_input(np.array([1.0, np.nan], ml_dtypes.bfloat16))


def test_mode_tf_has_mean_and_std_0_5():
    images = PIXELS.astype("float64") / 255
    np.testing.assert_allclose(
        preprocess_input(PIXELS), (images - 0.5) / 0.5, atol=1e-6
    )


def test_mode_torch_uses_imagenet_mean_and_std():
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), "uint8")
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    expected = (images / 255 - mean) / std
    scaled = preprocess_input(images, mode="torch")
    assert scaled.dtype == "float32"
    np.testing.assert_allclose(scaled, expected, atol=1e-6)
    tensor = preprocess_input(ops.convert_to_tensor(images), mode="torch")
    np.testing.assert_allclose(
        ops.convert_to_numpy(tensor), expected, atol=1e-6
    )
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, preprocess_input(inputs, mode="torch"))
    found = model.predict(images.astype("float32"), verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"three channels.*\(2, 4, 5, 1\)"):
        preprocess_input(images[..., :1], mode="torch")
    with pytest.raises(ValueError, match="'caffe'"):
        preprocess_input(images, mode="caffe")


@pytest.mark.parametrize("library", ["tensorflow", "torch"])
def test_mode_torch_accepts_tensors_of_other_libraries(library):
    images = np.full((1, 2, 2, 3), 128, "uint8")
    other = pytest.importorskip(library)
    make = other.constant if library == "tensorflow" else other.tensor
    scaled = preprocess_input(make(images), mode="torch")
    np.testing.assert_allclose(
        np.asarray(scaled), preprocess_input(images, mode="torch"), atol=1e-6
    )


@pytest.mark.parametrize(
    "shape", [(), (3,), (2, 2), (5, 4, 3), (2, 1, 2, 2, 3)]
)
def test_arrays_of_any_rank(shape):
    scaled = preprocess_input(np.full(shape, 255, "uint8"))
    assert isinstance(scaled, np.ndarray)
    np.testing.assert_array_equal(scaled, np.ones(shape))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_empty_arrays(dtype):
    scaled = preprocess_input(np.zeros((0, 4, 4, 3), dtype))
    assert scaled.shape == (0, 4, 4, 3)
    assert scaled.dtype == "float32"


def test_read_only_and_strided_arrays():
    images = PIXELS.astype("float32")
    images.setflags(write=False)
    check(preprocess_input(images))
    np.testing.assert_array_equal(
        preprocess_input(PIXELS[..., ::-1]), preprocess_input(PIXELS)[..., ::-1]
    )


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bfloat16"])
def test_backend_tensors(dtype):
    images = ops.convert_to_tensor(PIXELS, dtype=dtype)
    scaled = preprocess_input(images)
    assert ops.is_tensor(scaled)
    assert keras.backend.standardize_dtype(scaled.dtype) == "float32"
    check(ops.convert_to_numpy(scaled))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(ops.cast(images, "float32")), PIXELS
    )


def make_tensor(library):
    module = pytest.importorskip(library)
    if library == "tensorflow":
        return module.constant(PIXELS), module.Tensor
    if library == "torch":
        return module.as_tensor(PIXELS), module.Tensor
    return module.numpy.asarray(PIXELS), module.Array


@pytest.mark.parametrize("library", ["jax", "tensorflow", "torch"])
def test_tensors_of_every_library(library):
    images, kind = make_tensor(library)
    scaled = preprocess_input(images)
    assert isinstance(scaled, kind)
    assert keras.backend.standardize_dtype(scaled.dtype) == "float32"
    check(scaled.cpu().numpy() if library == "torch" else np.asarray(scaled))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_symbolic_inputs(dtype):
    inputs = keras.Input((8, 16), dtype=dtype)
    outputs = preprocess_input(inputs)
    assert isinstance(outputs, keras.KerasTensor)
    assert outputs.dtype == "float32"
    model = keras.Model(inputs, outputs)
    check(model.predict(PIXELS.astype(dtype), verbose=0))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_tf_data(dtype):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(PIXELS.astype(dtype))
    data = data.map(preprocess_input, num_parallel_calls=2).batch(2)
    assert data.element_spec.dtype == tf.float32
    check(next(data.as_numpy_iterator()))


def test_tf_data_of_unknown_shape():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_generator(
        lambda: iter([PIXELS]),
        output_signature=tf.TensorSpec(None, "uint8"),
    )
    data = data.map(lambda image: (preprocess_input(image), 0))
    check(next(data.as_numpy_iterator())[0])


def test_jax_jit():
    jax = pytest.importorskip("jax")
    check(jax.jit(preprocess_input)(PIXELS))


@pytest.mark.slow
@pytest.mark.backends("jax", "torch")
def test_tensorflow_is_not_imported():
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import numpy as np\n"
        "from keras import ops\n"
        "from keras_vit.preprocessing import preprocess_input\n"
        "for x in np.full(3, 255), ops.full((3,), 255):\n"
        "    assert float(preprocess_input(x)[0]) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "images", [np.array([0.0, 0.5, 1.0]), np.array([[0.25]], "float16")]
)
def test_values_in_0_to_1_warn(images):
    with pytest.warns(UserWarning, match=r"floats in \[0, 1\]") as caught:
        scaled = preprocess_input(images)
    expected = images.astype("float64") / 127.5 - 1
    np.testing.assert_allclose(scaled, expected, atol=1e-6)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("library", ["jax", "tensorflow", "torch"])
def test_values_of_tensors_are_checked(library):
    """PyTorch's `ToTensor` gives values in [0, 1]."""
    module = pytest.importorskip(library)
    make = {
        "jax": lambda x: module.numpy.asarray(x),
        "tensorflow": lambda x: module.constant(x),
        "torch": lambda x: module.tensor(x),
    }[library]
    scaled = np.array([[0.0, 0.5], [0.25, 1.0]], "float32")
    with pytest.warns(UserWarning, match=r"floats in \[0, 1\]") as caught:
        preprocess_input(make(scaled))
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="from -1 to 1"):
        preprocess_input(make(scaled * 2 - 1))


@pytest.mark.slow
def test_traced_tensors_are_not_checked():
    scaled = np.array([[0.0, 0.5], [0.25, 1.0]], "float32")
    if keras.config.backend() == "jax":
        jax = pytest.importorskip("jax")
        jax.jit(preprocess_input)(scaled)
    if keras.config.backend() == "tensorflow":
        tf = pytest.importorskip("tensorflow")
        tf.function(preprocess_input)(tf.constant(scaled))
    if keras.config.backend() == "torch":
        torch = pytest.importorskip("torch")
        compiled = torch.compile(
            preprocess_input, backend="eager", fullgraph=True
        )
        compiled(torch.tensor(scaled))


def test_warning_is_shown_once_per_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for value in (0.25, 0.5, 0.75):
            preprocess_input(np.full((2, 2, 3), value))
    assert len(caught) == 1


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 2, 3)),
        np.ones((2, 2, 3)),
        np.array([0.0, 1.0]),
        np.array([0.5, 1.5]),
        np.array([0, 1], "uint8"),
    ],
)
def test_dark_images_do_not_warn(images):
    preprocess_input(images)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([-1.0, 1.0], "from -1 to 1"),
        ([-0.01, 255.0], "from -0.01 to 255"),
        ([0.0, 256.0], "from 0 to 256"),
        ([0.0, np.inf], "from 0 to inf"),
        ([0.0, np.nan], "from nan to nan"),
        (np.array([-3, 7], "int8"), "from -3 to 7"),
        (np.array([0, 65535], "uint16"), "from 0 to 65535"),
    ],
)
def test_values_out_of_range_raise(values, message):
    with pytest.raises(ValueError, match=message):
        preprocess_input(np.asarray(values))


def test_preprocessing_twice_raises():
    with pytest.raises(ValueError, match="not be preprocessed again"):
        preprocess_input(preprocess_input(PIXELS))


def test_rounding_errors_of_a_resize_are_accepted():
    images = np.array([-2e-5, 255.00003], "float32")
    np.testing.assert_allclose(preprocess_input(images), [-1, 1], atol=1e-6)


@pytest.mark.parametrize(
    "images",
    ["cat.jpg", 7, [[0, 255]], np.array(["cat.jpg"]), np.array([True, False])],
)
def test_other_inputs_raise(images):
    with pytest.raises(ValueError, match="must be a NumPy array or a tensor"):
        preprocess_input(images)


def test_tensors_of_other_dtypes_raise():
    with pytest.raises(ValueError, match="Received: .*bool"):
        preprocess_input(ops.convert_to_tensor([True]))
    tf = pytest.importorskip("tensorflow")
    for wrong in (tf.constant("cat.jpg"), tf.constant([True])):
        with pytest.raises(ValueError, match="integers or floats"):
            preprocess_input(wrong)
