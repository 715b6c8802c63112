"""Steps against optax's and Keras's, on every backend."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.optimizers import PublishedAdamW, PublishedSGD, layer_decay_multipliers
from tests.harness import numpy
from tests.markers import on_all
from tests.small import vit

STEPS = 50
PEAK = 0.05
DECAY = 0.03  # of a step at the peak of the schedule
BOTH = pytest.mark.parametrize("optimizer", [PublishedSGD, PublishedAdamW])
ON_TORCH = pytest.mark.backends("torch")


def random_values(rng):
    """Returns the initial values of two kernels and a bias, by path."""
    return {
        "dense_1/kernel": rng.normal(size=(8, 16)).astype("float32"),
        "dense_1/bias": rng.normal(size=(16,)).astype("float32"),
        "dense_2/kernel": rng.normal(size=(16, 4)).astype("float32"),
    }


def random_gradients(rng, values, steps=STEPS):
    """Gradients of very different sizes, so that clipping and epsilons
    matter."""
    return [
        {
            name: (10.0 ** rng.uniform(-6, 1) * rng.normal(size=value.shape)).astype(
                "float32"
            )
            for name, value in values.items()
        }
        for _ in range(steps)
    ]


def trajectory(optimizer, values, grads, dtype="float32"):
    """Returns all variables after each step, as rows of an array.

    `values` and each of `grads` are arrays by path. Under JAX the step is
    compiled, since single operations are slow.
    """
    variables = []
    for path, value in values.items():
        layer, _, name = path.rpartition("/")
        with keras.name_scope(layer or "layer"):
            variables.append(keras.Variable(value, name=name, dtype=dtype))
    optimizer.build(variables)
    apply = _compiled(optimizer, variables)
    rows = []
    for step in grads:
        apply([ops.cast(step[path], dtype) for path in values])
        rows.append(np.concatenate([numpy(x).ravel() for x in variables]))
    return np.stack(rows)


def _compiled(optimizer, variables):
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


def averages(optimizer):
    found = getattr(optimizer, "_model_variables_moving_average", ())
    return np.concatenate([[], *(numpy(x).ravel() for x in found)])


def schedule():
    return keras_vit.schedules.warmup_cosine(PEAK, STEPS, warmup=10 / STEPS)


def by_optax(optax, name, dtype, decays, values, grads):
    """Returns the trajectory of big_vision's updates, which decay kernels only
    and bypass the momentum."""
    rate = optax.warmup_cosine_decay_schedule(0.0, PEAK, 10, STEPS)
    moment = {
        "SGD": lambda: optax.trace(decay=0.9, accumulator_dtype=dtype),
        "AdamW": lambda: optax.scale_by_adam(mu_dtype=dtype),
    }[name]()
    parts = [optax.clip_by_global_norm(1.0), moment, optax.scale(PEAK)]
    if decays:
        kernels = {path: path.endswith("kernel") for path in values}
        parts.append(optax.add_decayed_weights(DECAY, mask=kernels))
    transform = optax.chain(
        *parts, optax.scale_by_learning_rate(lambda step: rate(step) / PEAK)
    )
    update = transform.update
    if keras.config.backend() == "jax":
        import jax

        # As ours is: compiled, products in bfloat16 are not rounded.
        update = jax.jit(update)
    state, params, rows = transform.init(values), values, []
    for step in grads:
        updates, state = update(step, state, params)
        params = optax.apply_updates(params, updates)
        rows.append(np.concatenate([np.ravel(params[x]) for x in values]))
    return np.stack(rows)


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
    values = random_values(rng)
    grads = random_gradients(rng, values)
    expected = by_optax(optax, name, dtype, decays, values, grads)
    options = {
        "global_clipnorm": 1.0,
        "weight_decay": DECAY / PEAK if decays else 0.0,
    }
    if name == "SGD":
        options["momentum"] = 0.9
    ours = getattr(keras_vit.optimizers, f"Published{name}")(
        schedule(), momentum_dtype=dtype, decay_kernels_only=True, **options
    )
    found = trajectory(ours, values, grads)
    assert np.abs(found - expected).max() < 1e-6
    # What Keras does is something else, or this test would show nothing.
    keras_own = getattr(keras.optimizers, name)(schedule(), **options)
    other = trajectory(keras_own, values, grads)
    assert np.abs(other - expected).max() > 1e-2


# At a constant learning rate and without epsilon, Keras's steps are equal.
KERAS_PAIRS = [
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("AdamW", {"use_ema": True, "ema_momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "clipnorm": 0.5}),
    ("AdamW", {"weight_decay": 0.1, "clipvalue": 0.5}),
    ("AdamW", {"weight_decay": 0.1, "loss_scale_factor": 8.0}),
]


@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize(
    ("name", "arguments"), on_all(KERAS_PAIRS, KERAS_PAIRS[:2]), ids=str
)
def test_fifty_steps_match_keras(name, arguments):
    if name == "AdamW":
        arguments = {**arguments, "epsilon": 1e-12}
    rng = np.random.default_rng(0)
    values = random_values(rng)
    grads = random_gradients(rng, values)
    both = [
        make(1e-3, **arguments)
        for make in (
            getattr(keras_vit.optimizers, f"Published{name}"),
            getattr(keras.optimizers, name),
        )
    ]
    for of in (lambda x: trajectory(x, values, grads), averages):
        np.testing.assert_allclose(*map(of, both), rtol=1e-5, atol=2e-6)


def test_equal_averages_are_the_mean_of_the_updates():
    """The steps from which averaging begins are full batches."""
    rng = np.random.default_rng(0)
    values = random_values(rng)
    grads = random_gradients(rng, values, 2 * 12)
    for first in (5, 12):
        optimizer = PublishedAdamW(
            0.05, gradient_accumulation_steps=2, average_from=first
        )
        updates = trajectory(optimizer, values, grads)[1::2]
        # Until the average begins, it is the variables.
        expected = np.mean(updates[min(first, 11) :], axis=0, dtype=np.float64)
        np.testing.assert_allclose(averages(optimizer), expected, rtol=2e-6, atol=1e-7)
        assert (np.abs(expected - updates[-1]).max() > 1e-3) == (first < 12)


@ON_TORCH
def test_wrong_options_are_refused():
    for name, value in (
        ("average_from", -1),
        ("average_from", 0.75),
        ("ema_overwrite_frequency", 2),
        ("no_such_argument", 1),
    ):
        with pytest.raises(ValueError, match=f"{name}.*{value}"):
            PublishedSGD(**{name: value})


CONFIGS = {
    PublishedSGD: {
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 0.1,
        "decay_kernels_only": True,
        "layer_decay": 0.5,
        "momentum_dtype": "bfloat16",
        "clipnorm": 1.0,
    },
    PublishedAdamW: {
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


@ON_TORCH
@BOTH
def test_configs_are_read_again(optimizer):
    made = optimizer(**CONFIGS[optimizer])
    config = made.get_config()
    for name, value in CONFIGS[optimizer].items():
        if name != "learning_rate":
            assert config[name] == value, name
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert type(again) is optimizer and again.get_config() == config
    scaled = keras.optimizers.LossScaleOptimizer(again)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(scaled))
    found = again.inner_optimizer.get_config()
    assert found == config | {"loss_scale_factor": None, "name": found["name"]}


def compiled(optimizer):
    """Returns a small model with an optimizer, and a batch to train on."""
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model, x, x @ np.ones((4, 2), "float32")


@pytest.mark.suite("jax", "torch")
@BOTH
def test_optimizer_saved_with_a_model_resumes(optimizer, tmp_path):
    def fresh():
        given = {"momentum": 0.9} if optimizer is PublishedSGD else {}
        given |= {"momentum_dtype": "bfloat16", "weight_decay": 0.6}
        return compiled(optimizer(schedule(), decay_kernels_only=True, **given))

    straight, x, y = fresh()
    straight.fit(x, y, epochs=6, shuffle=False, verbose=0)
    model, _, _ = fresh()
    model.fit(x, y, epochs=3, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    assert type(model.optimizer) is optimizer
    model.fit(x, y, epochs=3, shuffle=False, verbose=0)
    for a, b in zip(model.weights, straight.weights, strict=True):
        np.testing.assert_array_equal(numpy(a), numpy(b))


@ON_TORCH
@BOTH
def test_gradients_are_freed_after_a_step(optimizer):
    """Under PyTorch, Keras keeps the gradients through the next forward pass,
    which takes as much memory as the weights."""
    model, x, y = compiled(optimizer(0.1))
    before = model.get_weights()
    model.train_on_batch(x, y)
    assert all(v.value.grad is None for v in model.trainable_variables)
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_loss_scaling_does_not_change_the_steps():
    """`LossScaleOptimizer` scales by powers of two, which rounds nothing; the
    averages are used only within `averaged`."""
    ends = []
    for scaled in (False, True):
        optimizer = PublishedAdamW(
            0.1,
            weight_decay=0.1,
            global_clipnorm=1.0,
            use_ema=True,
            ema_momentum=0.5,
            gradient_accumulation_steps=2,
        )
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model, x, y = compiled(optimizer)
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


@BOTH
def test_the_step_of_a_subclass_is_taken(optimizer):
    class Halved(optimizer):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate / 2)

    given = {"a": np.ones(3)}, [{"a": np.float32([1.0, -2.0, 3.0])}]
    both = (trajectory(x, *given) for x in (optimizer(0.1), Halved(0.2)))
    np.testing.assert_allclose(*both, rtol=1e-6)


# Under TensorFlow, Keras passes variables without a path.
@pytest.mark.backends("tensorflow", "torch")
@BOTH
def test_excluded_variables_do_not_decay(optimizer):
    kernel, named, listed = variables = [
        keras.Variable(np.ones((2, 2), "float32"), name=name)
        for name in ("kernel", "projection", "other")
    ]
    one = optimizer(1e-2, weight_decay=0.5)
    one.exclude_from_weight_decay(var_names=["proj"], var_list=[listed])
    for _ in range(10):
        one.apply([ops.zeros((2, 2))] * 3, variables)
    for other in (named, listed):
        np.testing.assert_array_equal(numpy(other), 1)
    np.testing.assert_allclose(numpy(kernel), (1 - 0.5 * 1e-2) ** 10, rtol=1e-5)


@BOTH
def test_half_precision_variables_train(optimizer):
    """0.999 is 1 in bfloat16: bias corrections would divide by 0."""
    momentum = {"momentum": 0.9} if optimizer is PublishedSGD else {}
    grads = 20 * [{"a": np.linspace(0.5, 2, 8)}]
    one, other = (
        trajectory(optimizer(0.01, **momentum), {"a": np.zeros(8)}, grads, x)
        for x in ("float32", "bfloat16")
    )
    np.testing.assert_allclose(one[-1], other[-1].astype("float32"), rtol=0.03)
    assert (other[-1] < 0).all()


@ON_TORCH
@BOTH
def test_updates_in_groups_are_those_of_all_variables(optimizer, monkeypatch):
    rng = np.random.default_rng(0)
    values = random_values(rng)
    grads = random_gradients(rng, values, 3)
    whole = trajectory(optimizer(0.1, weight_decay=0.1), values, grads)
    groups, compute = [], optimizer._all_updates

    def count(self, grads, indices, rate):
        groups.append(len(indices))
        return compute(self, grads, indices, rate)

    monkeypatch.setattr(optimizer, "_all_updates", count)
    monkeypatch.setattr(keras_vit.optimizers, "MAX_GROUP_BYTES", 600)
    parts = trajectory(optimizer(0.1, weight_decay=0.1), values, grads)
    assert groups == [2, 1] * 3
    np.testing.assert_array_equal(whole, parts)


@ON_TORCH
@BOTH
def test_a_small_weight_decay_is_not_rounded_away(optimizer):
    """A rate times decay of 1e-8 is below the spacing of float32 next to 1."""
    grads = np.random.default_rng(0).normal(size=(100, 20000))
    grads = [{"a": x.astype("float32")} for x in grads]
    start = {"a": np.ones(20000, "float32")}
    ends = [
        trajectory(optimizer(1e-4, weight_decay=x), start, grads)[-1]
        for x in (0.0, 1e-4)
    ]
    difference = np.mean(np.subtract(*ends, dtype="float64"))
    assert difference == pytest.approx(len(grads) * 1e-8, rel=0.1)


@pytest.mark.suite("torch", "jax")
@BOTH
def test_a_stateless_update_keeps_its_inputs(optimizer):
    variable = keras.Variable(np.ones(3, "float32"))
    one = optimizer(0.1)
    one.build([variable])
    grads = [ops.ones(3)]
    given = ([x.value for x in one.variables], grads, [variable.value])
    found = [one.stateless_apply(*given)[0][0] for _ in range(2)]
    np.testing.assert_array_equal(*map(numpy, found))
    np.testing.assert_array_equal(numpy(variable), 1)
    assert numpy(found[0]).max() < 1


@pytest.mark.suite("torch", "jax")
@BOTH
def test_weight_decay_may_be_a_schedule(optimizer):
    decay = keras.optimizers.schedules.CosineDecay(0.5, 10)
    values = {"a": np.float32([1.0, -0.5, 2.0])}
    grads = 5 * [{"a": np.float32([1.0, -2.0, 0.1])}]
    one = optimizer(0.1, weight_decay=decay)
    scheduled = trajectory(one, values, grads)
    again = optimizer.from_config(one.get_config())
    np.testing.assert_array_equal(trajectory(again, values, grads), scheduled)
    variable = keras.Variable(values["a"])
    constant = optimizer(0.1, weight_decay=0.0)
    constant.build([variable])
    for step in range(5):
        constant.weight_decay = float(decay(step))
        constant.apply([ops.convert_to_tensor(grads[0]["a"])], [variable])
        np.testing.assert_allclose(
            numpy(variable), scheduled[step], rtol=1e-5, atol=1e-6
        )


def test_both_schedules_count_the_same_steps():
    """With learning rate and decay of 1 in the last step, nothing is left."""
    ramp = keras_vit.schedules.WarmupMultiStep(1.0, 1, [])
    optimizer = PublishedSGD(ramp, weight_decay=ramp, gradient_accumulation_steps=4)
    grads = 8 * [{"a": np.zeros(1)}]
    assert trajectory(optimizer, {"a": np.ones(1)}, grads)[-1] == 0


@pytest.mark.parametrize("options", [{"use_ema": True}, {"average_from": 0}])
def test_averages_of_half_precision_variables_move(options):
    """In bfloat16, an average of 1 would stay there: the values differ by
    less than its precision."""
    if "use_ema" in options:
        options = {"use_ema": True, "ema_momentum": 0.999}
    found = []
    for dtype in ("float32", "bfloat16"):
        variable = keras.Variable(np.ones(1, "float32"), dtype=dtype)
        optimizer = PublishedSGD(0.0, **options)
        optimizer.build([variable])
        for value in (1.0, *30 * (1.25,)):
            variable.assign([value])
            optimizer.apply([ops.zeros(1, dtype)], [variable])
        found += averages(optimizer).tolist()
        optimizer.finalize_variable_values([variable])
        assert keras.backend.standardize_dtype(variable.dtype) == dtype
        assert float(variable[0]) == pytest.approx(found[-1], rel=0.004)
    assert found[0] > 1.005
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_gradients_of_half_precision_accumulate():
    """In bfloat16, 256 + 1 is 256."""
    optimizer = PublishedSGD(1.0, gradient_accumulation_steps=5)
    grads = [{"a": np.float32([x])} for x in (256.0, 1.0, 1.0, 1.0, 1.0)]
    found = trajectory(optimizer, {"a": np.zeros(1)}, grads, "bfloat16")
    assert float(found[-1, 0]) == -52.0


@BOTH
def test_layer_decay_scales_the_learning_rate_of_each_layer(optimizer):
    """Each layer steps as it would alone with a fraction of the learning rate;
    weight decay is scaled too, as in MAE's code."""
    scales = {
        "patch_embedding/kernel": 0.125,
        "block_0/kernel": 0.25,
        "block_1/kernel": 0.5,
        "encoder_norm/gamma": 1.0,
        "head/kernel": 1.0,
    }
    rng = np.random.default_rng(0)
    values, *grads = (
        {path: rng.normal(size=3).astype("float32") for path in scales}
        for _ in range(6)
    )
    whole = optimizer(0.1, layer_decay=0.5, weight_decay=0.3)
    expected = [
        trajectory(
            optimizer(0.1 * scale, weight_decay=0.3),
            {path: values[path]},
            grads,
        )
        for path, scale in scales.items()
    ]
    np.testing.assert_allclose(
        trajectory(whole, values, grads),
        np.concatenate(expected, axis=1),
        rtol=1e-5,
    )


