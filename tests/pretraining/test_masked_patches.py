"""Masks, and what is predicted of the masked patches."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining
from keras_vit.layers.positions import sincos_positions
from tests.harness import numpy
from tests.pretraining import small

# Compiling takes seconds under JAX and TensorFlow.
ON_TORCH = pytest.mark.backends("torch")
# grid, ratio, how many stay: `int(length * (1 - ratio))` in MAE's code
KEPT = (
    ((14, 14), 0.25, 147),
    ((14, 14), 0.75, 49),
    ((14, 14), 0.9, 19),
    ((7, 5), 0.4, 21),
    ((10, 10), 0.9, 9),  # 100 * (1 - 0.9) is 9.999999999999998
)


def sample_mask(kind, batch, grid, ratio, seed=None):
    if kind == "random":
        mask = pretraining.random_mask(batch, grid[0] * grid[1], ratio, seed)
    else:
        mask = pretraining.block_mask(batch, grid, ratio, seed)
    return ops.convert_to_numpy(mask)


@pytest.mark.parametrize("kind", ["random", "block"])
def test_mask_ratio_is_exact_and_a_seed_determines_the_masks(kind):
    for grid, ratio, kept in KEPT:
        mask = sample_mask(kind, 50, grid, ratio, 0)
        length = grid[0] * grid[1]
        assert mask.shape == (50, length)
        assert set(np.unique(mask)) == {0, 1}
        assert (mask.sum(1) == length - kept).all()
    seed = keras.random.SeedGenerator(3)
    steps = [sample_mask(kind, 8, (7, 7), 0.5, seed) for _ in range(2)]
    assert len(np.unique(np.concatenate(steps), axis=0)) == 16
    again = sample_mask(kind, 8, (7, 7), 0.5, keras.random.SeedGenerator(3))
    np.testing.assert_array_equal(again, steps[0])


def test_random_masks_are_uniform_over_positions():
    """Chi-square test: sums over masks of exactly k of n have a variance of (n
    - 1) / n times that of independent samples."""
    from scipy.stats import chi2

    count, n, ratio = 4000, 49, 0.7
    mask = sample_mask("random", count, (7, 7), ratio, 5)
    fraction = mask.mean()
    expected = count * fraction
    statistic = ((mask.sum(0) - expected) ** 2).sum() / (
        expected * (1 - fraction) * n / (n - 1)
    )
    low, high = chi2.ppf([0.0005, 0.9995], n - 1)
    assert low < statistic < high


@ON_TORCH
def test_block_masks_are_contiguous():
    def joined(kind):
        mask = sample_mask(kind, 200, (14, 14), 0.4, 1).reshape(-1, 14, 14)
        return (mask[:, 1:] * mask[:, :-1]).sum() / mask[:, 1:].sum()

    assert joined("random") < 0.45  # another masked one above: the ratio
    assert joined("block") > 0.75


def simmim_mask(size, unit, patch, ratio, rng):
    """`MaskGenerator` of microsoft/SimMIM, data/data_simmim.py, by its
    definition: ceil(ratio * units) units, each of whole patches."""
    side = size // unit
    mask = np.zeros(side * side, int)
    mask[rng.permutation(side**2)[: int(np.ceil(side**2 * ratio))]] = 1
    ones = np.ones((unit // patch,) * 2, int)
    return np.kron(mask.reshape(side, side), ones)


@pytest.mark.parametrize(
    "size,unit,patch,ratio,masked",
    # configs/vit_base__800ep: 120 of 196 patches of 16 pixels
    [
        pytest.param(224, 32, 16, 0.6, 120, marks=ON_TORCH),
        pytest.param(192, 32, 8, 0.6, 352, marks=ON_TORCH),
        (32, 8, 8, 0.3, 5),
    ],
)
def test_mask_units_match_simmim(size, unit, patch, ratio, masked):
    encoder = small.encoder(input_shape=(size, size, 3), patch_size=patch)
    model = pretraining.MaskedImageModeling(
        encoder, mask_ratio=ratio, mask_patch_size=unit, seed=0
    )
    assert model.get_config()["mask_patch_size"] == unit
    side, count = size // patch, 400
    found = ops.convert_to_numpy(model.sample_mask(count, seed=3))
    found = found.reshape(count, side, side)
    rng = np.random.default_rng(0)
    expected = np.stack(
        [simmim_mask(size, unit, patch, ratio, rng) for _ in range(count)]
    )
    assert set(found.sum((1, 2))) == set(expected.sum((1, 2))) == {masked}
    # How often a patch and the one to its right are both masked or both not.
    agree = [(x[:, :, 1:] == x[:, :, :-1]).mean() for x in (found, expected)]
    assert abs(agree[0] - agree[1]) < 0.02
    assert np.abs(found.mean(0) - expected.mean(0)).max() < 0.15
    times = unit // patch
    corners = found[:, ::times, ::times]
    np.testing.assert_array_equal(
        np.repeat(np.repeat(corners, times, 1), times, 2), found
    )
    in_call = ops.convert_to_numpy(model(np.zeros((2, size, size, 3)))["masked"])
    assert set(in_call.sum(1)) == {masked}


def test_masked_patches_do_not_reach_the_encoder():
    """Masked pixels affect only the loss."""
    model = small.MODELS["mae"](small.encoder())
    images, noise = small.images(2), np.tile(np.arange(16.0), (2, 1))
    other = images.copy()
    other[:, 4:] = 0  # the first row of four patches stays
    found = numpy(model(images, noise=noise)["prediction"])
    np.testing.assert_array_equal(found, numpy(model(other, noise=noise)["prediction"]))
    assert model.encode(images, noise)[0].shape == (2, 1 + 4, 16)


@ON_TORCH
def test_positions_match_mae():
    """Columns come first, with the frequencies 10000 ** (-4 i / width)."""
    expected = np.zeros((17, 16))
    for patch in range(16):
        for axis, position in enumerate((patch % 4, patch // 4)):
            for i in range(4):
                angle = position / 10_000 ** (i / 4)
                expected[1 + patch, 8 * axis + i] = np.sin(angle)
                expected[1 + patch, 8 * axis + 4 + i] = np.cos(angle)
    encoder = small.encoder()
    model = small.MODELS["mae"](encoder)
    layer = encoder.get_layer("position_embedding")
    np.testing.assert_allclose(numpy(layer.embedding)[0], expected, atol=1e-6)
    assert not layer.trainable_variables
    assert model.decoder.get_layer("position_embedding").trainable is False
    oblong = sincos_positions((2, 3), 8)[0]
    np.testing.assert_array_equal(oblong[1, 4:], oblong[0, 4:])  # row 0
    np.testing.assert_array_equal(oblong[3, :4], oblong[0, :4])  # column 0


@pytest.mark.parametrize(
    "options, count",
    [
        ({"num_registers": 2, "position_prefix": "class"}, 1),
        pytest.param(
            {"num_registers": 2, "position_prefix": "none"}, 0, marks=ON_TORCH
        ),
        pytest.param({"class_token": False}, 0, marks=ON_TORCH),
    ],
)
def test_positions_follow_the_tokens_of_the_encoder(options, count):
    encoder = small.encoder(**options)
    model = small.MODELS["mae"](encoder)
    embedding = numpy(encoder.get_layer("position_embedding").embedding)
    expected = sincos_positions((4, 4), 16, count, endpoint=False)
    np.testing.assert_allclose(embedding, expected, atol=1e-6)
    prediction = numpy(model(small.images(2))["prediction"])
    assert np.isfinite(prediction).all() and prediction.shape == (2, 16, 48)


@ON_TORCH
def test_learned_positions_are_unchanged():
    encoder = small.encoder()
    before = numpy(encoder.get_layer("position_embedding").embedding).copy()
    pretraining.MaskedAutoencoder(encoder, positions="learned", **small.DECODER)
    layer = encoder.get_layer("position_embedding")
    np.testing.assert_array_equal(numpy(layer.embedding), before)
    assert layer.trainable_variables
    fixed = small.encoder(position_embedding="sincos2d")
    with pytest.raises(ValueError, match="positions='learned'"):
        pretraining.MaskedAutoencoder(fixed, **small.DECODER)


@ON_TORCH
def test_target_is_the_normalized_patch():
    """The variance is that of a sample (`ddof=1`)."""
    model = small.MODELS["mae"](small.encoder())
    images = small.images(1)
    patch = images[0, 4:8, 8:12].reshape(-1).astype("float64")
    target = (patch - patch.mean()) / np.sqrt(patch.var(ddof=1) + 1e-6)
    outputs = {"prediction": ops.zeros((1, 16, 48))}
    losses = numpy(model.patch_losses(images, outputs))
    np.testing.assert_allclose(losses[0, 6], (target**2).mean(), rtol=1e-5)
    # Predicting the target gives the pixels back.
    patches = model.stages.patchify(images)
    target = ops.convert_to_tensor(target[None, None].astype("float32"))
    shown = model.prediction_to_pixels(target, patches[:, 6:7])
    np.testing.assert_allclose(numpy(shown)[0, 0], patch, atol=1e-5)


def test_corruption_is_80_10_10_of_masked_patches():
    model = small.MODELS["mpp"](small.encoder())
    model.mask_token.tokens.assign(np.full((1, 1, 16), -1.0))
    count = 2000
    # Each embedding holds its position.
    x = np.tile(np.arange(16.0)[:, None], (count, 1, 16)).astype("float32")
    masked = numpy(pretraining.random_mask(count, 16, 0.5, 1))
    how = numpy(keras.random.uniform((count, 16, 2), seed=2))
    given = map(ops.convert_to_tensor, (x, masked, how))
    found = numpy(model.corrupt(*given))
    assert (found == found[..., :1]).all()
    found, x = found[..., 0], x[..., 0]
    np.testing.assert_array_equal(found[masked == 0], x[masked == 0])
    to_mask = (found == -1)[masked == 1]
    kept = (found == x)[masked == 1]
    for fraction, expected in (
        (to_mask.mean(), 0.8),
        (kept.mean(), 0.1),
        ((~to_mask & ~kept).mean(), 0.1),
    ):
        # Five deviations of as many independent samples.
        bound = 5 * np.sqrt(expected * (1 - expected) / len(to_mask))
        assert abs(fraction - expected) < bound
    # Each of the 15 other patches is equally likely.
    step = (found - x)[(masked == 1) & (found != -1) & (found != x)] % 16
    counts = np.bincount(step.astype(int), minlength=16)
    assert counts[0] == 0
    assert counts[1:].min() > 0.6 * counts[1:].mean()


@ON_TORCH
def test_color_classes_of_a_known_image():
    """3 bits per channel, red first; 4 x 4 pixels of a downsized patch row by
    row."""
    encoder = small.encoder(patch_size=8)
    image = np.full((1, 16, 16, 3), -1.0, "float32")
    image[0, :, :, 0] = 1.0  # the highest level, 7
    image[0, :8, :8, 1] = 0.0  # half the range: level 4
    image[0, 0:2, 0:2, 2] = -0.7  # level 1, in one pixel of one downsized patch
    mean = pretraining.MaskedPatchPrediction(encoder)
    found = numpy(mean.color_classes(mean.stages.patchify(image)))
    assert found.shape == (1, 4, 1)
    red = 7 * 64
    assert found[0, :, 0].tolist() == [red + 4 * 8, red, red, red]
    downsized = pretraining.MaskedPatchPrediction(encoder, target="downsized")
    found = numpy(downsized.color_classes(downsized.stages.patchify(image)))
    assert found.shape == (1, 4, 16)
    assert found[0, 0].tolist() == [red + 4 * 8 + 1] + 15 * [red + 4 * 8]
    # Shown again, a color is in the middle of its level.
    logits = np.eye(512, dtype="float32")[found]
    logits = ops.convert_to_tensor(logits)
    shown = downsized.stages.unpatchify(downsized.prediction_to_pixels(logits, None))
    assert np.abs(numpy(shown) - image).max() <= 1 / 8


@ON_TORCH
def test_downsized_target_of_patches_not_divisible_by_4():
    encoder = small.encoder(patch_size=14, input_shape=(28, 28, 1))
    model = pretraining.MaskedPatchPrediction(encoder, target="downsized")
    rows, columns = model._pooling
    np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(rows[0], [1 / 3.5] * 3 + [0.5 / 3.5] + [0] * 10)
    flat = np.full((1, 28, 28, 1), 0.3, "float32")
    assert (numpy(model.color_classes(model.stages.patchify(flat))) == 5).all()


@ON_TORCH
def test_value_range_per_channel():
    encoder = small.encoder()
    model = pretraining.MaskedPatchPrediction(
        encoder, value_range=((0, 0, -10), (1, 255, 10))
    )
    image = np.tile([0.99, 128.0, -9.0], (1, 16, 16, 1)).astype("float32")
    assert (
        numpy(model.color_classes(model.stages.patchify(image))) == 7 * 64 + 4 * 8 + 0
    ).all()


@ON_TORCH
def test_initial_mask_token_matches_simmim():
    """models/simmim.py: normal, truncated at one standard deviation."""
    encoder = small.encoder(hidden_size=512, num_layers=1)
    token = numpy(pretraining.MaskedImageModeling(encoder).mask_token.tokens)
    assert 0.019 < np.abs(token).max() <= 0.02
    assert token.std() == pytest.approx(0.02 * 0.53956, rel=0.1)
