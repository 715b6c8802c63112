import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining
from tests.pretraining import small

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
    [(224, 32, 16, 0.6, 120), (192, 32, 8, 0.6, 352), (32, 8, 8, 0.3, 5)],
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
    in_call = ops.convert_to_numpy(
        model(np.zeros((2, size, size, 3)))["masked"]
    )
    assert set(in_call.sum(1)) == {masked}


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "arguments",
    [
        {"mask_patch_size": 6},
        {"mask_patch_size": 2},
        {"mask_patch_size": 12},
        {"mask_patch_size": 8, "masking": "block"},
        {"mask_patch_size": 16},  # of one unit none would stay
        *({"mask_ratio": ratio} for ratio in (0.0, 1.0, 0.99, -1)),
        {"mask_ratio": 0.99, "masking": "block"},
    ],
)
def test_wrong_masks_are_refused(arguments):
    with pytest.raises(ValueError, match=r"mask_patch_size=|ratio"):
        pretraining.MaskedImageModeling(small.encoder(), **arguments)