@ON_TORCH
def test_layer_decay_multipliers():
    paths = "class_token/tokens root_conv/kernel vit/block_3/mlp/kernel a/b"
    scales = layer_decay_multipliers(paths.split(), 0.75)
    assert scales == [0.75**5, 0.75**5, 0.75, 1]
    with pytest.raises(ValueError, match="layer_decay"):
        layer_decay_multipliers(["stage_1/x"], 0.5)
    assert layer_decay_multipliers(["stage_1/x"], 1.0) == [1]


@ON_TORCH
@pytest.mark.parametrize(
    "options",
    [
        {"position_placement": "every_layer"},
        {"position_placement": "every_layer_shared"},
        {"position_embedding": "relative", "class_token": False},
        {"pooling": "map", "representation_size": 8},
        {"num_registers": 2, "distillation": True, "pre_norm": True},
        {"layer_scale": 0.1, "pooling": "gap", "final_norm": "after_pooling"},
    ],
    ids=str,
)
def test_every_variable_learns_at_the_rate_of_its_depth(options):
    """As timm's and BEiT's `get_layer_id`: what comes before the blocks is at
    the bottom, what follows them at the top."""
    model = vit(num_layers=3, **options)
    paths = [v.path for v in model.trainable_variables]
    found = dict(zip(paths, layer_decay_multipliers(paths, 0.5), strict=True))
    blocks = 0
    for layer in model.layers:
        is_block = isinstance(layer, keras_vit.layers.TransformerBlock)
        blocks += is_block
        of_block = layer.name.rpartition("_")[2]
        if of_block == "shared":
            depth = 0
        elif layer.name.startswith("position_embedding_"):
            depth = int(of_block) + 1
        elif is_block:
            depth = blocks
        else:
            depth = 4 if blocks == 3 else 0
        for variable in layer.trainable_weights:
            assert found[variable.path] == 0.5 ** (4 - depth), variable.path
