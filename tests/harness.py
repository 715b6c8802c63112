"""The contract of every layer, checked by one call."""

import contextlib

import keras
import numpy as np
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


def check_layer(make, *inputs, still=()):
    """Checks a layer's contract on the backend at hand.

    Args:
        make: Function of no arguments that returns a new layer.
        *inputs: The arrays that the layer is called with.
        still: Names of weights whose gradient is zero by mathematics.
    """
    _check_config(make, inputs)
    _check_shape(make, inputs)
    _check_save(make, inputs)
    _check_precision(make, inputs)
    _check_step(make, inputs, still)


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


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


def _check_shape(make, inputs):
    layer = make()
    eager = tuple(layer(*inputs).shape)
    assert layer.compute_output_shape(*(x.shape for x in inputs)) == eager
    symbolic = [keras.KerasTensor((None, *x.shape[1:])) for x in inputs]
    assert tuple(make()(*symbolic).shape) == (None, *eager[1:])


def _check_save(make, inputs, path="layer.keras"):
    import pathlib
    import tempfile

    model = model_of(make, inputs)
    _randomise(model)
    before = numpy(model(list(inputs)))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / path
        model.save(path)
        again = keras.models.load_model(path, safe_mode=True)
        weights = path.with_suffix(".weights.h5")
        model.save_weights(weights)
        fresh = model_of(make, inputs)
        fresh.load_weights(weights)
    for other in (again, fresh):
        after = numpy(other(list(inputs)))
        np.testing.assert_array_equal(before, after)


def _check_precision(make, inputs):
    for policy, dtype in (
        ("mixed_bfloat16", "bfloat16"),
        ("mixed_float16", "float16"),
        ("float64", "float64"),
    ):
        if dtype == "float64" and not _has_float64():
            continue
        keras.config.set_dtype_policy(policy)
        layer = make()
        cast = [ops.cast(ops.convert_to_tensor(x), dtype) for x in inputs]
        outputs = layer(*cast)
        keras.config.set_dtype_policy("float32")
        found = keras.backend.standardize_dtype(outputs.dtype)
        assert found == dtype, f"{policy} gave {found}"
        expected = "float64" if dtype == "float64" else "float32"
        for weight in layer.weights:
            assert weight.dtype == expected
        assert np.isfinite(numpy(ops.cast(outputs, "float32"))).all()


def _has_float64():
    if keras.config.backend() != "jax":
        return True
    import jax

    return jax.config.jax_enable_x64


def _check_step(make, inputs, still):
    """One step of plain SGD must move every weight."""
    model = model_of(make, inputs)
    _randomise(model)
    before = {w.path: numpy(w) for w in model.trainable_weights}
    if not before:
        return
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    target = np.random.default_rng(1).normal(size=model(list(inputs)).shape)
    model.fit(list(inputs), target.astype("float32"), epochs=1, verbose=0)
    for weight in model.trainable_weights:
        moved = np.abs(numpy(weight) - before[weight.path]).max()
        assert np.isfinite(moved)
        if not weight.path.endswith(tuple(still) or ("\n",)):
            assert moved > 1e-7, f"{weight.path} has no gradient"


def _randomise(model):
    """Replaces all weights: zeros would hide a mistake."""
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
