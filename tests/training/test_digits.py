import functools

import keras
import numpy as np
import pytest
import sklearn.datasets

import keras_vit
from keras_vit.data import digits
from keras_vit.data.digits import read_digits
from keras_vit.data.splits import stratified_split
from tests.training.batches import check_order, examples, take

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def data():
    return keras_vit.data.load_dataset("digits")


def test_every_test_image_occurs_once(data):
    assert data.num_train + data.num_test == 1797
    assert data.image_size == 8 and data.channels == 1
    assert data.class_names == tuple("0123456789")
    plain = data.test(image_size=8, batch_size=100)
    assert [len(plain[i][0]) for i in range(len(plain))] == [100, 100, 100, 59]
    assert all((plain[i][2] == 1).all() for i in range(len(plain)))
    padded = data.test(image_size=8, batch_size=100, pad=True)
    assert take(padded, 4)[2].mean() == pytest.approx(1)
    images, labels = examples(padded)
    # A fifth of every class.
    assert set(np.bincount(labels)) <= {35, 36, 37}
    # The very images of scikit-learn, none of them twice.
    all_images, all_labels = sklearn.datasets.load_digits(return_X_y=True)
    read = read_digits()
    np.testing.assert_array_equal(read[0].reshape(-1, 64), all_images)
    np.testing.assert_array_equal(read[1], all_labels)
    known = {
        row.tobytes(): label for row, label in zip(all_images, all_labels, strict=True)
    }
    pixels = ((images.astype("float64") + 1) * 8).reshape(-1, 64)
    found = [row.tobytes() for row in pixels]
    assert len(set(found)) == data.num_test
    assert [known[row] for row in found] == labels.tolist()
    # Two processes have as many batches, and each image once.
    shards = [data.test(image_size=8, batch_size=100, shard=(i, 2)) for i in range(2)]
    assert [len(shard) for shard in shards] == [4, 4]
    together = np.concatenate([examples(shard)[0] for shard in shards])
    np.testing.assert_array_equal(together, images)


def test_each_part_of_a_split_has_images_of_small_classes():
    labels = np.array([0] * 50 + [1] * 10 + [2] * 2 + [3])
    train, test = stratified_split(labels)
    assert np.bincount(labels[test]).tolist() == [10, 2, 1]
    assert np.array_equal(np.sort([*train, *test]), range(63))


def test_training_images_are_used_equally_often(data):
    train = data.train(image_size=8, batch_size=2)
    _, labels = take(train, data.num_train // 2)
    expected = data.class_counts()
    assert np.allclose(np.bincount(labels.ravel()), expected, atol=3)
    assert data.sample("train", 40).class_counts().sum() == 40


@pytest.mark.parametrize("mixed", [{}, {"mixup": 0.5, "cutmix": 0.5}])
def test_batches_depend_on_seed_and_number(data, mixed):
    options = {"image_size": 8, "batch_size": 500, **mixed}
    train = functools.partial(data.train, **options)
    _, labels = check_order(train, processes=1 if mixed else 2)
    if mixed:
        assert labels.dtype == np.float32 and labels.shape == (7, 500, 10)
        assert ((0 < labels) & (labels < 1)).any()
        np.testing.assert_allclose(labels.sum(-1), 1, atol=1e-6)
    else:  # the first batch is not iterated to
        batches = data.train(image_size=8, batch_size=4, start=10**12)
        assert batches[0][0].shape == (4, 8, 8, 1)


def test_holdout_adds_a_validation_split(data):
    held = keras_vit.data.load_dataset("digits", holdout=0.1)
    assert held.num_validation == pytest.approx(144, abs=3)
    assert held.num_train + held.num_validation + held.num_test == 1797
    options = {"image_size": 8, "batch_size": 64}
    for part in ("train", "validation", "test"):
        images, labels = examples(held.batches(part, **options))
        assert len(images) == getattr(held, f"num_{part}")
        if part == "validation":
            assert min(np.bincount(labels)) >= 13
            validation = {image.tobytes() for image in images}
    assert not validation & {image.tobytes() for image in images}
    with pytest.raises(ValueError, match="`holdout` must be a fraction"):
        keras_vit.data.load_dataset("digits", holdout=1.0)
    with pytest.raises(ValueError, match="'digits' has no validation images"):
        data.validation(**options)


@pytest.mark.parametrize(
    "split, options, words",
    [
        ("train", {"augment": "medium1"}, "leave out `augment`.*'medium1'"),
        ("train", {"erase": 0.5}, "erase"),
        ("test", {"protocol": "vit_jax"}, "leave out `protocol`.*'vit_jax'"),
        *(
            ("train", {"image_size": size}, r"\(height, width\)")
            for size in ((8,), (8, 0), 8.0)
        ),
    ],
)
def test_unsupported_options_are_refused(data, split, options, words):
    with pytest.raises(ValueError, match=words):
        getattr(data, split)(**{"image_size": 8, "batch_size": 8, **options})


@pytest.mark.parametrize("mode, channels", [("torch", 3), (((0.1,), (0.2,)), 1)])
def test_modes_scale_the_same_images(data, mode, channels):
    for make in (data.test, functools.partial(data.train, seed=1)):
        options = {"image_size": 12, "batch_size": 9}
        plain, scaled = (make(mode=x, **options)[0][0] for x in ("tf", mode))
        assert scaled.shape == (9, 12, 12, channels)
        expected = keras_vit.preprocess_input((plain + 1) * 127.5, mode)
        np.testing.assert_allclose(scaled, expected, atol=1e-5)


@pytest.mark.parametrize("size", [(12, 12), (8, 40)])
def test_resize_matches_keras_bilinear(size):
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1))
    images = images.astype("float32")
    expected = keras.ops.image.resize(
        images,
        size,
        interpolation="bilinear",
        antialias=False,
        data_format="channels_last",
    )
    expected = keras.ops.convert_to_numpy(expected)
    np.testing.assert_allclose(digits.resize(images, size), expected, atol=1e-5)


def distort(images, rng):
    return digits.random_affine(images, rng, len(images), np.arange(len(images)))


@pytest.mark.parametrize("size", [(8, 8), (8, 64), (64, 8)])
def test_random_affine_keeps_shape_and_value_range(size, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (400, *size, 1)).astype("float32")
    distorted = distort(images, rng)
    assert distorted.shape == images.shape and distorted.dtype == images.dtype
    assert np.abs(distorted).max() <= 1 + 1e-6
    assert np.abs(distorted - images).mean() > 0.05
    # The corners, which are moved farthest, come from the background or the
    # image, and not from its other end.
    corner = np.full_like(images, digits.BACKGROUND)
    corner[:, size[0] // 2 :, size[1] // 2 :] = 1
    if max(size) > 8:
        found = distort(corner, rng)[:, :2, :2]
        assert (found[:, : size[0] // 2 - 3, : size[1] // 2 - 3] < 0).all()
    for name in ("MAX_ROTATION", "MAX_LOG_SCALE", "MAX_SHIFT"):
        monkeypatch.setattr(digits, name, 0.0)
    np.testing.assert_allclose(distort(images, rng), images, atol=1e-6)
