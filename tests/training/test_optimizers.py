"""Steps against optax's, on every backend."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit

STEPS = 50
PEAK = 0.05
OPTIMIZERS = (
    keras_vit.optimizers.PublishedSGD,
    keras_vit.optimizers.PublishedAdamW,
)


def start(rng):
    """Returns the initial values of two kernels and a bias, by path."""
    return {
        "dense_1/kernel": rng.normal(size=(8, 16)).astype("float32"),
        "dense_1/bias": rng.normal(size=(16,)).astype("float32"),
        "dense_2/kernel": rng.normal(size=(16, 4)).astype("float32"),
    }


def gradients(rng, values, steps=STEPS):
    """Gradients of very different sizes, so that clipping and epsilons
    matter."""
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
    """Returns a function that applies gradients; compiled on JAX, where single
    operations are slow."""
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


def schedule():
    return keras_vit.schedules.warmup_cosine(PEAK, STEPS, warmup=10 / STEPS)


DECAY = 0.03  # of a step at the peak of the schedule


def transform_of(optax, name, dtype, decays):
    """Returns the updates of big_vision, which decay kernels only and bypass
    the momentum."""
    rate = optax.warmup_cosine_decay_schedule(0.0, PEAK, 10, STEPS)
    moment = {
        "SGD": lambda: optax.trace(decay=0.9, accumulator_dtype=dtype),
        "AdamW": lambda: optax.scale_by_adam(mu_dtype=dtype),
    }[name]()
    parts = [optax.clip_by_global_norm(1.0), moment, optax.scale(PEAK)]
    if decays:
        parts.append(
            optax.add_decayed_weights(
                DECAY,
                mask=lambda values: {n: n.endswith("kernel") for n in values},
            )
        )
    scale = optax.scale_by_learning_rate(lambda step: rate(step) / PEAK)
    return optax.chain(*parts, scale)


@pytest.mark.parametrize(
    ("name", "dtype", "decays"),
    [
        ("SGD", None, True),
        ("SGD", "bfloat16", False),
        ("AdamW", None, True),
        ("AdamW", "bfloat16", True),
    ],
)
def test_steps_match_optax(name, dtype, decays):
    optax = pytest.importorskip("optax")
    rng = np.random.default_rng(0)
    values = start(rng)
    grads = gradients(rng, values)
    transform = transform_of(optax, name, dtype, decays)
    expected = by_optax(optax, transform, values, grads)
    options = {
        "global_clipnorm": 1.0,
        "weight_decay": DECAY / PEAK if decays else 0.0,
    }
    if name == "SGD":
        options["momentum"] = 0.9
    ours = getattr(keras_vit.optimizers, f"Published{name}")(
        schedule(), momentum_dtype=dtype, decay_kernels_only=True, **options
    )
    found = by_keras(ours, values, grads)
    assert np.abs(found - expected).max() < 1e-6
    # What Keras does is something else, or this test would show nothing.
    keras_own = getattr(keras.optimizers, name)(schedule(), **options)
    other = by_keras(keras_own, values, grads)
    assert np.abs(other - expected).max() > 1e-2


MAKERS = {
    "sgd": lambda **kwargs: keras_vit.optimizers.PublishedSGD(
        schedule(), 0.9, weight_decay=0.6, decay_kernels_only=True, **kwargs
    ),
    "adamw": lambda **kwargs: keras_vit.optimizers.PublishedAdamW(
        schedule(), 0.6, decay_kernels_only=True, **kwargs
    ),
}


def test_equal_averages_are_the_mean_of_the_updates():
    """The steps from which averaging begins are full batches."""
    rng = np.random.default_rng(0)
    values = start(rng)
    grads = gradients(rng, values, 2 * 12)
    for first in (5, 12):
        optimizer = keras_vit.optimizers.PublishedAdamW(
            0.05, gradient_accumulation_steps=2, average_from=first
        )
        updates = by_keras(optimizer, values, grads)[1::2]
        # Until the average begins, it is the variables.
        expected = np.mean(updates[min(first, 11) :], axis=0, dtype=np.float64)
        np.testing.assert_allclose(
            averages(optimizer), expected, rtol=2e-6, atol=1e-7
        )
        assert (np.abs(expected - updates[-1]).max() > 1e-3) == (first < 12)


@pytest.mark.backends("torch")
def test_wrong_options_are_refused():
    for name, value in (
        ("average_from", -1),
        ("average_from", 0.75),
        ("ema_overwrite_frequency", 2),
        ("no_such_argument", 1),
    ):
        with pytest.raises(ValueError, match=f"{name}.*{value}"):
            keras_vit.optimizers.PublishedSGD(**{name: value})


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_optimizers_of_earlier_files_are_loaded(name):
    published = getattr(keras_vit.optimizers, f"Published{name}")
    config = published(0.1).get_config()
    former = {"convention": "optax", "amsgrad": False}
    former["ema_overwrite_frequency"] = None
    assert published.from_config(config | former).get_config() == config
    with pytest.warns(UserWarning, match=f"`{published.__name__}`, whose"):
        again = published.from_config(config | former | {"convention": "keras"})
    assert again.get_config() == config
    with pytest.raises(ValueError, match="Received: amsgrad=True"):
        published.from_config(config | former | {"amsgrad": True})


@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize("name", MAKERS)
def test_optimizer_saved_with_a_model_resumes(name, tmp_path):
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


@pytest.mark.backends("torch")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_are_freed_after_a_step(optimizer):
    """Under PyTorch, Keras keeps the gradients through the next forward pass,
    which takes as much memory as the weights."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer(0.1), "mse")
    before = model.get_weights()
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    assert all(v.value.grad is None for v in model.trainable_variables)
    assert not np.array_equal(model.get_weights()[0], before[0])


