import itertools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import digits
from keras_vit.data.splits import stratified_split

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def data():
    return keras_vit.data.load_dataset("digits")


def take(batches, count):
    columns = zip(*itertools.islice(batches, count), strict=True)
    return tuple(np.concatenate(column) for column in columns)


def test_sizes_and_class_names(data):
    assert data.num_train + data.num_test == 1797
    assert data.image_size == 8 and data.channels == 1
    assert data.class_names == tuple("0123456789")


def test_every_test_image_occurs_once(data):
    plain = data.test(image_size=8, batch_size=100)
    assert [len(plain[i][0]) for i in range(len(plain))] == [100, 100, 100, 59]
    assert all((plain[i][2] == 1).all() for i in range(len(plain)))
    test = data.test(image_size=8, batch_size=100, pad=True)
    images, labels, weights = take((test[i] for i in range(len(test))), None)
    assert len(images) == 400 and weights.mean() == pytest.approx(1)
    images, labels = images[weights > 0], labels[weights > 0]
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


def test_training_images_are_used_equally_often(data):
    train = data.train(image_size=8, batch_size=2)
    _, labels = take(train, data.num_train // 2)
    test = data.test(image_size=8, batch_size=data.num_test)
    counts = np.bincount(labels)
    ratio = data.num_train / data.num_test
    assert np.allclose(counts, np.bincount(test[0][1]) * ratio, atol=3)


def test_batches_are_determined_by_the_seed(data):
    options = dict(image_size=8, batch_size=16)
    first, again, other = (
        take(data.train(seed=seed, **options), 3) for seed in (0, 0, 1)
    )
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("mixed", [{}, {"mixup": 0.5, "cutmix": 0.5}])
def test_start_skips_batches(data, mixed):
    options = dict(image_size=8, batch_size=500, **mixed)
    batches = list(itertools.islice(data.train(**options), 8))
    for start in (1, 5):  # in the first pass, and in the second
        rest = itertools.islice(data.train(start=start, **options), 3)
        for whole, again in zip(batches[start:], rest, strict=False):
            for x, y in zip(whole, again, strict=True):
                np.testing.assert_array_equal(x, y)


def test_large_start_is_not_iterated_to(data):
    batches = data.train(image_size=8, batch_size=4, start=10**12)
    assert batches[0][0].shape == (4, 8, 8, 1)


def test_shards_concatenate_to_the_whole_batch(data):
    options = dict(image_size=8, batch_size=6)
    whole = take(data.train(**options), 1)
    shards = [take(data.train(shard=(i, 3), **options), 1) for i in range(3)]
    for x, *rows in zip(whole, *shards, strict=True):
        np.testing.assert_array_equal(x, np.concatenate(rows))
    seen = []
    for i in range(2):
        test = data.test(image_size=8, batch_size=100, shard=(i, 2))
        assert len(test) == 4
        x, _, weights = take((test[k] for k in range(4)), None)
        seen.append(x[weights > 0])
    everything = data.test(image_size=8, batch_size=data.num_test)[0][0]
    np.testing.assert_array_equal(np.concatenate(seen), everything)


def test_mixup_mixes_labels(data):
    images, labels = data.train(image_size=8, batch_size=8, mixup=0.8)[0]
    assert images.dtype == labels.dtype == np.float32
    assert labels.shape == (8, 10) and ((0 < labels) & (labels < 1)).any()
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)


def test_holdout_adds_a_validation_split():
    data = keras_vit.data.load_dataset("digits", holdout=0.1)
    assert data.num_validation == pytest.approx(144, abs=3)
    assert data.num_train + data.num_validation + data.num_test == 1797
    batches = [
        data.validation(image_size=8, batch_size=data.num_validation)[0],
        data.test(image_size=8, batch_size=data.num_test)[0],
    ]
    found = {image.tobytes() for images, *_ in batches for image in images}
    assert len(found) == data.num_validation + data.num_test
    assert min(np.bincount(batches[0][1])) >= 13
    with pytest.raises(ValueError, match="--holdout must be a fraction"):
        keras_vit.data.load_dataset("digits", holdout=1.0)
    whole = keras_vit.data.load_dataset("digits")
    with pytest.raises(ValueError, match="no validation images"):
        whole.validation(image_size=8, batch_size=8)


def test_classes_of_a_sample_are_counted(data):
    assert data.sample("train", 40).class_counts().sum() == 40
    assert data.sample("test", 40).class_counts().sum() == data.num_train


def test_unsupported_augment_and_protocol_are_refused(data):
    options = dict(image_size=8, batch_size=8)
    with pytest.raises(ValueError, match="use --augment none .*'medium1'"):
        data.train(augment="medium1", **options)
    with pytest.raises(ValueError, match="--protocol simple .*'vit_jax'"):
        data.test(protocol="vit_jax", **options)


def test_stratified_split_keeps_class_proportions():
    labels = np.array([0] * 50 + [1] * 10 + [2] * 2)
    train, test = stratified_split(labels)
    assert np.bincount(labels[test]).tolist() == [10, 2, 1]
    assert np.array_equal(np.sort(np.concatenate([train, test])), range(62))


def test_resize_matches_keras_bilinear():
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1))
    images = images.astype("float32")
    for size in (8, 12, 16):
        expected = keras.ops.image.resize(
            images, (size, size), interpolation="bilinear", antialias=False,
            data_format="channels_last",
        )  # fmt: skip
        expected = keras.ops.convert_to_numpy(expected)
        np.testing.assert_allclose(
            digits.resize(images, size), expected, atol=1e-5
        )


def test_random_affine_keeps_shape_and_value_range(monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (50, 8, 8, 1)).astype("float32")
    distorted = digits.random_affine(images, rng)
    assert distorted.shape == images.shape and distorted.dtype == images.dtype
    assert distorted.min() >= -1 - 1e-6 and distorted.max() <= 1 + 1e-6
    assert np.abs(distorted - images).mean() > 0.05
    for name in ("MAX_ROTATION", "MAX_LOG_SCALE", "MAX_SHIFT"):
        monkeypatch.setattr(digits, name, 0.0)
    np.testing.assert_allclose(
        digits.random_affine(images, rng), images, atol=1e-6
    )


@pytest.mark.nightly
@pytest.mark.backends("jax", "torch")
def test_digits_do_not_need_tensorflow():
    """An installed TensorFlow is not imported either."""
    code = """
import sys
sys.modules["tensorflow"] = None  # importing it now fails
import keras_vit
train = keras_vit.data.load_dataset("digits").train(image_size=8, batch_size=4)
assert train[0][0].shape == (4, 8, 8, 1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
