"""Images that are not square: `image_size=(height, width)`."""

import numpy as np
import pytest

import keras_vit
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.randaugment import operations
from tests.training.batches import take
from tests.training.pictures import encode
from tests.training.pictures import noise

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")

SEED = tf.constant([0, 5], tf.int64)


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


def test_datasets_accept_rectangles():
    images = np.stack([noise(30, 20, seed=i) for i in range(10)])
    data = keras_vit.data.from_arrays(images, np.arange(10) % 2)
    assert data.image_size is None
    options = dict(image_size=(16, 24), batch_size=2)
    x, _ = take(data.train(protocol="vit_jax", erase=0.5, **options), 2)
    assert x.shape == (2, 2, 16, 24, 3)
    x, *_ = take(data.test(pad=True, **options), 1)
    assert x.shape == (1, 2, 16, 24, 3)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_accept_rectangles(name):
    """An evaluated transposed image gives the transposed result."""
    image = noise(60, 50)
    encoded = tf.constant(encode(image))
    turned = tf.constant(encode(image.transpose(1, 0, 2)))
    cut = PROTOCOLS[name].test
    for size in ((16, 40), (300, 24)):
        found = cut(encoded, SEED, size, 3)
        assert found.shape == (*size, 3)
        other = cut(turned, SEED, size[::-1], 3)
        # Rows and columns are resized, and rounded to integers, in the other
        # order: measured, up to 2 gray levels and 0.18 on average. A crop that
        # is moved by one pixel differs by 2 or more on average.
        difference = np.abs(found - np.transpose(other, (1, 0, 2)))
        assert difference.max() <= 2 and difference.mean() < 0.5
    for image_size in (None, 32):  # of the data set
        cut = tf.function(PROTOCOLS[name].for_training(image_size))
        found = cut(encoded, SEED, (16, 40), 3)
        assert found.shape == (16, 40, 3)
        # Not one number throughout, as of padding.
        assert 0 <= found.numpy().min() < found.numpy().max() <= 256
