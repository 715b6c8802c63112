import itertools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit import training
from keras_vit.training import _digits
from keras_vit.training._splits import split


@pytest.fixture(scope="module")
def data():
    return training.find_data("digits")


def take(batches, count):
    images, labels = zip(*itertools.islice(batches, count), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def test_facts(data):
    assert data.num_train + data.num_test == 1797
    assert data.image_size == 8 and data.channels == 1
    assert data.class_names == tuple("0123456789")


def test_every_test_image_is_there_once(data):
    _, test = data.batches(8, 100, 0, True)
    images, labels = take((test[i] for i in range(len(test))), None)
    assert images.shape == (data.num_test, 8, 8, 1)
    assert images.min() == -1 and images.max() == 1
    # A fifth of every class.
    assert set(np.bincount(labels)) <= {35, 36, 37}
    # The very images of scikit-learn, none of them twice.
    from sklearn.datasets import load_digits

    all_images, _ = load_digits(return_X_y=True)
    everything = {row.tobytes() for row in all_images.astype("float32")}
    pixels = ((images + 1) * 8).reshape(-1, 64)
    found = {row.astype("float32").tobytes() for row in pixels}
    assert len(found) == len(images) and found <= everything


def test_training_images_are_seen_equally_often(data):
    train, _ = data.batches(8, 2, 0, True)
    _, labels = take(train, data.num_train // 2)
    _, test = data.batches(8, 2000, 0, True)
    counts = np.bincount(labels)
    share = data.num_train / data.num_test
    assert np.allclose(counts, np.bincount(test[0][1]) * share, atol=3)


def test_batches_follow_from_the_seed(data):
    first, again, other = (
        take(data.batches(8, 16, seed, True)[0], 3) for seed in (0, 0, 1)
    )
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])


def test_seeds_share_the_split(data):
    one, two = (data.batches(8, 2000, seed, True)[1][0] for seed in (0, 1))
    assert np.array_equal(one[0], two[0])


def test_split_keeps_classes_and_loses_nothing():
    labels = np.array([0] * 50 + [1] * 10 + [2] * 2)
    train, test = split(labels)
    assert np.bincount(labels[test]).tolist() == [10, 2, 1]
    assert np.array_equal(np.sort(np.concatenate([train, test])), range(62))


def test_resize_is_bilinear():
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1))
    images = images.astype("float32")
    for size in (8, 12, 16):
        expected = keras.ops.image.resize(
            images, (size, size), interpolation="bilinear", antialias=False,
            data_format="channels_last",
        )  # fmt: skip
        expected = keras.ops.convert_to_numpy(expected)
        np.testing.assert_allclose(
            _digits.resize(images, size), expected, atol=1e-5
        )


def test_distort_moves_little_and_keeps_the_range(monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (50, 8, 8, 1)).astype("float32")
    distorted = _digits.distort(images, rng)
    assert distorted.shape == images.shape and distorted.dtype == images.dtype
    assert distorted.min() >= -1 - 1e-6 and distorted.max() <= 1 + 1e-6
    assert np.abs(distorted - images).mean() > 0.05
    for name in ("TURN", "STRETCH", "MOVE"):
        monkeypatch.setattr(_digits, name, 0.0)
    np.testing.assert_allclose(_digits.distort(images, rng), images, atol=1e-6)


def test_needs_no_tensorflow():
    """Not even one that is installed (Keras itself looks for it)."""
    if keras.config.backend() == "tensorflow":
        pytest.skip("TensorFlow is the backend")
    code = """
import sys
sys.modules["tensorflow"] = None  # importing it now fails
from keras_vit import training
train, test = training.find_data("digits").batches(8, 4, 0, False)
assert next(train)[0].shape == (4, 8, 8, 1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