# At a constant learning rate and without epsilon, Keras's steps are equal.
KERAS_PAIRS = {
    "sgd nesterov decay": (
        "SGD",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "sgd clipnorm": ("SGD", {"momentum": 0.9, "clipnorm": 0.5}),
    "adamw clipvalue": ("AdamW", {"weight_decay": 0.1, "clipvalue": 0.5}),
    "adamw averaged": (
        "AdamW",
        {"use_ema": True, "ema_momentum": 0.9},
    ),
    "adamw loss scale": (
        "AdamW",
        {"weight_decay": 0.1, "loss_scale_factor": 8.0},
    ),
}


@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize("case", KERAS_PAIRS)
def test_fifty_steps_match_keras(case):
    name, arguments = KERAS_PAIRS[case]
    if name == "AdamW":
        arguments = {**arguments, "epsilon": 1e-12}
    rng = np.random.default_rng(0)
    values = start(rng)
    grads = gradients(rng, values)
    theirs = getattr(keras.optimizers, name)(1e-3, **arguments)
    ours = getattr(keras_vit.optimizers, f"Published{name}")(1e-3, **arguments)
    tolerance = {"rtol": 1e-5, "atol": 2e-6}
    expected = by_keras(theirs, values, grads)
    np.testing.assert_allclose(
        by_keras(ours, values, grads), expected, **tolerance
    )
    np.testing.assert_allclose(averages(ours), averages(theirs), **tolerance)
    for attribute in ("weight_decay", "clipnorm", "use_ema"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_the_step_of_a_subclass_is_taken(optimizer_class):
    class Halved(optimizer_class):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate / 2)

    grads = [ops.convert_to_tensor([1.0, -2.0, 3.0])]
    values = np.ones((1, 3), "float32")
    one, other = (
        after_steps(optimizer, grads, values, steps=1)
        for optimizer in (optimizer_class(0.1), Halved(0.2))
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)
    assert np.abs(one - 1).min() > 0.05


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_excluded_variables_do_not_decay(optimizer_class):
    kernel, named, listed = variables = [
        keras.Variable(np.ones((2, 2), "float32"), name=name)
        for name in ("kernel", "projection", "other")
    ]
    optimizer = optimizer_class(1e-2, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["proj"], var_list=[listed])
    for _ in range(10):
        optimizer.apply([ops.zeros((2, 2))] * 3, variables)
    for other in (named, listed):
        np.testing.assert_array_equal(ops.convert_to_numpy(other), 1)
    np.testing.assert_allclose(
        ops.convert_to_numpy(kernel), (1 - 0.5 * 1e-2) ** 10, rtol=1e-5
    )


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_half_precision_variables_train(optimizer_class):
    """0.999 is 1 in bfloat16: bias corrections would divide by 0."""
    momentum = {"momentum": 0.9} if optimizer_class is OPTIMIZERS[0] else {}
    one, other = (
        after_steps(
            optimizer_class(0.01, **momentum),
            [ops.cast(np.linspace(0.5, 2, 8), dtype)],
            np.zeros((1, 8)),
            steps=20,
            dtype=dtype,
        )
        for dtype in ("float32", "bfloat16")
    )
    np.testing.assert_allclose(one, other, rtol=0.03)
    assert (other < 0).all()


CONFIGS = {
    "SGD": {
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 0.1,
        "decay_kernels_only": True,
        "layer_decay": 0.5,
        "momentum_dtype": "bfloat16",
        "clipnorm": 1.0,
    },
    "AdamW": {
        "learning_rate": schedule(),
        "weight_decay": 0.1,
        "beta_1": 0.8,
        "beta_2": 0.9,
        "epsilon": 1e-3,
        "use_ema": True,
        "ema_momentum": 0.5,
        "gradient_accumulation_steps": 2,
        "loss_scale_factor": 8.0,
    },
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", CONFIGS)
def test_config_round_trip(name):
    """Also inside Keras's `LossScaleOptimizer`."""
    make = getattr(keras_vit.optimizers, f"Published{name}")
    made = make(**CONFIGS[name])
    config = made.get_config()
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert type(again) is type(made) and again.get_config() == config
    scaled = keras.optimizers.LossScaleOptimizer(make(**CONFIGS[name]))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(scaled))
    found = again.inner_optimizer.get_config()
    assert found == config | {"loss_scale_factor": None, "name": found["name"]}


def test_loss_scaling_does_not_change_the_steps():
    """`LossScaleOptimizer` scales by powers of two, which rounds nothing."""
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    y = x @ np.ones((4, 2), "float32")
    ends = []
    for scaled in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        optimizer = keras_vit.optimizers.PublishedAdamW(
            0.1,
            weight_decay=0.1,
            global_clipnorm=1.0,
            use_ema=True,
            ema_momentum=0.5,
            gradient_accumulation_steps=2,
        )
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse")
        for _ in range(6):
            model.train_on_batch(x, y)
        raw = model.get_weights()
        with keras_vit.optimizers.averaged(model):
            averaged = model.get_weights()
        for a, b in zip(model.get_weights(), raw, strict=True):
            np.testing.assert_array_equal(a, b)
        assert all((a != b).any() for a, b in zip(averaged, raw, strict=True))
        ends.append([*averaged, *raw])
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def after_steps(optimizer, grads, values, steps=3, dtype="float32"):
    """Returns the values of variables after steps with the same gradients."""
    variables = [keras.Variable(value, dtype=dtype) for value in values]
    optimizer.build(variables)
    for _ in range(steps):
        optimizer.apply(grads, variables)
    return np.stack(
        [ops.convert_to_numpy(ops.cast(v, "float32")) for v in variables]
    )


@pytest.mark.backends("torch")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_variables_are_updated_at_once_in_groups(optimizer, monkeypatch):
    groups, compute = [], optimizer._all_updates

    def count(self, grads, indices, rate):
        groups.append(len(indices))
        return compute(self, grads, indices, rate)

    monkeypatch.setattr(optimizer, "_all_updates", count)
    values = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    grads = list(ops.convert_to_tensor(values[::-1].copy()))
    whole = after_steps(optimizer(0.1, weight_decay=0.1), grads, values)
    monkeypatch.setattr(keras_vit.optimizers, "MAX_GROUP_BYTES", 40)
    parts = after_steps(optimizer(0.1, weight_decay=0.1), grads, values)
    assert groups == [3, 3, 3] + [2, 1] * 3
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_small_weight_decay_is_not_rounded_away(optimizer):
    """A rate times decay of 1e-8 is below the spacing of float32 next to 1."""
    generator = np.random.default_rng(0)
    grads = generator.normal(size=(100, 20000)).astype("float32")
    ends = []
    for decay in (0.0, 1e-4):
        variable = keras.Variable(np.ones(20000, "float32"))
        one = optimizer(1e-4, weight_decay=decay)
        one.build([variable])
        for grad in grads:
            one.apply([ops.convert_to_tensor(grad)], [variable])
        ends.append(ops.convert_to_numpy(variable).astype("float64"))
    expected = len(grads) * 1e-8
    assert np.mean(ends[0] - ends[1]) == pytest.approx(expected, rel=0.1)


@pytest.mark.suite("torch", "jax")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_stateless_update_keeps_its_inputs(optimizer):
    variable = keras.Variable(np.ones(3, "float32"))
    one = optimizer(0.1)
    one.build([variable])
    grads = [ops.ones(3)]
    given = ([x.value for x in one.variables], grads, [variable.value])
    found = [one.stateless_apply(*given)[0][0] for _ in range(2)]
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, found))
    np.testing.assert_array_equal(ops.convert_to_numpy(variable), 1)
    assert ops.convert_to_numpy(found[0]).max() < 1


