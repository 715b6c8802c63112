"""Weights of classes in the loss."""

import keras
import numpy as np
import pytest

import keras_vit


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
        pytest.importorskip("tensorflow")
        labels = np.repeat([0, 1, 2], (20, 8, 2))
        images = np.arange(30 * 8 * 8 * 3).reshape(30, 8, 8, 3) % 251 / 1.0
        data = keras_vit.data.from_arrays(images, labels, test=(images, labels))
    counts = data.class_counts()
    np.testing.assert_array_equal(counts, np.bincount(labels))
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
    assert history.history["loss"][0] == pytest.approx(
        np.mean(w * losses), rel=1e-5
    )
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
    with pytest.raises(ValueError, match=r"\[0, 0\]"):
        keras_vit.data.balanced_class_weights([0, 0])
