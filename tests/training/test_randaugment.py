"""RandAugment beyond the pictures of test_published_pictures.py."""

import numpy as np
import pytest

from keras_vit.data.steps import randaugment
from keras_vit.data.steps.randaugment import AUGREG, operations, rand_augment
from tests.training.pictures import noise

pytestmark = pytest.mark.backends("tensorflow")

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize("name", ["AutoContrast", "Equalize"])
def test_constant_image_is_unchanged(name):
    flat = np.full((32, 32, 3), 77, np.uint8)
    found = operations(10, 32)[name](tf.constant(flat), (0, 0))
    np.testing.assert_array_equal(found, flat)


def test_cutout_erases_one_gray_rectangle():
    """The published pictures lack it: its position is random."""
    size = (24, 37)
    image = (30 + noise(*size) * 0.3).astype(np.uint8)
    cutout = tf.function(operations(1, size)["Cutout"])
    reached = set(), set()
    for seed in range(300):
        found = cutout(tf.constant(image), tf.constant([0, seed])).numpy()
        cut = (found == 128).all(-1)
        np.testing.assert_array_equal(found[~cut], image[~cut])
        places = np.flatnonzero(cut.any(1)), np.flatnonzero(cut.any(0))
        # One rectangle, of 8 by 8 or cut off at an edge.
        assert cut.sum() == len(places[0]) * len(places[1])
        for place, length, seen in zip(places, size, reached, strict=True):
            at_edge = place[0] == 0 or place[-1] == length - 1
            assert len(place) == 8 or (at_edge and 4 <= len(place) < 8)
            seen.update(place)
    assert reached == (set(range(24)), set(range(37)))


# The published pictures are too small: they are all gray after a translation.
@pytest.mark.parametrize(
    "magnitude, scaled, moved",
    [
        (2, False, 20),  # in pixels, as published
        (10, True, 14),  # the fraction of an image of 224 pixels
    ],
)
@pytest.mark.parametrize("name", ["TranslateX", "TranslateY"])
def test_translations_match_numpy(name, magnitude, scaled, moved):
    image = noise(32, 32).astype(np.uint8)
    operation = operations(magnitude, 32, scaled=scaled)[name]
    wide = np.pad(image, [(moved, moved)] * 2 + [(0, 0)], constant_values=128)
    middle = slice(moved, moved + 32)
    both = slice(0, 32), slice(2 * moved, 2 * moved + 32)
    ways = [wide[middle, x] if name == "TranslateX" else wide[x, middle] for x in both]
    seen = set()
    for seed in range(8):
        found = operation(tf.constant(image), (0, seed)).numpy()
        (way,) = (i for i in (0, 1) if np.array_equal(found, ways[i]))
        seen.add(way)
    assert seen == {0, 1}


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
        found = {wide[name](tf.constant(image), s).numpy().tobytes() for s in both}
        others = {
            np.transpose(tall[other_name](turned, s), (1, 0, 2)).tobytes() for s in both
        }
        # A rotation to the one side is, transposed, one to the other.
        assert found == others, name


def test_all_16_operations_are_sampled(monkeypatch):
    names = set(operations(10, 8))
    assert len(names) == 16

    def numbered(magnitude, size, scaled):
        return {
            str(i): lambda x, seed, i=i: x + tf.cast(i, tf.uint8) for i in range(16)
        }

    monkeypatch.setattr(randaugment, "operations", numbered)
    augment = tf.function(rand_augment("medium1", 2))
    zeros = tf.zeros((2, 2, 3), tf.uint8)
    sums = [int(augment(zeros, tf.constant([0, i]))[0, 0, 0]) for i in range(800)]
    # Two samples of 0 to 15, independent of each other: a triangle.
    counts = np.bincount(sums, minlength=31)
    expected = (16 - np.abs(np.arange(31) - 15)) * 800 / 256
    # Every sum but the rarest (0 and 30 are expected 3 times each) occurs.
    assert counts[2:-2].min() > 0 and len(counts) == 31
    assert ((counts - expected) ** 2 / expected).sum() < 70  # 30 on average


def test_levels_match_the_published_ones(monkeypatch):
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
    seen = []

    def recorded(magnitude, size, scaled):
        seen.append((magnitude, size, scaled))
        return {"Invert": lambda x, seed: 255 - x}

    monkeypatch.setattr(randaugment, "operations", recorded)
    for level in ("light2", "light2-scaled"):
        rand_augment(level, 32)
    assert seen == [(10, (32, 32), False), (10, (32, 32), True)]
    assert AUGREG["light2-scaled"] == AUGREG["light2"]


@pytest.mark.slow
@pytest.mark.parametrize("magnitude", [4, 15])
def test_operations_of_keras_cv_are_equal(magnitude):
    """docs/decisions.md says so, of these three."""
    layers = pytest.importorskip("keras_cv.layers")
    image = (30 + noise(32, 32) * 0.7).astype(np.uint8)
    x = tf.constant(image, tf.float32)[None]
    exact = {"value_range": (0, 255), "dtype": "float32"}
    bits = min(max(1, int(magnitude / 10 * 4)), 8)
    threshold = float(int(magnitude / 10 * 256) % 256)
    amounts = {"additions": 0.0, "thresholds": threshold}
    posterize = layers.Posterization(bits=bits, **exact)
    solarize = layers.Solarization(**exact)
    for name, expected in (
        ("AutoContrast", layers.AutoContrast(**exact).augment_images(x)[0]),
        ("Posterize", posterize.augment_image(x[0])),
        ("Solarize", solarize.augment_images(x, amounts)[0]),
    ):
        found = operations(magnitude, 32)[name](tf.constant(image), (0, 0))
        np.testing.assert_array_equal(found, np.uint8(expected), name)
