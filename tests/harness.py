"""The contract of every layer, checked by one call."""

import contextlib
import functools
import inspect
import json
import tempfile

import keras
import numpy as np
import pytest
from keras import ops


@contextlib.contextmanager
def eager(enabled=True):
    """Runs TensorFlow functions eagerly within this context.

    Tracing the graph of a small model takes ten times as long as a step. This
    is for tests that take few steps and whose subject is not the graph.

    Args:
        enabled: Boolean. Whether to change anything.
    """
    if keras.config.backend() != "tensorflow" or not enabled:
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def check_layer(make, *inputs, still=(), needs_sizes=None):
    """Checks what Keras's own test of layers, below, does not.

    Args:
        make: Function of no arguments that returns a new layer.
        *inputs: The arrays that the layer is called with.
        still: Names of weights whose gradient is zero by mathematics.
        needs_sizes: Regular expression of the error of a layer that cannot be
            built for inputs of unknown sizes; None if it can.
    """
    _check_config(make, inputs)
    _check_shape(make, inputs)
    _check_unknown_sizes(make, inputs, needs_sizes)
    _check_save(make, inputs)
    _check_precision(make, inputs)
    check_integers(make, *inputs)
    if len(inputs) == 1:
        _check_time_distributed(make, *inputs)
    _check_empty_batch(make, inputs)
    _check_step(make, inputs, still)


def run_keras_layer_test(make, *inputs):
    """Runs the test that Keras has for its own layers: serialization, build,
    symbolic and eager shapes, numbers of weights, seeds and losses, a compiled
    training step, and the precision of a policy.

    Only layers of one input and one output are trained.
    """
    from keras.src.testing import TestCase

    layer = make()
    base = keras.Layer().get_config()
    config = layer.get_config().items()
    arguments = {k: v for k, v in config if k not in base}
    names = list(inspect.signature(layer.call).parameters)[: len(inputs)]
    shapes = {f"{n}_shape": x.shape for n, x in zip(names, inputs, strict=True)}
    outputs = layer(*inputs)
    is_trained = len(inputs) == 1 and not isinstance(outputs, dict)
    if len(inputs) == 1:
        (shapes,) = shapes.values()
    TestCase("run_layer_test").run_layer_test(
        type(layer),
        arguments,
        input_shape=shapes,
        input_dtype=None if len(inputs) == 1 else dict.fromkeys(shapes, "float32"),
        expected_output_shape=_shapes(outputs),
        expected_num_losses=len(layer.losses),
        run_training_check=is_trained,
    )


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def copies(model, folder):
    """Returns copies with the same weights, by the methods of Keras."""
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    config = json.loads(json.dumps(model.get_config()))
    found = {
        "load_model": keras.models.load_model(folder / "model.keras"),
        "clone_model": keras.models.clone_model(model),
        "from_config": type(model).from_config(config),
        "model_from_json": keras.models.model_from_json(model.to_json()),
    }
    found["clone_model"].set_weights(model.get_weights())
    for way in ("from_config", "model_from_json"):
        found[way].load_weights(folder / "model.weights.h5")
    return found


def model_of(make, inputs):
    """A functional model of the layer with an unknown batch size."""
    symbolic = [keras.Input(x.shape[1:], dtype="float32") for x in inputs]
    return keras.Model(symbolic, make()(*symbolic))


def _check_config(make, inputs):
    layer = make()
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    layer(*inputs)
    assert layer.get_config() == config, "building changed the config"
    # A config holds what the constructor takes, and no more.
    base = keras.Layer().get_config().keys()
    for name in config.keys() - base:
        assert hasattr(layer, name)
    registered = keras.saving.get_registered_name(type(layer))
    assert registered == f"keras_vit>{type(layer).__name__}"


def _shapes(outputs):
    return keras.tree.map_structure(lambda x: tuple(x.shape), outputs)


def _dtypes(outputs):
    found = {
        keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten(outputs)
    }
    return found - {"int32", "bool"}  # of coordinates and masks


def _arrays(outputs):
    return [numpy(ops.cast(x, "float32")) for x in keras.tree.flatten(outputs)]


def _check_shape(make, inputs):
    layer = make()
    outputs = layer(*inputs)
    expected = _shapes(outputs)
    specs = [keras.KerasTensor(x.shape) for x in inputs]
    assert _shapes(layer.compute_output_spec(*specs)) == expected
    symbolic = [keras.KerasTensor((None, *x.shape[1:])) for x in inputs]
    found = _shapes(make()(*symbolic))
    expected = keras.tree.map_structure(lambda x: (None, *x.shape[1:]), outputs)
    assert found == expected


def _check_unknown_sizes(make, inputs, error):
    """Only the numbers of channels are known when the layer is built."""
    symbolic = [
        keras.KerasTensor((None,) * (x.ndim - 1) + x.shape[-1:])
        if x.ndim > 2
        else keras.KerasTensor((None,) * x.ndim)
        for x in inputs
    ]
    layer = make()
    if error is not None:
        with pytest.raises(ValueError, match=error):
            layer(*symbolic)
        return
    outputs = layer(*symbolic)
    found = layer(*inputs)
    for spec, x in zip(
        keras.tree.flatten(outputs), keras.tree.flatten(found), strict=True
    ):
        assert len(spec.shape) == len(x.shape)
        for size, expected in zip(spec.shape, x.shape, strict=True):
            assert size in (None, expected)
    assert _shapes(found) == _shapes(make()(*inputs))


