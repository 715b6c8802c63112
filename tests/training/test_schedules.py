import keras
import numpy as np
import pytest

import keras_vit


def rates(schedule, steps):
    return [float(keras.ops.convert_to_numpy(schedule(s))) for s in steps]


# Steps and rates of published runs, by hand.
PUBLISHED = {
    # The paper on ImageNet: 300 epochs of 313 steps.
    ("cosine", 3e-3, 93_900, 10_000): {
        0: 0.0,
        5_000: 1.5e-3,
        10_000: 3e-3,
        51_950: 1.5e-3,
        # A quarter of the way: cos(pi / 4)
        30_975: 3e-3 * (1 + 0.5**0.5) / 2,
        93_900: 0.0,
    },
    # The paper on ImageNet-21k: to 1e-5.
    ("linear", 1e-3, 310_000, 10_000): {
        0: 0.0,
        1_000: 1e-4,
        10_000: 1e-3,
        160_000: 5.05e-4,
        310_000: 1e-5,
        400_000: 1e-5,
    },
    # BiT: 90 epochs of 3460 steps.
    ("staircase", 0.48, 311_400, 5_000): {
        0: 0.0,
        2_500: 0.24,
        5_000: 0.48,
        103_799: 0.48,
        103_800: 0.048,
        207_599: 0.048,
        207_600: 0.0048,
        276_799: 0.0048,
        276_800: 0.00048,
        311_400: 0.00048,
    },
}


@pytest.mark.parametrize("settings", PUBLISHED, ids=lambda s: s[0])
def test_published_learning_rates(settings):
    decay, peak, steps, warmup = settings
    schedule = keras_vit.schedules.WarmupDecay(peak, steps, warmup, decay)
    expected = PUBLISHED[settings]
    found = rates(schedule, expected)
    # Steps are float32, as Keras's and the published code's.
    assert found == pytest.approx(list(expected.values()), rel=1e-4, abs=1e-9)


def test_schedule_serialization_round_trip():
    schedule = keras_vit.schedules.WarmupDecay(0.1, 50, 10, "linear", end=0.02)
    again = keras.optimizers.schedules.deserialize(
        keras.optimizers.schedules.serialize(schedule)
    )
    assert rates(again, range(51)) == rates(schedule, range(51))
    assert rates(again, [50]) == pytest.approx([0.02])


@pytest.mark.parametrize("decay", keras_vit.schedules.DECAYS)
def test_schedule_without_warmup(decay):
    found = np.array(
        rates(keras_vit.schedules.WarmupDecay(0.1, 3, 0, decay), range(4))
    )
    assert found[0] == pytest.approx(0.1)
    assert (np.diff(found) <= 0).all() and np.isfinite(found).all()


def test_wrong_arguments_raise():
    with pytest.raises(ValueError, match="no decay 'stairs'.*staircase"):
        keras_vit.schedules.WarmupDecay(0.1, 10, 1, "stairs")
    with pytest.raises(ValueError, match="warmup_steps=10 of 10 steps"):
        keras_vit.schedules.WarmupDecay(0.1, 10, 10)
