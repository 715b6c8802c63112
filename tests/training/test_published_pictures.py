"""Pictures against those that big_vision's own functions made.

The arrays and how they were made: make_published_pictures.py.
"""

import pathlib

import numpy as np
import pytest

from keras_vit.data import decoding, steps
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.steps.randaugment import operations
from tests.training.make_published_pictures import SEEDS
from tests.training.pictures import cropped

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")

with np.load(pathlib.Path(__file__).with_name("published_pictures.npz")) as stored:
    ARRAYS = dict(stored)
IMAGE, PNG = ARRAYS.pop("image"), ARRAYS.pop("png").tobytes()
CASES = sorted({name.rpartition("/")[0] for name in ARRAYS if name.startswith("rand")})
# The fraction of pixels that may differ, and by how much. The original rounds
# coordinates and sums in float32: ties of shears fall to either side, and
# means of nine pixels lose a fraction.
TOLERANCES = {
    "ShearX": (0.02, 255),
    "ShearY": (0.02, 255),
    "Rotate": (0.005, 255),
    "Sharpness": (0.06, 3),
}


def compare(found, expected, fraction=0, most=0):
    assert found.shape == expected.shape
    error = np.abs(found.astype(float) - expected)
    assert (error > 0).any(-1).mean() <= fraction
    assert error.max() <= most


@pytest.mark.parametrize("case", CASES)
def test_randaugment_operations_match_big_vision(case):
    """At 32 pixels, cutout and translation are not scaled with the image."""
    _, name, magnitude = case.split("/")
    operation = operations(int(magnitude), len(IMAGE))[name]
    operation = tf.function(operation, autograph=False)
    ways = [ARRAYS[key] for key in sorted(ARRAYS) if key.startswith(f"{case}/")]
    nearest = set()
    for seed in range(8 if len(ways) > 1 else 1):
        found = operation(tf.constant(IMAGE), tf.constant([0, seed])).numpy()
        errors = [(found != way).sum() for way in ways]
        nearest.add(int(np.argmin(errors)))
        way = ways[np.argmin(errors)]
        compare(found, way, *TOLERANCES.get(name, ()))
    if not np.array_equal(ways[0], ways[-1]):  # both signs occur
        assert nearest == {0, 1}


@pytest.mark.parametrize(
    "name, size, expected",
    [
        ("few-shot", 56, "few_shot"),
        ("pretrain", 56, "eval"),
        ("big_vision", 48, "transfer_eval"),
    ],
)
def test_evaluation_matches_big_vision(name, size, expected):
    found = cropped(PROTOCOLS[name].test, PNG, (0, 0), (size, size)).numpy()
    # The area of a pixel is summed in float32 in either code.
    compare(found, ARRAYS[f"pp/{expected}"])


@pytest.mark.parametrize("name", ["big_vision", "pretrain"])
def test_training_crops_match_big_vision(name):
    train = PROTOCOLS[name].for_training(None)
    for seed in SEEDS:
        found = cropped(train, PNG, (0, seed), (48, 48)).numpy()
        compare(found, ARRAYS[f"pp/inception_{seed}"])


def test_small_image_crops_match_big_vision():
    train = PROTOCOLS["big_vision"].for_training(32)
    larger = ARRAYS["pp/transfer_before_crop"]
    windows = np.lib.stride_tricks.sliding_window_view(larger, (48, 48, 3))
    for seed in SEEDS:
        found = cropped(train, PNG, (0, seed), (48, 48)).numpy()
        assert (windows[:, :, 0] == found).all((2, 3, 4)).any()


@pytest.mark.parametrize("name", ["vit_jax", "bit-hyperrule"])
def test_other_protocols_do_not_cast_to_uint8(name):
    found = cropped(PROTOCOLS[name].test, PNG, (0, 0), (20, 33)).numpy()
    pixels = tf.image.resize(decoding.decode(PNG, 3), (20, 33)).numpy()
    assert (pixels % 1).any()
    np.testing.assert_array_equal(found, pixels)
    found = cropped(steps.inception_crop, PNG, (0, 0), (24, 24)).numpy()
    assert (found % 1).any()
