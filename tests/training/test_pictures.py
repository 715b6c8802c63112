import keras
import numpy as np
import pytest

from keras_vit import training


def test_spread_out_takes_from_every_part():
    images = np.arange(103, dtype="float32").reshape(-1, 1, 1, 1)
    batches = [
        (images[i : i + 10], images[i : i + 10, 0, 0, 0].astype(int))
        for i in range(0, 103, 10)
    ]
    picked, labels = training.spread_out(batches, 103, 5)
    assert labels.tolist() == [0, 25, 51, 76, 102]
    assert np.array_equal(picked[:, 0, 0, 0], labels)
    assert len(training.spread_out(batches, 103, 500)[1]) == 103


@pytest.mark.parametrize("channels, count", [(1, 25), (3, 4), (3, 1)])
def test_predictions(tmp_path, channels, count):
    inputs = keras.Input((4, 4, channels))
    outputs = keras.layers.GlobalMaxPooling2D()(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(outputs))
    images = np.random.default_rng(0).uniform(-1, 1, (count, 4, 4, channels))
    images = images.astype("float32")
    path = tmp_path / "predictions.png"
    # Some would be formulas, or no text at all.
    names = ["$^$ and \udce9", "a name that is far too long for a picture"]
    labels = np.zeros(count, int)
    found = training.save_predictions(model, images, labels, names, path, "$^$")
    expected = model.predict(images, verbose=0).argmax(-1)
    assert np.array_equal(found, expected)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_curves(tmp_path):
    names = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
    rows = [{"step": 1, **dict.fromkeys(names, 0.5)}]
    training.save_curves(rows, tmp_path / "curves.png", "title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
