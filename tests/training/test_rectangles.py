"""Images that are not square: `image_size=(height, width)`."""

import itertools

import numpy as np
import pytest

import keras_vit
from keras_vit.data import digits
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.randaugment import operations
from tests.training.pictures import encode
from tests.training.pictures import noise

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")

SEED = tf.constant([0, 5], tf.int64)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("size", [(16, 40), (300, 24)])
def test_evaluation_protocols_accept_rectangles(name, size):
    """The transposed image gives the transposed result."""
    image = noise(60, 50)
    cut = PROTOCOLS[name].test
    found = cut(tf.constant(encode(image)), SEED, size, 3)
    assert found.shape == (*size, 3)
    turned = tf.constant(encode(image.transpose(1, 0, 2)))
    other = cut(turned, SEED, size[::-1], 3)
    # Rows and columns are resized, and rounded to integers, in the other order:
    # measured, up to 2 gray levels and 0.18 on average. A crop that is
    # moved by one pixel differs by 2 or more on average.
    difference = np.abs(found - np.transpose(other, (1, 0, 2)))
    assert difference.max() <= 2 and difference.mean() < 0.5


@pytest.mark.parametrize("name", PROTOCOLS)
def test_training_protocols_accept_rectangles(name):
    image = tf.constant(encode(noise(60, 50)))
    for image_size in (None, 32):  # of the data set
        cut = PROTOCOLS[name].for_training(image_size)
        found = tf.function(cut)(image, SEED, (16, 40), 3)
        assert found.shape == (16, 40, 3)
        # Not one number throughout, as of padding.
        assert 0 <= found.numpy().min() < found.numpy().max() <= 256


def test_vit_jax_resizes_the_whole_image():
    image = noise(60, 50)
    encoded = tf.constant(encode(image))
    found = PROTOCOLS["vit_jax"].test(encoded, SEED, (20, 33), 3)
    expected = _bilinear(_bilinear(image.astype(float), 20, 0), 33, 1)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def _bilinear(image, size, axis):
    old = image.shape[axis]
    at = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    weights = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(old)))
    return np.moveaxis(np.tensordot(weights, image, (1, axis)), 0, axis)


@pytest.mark.parametrize("height, width", [(60, 50), (40, 90)])
def test_crops_keep_the_aspect_ratio(height, width):
    """A horizontal and a vertical gradient keep equal slopes."""
    rows, columns = np.indices((height, width))
    image = np.stack([rows, columns, rows], -1).astype(np.uint8)
    size = (24, 32)
    scale = max(size[0] / height, size[1] / width)
    for name, ratio in (
        ("pretrain", 256 / 224),
        ("big_vision", 448 / 384),
        ("mae", 256 / 224),
    ):
        encoded = tf.constant(encode(image))
        found = PROTOCOLS[name].test(encoded, SEED, size, 3)
        down = np.diff(found[2:-2, 2:-2, 0], axis=0).mean()
        right = np.diff(found[2:-2, 2:-2, 1], axis=1).mean()
        assert down == pytest.approx(1 / (scale * ratio), rel=0.1)
        assert right == pytest.approx(1 / (scale * ratio), rel=0.1)


SWAPPED = {
    "ShearX": "ShearY",
    "ShearY": "ShearX",
    "TranslateX": "TranslateY",
    "TranslateY": "TranslateX",
}


def test_randaugment_of_the_transposed_image():
    """Each operation on the transposed image gives the transposed result."""
    image = noise(24, 37)
    wide = operations(4, (24, 37), True)
    tall = operations(4, (37, 24), True)
    turned = tf.constant(image.transpose(1, 0, 2))
    for name in wide.keys() - {"Cutout"}:
        other_name = SWAPPED.get(name, name)
        both = [tf.constant([0, k]) for k in range(8)]
        found = {
            wide[name](tf.constant(image), s).numpy().tobytes() for s in both
        }
        others = {
            np.transpose(tall[other_name](turned, s), (1, 0, 2)).tobytes()
            for s in both
        }
        # A rotation to the one side is, transposed, one to the other.
        assert found == others, name


def test_cutout_of_rectangles():
    image = tf.zeros((24, 37, 3), tf.uint8)
    cutout = operations(1, (24, 37))["Cutout"]
    rows, columns = set(), set()
    for k in range(300):
        grey = cutout(image, tf.constant([0, k])).numpy()[..., 0] > 0
        down, right = grey.any(1), grey.any(0)
        assert (grey == down[:, None] & right).all()
        assert down.sum() <= 8 and right.sum() <= 8
        rows |= set(np.flatnonzero(down))
        columns |= set(np.flatnonzero(right))
    assert rows == set(range(24)) and columns == set(range(37))


def take(batches, count):
    columns = zip(*itertools.islice(batches, count), strict=True)
    return [np.stack([np.asarray(x) for x in column]) for column in columns]


def test_datasets_accept_rectangles():
    images = np.stack([noise(30, 20, seed=i) for i in range(10)])
    data = keras_vit.data.from_arrays(images, np.arange(10) % 2)
    assert data.image_size is None
    options = dict(image_size=(16, 24), batch_size=2)
    x, _ = take(data.train(protocol="vit_jax", erase=0.5, **options), 2)
    assert x.shape == (2, 2, 16, 24, 3)
    x, *_ = take(data.test(pad=True, **options), 1)
    assert x.shape == (1, 2, 16, 24, 3)
    square, _ = take(data.train(image_size=(16, 16), batch_size=2), 2)
    same, _ = take(data.train(image_size=16, batch_size=2), 2)
    np.testing.assert_array_equal(square, same)


@pytest.mark.parametrize("size", [(8,), (8, 0), 8.0])
def test_wrong_image_sizes_raise(size):
    data = keras_vit.data.load_dataset("digits")
    with pytest.raises(ValueError, match=r"\(height, width\)"):
        data.train(image_size=size, batch_size=2)


def test_digits_of_rectangles():
    data = keras_vit.data.load_dataset("digits")
    options = dict(image_size=(8, 40), batch_size=16)
    images, _ = take(data.train(**options), 4)
    assert images.shape == (4, 16, 8, 40, 1)
    assert -1 <= images.min() and images.max() <= 1
    test = data.test(**options)[0][0]
    assert test.shape == (16, 8, 40, 1)
    square = data.test(image_size=8, batch_size=16)[0][0]
    np.testing.assert_array_equal(digits.resize(square, (8, 40)), test)
    tall = digits.resize(square.transpose(0, 2, 1, 3), (40, 8))
    np.testing.assert_allclose(tall.transpose(0, 2, 1, 3), test, atol=1e-6)


@pytest.mark.parametrize("size", [(8, 64), (64, 8)])
def test_random_affine_of_long_rectangles(size, monkeypatch):
    images = np.random.default_rng(0).uniform(-1, 1, (400, *size, 1))
    rng = np.random.default_rng(1)
    found = digits.random_affine(images, rng)
    assert found.shape == images.shape and np.abs(found).max() <= 1
    # The corners, which are moved farthest, come from the background or the
    # image, and not from its other end.
    images[:] = digits.BACKGROUND
    images[:, size[0] // 2 :, size[1] // 2 :] = 1
    found = digits.random_affine(images, rng)
    opposite = found[:, : size[0] // 2 - 3, : size[1] // 2 - 3]
    assert (opposite[:, :2, :2] < 0).all()
