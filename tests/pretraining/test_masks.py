import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining

# grid, ratio, how many stay: `int(length * (1 - ratio))` in MAE's code
KEPT = (
    ((14, 14), 0.25, 147),
    ((14, 14), 0.75, 49),
    ((14, 14), 0.9, 19),
    ((7, 5), 0.4, 21),
    ((2, 5), 0.9, 1),
)


def draw(kind, batch, grid, ratio, seed=None):
    if kind == "random":
        mask = pretraining.random_mask(batch, grid[0] * grid[1], ratio, seed)
    else:
        mask = pretraining.block_mask(batch, grid, ratio, seed)
    return ops.convert_to_numpy(mask)


@pytest.mark.parametrize("kind", ["random", "block"])
def test_the_ratio_is_exact_in_every_image(kind):
    for grid, ratio, kept in KEPT:
        mask = draw(kind, 50, grid, ratio, 0)
        length = grid[0] * grid[1]
        assert mask.shape == (50, length)
        assert set(np.unique(mask)) == {0, 1}
        assert (mask.sum(1) == length - kept).all()


@pytest.mark.parametrize("kind", ["random", "block"])
def test_images_and_steps_differ_and_a_seed_repeats(kind):
    seed = keras.random.SeedGenerator(3)
    steps = [draw(kind, 8, (7, 7), 0.5, seed) for _ in range(2)]
    rows = np.concatenate(steps)
    assert len(np.unique(rows, axis=0)) == 16
    again = draw(kind, 8, (7, 7), 0.5, keras.random.SeedGenerator(3))
    np.testing.assert_array_equal(again, steps[0])


def test_random_masks_are_uniform_over_positions():
    """Chi-square: sums over masks of exactly k of n have a variance of
    (n - 1) / n times that of independent draws."""
    from scipy.stats import chi2

    count, n, ratio = 4000, 49, 0.7
    mask = draw("random", count, (7, 7), ratio, 5)
    share = mask.mean()
    expected = count * share
    statistic = ((mask.sum(0) - expected) ** 2).sum() / (
        expected * (1 - share) * n / (n - 1)
    )
    low, high = chi2.ppf([0.0005, 0.9995], n - 1)
    assert low < statistic < high


def test_blocks_hang_together():
    def joined(kind):
        mask = draw(kind, 200, (14, 14), 0.4, 1).reshape(-1, 14, 14)
        return (mask[:, 1:] * mask[:, :-1]).sum() / mask[:, 1:].sum()

    assert joined("random") < 0.45  # another masked one above: the ratio
    assert joined("block") > 0.75


@pytest.mark.parametrize("ratio", [0.0, 1.0, 0.99, -1])
def test_a_ratio_that_masks_nothing_or_all_is_refused(ratio):
    with pytest.raises(ValueError, match="ratio"):
        draw("random", 1, (4, 4), ratio)
    with pytest.raises(ValueError, match="ratio"):
        draw("block", 1, (4, 4), ratio)
