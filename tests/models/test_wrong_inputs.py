"""Wrong images raise clear errors, and the model works afterwards."""

import keras
import numpy as np
import pytest

from tests.small import tiny


def zeros(*shape):
    return np.zeros(shape, "float32")


def compiled(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    return model


def vit(*size):
    sizes = {"patch_size": 8, "num_layers": 1, "classes": 2}
    shape = (*(size or (None, None)), 3)
    return compiled(tiny(**sizes, input_shape=shape))


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
        *(
            pytest.param(*case, marks=pytest.mark.backends("torch"))
            for case in (
                (FIRST, r"Received: images of shape \(\w+, 3, 16, 16\)"),
                (PIXEL, "8 x 8 pixels does not divide an image, .*of 1 x 1"),
                ((2, 17, 16, 3), "17 is not a multiple of 8"),
            )
        ),
    ],
)
def test_wrong_image_shapes_raise(shape, message):
    model = vit()
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


def test_images_for_a_model_of_one_size():
    """With JAX, Keras's error for an image without a batch axis would come
    after the weights are lost, and `predict` would return numbers for images
    of another size."""
    model = vit(16, 16)
    image, label = zeros(16, 16, 3), np.zeros(16, "int32")
    images, labels = zeros(2, 24, 16, 3), np.zeros(2, "int32")
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensors(image)
    alone, another = r"16, 3\).*images\[None\]", r"16, 16, 3\). Received.*24"
    for call, message in (
        (lambda: model.predict(image, verbose=0), alone),
        (lambda: model.predict(keras.ops.convert_to_tensor(image)), alone),
        (lambda: model.predict([image], verbose=0), alone),
        (lambda: model.predict({"images": image}, verbose=0), alone),
        (lambda: model.predict(dataset, verbose=0), alone),
        (lambda: model.evaluate(image, label, verbose=0), alone),
        (lambda: model.fit(image, label, verbose=0), alone),
        (lambda: model.predict(images, verbose=0), another),
        (lambda: model.evaluate(images, labels, verbose=0), another),
        (lambda: model.fit(images, labels, verbose=0), another),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert_works(model, 2, 16, 16, 3)
