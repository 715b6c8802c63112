"""Wrong images raise clear errors, and the model works afterwards."""

import keras
import numpy as np
import pytest

import keras_vit


def zeros(*shape):
    return np.zeros(shape, "float32")


def vit(*size):
    return keras_vit.VisionTransformer(
        input_shape=(*(size or (None, None)), 3),
        patch_size=8,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        classes=2,
    )


RGBA, FIRST, PIXEL = (2, 16, 16, 4), (2, 3, 16, 16), (2, 1, 1, 3)


def assert_works(model, *shape):
    assert model.predict(zeros(*shape), verbose=0).shape == (shape[0], 2)


def test_wrong_batch_does_not_affect_later_batches():
    """Batches of a generator are not checked before they are computed."""
    model = vit()
    model.predict_on_batch(zeros(2, 16, 16, 3))
    before = model.get_weights()
    with pytest.raises(Exception):  # noqa: B017  (of the backend)
        model.predict_on_batch(zeros(*RGBA))
    for shape in ((2, 24, 24, 3), (3, 24, 32, 3), (2, 16, 16, 3)):
        assert model.predict_on_batch(zeros(*shape)).shape == (shape[0], 2)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "shape, message",
    [
        (RGBA, r"None, 3\). Received.*\(\w+, 16, 16, 4\)"),
        (FIRST, r"Received: images of shape \(\w+, 3, 16, 16\)"),
        (PIXEL, "8 x 8 pixels does not divide an image of 1 x 1"),
        ((2, 17, 16, 3), "17 is not a multiple of 8"),
    ],
)
def test_wrong_image_shapes_raise(shape, message):
    model = vit()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    assert_works(model, 2, 16, 16, 3)
    assert_works(model, 2, 24, 24, 3)
    before = model.get_weights()
    images, labels = zeros(*shape), np.zeros(shape[0], "int32")
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(2)
    for call in (
        lambda: model.predict(images, verbose=0),
        lambda: model.evaluate(images, labels, verbose=0),
        lambda: model.fit(images, labels, verbose=0),
        lambda: model.predict(dataset.map(lambda x, y: x), verbose=0),
        lambda: model.fit(dataset, verbose=0),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert_works(model, 3, 24, 32, 3)


def test_one_image_without_a_batch_axis_raises():
    """With JAX, Keras's error would come after the weights are lost."""
    model = vit(16, 16)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    image, label = zeros(16, 16, 3), np.zeros(16, "int32")
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensors(image)
    for call in (
        lambda: model.predict(image, verbose=0),
        lambda: model.predict(keras.ops.convert_to_tensor(image), verbose=0),
        lambda: model.predict([image], verbose=0),
        lambda: model.predict({"images": image}, verbose=0),
        lambda: model.predict(dataset, verbose=0),
        lambda: model.evaluate(image, label, verbose=0),
        lambda: model.fit(image, label, verbose=0),
    ):
        with pytest.raises(ValueError, match=r"16, 3\).*images\[None\]"):
            call()
    assert_works(model, 2, 16, 16, 3)


def test_images_of_another_size_raise():
    """With JAX, Keras's `predict` returns numbers for them."""
    model = vit(16, 16)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    images, labels = zeros(2, 24, 16, 3), np.zeros(2, "int32")
    for call in (
        lambda: model.predict(images, verbose=0),
        lambda: model.evaluate(images, labels, verbose=0),
        lambda: model.fit(images, labels, verbose=0),
    ):
        with pytest.raises(ValueError, match=r"16, 16, 3\). Received.*24, 16"):
            call()
    assert_works(model, 2, 16, 16, 3)


def test_hybrids_check_channels():
    model = keras_vit.HybridVisionTransformer(
        resnet_layers=(),
        width_factor=0.5,
        input_shape=(None, None, 3),
        patch_size=4,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        classes=2,
    )
    with pytest.raises(ValueError, match=r"None, 3\). Received"):
        model.predict(zeros(*RGBA), verbose=0)
    assert_works(model, 2, 16, 32, 3)
