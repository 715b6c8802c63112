"""The 16 operations against Pillow, or NumPy where Pillow differs."""

import math

import numpy as np
import pytest
from PIL import Image
from PIL import ImageEnhance
from PIL import ImageOps

from keras_vit.data import randaugment
from keras_vit.data.randaugment import AUGREG
from keras_vit.data.randaugment import operations
from keras_vit.data.randaugment import rand_augment
from tests.training.pictures import noise

pytestmark = pytest.mark.backends("tensorflow")

tf = pytest.importorskip("tensorflow")
SIZE = 224


@pytest.fixture(scope="module")
def image():
    pixels = noise(SIZE, SIZE).astype(float)
    # Not every value is there, and the corners are no gray.
    return (30 + pixels * 0.7).astype(np.uint8)


def pillow(function):
    return lambda x, level: np.asarray(function(Image.fromarray(x), level))


def enhanced(kind):
    return pillow(lambda x, level: kind(x).enhance(level * 1.8 + 0.1))


def contrast(x, level):
    grey, factor = SIZE * SIZE / 256, level * 1.8 + 0.1
    return np.clip(grey + factor * (x - grey), 0, 255).astype(np.uint8)


def solarize_add(x, level):
    added = np.clip(x.astype(int) + int(level * 110), 0, 255)
    return np.where(x < 128, added, x).astype(np.uint8)


PIXEL_VALUES = {
    "AutoContrast": pillow(lambda x, _: ImageOps.autocontrast(x)),
    "Posterize": pillow(
        lambda x, level: ImageOps.posterize(x, min(8, max(1, int(level * 4))))
    ),
    # A threshold of 256 is one of 0 in uint8: every pixel is inverted.
    "Solarize": pillow(
        lambda x, level: ImageOps.solarize(x, int(level * 256) % 256)
    ),
    "Equalize": pillow(lambda x, _: ImageOps.equalize(x)),
    "Invert": pillow(lambda x, _: ImageOps.invert(x)),
    "SolarizeAdd": solarize_add,
    "Color": enhanced(ImageEnhance.Color),
    "Contrast": contrast,
    "Brightness": enhanced(ImageEnhance.Brightness),
    "Sharpness": enhanced(ImageEnhance.Sharpness),
}
# Pillow rounds on its way, where the definition cuts off, or the reverse.
ROUNDING = {
    "AutoContrast": 1,
    "Brightness": 1,
    "Color": 3,
    "Contrast": 1,  # float32 and float64, where a product is nearly whole
    "Sharpness": 3,
}


def compare(name, expected, image, magnitude):
    found = operations(magnitude, SIZE)[name](tf.constant(image), (0, 0))
    assert found.dtype == tf.uint8
    error = np.abs(found.numpy().astype(int) - expected(image, magnitude / 10))
    assert error.max() <= ROUNDING.get(name, 0)
    return found.numpy()


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("magnitude", [0, 4, 10, 15, 20])
@pytest.mark.parametrize("name", PIXEL_VALUES)
def test_pixel_value_operations_match_pillow(name, magnitude, image):
    found = compare(name, PIXEL_VALUES[name], image, magnitude)
    if magnitude == 4:
        assert (found != image).any()


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("magnitude", [0, 4, 10, 15])
def test_operations_of_keras_cv_are_equal(magnitude, image):
    from keras_cv import layers

    exact = {"value_range": (0, 255), "dtype": "float32"}
    level = magnitude / 10
    bits = min(max(1, int(level * 4)), 8)
    amounts = {"additions": 0.0, "thresholds": float(int(level * 256) % 256)}
    x = tf.constant(image, tf.float32)[None]
    for name, expected in (
        ("AutoContrast", layers.AutoContrast(**exact).augment_images(x)[0]),
        (
            "Posterize",
            layers.Posterization(bits=bits, **exact).augment_image(x[0]),
        ),
        (
            "Solarize",
            layers.Solarization(**exact).augment_images(x, amounts)[0],
        ),
    ):
        found = operations(magnitude, SIZE)[name](tf.constant(image), (0, 0))
        np.testing.assert_array_equal(
            found, expected.numpy().astype(np.uint8), name
        )


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", ["AutoContrast", "Equalize"])
def test_constant_image_is_unchanged(name):
    flat = np.full((SIZE, SIZE, 3), 77, np.uint8)
    found = operations(10, SIZE)[name](tf.constant(flat), (0, 0))
    np.testing.assert_array_equal(found, flat)


def moved(image, matrix):
    """Pixel (x, y) is that at `matrix @ (x, y, 1)`, or gray."""
    y, x = np.indices((SIZE, SIZE))
    at = np.einsum("ij,jyx->iyx", matrix, np.stack([x, y, np.ones_like(x)]))
    at_x, at_y = np.rint(at).astype(int)
    inside = (0 <= at_x) & (at_x < SIZE) & (0 <= at_y) & (at_y < SIZE)
    found = image[at_y.clip(0, SIZE - 1), at_x.clip(0, SIZE - 1)]
    return np.where(inside[..., None], found, 128)


def rotation(level):
    angle, middle = math.radians(30 * level), (SIZE - 1) / 2
    rotate = np.array(
        [
            [math.cos(angle), -math.sin(angle)],
            [math.sin(angle), math.cos(angle)],
        ]
    )
    centre = np.array([middle, middle])
    return np.column_stack([rotate, centre - rotate @ centre])


