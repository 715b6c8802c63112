"""Losses, and weights of classes in them."""

import keras
import numpy as np
import pytest

import keras_vit

LOGITS = np.array(
    [[0.3, -2.0, 5.0], [-10.0, -10.0, -10.0], [200.0, -200.0, 0.0]], "float32"
)
# One class, two halves as after mixup, several classes.
LABELS = np.array([[0, 0, 1], [0.5, 0.5, 0], [1, 0, 1]], "float32")


def by_definition(labels, logits):
    """-sum of y log s(x) + (1 - y) log(1 - s(x)) over classes, in float64."""
    log_yes = -np.logaddexp(0, -logits.astype("float64"))
    log_no = -np.logaddexp(0, logits.astype("float64"))
    return -(labels * log_yes + (1 - labels) * log_no).sum(-1)


def test_sigmoid_is_summed_over_classes_and_averaged_over_images():
    loss = keras_vit.losses.get_loss("sigmoid", one_hot=True)
    expected = by_definition(LABELS, LOGITS)
    np.testing.assert_allclose(loss.call(LABELS, LOGITS), expected, rtol=1e-6)
    assert float(loss(LABELS, LOGITS)) == pytest.approx(expected.mean())
    # Padding does not count: its weight is 0, and 3/2 for two images in three.
    found = float(loss(LABELS, LOGITS, np.array([1.5, 1.5, 0], "float32")))
    assert found == pytest.approx(expected[:2].mean())
    # Keras's own is as many times smaller as there are classes.
    keras_own = keras.losses.BinaryCrossentropy(from_logits=True)
    assert 3 * float(keras_own(LABELS, LOGITS)) == pytest.approx(expected.mean())


def test_loss_is_saved_with_the_model(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", keras_vit.losses.SigmoidCrossentropy())
    model.save(tmp_path / "model.keras")
    found = keras.models.load_model(tmp_path / "model.keras")
    assert type(found.loss) is keras_vit.losses.SigmoidCrossentropy


def test_softmax_loss_with_class_numbers_and_one_hot_labels():
    logits = LOGITS[:1].astype("float64")
    expected = np.log(np.exp(logits).sum()) - logits[0, 2]
    for labels, one_hot in (([2], False), ([[0.0, 0, 1]], True)):
        loss = keras_vit.losses.get_loss("softmax", one_hot)
        found = float(loss(np.array(labels), LOGITS[:1]))
        # The float32 sum is near 1: its last bit is 1e-5 of this.
        assert found == pytest.approx(expected, rel=5e-5)


@pytest.mark.backends("torch")
def test_sigmoid_refuses_class_numbers():
    loss = keras_vit.losses.SigmoidCrossentropy()
    for labels in ([[1], [0], [2]], [1, 0, 2]):
        with pytest.raises(ValueError, match=r"shape \(batch, 4\)"):
            loss(np.array(labels), np.zeros((3, 4), "float32"))


@pytest.mark.backends("tensorflow")
def test_sigmoid_takes_labels_of_unknown_shape():
    import tensorflow as tf

    loss = keras_vit.losses.SigmoidCrossentropy()
    shapes = [tf.TensorSpec((None, None)), tf.TensorSpec((None, 3))]
    found = tf.function(loss, input_signature=shapes)(LABELS, LOGITS)
    assert float(found) == pytest.approx(by_definition(LABELS, LOGITS).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, one_hot",
    [
        pytest.param("digits", False, marks=pytest.mark.backends("torch")),
        pytest.param("arrays", True, marks=pytest.mark.backends("tensorflow")),
    ],
)
def test_class_weights_multiply_the_sample_weights(kind, one_hot):
    """The loss of a step is the weighted mean of the images' losses."""
    utils = pytest.importorskip("sklearn.utils.class_weight")
    if kind == "digits":
        data = keras_vit.data.load_dataset("digits")
        _, labels, _ = data.batches("train", image_size=8, batch_size=1797)[0]
    else:
        labels = np.repeat([0, 1, 2], (20, 8, 2))
        images = np.arange(30 * 8 * 8 * 3).reshape(30, 8, 8, 3) % 251 / 1.0
        data = keras_vit.data.from_arrays(images, labels, test=(images, labels))
    counts = data.class_counts()
    weights = keras_vit.data.balanced_class_weights(counts)
    expected = utils.compute_class_weight(
        "balanced", classes=np.unique(labels), y=labels
    )
    np.testing.assert_allclose(weights, expected, rtol=1e-12)

    options = {"image_size": 8, "batch_size": 16, "one_hot": one_hot}
    batches = data.train(**options, class_weights=weights)
    x, y, w = (np.asarray(column) for column in next(iter(batches)))
    y = y.argmax(-1) if one_hot else y
    np.testing.assert_allclose(w, weights[y], rtol=1e-6)
    assert len(set(w)) > 1
    classes = len(counts)
    layers = [keras.layers.Flatten(), keras.layers.Dense(classes)]
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    logits = keras.ops.convert_to_numpy(model(x)).astype("float64")
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(y)), y]
    model.compile("sgd", keras_vit.losses.get_loss("softmax", one_hot))
    history = model.fit(batches, steps_per_epoch=1, verbose=0, shuffle=False)
    assert history.history["loss"][0] == pytest.approx(np.mean(w * losses), rel=1e-5)
    for wrong, words in (
        ({"mixup": 0.2}, "mixup"),
        ({"cutmix": 1.0}, "cutmix"),
        ({"class_weights": weights[1:]}, f"{classes} numbers"),
        ({"class_weights": -weights}, f"{classes} numbers"),
        ({"class_weights": weights * np.nan}, f"{classes} numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            data.train(**{**options, "class_weights": weights, **wrong})


@pytest.mark.backends("torch")
def test_balanced_weights_of_classes_without_images():
    weights = keras_vit.data.balanced_class_weights([6, 0, 2])
    np.testing.assert_allclose(weights, [8 / 12, 0, 2])
