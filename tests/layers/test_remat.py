"""Gradient checkpointing: equal gradients, less memory."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.small import tiny

BACKEND = keras.config.backend()


def model_of(remat, layers=2, size=16, **options):
    keras.utils.set_random_seed(0)
    model = tiny(
        input_shape=(size, size, 3),
        num_layers=layers,
        classes=3,
        remat=remat,
        **options,
    )
    # A zero head leaves no gradient; a norm of a token of zeros is a
    # thousand times as sensitive, and so to rounding.
    for layer, name in (("head", "kernel"), ("class_token", "tokens")):
        weight = getattr(model.get_layer(layer), name)
        weight.assign(keras.random.normal(weight.shape, 0, 0.1, seed=1))
    return model


def batch(size=16):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(4, size, size, 3)).astype("float32")
    return images, np.arange(4) % 3


def steps(model):
    """Returns the weights after two steps, which depend on the gradients."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(*batch(), batch_size=4, epochs=2, shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in model.get_weights()])


RANDOM = {"dropout": 0.2, "attention_dropout": 0.2, "drop_path": 0.2}


ROTARY = {**RANDOM, "position_embedding": "rope", "rope_jitter": 1.5}
RELATIVE = {**RANDOM, "position_embedding": "relative"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="no_dropout", marks=pytest.mark.backends("torch")),
        pytest.param(RANDOM, id="dropout", marks=pytest.mark.backends("torch")),
        pytest.param(RELATIVE, id="relative"),
        pytest.param(ROTARY, id="rotary", marks=pytest.mark.backends("jax")),
    ],
)
def test_gradients_with_and_without_remat_match(options, tmp_path, record_error):
    """The second forward pass must sample the same dropout masks as the
    first."""
    kept = steps(model_of(False, **options))
    model = model_of(True, **options)
    start = np.concatenate([w.ravel() for w in model.get_weights()])
    assert np.abs(kept - start).max() > 0.01
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.get_layer("block_1").remat
    error = np.abs(steps(model) - kept).max()
    record_error("gradient checkpointing", str(options), error, 1e-6)


def test_half_precision_trains():
    """PyTorch requires the second forward pass to have the precision of the
    first."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    weights = steps(model_of(True, **RANDOM))
    assert np.isfinite(weights).all()


def kept_bytes(model, images):
    """Returns the bytes that the forward pass keeps for the gradients."""
    if BACKEND == "torch":
        import torch

        kept = {}

        def keep(tensor):
            kept[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            model(images, training=True)
        return sum(kept.values())
    import jax

    def loss(trainable, rest, images):
        logits, _ = model.stateless_call(trainable, rest, images, training=True)
        return ops.sum(logits)

    trainable = [v.value for v in model.trainable_variables]
    rest = [v.value for v in model.non_trainable_variables]
    # Not the compiled step's memory: XLA's CPU compiler computes nothing
    # twice, even with `jax.checkpoint`.
    backward = jax.eval_shape(
        lambda trainable: jax.vjp(lambda t: loss(t, rest, images), trainable)[1],
        trainable,
    )
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward))


@pytest.mark.backends("jax", "torch")
def test_remat_keeps_less_memory(record_property):
    images = ops.convert_to_tensor(batch(32)[0])
    kept = kept_bytes(model_of(False, layers=6, size=32), images)
    again = kept_bytes(model_of(True, layers=6, size=32), images)
    record_property("kept bytes", (kept, again))
    assert again < kept / 2, (again, kept)
