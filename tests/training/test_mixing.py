"""Mixup and cutmix, alike in NumPy and in TensorFlow."""

import numpy as np
import pytest

from keras_vit.data import _pipeline
from keras_vit.data import mixing
from keras_vit.data.dataset import PipelineOptions

pytestmark = pytest.mark.backends("tensorflow")

SHAPE = (4, 10, 8, 3)


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    images = rng.normal(size=SHAPE).astype("float32")
    return images, np.eye(5, dtype="float32")[[0, 1, 1, 4]]


def both(function, images, labels, *numbers):
    """Returns NumPy's result after comparing it with TensorFlow's."""
    tf = pytest.importorskip("tensorflow")
    numbers = [np.asarray(number, "float32") for number in numbers]
    result = function(np, images, labels, *numbers)
    other = function(
        tf, *map(tf.constant, (images, labels)), *map(tf.constant, numbers)
    )
    for x, y in zip(result, other, strict=True):
        assert x.dtype == np.float32 and y.dtype == tf.float32
        np.testing.assert_allclose(x, y, atol=1e-6)
    return result


@pytest.mark.parametrize("sampled", [0.3, 0.7])
def test_mixup_matches_the_definition(sampled, batch):
    images, labels = batch
    mixed_images, mixed_labels = both(mixing.mixup, images, labels, sampled)
    for i in range(4):  # 0.7 of the image itself, whichever was sampled
        before = images[i - 1]
        np.testing.assert_allclose(
            mixed_images[i], 0.7 * images[i] + 0.3 * before, atol=1e-6
        )
        expected = 0.7 * labels[i] + 0.3 * labels[i - 1]
        np.testing.assert_allclose(mixed_labels[i], expected, atol=1e-6)


@pytest.mark.parametrize(
    "lam, centre, rows, columns",
    [
        (0.7, (0.5, 0.5), range(2, 8), range(2, 6)),
        (0.7, (0.0, 1.0), range(0, 3), range(6, 8)),
        (1.0, (0.5, 0.5), range(0), range(0)),
        (0.0, (0.5, 0.5), range(10), range(8)),
    ],
)
def test_cutmix_matches_the_definition(lam, centre, rows, columns, batch):
    images, labels = batch
    mixed_images, mixed_labels = both(
        mixing.cutmix, images, labels, lam, centre
    )
    mask = np.zeros((10, 8), bool)
    mask[np.ix_(rows, columns)] = True
    before = np.roll(images, 1, 0)
    expected = np.where(mask[..., None], before, images)
    np.testing.assert_array_equal(mixed_images, expected)
    own = 1 - mask.mean()
    expected = own * labels + (1 - own) * np.roll(labels, 1, 0)
    np.testing.assert_allclose(mixed_labels, expected, atol=1e-6)


@pytest.mark.parametrize("p", [0.2, 0.8])
def test_lambda_is_sampled_from_beta(p, monkeypatch):
    """The mean square of Beta(p, p) is (1 + p) / (2 + 4 p)."""
    tf = pytest.importorskip("tensorflow")
    sampled = []
    monkeypatch.setattr(
        mixing,
        "mix",
        lambda xp, images, labels, options, sample: sample("mixup", p),
    )
    options = PipelineOptions(8, 4, mixup=p)
    sample_lambda = tf.function(
        lambda k: _pipeline.apply_mixing(k, None, None, options)
    )
    sampled = np.array(
        [sample_lambda(tf.constant(k, tf.int64)) for k in range(600)]
    )
    assert sampled.min() >= 0 and sampled.max() <= 1
    assert abs(sampled.mean() - 0.5) < 0.05
    assert abs((sampled**2).mean() - (1 + p) / (2 + 4 * p)) < 0.05


def test_mixup_or_cutmix_is_sampled_for_each_batch(batch):
    images, labels = batch
    options = PipelineOptions(8, 4, mixup=1.0, cutmix=1.0)
    for number, name in ((0.2, "mixup"), (0.8, "cutmix")):
        asked = []

        def sample(what, p, asked=asked, number=number):
            asked.append(what)
            return np.float32(number)

        mixing.mix(np, images, labels, options, sample)
        assert name in asked and len({"mixup", "cutmix"} & set(asked)) == 1
