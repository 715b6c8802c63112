import keras
import numpy as np
import pytest

from keras_vit.schedules import (
    DECAYS,
    BiTHyperRule,
    CosineSchedule,
    WarmupDecay,
    warmup_cosine,
)


def rates(schedule, steps):
    return [float(keras.ops.convert_to_numpy(schedule(s))) for s in steps]


# Steps and rates of published runs, by hand.
PUBLISHED = {
    # The paper on ImageNet: 300 epochs of 313 steps; a quarter of the way
    # after the warm-up, cos(pi / 4).
    "cosine": (
        WarmupDecay(3e-3, 93_900, 10_000, "cosine"),
        {
            0: 0.0,
            5_000: 1.5e-3,
            10_000: 3e-3,
            30_975: 3e-3 * (1 + 0.5**0.5) / 2,
            51_950: 1.5e-3,
            93_900: 0.0,
        },
    ),
    # The paper on ImageNet-21k: to 1e-5.
    "linear": (
        WarmupDecay(1e-3, 310_000, 10_000, "linear"),
        {
            0: 0.0,
            1_000: 1e-4,
            10_000: 1e-3,
            160_000: 5.05e-4,
            310_000: 1e-5,
            400_000: 1e-5,
        },
    ),
    # BiT: 90 epochs of 3460 steps.
    "staircase": (
        WarmupDecay(0.48, 311_400, 5_000, "staircase"),
        {
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
    ),
    # bit_hyperrule.py: a warm-up and three decays by 10.
    **{
        f"rule {steps}": (
            BiTHyperRule(0.003, steps),
            {0: 0.0, warmup // 2: 0.0015, warmup: 0.003}
            | {step: 0.003 / 10**i for i, step in enumerate(decays)}
            | {step + 1: 0.0003 / 10**i for i, step in enumerate(decays)},
        )
        for steps, warmup, decays in (
            (500, 100, (200, 300, 400)),
            (10_000, 500, (3000, 6000, 9000)),
        )
    },
    # `cosine_scheduler` of facebookresearch/dino, utils.py.
    "teacher": (
        CosineSchedule(0.996, 1.0, 7),
        {t: 1 - 0.002 * (1 + np.cos(np.pi * t / 7)) for t in range(7)} | {10: 1.0},
    ),
    "short": (warmup_cosine(0.2, 100, 0.1), {5: 0.1, 55: 0.1, 100: 0}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_learning_rates(name):
    schedule, expected = PUBLISHED[name]
    # Steps are float32, as Keras's and the published code's.
    rel = 1e-4 if max(expected) > 1000 else 2e-6
    assert rates(schedule, expected) == pytest.approx(
        list(expected.values()), rel=rel, abs=1e-8
    )


@pytest.mark.backends("torch")
def test_schedule_serialization_round_trip():
    schedule = WarmupDecay(0.1, 50, 10, "linear", end=0.02)
    again = keras.optimizers.schedules.deserialize(
        keras.optimizers.schedules.serialize(schedule)
    )
    assert rates(again, range(51)) == rates(schedule, range(51))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("steps, warmup", [(3, 0), (1, 0), (2, 1)])
def test_schedule_of_few_steps(decay, steps, warmup):
    found = rates(WarmupDecay(0.1, steps, warmup, decay), range(steps + 1))
    if decay != "staircase" or steps == 3:
        assert found[warmup] == pytest.approx(0.1)
    assert np.isfinite(found).all() and min(found) >= 0
    assert (np.diff(found[warmup:]) <= 0).all()


@pytest.mark.backends("torch")
def test_wrong_arguments_raise():
    with pytest.raises(ValueError, match="'staircase'. Received: decay='stairs'"):
        WarmupDecay(0.1, 10, 1, "stairs")
    with pytest.raises(ValueError, match="warmup_steps=10 of 10 steps"):
        WarmupDecay(0.1, 10, 10)


@pytest.mark.backends("jax")
@pytest.mark.parametrize("name", ["cosine", "linear", "staircase", "rule 500"])
def test_second_call_of_a_schedule_does_not_compile(name, caplog):
    """Compiled functions are never freed: in a long run they take
    gigabytes."""
    import jax

    rate, _ = PUBLISHED[name]
    jax.clear_caches()
    with jax.log_compiles():
        rate(3)
        assert "Compiling" in caplog.text
        caplog.clear()
        rate(4), rate(50)
    assert "Compiling" not in caplog.text
