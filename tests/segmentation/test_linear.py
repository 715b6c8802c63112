"""The linear head, sliding windows and mean IoU against NumPy."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import evaluation
from keras_vit.segmentation import LinearSegmenter, sliding_window
from tests.harness import numpy
from tests.small import images, randomize, tiny

ON_TORCH = pytest.mark.backends("torch")


def segmenter(encoder, **options):
    model = LinearSegmenter(encoder, 3, **options)
    randomize(model)
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(keras.ops.abs(weight) + 0.1)
    return model


def interpolate(x, size):
    """By PyTorch's definition, in float64."""
    for axis, new in ((1, size[0]), (2, size[1])):
        old = x.shape[axis]
        place = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.minimum(place.astype(int), max(old - 2, 0))
        high = np.minimum(low + 1, old - 1)
        share = np.expand_dims(place - low, tuple(range(1, 4 - axis)))
        low, high = (np.take(x, i, axis) for i in (low, high))
        x = low * (1 - share) + high * share
    return x


# The wrong order of the blocks would be that of their names.
@pytest.mark.parametrize("blocks", [-1, (0, 1), pytest.param((2, 10), marks=ON_TORCH)])
def test_logits_are_the_oracles(blocks):
    encoder = tiny(num_layers=11) if blocks == (2, 10) else tiny()
    model = segmenter(encoder, blocks=blocks)
    weights = {w.path: numpy(w).astype("float64") for w in model.weights}
    maps = keras_vit.dense_features(encoder, blocks)
    for size in ((8, 12), (16, 8)):
        x = images(2, *size, 3)
        y = maps.predict(x, verbose=0)
        if isinstance(y, dict):
            y = np.concatenate([y[f"block_{i}"] for i in blocks], -1)
        assert y.shape[-1] == (24 if blocks == -1 else 48)
        y = y.astype("float64") - weights["head_norm/moving_mean"]
        y = y / np.sqrt(weights["head_norm/moving_variance"] + 1e-5)
        y = y * weights["head_norm/gamma"] + weights["head_norm/beta"]
        y = y @ weights["head/kernel"][0, 0] + weights["head/bias"]
        expected = interpolate(y, size)
        found = model.predict(x, verbose=0)
        assert found.shape == (2, *size, 3)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.suite("jax", "torch")
def test_frozen_saved_and_trained(tmp_path):
    encoder = tiny(num_layers=1)
    encoder.trainable = False
    model = LinearSegmenter(encoder, 3)
    assert [w.path for w in model.trainable_weights] == [
        *("head_norm/gamma", "head_norm/beta", "head/kernel", "head/bias")
    ]
    x, mask = images(), np.zeros((2, 8, 12), int)
    mask[:, :, 6:] = 2
    mask[0, :2] = 255
    model.compile(
        keras.optimizers.Adam(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255),
    )
    before = [numpy(w) for w in encoder.weights]
    first = model.evaluate(x, mask, verbose=0)
    model.fit(x, mask, epochs=5, verbose=0)
    assert model.evaluate(x, mask, verbose=0) < first
    for weight, old in zip(encoder.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), old)
    model.save(tmp_path / "model.keras")
    # `converters.load`, which tools/export.py uses, compares the weights.
    for load in (keras.models.load_model, keras_vit.converters.load):
        again = load(tmp_path / "model.keras")
        np.testing.assert_array_equal(
            again.predict(x, verbose=0), model.predict(x, verbose=0)
        )


@ON_TORCH
def test_precision_activation_and_padding():
    keras.config.set_dtype_policy("mixed_bfloat16")
    encoder = tiny(num_layers=1, pad_to_patch=True)
    model = LinearSegmenter(encoder, 3, classifier_activation="softmax")
    found = model(images(1, 7, 10, 3))
    assert tuple(found.shape) == (1, 7, 10, 3)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(numpy(found).sum(-1), 1, atol=1e-5)


@ON_TORCH
def test_a_hybrid_is_enlarged_by_all_of_its_stride():
    encoder = keras_vit.HybridVisionTransformer(
        input_shape=(32, 32, 3),
        classes=2,
        resnet_layers=(1,),
        width_factor=0.5,
        patch_size=2,
        hidden_size=24,
        num_layers=1,
        num_heads=3,
    )
    model = LinearSegmenter(encoder, 4)
    assert model.get_layer("pixels").stride == (8, 8)
    assert model(images(1, 16, 24, 3)).shape == (1, 16, 24, 4)


