"""Random erasing against a NumPy version of timm's, mixup and cutmix."""

import functools
import re

import numpy as np
import pytest

import keras_vit
from keras_vit.data import RandomErasing
from keras_vit.data.steps import mixing
from tests.training.batches import check_order, take
from tests.training.pictures import noise

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")


def reference(image, erasing, is_erased, numbers, value):
    """`RandomErasing._erase` of timm/data/random_erasing.py, with the random
    numbers, which are uniform in [0, 1), as arguments."""
    image = image.copy()
    if is_erased >= erasing.probability:
        return image
    height, width = image.shape[:2]
    low, high = np.log(erasing.aspect)
    for area, aspect, top, left in numbers:
        area = erasing.area[0] + (erasing.area[1] - erasing.area[0]) * area
        area = area * height * width
        aspect = np.exp(low + (high - low) * aspect)
        h = int(np.round(np.sqrt(area * aspect)))
        w = int(np.round(np.sqrt(area / aspect)))
        if w < width and h < height:
            # random.randint(0, height - h), which includes both ends
            top = int(top * (height - h + 1))
            left = int(left * (width - w + 1))
            rows, columns = slice(top, top + h), slice(left, left + w)
            image[rows, columns] = value[rows, columns]
            break
    return image


@pytest.mark.parametrize(
    "erasing, shape",
    [
        (RandomErasing(), (24, 24, 3)),
        (RandomErasing(1.0, mode="constant"), (20, 31, 1)),
        # Most rectangles do not fit, and some images get none.
        (RandomErasing(1.0, (0.5, 1.0), (0.1, 10.0)), (9, 12, 3)),
    ],
)
def test_random_erasing_matches_timm(erasing, shape):
    image = np.random.default_rng(0).uniform(2, 3, shape).astype("float32")
    split = tf.random.experimental.stateless_split
    erase = tf.function(erasing)
    erased = []
    for k in range(200):
        seed = tf.constant([3, k], tf.int64)
        first, second, third = tf.unstack(split(seed, 3))
        value = np.zeros(shape)
        if erasing.mode == "pixel":
            value = tf.random.stateless_normal(shape, third).numpy()
        expected = reference(
            image,
            erasing,
            tf.random.stateless_uniform((), first).numpy(),
            tf.random.stateless_uniform((10, 4), second).numpy(),
            value,
        )
        found = erase(tf.constant(image), seed).numpy()
        np.testing.assert_array_equal(found, expected)
        erased.append((found != image).any(-1).mean())
    # 200 tosses, four standard deviations.
    fraction = np.mean(np.array(erased) > 0)
    bound = 4 * np.sqrt(erasing.probability * (1 - erasing.probability) / 200)
    if erasing.area[1] < 0.5:
        assert abs(fraction - erasing.probability) <= bound
        assert max(erased) < erasing.area[1] + 0.05
    else:
        assert 0 < fraction < 1


@pytest.fixture(scope="module")
def data():
    images = np.stack([noise(16, 16, seed=i) for i in range(20)])
    return keras_vit.data.from_arrays(images, np.arange(20) % 2)


def test_erased_batches_resume_and_shard(data):
    """Erasing changes nothing else."""
    erasing = RandomErasing(0.5, mode="constant")
    train = functools.partial(data.train, image_size=16, batch_size=8)
    plain, labels = take(train(seed=3), 6)
    images, same = check_order(functools.partial(train, erase=erasing), 6)
    np.testing.assert_array_equal(labels, same)
    erased = (images == 0).all(-1)
    assert 0.2 < erased.any((2, 3)).mean() < 0.8
    np.testing.assert_array_equal(images[~erased], plain[~erased])


def test_erasing_is_applied_before_mixup(data):
    """As in timm, the partner of an image includes its erased rectangle."""
    options = {"image_size": 16, "batch_size": 8}
    options["erase"] = RandomErasing(1.0, mode="constant")
    images, labels = take(data.train(mixup=1.0, **options), 1)
    single, rows = take(data.train(one_hot=True, **options), 1)
    partner = np.roll(single[0], 1, 0)
    differs = (rows[0] != np.roll(rows[0], 1, 0)).any(-1)
    fraction = labels[0][differs][rows[0][differs] == 1][0]
    expected = fraction * single[0] + (1 - fraction) * partner
    np.testing.assert_allclose(images[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        dict(probability=1.5),
        dict(probability=float("nan")),
        dict(area=(0.5, 0.2)),
        dict(mode="black"),
    ],
)
def test_wrong_arguments_raise(change):
    received = re.escape(str(*change.values()))
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        RandomErasing(**change)


SHAPE = (4, 10, 8, 3)


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    images = rng.normal(size=SHAPE).astype("float32")
    return images, np.eye(5, dtype="float32")[[0, 1, 1, 4]]


def both(function, images, labels, *numbers):
    """Returns NumPy's result after comparing it with TensorFlow's."""
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
    mixed_images, mixed_labels = both(mixing.mix_images, images, labels, sampled)
    for i in range(4):  # 0.7 of the image itself, whichever was sampled
        before = images[i - 1]
        np.testing.assert_allclose(
            mixed_images[i], 0.7 * images[i] + 0.3 * before, atol=1e-6
        )
        expected = 0.7 * labels[i] + 0.3 * labels[i - 1]
        np.testing.assert_allclose(mixed_labels[i], expected, atol=1e-6)


@pytest.mark.parametrize(
    "lam, center, rows, columns",
    [
        (0.7, (0.5, 0.5), range(2, 8), range(2, 6)),
        (0.7, (0.0, 1.0), range(0, 3), range(6, 8)),
        (1.0, (0.5, 0.5), range(0), range(0)),
        (0.0, (0.5, 0.5), range(10), range(8)),
    ],
)
def test_cutmix_matches_the_definition(lam, center, rows, columns, batch):
    images, labels = batch
    mixed_images, mixed_labels = both(mixing.cut_images, images, labels, lam, center)
    mask = np.zeros((10, 8), bool)
    mask[np.ix_(rows, columns)] = True
    before = np.roll(images, 1, 0)
    expected = np.where(mask[..., None], before, images)
    np.testing.assert_array_equal(mixed_images, expected)
    own = 1 - mask.mean()
    expected = own * labels + (1 - own) * np.roll(labels, 1, 0)
    np.testing.assert_allclose(mixed_labels, expected, atol=1e-6)


@pytest.mark.parametrize("p", [0.2, 0.8])
def test_lambda_is_sampled_from_beta(p):
    """The mean square of Beta(p, p) is (1 + p) / (2 + 4 p)."""

    def sample_lambda(number):
        _, sample = mixing._sampler(tf.stack([tf.constant(0, tf.int64), number]))
        return sample("mixup", p)

    sample_lambda = tf.function(sample_lambda)
    sampled = np.array([sample_lambda(tf.constant(k, tf.int64)) for k in range(600)])
    assert sampled.min() >= 0 and sampled.max() <= 1
    assert abs(sampled.mean() - 0.5) < 0.05
    assert abs((sampled**2).mean() - (1 + p) / (2 + 4 * p)) < 0.05


def test_mixup_or_cutmix_is_sampled_for_each_batch(batch, monkeypatch):
    images, labels = batch
    for number, name in ((0.2, "mixup"), (0.8, "cutmix")):
        asked = []

        def sample(what, p, asked=asked, number=number):
            asked.append(what)
            return np.float32(number)

        monkeypatch.setattr(mixing, "_sampler", lambda _, f=sample: (np, f))
        mixing.mix(1.0, 1.0)({"image": images, "label": labels})
        assert name in asked and len({"mixup", "cutmix"} & set(asked)) == 1
