"""Multi-crop: published settings, and crops that a position determines."""

import numpy as np
import pytest

from keras_vit import data
from keras_vit.data.steps import multi_crops as crops_module
from tests.training.batches import check_order, take

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("torch")
# The graph of the jitter is traced in seconds; it has its own test.
SMALL = data.MultiCrop(num_local=1, local_size=8, jitter_probability=0.0)


def dataset(count=30):
    images = np.random.default_rng(0).integers(0, 256, (count, 20, 24, 3))
    return data.from_arrays(images.astype("uint8"), np.arange(count) % 3)


def test_published_settings():
    """main_dino.py of facebookresearch/dino, main_moco.py of moco-v3."""
    dino, moco = data.CROPS["dino"], data.CROPS["mocov3"]
    assert (dino.global_scale, dino.local_scale) == ((0.4, 1.0), (0.05, 0.4))
    assert (dino.num_local, dino.local_size) == (8, 96)
    assert (moco.global_scale, moco.num_local) == ((0.08, 1.0), 0)
    assert (dino.resizing, moco.resizing) == ("bicubic", "bilinear")
    for each in (dino, moco):
        assert each.jitter == (0.4, 0.4, 0.2, 0.1)
        assert (each.jitter_probability, each.gray_probability) == (0.8, 0.2)
        assert each.blur_probabilities[:2] == (1.0, 0.1)
        assert (each.blur_sigma, each.solarize_probability) == ((0.1, 2), 0.2)


def test_jitter_matches_its_definition():
    """Its mean over orders is near the image; factors are in their ranges."""
    image = tf.constant(
        np.random.default_rng(1).uniform(60, 160, (8, 8, 3)), tf.float32
    )
    only_brightness = data.MultiCrop(jitter=(0.4, 0.0, 0.0, 0.0))
    factors = []
    for seed in range(40):
        found = only_brightness._jitter(image, tf.constant([0, seed])).numpy()
        ratio = found / image.numpy()
        np.testing.assert_allclose(ratio, ratio[0, 0, 0], rtol=1e-3)
        factors.append(ratio.mean())
    assert 0.6 <= min(factors) < 0.75 and 1.25 < max(factors) <= 1.4
    jitter = data.MultiCrop()._jitter
    seeds = [tf.constant([0, i]) for i in (1, 1, 2)]
    one, same, other = (jitter(image, seed).numpy() for seed in seeds)
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1


def test_blur_and_solarization_match_their_definitions():
    filters = pytest.importorskip("scipy.ndimage")
    image = np.random.default_rng(2).uniform(0, 255, (12, 15, 3))
    found = crops_module.gaussian_blur(
        tf.constant(image, tf.float32), tf.constant(1.5), 2.0
    ).numpy()
    expected = filters.gaussian_filter(
        image, (1.5, 1.5, 0), mode="nearest", radius=(8, 8, 0)
    )
    np.testing.assert_allclose(found, expected, atol=2e-3)
    image = tf.constant([[[0.0], [127.0], [128.0], [255.0]]])
    found = crops_module._solarized(image, None).numpy().ravel()
    np.testing.assert_array_equal(found, [0, 127, 127, 0])


@pytest.mark.slow
def test_digits_have_crops():
    digits = data.load_dataset("digits")
    plain = data.MultiCrop(
        global_scale=(1.0, 1.0),
        num_local=0,
        resizing="bilinear",
        jitter_probability=0,
        blur_probabilities=(0, 0, 0),
        solarize_probability=0,
    )
    whole = train(digits, image_size=32, crops=plain, flip=False)
    ((images,), _) = take(whole, 1)
    assert images.shape == (4, 2, 32, 32, 1)
    # Crops are cut from enlarged digits; cropping rounds gray levels.
    options = {"image_size": 32, "batch_size": digits.num_train}
    enlarged, *_ = digits.batches("train", **options)[0]
    for image in images[:, 0]:
        assert np.abs(enlarged - image).max(axis=(1, 2, 3)).min() < 0.01
    np.testing.assert_array_equal(images[:, 0], images[:, 1])


def test_wrong_crops_are_refused():
    with pytest.raises(ValueError, match="mixup=0.2"):
        train(mixup=0.2)


def train(source=None, **options):
    options = {"image_size": 16, "batch_size": 4, "crops": SMALL, **options}
    return (source or dataset()).train(**options)


@pytest.mark.slow
def test_crops_depend_on_seed_and_number():
    views, local, _ = check_order(train, 3, processes=1)
    assert views.shape == (3, 4, 2, 16, 16, 3)
    assert local.shape == (3, 4, 1, 8, 8, 3)
    assert np.abs(views).max() <= 1
    assert not np.array_equal(views[:, :, 0], views[:, :, 1])