class Pixels:
    """A model that classifies each pixel by itself, and counts."""

    name = "pixels"

    def __init__(self):
        self.shapes = []

    def predict_on_batch(self, x):
        self.shapes.append(x.shape)
        return np.stack([x.sum(-1), x[..., 0], 1 - x[..., 1]], -1)


@ON_TORCH
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("window, stride", [(8, 5), ((8, 6), (3, 6)), (40, 40)])
def test_windows_of_a_model_of_pixels_equal_the_whole(window, stride, batch_size):
    image = images(23, 30, 3)
    expected = Pixels().predict_on_batch(image)
    model = Pixels()
    found = sliding_window(model, image, window, stride, batch_size)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    classes = sliding_window(model, image, window, stride, batch_size, argmax=True)
    np.testing.assert_array_equal(classes, expected.argmax(-1))
    assert max(shape[0] for shape in model.shapes) <= batch_size
    assert len({shape[1:] for shape in model.shapes}) == 1


def test_the_metric_equals_that_of_one_confusion_matrix():
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 3, (2, 4, 5, 6))
    masks[:, 0, :2] = 255
    logits = rng.normal(size=(2, 4, 5, 6, 4)).astype("float32")
    logits += 2 * (np.arange(4) == masks[..., None])
    logits[..., 3] = -9  # a class without pixels
    metric = keras_vit.metrics.MeanIoU(4, ignore=255)
    for y, x in zip(masks, logits, strict=True):
        metric.update_state(y, keras.ops.convert_to_tensor(x))
    confusion = evaluation.confusion_matrix(logits.argmax(-1), masks, 4, 255)
    expected, _ = evaluation.mean_iou(confusion)
    assert 0.4 < expected < 0.9
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)
    again = type(metric).from_config(metric.get_config())
    assert (again.classes, again.ignore) == (4, 255)
    metric.reset_state()
    assert float(metric.result()) == 0
    with pytest.raises(ValueError, match="sample_weight"):
        metric.update_state(masks[0], logits[0], sample_weight=1)


@pytest.mark.parametrize("floatx", ["float32", "bfloat16", "float16"])
def test_the_metric_counts_more_pixels_than_its_dtype_has_integers(
    floatx,
):
    keras.config.set_floatx(floatx)
    metric = keras_vit.metrics.MeanIoU(2)
    scores = np.eye(2, dtype="float32")[[0] * 1500]
    masks = np.arange(1500) % 5 == 4
    for _ in range(2):  # float16 has the integers to 2048
        metric.update_state(masks, scores)
    assert metric.confusion.tolist() == [[2400, 0], [600, 0]]
    assert float(metric.result()) == pytest.approx(0.4, abs=1e-6)
    # These are the counts after millions of batches.
    rests = np.array([[2**24 - 1, 0], [2**24 - 3, 0]], "float32")
    metric._rests.assign(rests)
    metric._multiples.assign(rests // 8)
    expected = 2**24 * (rests // 8).astype(float) + rests
    metric.update_state(masks[:5], scores[:5])
    expected += [[4, 0], [1, 0]]
    assert (metric.confusion == expected).all()
    right, _ = evaluation.mean_iou(metric.confusion)
    assert float(metric.result()) == pytest.approx(right, abs=1e-6)


@pytest.mark.slow
@ON_TORCH
def test_the_metric_counts_more_pixels_of_a_batch_than_float32_has_integers():
    count = 2**24 + 10
    scores = np.zeros((count, 2), "float16")
    scores[:, 0] = 1
    metric = keras_vit.metrics.MeanIoU(2)
    metric.update_state(np.arange(count) < 5, scores)
    assert metric.confusion.tolist() == [[count - 5, 0], [5, 0]]


def test_pixels_of_no_class_make_the_metric_nan():
    scores = np.eye(3, dtype="float32")[[0, 1, 2, 0]]
    for mask, ignore, right in (
        ([0, 1, 2, 255], None, False),
        ([0, 1, 2, 3], None, False),
        ([0, 1, 2, 3], 255, False),
        ([0, 1, 2, 255], 255, True),
        ([0, 1, 2, -1], None, True),
        ([0, 1, 2, 3], 3, True),
    ):
        metric = keras_vit.metrics.MeanIoU(3, ignore)
        metric.update_state(np.array(mask), scores)
        metric.update_state(np.array([0, 1, 2, 0]), scores)
        found = float(metric.result())
        assert found == 1 if right else np.isnan(found)
        assert np.isnan(metric.confusion).any() == (not right)
        metric.reset_state()
        metric.update_state(np.array([0, 1, 2, 0]), scores)
        assert float(metric.result()) == 1