@pytest.mark.suite("torch", "jax")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weight_decay_may_be_a_schedule(optimizer):
    decay = keras.optimizers.schedules.CosineDecay(0.5, 10)
    values = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    grads = [ops.ones(3), ops.convert_to_tensor(values[0])]
    one = optimizer(0.1, weight_decay=decay)
    scheduled = after_steps(one, grads, values, steps=5)
    again = optimizer.from_config(one.get_config())
    np.testing.assert_array_equal(
        after_steps(again, grads, values, steps=5), scheduled
    )
    variables = [keras.Variable(value) for value in values]
    constant = optimizer(0.1, weight_decay=0.0)
    constant.build(variables)
    for step in range(5):
        constant.weight_decay = float(decay(step))
        constant.apply(grads, variables)
    found = np.stack([ops.convert_to_numpy(variable) for variable in variables])
    np.testing.assert_allclose(found, scheduled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"use_ema": True}, {"average_from": 0}])
def test_averages_of_half_precision_variables_move(options):
    """In bfloat16, an average of 1 would stay there: the values differ by
    less than its precision."""
    if "use_ema" in options:
        options = {"use_ema": True, "ema_momentum": 0.999}
    found = []
    for dtype in ("float32", "bfloat16"):
        variable = keras.Variable(np.ones(1, "float32"), dtype=dtype)
        optimizer = keras_vit.optimizers.PublishedSGD(0.0, **options)
        optimizer.build([variable])
        for value in (1.0, *30 * (1.25,)):
            variable.assign([value])
            optimizer.apply([ops.zeros(1, dtype)], [variable])
        (average,) = optimizer._model_variables_moving_average
        found.append(float(average[0]))
        optimizer.finalize_variable_values([variable])
        assert keras.backend.standardize_dtype(variable.dtype) == dtype
        assert float(variable[0]) == pytest.approx(found[-1], rel=0.004)
    assert found[0] > 1.005
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_gradients_of_half_precision_accumulate():
    """In bfloat16, 256 + 1 is 256."""
    variable = keras.Variable(np.zeros(1, "float32"), dtype="bfloat16")
    optimizer = keras_vit.optimizers.PublishedSGD(
        1.0, gradient_accumulation_steps=5
    )
    optimizer.build([variable])
    for grad in (256.0, 1.0, 1.0, 1.0, 1.0):
        optimizer.apply([ops.full((1,), grad, "bfloat16")], [variable])
    assert float(variable[0]) == -52.0


def test_both_schedules_count_the_same_steps():
    """With learning rate and decay of 1 in the last step, nothing is left."""
    ramp = keras_vit.schedules.LinearSchedule(0.0, 1.0, 1)
    optimizer = keras_vit.optimizers.PublishedSGD(
        ramp, weight_decay=ramp, gradient_accumulation_steps=4
    )
    assert after_steps(optimizer, [ops.zeros(1)], np.ones((1, 1)), 8) == 0


def averages(optimizer):
    return np.concatenate(
        [
            ops.convert_to_numpy(v).ravel()
            for v in getattr(optimizer, "_model_variables_moving_average", ())
        ]
        or [[]]
    )
