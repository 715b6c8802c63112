"""Steps against optax's, on every backend."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import training

STEPS = 50
PEAK = 0.05


@pytest.fixture
def optax():
    return pytest.importorskip("optax")


def start(rng):
    """Two kernels, a bias: their first values, by path's end."""
    return {
        "dense_1/kernel": rng.normal(size=(8, 16)).astype("float32"),
        "dense_1/bias": rng.normal(size=(16,)).astype("float32"),
        "dense_2/kernel": rng.normal(size=(16, 4)).astype("float32"),
    }


def gradients(rng, values, steps=STEPS):
    """Of very different sizes, so that clipping and epsilons matter."""
    return [
        {
            name: (
                10.0 ** rng.uniform(-6, 1) * rng.normal(size=value.shape)
            ).astype("float32")
            for name, value in values.items()
        }
        for _ in range(steps)
    ]


def by_keras(optimizer, values, grads):
    variables = []
    for name, value in values.items():
        with keras.name_scope(name.split("/")[0]):
            variables.append(
                keras.Variable(value.copy(), name=name.split("/")[1])
            )
    optimizer.build(variables)
    apply = _apply(optimizer, variables)
    trajectory = []
    for step in grads:
        apply([ops.convert_to_tensor(step[name]) for name in values])
        trajectory.append(
            np.concatenate([ops.convert_to_numpy(v).ravel() for v in variables])
        )
    return np.stack(trajectory)


def _apply(optimizer, variables):
    """Returns a function of gradients that takes a step; compiled on JAX,
    where single operations are slow."""
    if keras.config.backend() != "jax":
        return lambda grads: optimizer.apply(grads, variables)
    import jax

    stateless = jax.jit(optimizer.stateless_apply)

    def apply(grads):
        values, state = stateless(
            [v.value for v in optimizer.variables],
            grads,
            [v.value for v in variables],
        )
        for variable, value in zip(
            [*variables, *optimizer.variables], [*values, *state], strict=True
        ):
            variable.assign(value)

    return apply


def by_optax(optax, transform, values, grads):
    update = transform.update
    if keras.config.backend() == "jax":
        import jax

        # As ours is: compiled, products in bfloat16 are not rounded.
        update = jax.jit(update)
    state, params, trajectory = transform.init(values), values, []
    for step in grads:
        updates, state = update(step, state, params)
        params = optax.apply_updates(params, updates)
        trajectory.append(
            np.concatenate([np.asarray(params[n]).ravel() for n in values])
        )
    return np.stack(trajectory)


def schedule_of(optax):
    return optax.warmup_cosine_decay_schedule(0.0, PEAK, 10, STEPS)


def schedule():
    return training.warmup_cosine(PEAK, STEPS, warmup=10 / STEPS)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_sgd_is_optaxs(optax, dtype, record_property):
    rng = np.random.default_rng(0)
    values = start(rng)
    grads = gradients(rng, values)
    expected = by_optax(
        optax,
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.trace(decay=0.9, accumulator_dtype=dtype),
            optax.scale_by_learning_rate(schedule_of(optax)),
        ),
        values,
        grads,
    )
    ours = training.SGD(
        schedule(), momentum=0.9, momentum_dtype=dtype, global_clipnorm=1.0
    )
    found = by_keras(ours, values, grads)
    assert np.abs(found - expected).max() < 1e-6
    # What Keras does is something else, or this test would show nothing.
    keras_own = keras.optimizers.SGD(schedule(), 0.9, global_clipnorm=1.0)
    other = by_keras(keras_own, values, grads)
    assert np.abs(other - expected).max() > 1e-2