GEOMETRIC = {
    "Rotate": rotation,
    "ShearX": lambda level: np.array([[1, 0.3 * level, 0], [0, 1, 0]]),
    "ShearY": lambda level: np.array([[1, 0, 0], [0.3 * level, 1, 0]]),
    "TranslateX": lambda level: np.array([[1, 0, 100 * level], [0, 1, 0]]),
    "TranslateY": lambda level: np.array([[1, 0, 0], [0, 1, 100 * level]]),
}


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("level", [0.0, 0.7, 1.47])  # few coordinates end in .5
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_operations_match_numpy(name, level, image):
    operation = operations(level * 10, SIZE)[name]
    ways = [moved(image, GEOMETRIC[name](sign * level)) for sign in (1, -1)]
    seen = set()
    for seed in range(8):
        found = operation(tf.constant(image), (0, seed)).numpy()
        # Coordinates between two pixels may be rounded either way.
        wrong = [(found != way).any(-1).mean() for way in ways]
        assert min(wrong) < 0.005
        seen.add(int(np.argmin(wrong)))
    assert level == 0 or seen == {0, 1}


@pytest.mark.backends("tensorflow")
def test_cutout_erases_one_grey_rectangle(image):
    assert not (image == 128).all(-1).any()
    operation = operations(15, SIZE)["Cutout"]
    tops = []
    for seed in range(10):
        found = operation(tf.constant(image), (0, seed)).numpy()
        cut = (found == 128).all(-1)
        rows, columns = np.flatnonzero(cut.any(1)), np.flatnonzero(cut.any(0))
        # One rectangle, of 120 by 120 or cut off at an edge.
        assert cut.sum() == len(rows) * len(columns)
        for where in (rows, columns):
            at_edge = where[0] == 0 or where[-1] == SIZE - 1
            assert len(where) == 120 or (at_edge and 60 <= len(where) < 120)
        np.testing.assert_array_equal(found[~cut], image[~cut])
        tops.append(rows[0])
    assert len(set(tops)) > 3


@pytest.mark.backends("tensorflow")
def test_all_16_operations_are_sampled(monkeypatch):
    names = set(operations(10, 8))
    assert len(names) == 16

    def numbered(magnitude, size, scaled):
        return {
            str(i): lambda x, seed, i=i: x + tf.cast(i, tf.uint8)
            for i in range(16)
        }

    monkeypatch.setattr(randaugment, "operations", numbered)
    augment = tf.function(rand_augment("medium1", 2))
    zeros = tf.zeros((2, 2, 3), tf.uint8)
    sums = [
        int(augment(zeros, tf.constant([0, i]))[0, 0, 0]) for i in range(800)
    ]
    # Two samples of 0 to 15, independent of each other: a triangle.
    counts = np.bincount(sums, minlength=31)
    expected = (16 - np.abs(np.arange(31) - 15)) * 800 / 256
    # Every sum but the rarest (0 and 30 are expected 3 times each) occurs.
    assert counts[2:-2].min() > 0 and len(counts) == 31
    assert ((counts - expected) ** 2 / expected).sum() < 70  # 30 on average


@pytest.mark.backends("tensorflow")
def test_levels_match_the_published_ones():
    published = {k: v for k, v in AUGREG.items() if "-" not in k}
    assert published == {
        "none": (0, 0, 0),
        "light1": (2, 0, 0),
        "light2": (2, 10, 0.2),
        "medium1": (2, 15, 0.2),
        "medium2": (2, 15, 0.5),
        "strong1": (2, 20, 0.5),
        "strong2": (2, 20, 0.8),
    }


@pytest.mark.backends("tensorflow")
def test_scaled_translation_is_proportional_to_the_image():
    """An image of 32 pixels is translated by the fraction of one of 224
    pixels."""
    ramp = np.tile(np.arange(32, dtype=np.uint8)[None, :, None], (32, 1, 3))
    moves = operations(10, 32, scaled=True)
    found = moves["TranslateX"](tf.constant(ramp), (0, 1)).numpy()
    assert (found == 128).any(-1).sum(1).tolist() == [14] * 32


@pytest.mark.backends("tensorflow")
def test_published_translation_is_in_pixels():
    """200 of the 384 pixels in a row are translated out of the image."""
    ramp = np.tile(np.arange(384)[None, :, None] % 100, (384, 1, 3))
    ramp = tf.constant(ramp.astype(np.uint8))
    found = operations(20, 384)["TranslateX"](ramp, (0, 1)).numpy()
    assert (found == 128).any(-1).sum(1).tolist() == [200] * 384
    cut = operations(20, 384)["Cutout"](ramp, (0, 1)).numpy() == 128
    assert cut.any((1, 2)).sum() <= 160


@pytest.mark.backends("tensorflow")
def test_scaled_levels_have_the_suffix_scaled(monkeypatch):
    seen = []

    def recorded(magnitude, size, scaled):
        seen.append((magnitude, size, scaled))
        return {"Invert": lambda x, seed: 255 - x}

    monkeypatch.setattr(randaugment, "operations", recorded)
    for level in ("light2", "light2-scaled"):
        rand_augment(level, 32)
    assert seen == [(10, (32, 32), False), (10, (32, 32), True)]
    assert AUGREG["light2-scaled"] == AUGREG["light2"]