def _check_save(make, inputs):
    model = model_of(make, inputs)
    _randomize(model)
    before = _arrays(model(list(inputs)))
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        other = keras.models.load_model(f"{folder}/model.keras")
    for x, y in zip(before, _arrays(other(list(inputs))), strict=True):
        np.testing.assert_array_equal(x, y)


def _check_precision(make, inputs):
    """Outputs and their symbolic form have the policy's dtype, for arrays of
    float32 as for tensors of that dtype; weights have the variables' dtype."""
    for policy, dtype in (
        ("mixed_bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("float64", "float64"),
    ):
        if dtype == "float64" and not _has_float64():
            continue
        keras.config.set_dtype_policy(policy)
        layer, symbolic = make(), make()
        cast = [ops.cast(ops.convert_to_tensor(x), dtype) for x in inputs]
        outputs = [layer(*cast), layer(*inputs)]
        specs = [keras.KerasTensor(x.shape, "float32") for x in inputs]
        outputs += [symbolic(*specs)]
        keras.config.set_dtype_policy("float32")
        assert _dtypes(outputs) == {dtype}, f"{policy} gave {_dtypes(outputs)}"
        expected = "float32" if policy.startswith("mixed") else dtype
        for weight in layer.weights:
            assert weight.dtype == expected
        for x in _arrays(outputs[:2]):
            assert np.isfinite(x).all()


def check_integers(make, *inputs):
    """Integers and float64 give what equal floats give, also within a wrapper,
    which does not use `__call__`."""
    layer = make()
    first, *others = inputs
    integers = np.round(3 * first).astype("int32")
    layer(integers.astype("float32"), *others)
    _randomize(layer)
    expected = layer(integers.astype("float32"), *others)
    symbolic = [keras.KerasTensor(integers.shape, "int32")]
    symbolic += [keras.KerasTensor(x.shape) for x in others]
    assert _dtypes(make()(*symbolic)) == {"float32"}
    tensor = ops.convert_to_tensor(integers)
    others = [ops.convert_to_tensor(x) for x in others]
    for found in (
        layer(integers, *others),
        layer(integers.astype("float64"), *others),
        layer.call(tensor, *others),
    ):
        assert _dtypes(found) == {"float32"}
        for x, y in zip(_arrays(found), _arrays(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def _check_time_distributed(make, inputs):
    expected = make()(inputs)
    if isinstance(expected, dict):  # which `TimeDistributed` does not support
        return
    wrapped = keras.layers.TimeDistributed(make())
    _, *rest = expected.shape
    symbolic = keras.KerasTensor((None, 2, *inputs.shape[1:]))
    assert tuple(wrapped(symbolic).shape) == (None, 2, *rest)
    found = wrapped(np.stack([inputs] * 2, axis=1))
    assert tuple(found.shape) == (len(inputs), 2, *rest)


def _check_empty_batch(make, inputs):
    layer = make()
    outputs = layer(*inputs)
    if keras.config.backend() == "tensorflow" and not _conv_takes_no_images():
        if any(len(weight.shape) == 4 for weight in layer.weights):
            return
    found = layer(*(x[:0] for x in inputs))
    expected = keras.tree.map_structure(lambda x: (0, *x.shape[1:]), outputs)
    assert _shapes(found) == expected


@functools.cache
def _conv_takes_no_images():
    """Whether Keras's own convolution of an empty batch has the right shape.
    TensorFlow's on a CPU has the batch's size in the wrong axis, or fails."""
    try:
        x = keras.layers.Conv2D(5, 3, padding="same")(np.zeros((0, 4, 4, 3)))
    except Exception:
        return False
    return tuple(x.shape) == (0, 4, 4, 5)


def _has_float64():
    if keras.config.backend() != "jax":
        return True
    import jax

    return jax.config.jax_enable_x64


def _check_step(make, inputs, still):
    """One step of plain SGD must move every weight."""
    keras.utils.set_random_seed(0)  # otherwise dropout may drop a whole branch
    model = model_of(make, inputs)
    _randomize(model)
    before = {w.path: numpy(w) for w in model.trainable_weights}
    if not before:
        return
    outputs = model(list(inputs))
    rng = np.random.default_rng(1)
    target = keras.tree.map_structure(
        lambda x: rng.normal(size=x.shape).astype("float32"), outputs
    )
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    model.fit(list(inputs), target, epochs=1, verbose=0)
    for weight in model.trainable_weights:
        moved = np.abs(numpy(weight) - before[weight.path]).max()
        assert np.isfinite(moved)
        if not weight.path.endswith(tuple(still) or ("\n",)):
            assert moved > 1e-7, f"{weight.path} has no gradient"


def _randomize(model):
    """Replaces all weights: zeros would hide a mistake."""
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