def test_sgd_decays_as_optax_does(optax):
    """As big_vision trains BiT: not through the momentum, kernels only."""
    rng = np.random.default_rng(0)
    values = start(rng)
    grads = gradients(rng, values)
    kernels = {name: name.endswith("kernel") for name in values}
    decay = 0.03
    expected = by_optax(
        optax,
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.trace(decay=0.9),
            optax.scale(PEAK),
            optax.add_decayed_weights(decay, mask=kernels),
            optax.scale_by_learning_rate(
                lambda step: schedule_of(optax)(step) / PEAK
            ),
        ),
        values,
        grads,
    )
    ours = training.SGD(
        schedule(), weight_decay=decay, peak_rate=PEAK, global_clipnorm=1.0
    )
    found = by_keras(ours, values, grads)
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_adamw_is_optaxs(optax, dtype):
    """big_vision's: decay times the schedule's shape, on kernels only."""
    rng = np.random.default_rng(0)
    values = start(rng)
    grads = gradients(rng, values)
    kernels = {name: name.endswith("kernel") for name in values}
    decay = 0.03
    expected = by_optax(
        optax,
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.scale_by_adam(mu_dtype=dtype),
            optax.scale(PEAK),
            optax.add_decayed_weights(decay, mask=kernels),
            optax.scale_by_learning_rate(
                lambda step: schedule_of(optax)(step) / PEAK
            ),
        ),
        values,
        grads,
    )
    ours = training.AdamW(
        schedule(), decay, PEAK, momentum_dtype=dtype, global_clipnorm=1.0
    )
    found = by_keras(ours, values, grads)
    assert np.abs(found - expected).max() < 1e-6
    keras_own = keras.optimizers.AdamW(
        schedule(), weight_decay=decay, global_clipnorm=1.0
    )
    other = by_keras(keras_own, values, grads)
    assert np.abs(other - expected).max() > 1e-2


MAKERS = {
    "sgd": lambda **kwargs: training.SGD(schedule(), **kwargs),
    "sgd with decay": lambda **kwargs: training.SGD(
        schedule(), weight_decay=0.03, peak_rate=PEAK, **kwargs
    ),
    "adamw": lambda **kwargs: training.AdamW(schedule(), 0.03, PEAK, **kwargs),
}


@pytest.mark.parametrize("name", MAKERS)
def test_accumulated_parts_are_the_whole_batch(name):
    """Also the schedule, clipping and the average count whole batches."""
    rng = np.random.default_rng(0)
    values = start(rng)
    parts = gradients(rng, values, 4 * 20)
    wholes = [
        {k: sum(part[k] for part in parts[i : i + 4]) / 4 for k in values}
        for i in range(0, len(parts), 4)
    ]
    common = {"global_clipnorm": 1.0, "use_ema": True, "ema_momentum": 0.9}
    in_parts = MAKERS[name](gradient_accumulation_steps=4, **common)
    found = by_keras(in_parts, values, parts)[3::4]
    at_once = MAKERS[name](**common)
    expected = by_keras(at_once, values, wholes)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for average, other in zip(
        in_parts._model_variables_moving_average,
        at_once._model_variables_moving_average,
        strict=True,
    ):
        np.testing.assert_allclose(
            ops.convert_to_numpy(average),
            ops.convert_to_numpy(other),
            atol=1e-6,
        )


@pytest.mark.parametrize("name", MAKERS)
def test_saved_with_a_model_it_goes_on(name, tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    y = x @ np.ones((4, 2), "float32")

    def compiled():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        optimizer = MAKERS[name](momentum_dtype="bfloat16")
        model.compile(optimizer, "mse")
        return model

    straight = compiled()
    straight.fit(x, y, epochs=6, shuffle=False, verbose=0)
    model = compiled()
    model.fit(x, y, epochs=3, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    assert type(model.optimizer) is type(straight.optimizer)
    model.fit(x, y, epochs=3, shuffle=False, verbose=0)
    for a, b in zip(model.weights, straight.weights, strict=True):
        np.testing.assert_array_equal(
            ops.convert_to_numpy(a), ops.convert_to_numpy(b)
        )


def test_errors():
    with pytest.raises(ValueError, match="peak_rate=None"):
        training.AdamW(schedule(), 0.1)
    with pytest.raises(ValueError, match="momentum=1.5"):
        training.SGD(momentum=1.5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("optimizer", [training.SGD, training.AdamW])
def test_gradients_do_not_outlive_a_step(optimizer):
    """Keras's step on PyTorch holds them through the next forward pass: as
    much as the model's weights."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer(0.1), "mse")
    before = model.get_weights()
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    assert all(v.value.grad is None for v in model.trainable_variables)
    assert not np.array_equal(model.get_weights()[0], before[0])
