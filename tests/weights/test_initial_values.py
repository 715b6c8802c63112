"""Loading weights samples no values and shares no memory."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import initializers
from keras_vit.models.assigning import load_weights
from tests import golden_data
from tests.harness import numpy

CASES = {
    "VisionTransformer": "vit_jax_token_prelogits",
    "HybridVisionTransformer": "vit_jax_hybrid_small",
    "BiT": "bit_paper",
}
SMALL = {
    "VisionTransformer": {
        "patch_size": 4,
        "hidden_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "mlp_dim": 8,
        "input_shape": (8, 8, 3),
    },
    "BiT": {"resnet_layers": (1, 1, 1, 1), "input_shape": (32, 32, 3)},
}


@pytest.fixture
def sampled(monkeypatch):
    """The sizes of arrays, or of slices, that are sampled."""
    sizes = []
    for initializer in (initializers.Uniform, initializers.Normal):

        def sample(self, generator, out, original=initializer._sample):
            sizes.append(out.size)
            original(self, generator, out)

        monkeypatch.setattr(initializer, "_sample", sample)
    return sizes


@pytest.mark.parametrize("name", CASES)
def test_loaded_weights_are_not_sampled(name, sampled):
    path = golden_data.load_path(CASES[name])
    given = golden_data.load_arguments(CASES[name])
    model = keras_vit.converters.load(path, **given)
    assert not sampled
    assert all(numpy(w).any() for w in model.weights if "kernel" in w.path)


@pytest.mark.parametrize("name", SMALL)
def test_weights_without_a_file_are_sampled(name, sampled):
    model = getattr(keras_vit, name)(**SMALL[name], classes=3)
    kernels = [w for w in model.weights if "kernel" in w.path]
    assert len(sampled) >= len(kernels) - 1  # a head's is zeros
    still = {w.path for w in kernels if not numpy(w).any()}
    assert still == {"head/kernel"}


def test_weights_are_sampled_after_a_failed_load(sampled):
    path = golden_data.load_path("vit_jax_token")
    with pytest.raises(ValueError, match="does not fit"):
        keras_vit.VisionTransformer(weights=path, mlp_dim=7)
    assert not sampled
    keras_vit.VisionTransformer(**SMALL["VisionTransformer"])
    assert sampled


def test_models_of_one_checkpoint_share_no_memory():
    """Training modifies the variables in place."""
    path = golden_data.load_path("vit_jax_token")
    checkpoint = keras_vit.converters.open_checkpoint(path)
    first = keras_vit.converters.load(checkpoint)
    second = keras_vit.converters.load(checkpoint)
    for weight in first.weights:
        weight.assign_add(keras.ops.ones(weight.shape))
    third = keras_vit.converters.load(checkpoint)
    for a, b, c in zip(first.weights, second.weights, third.weights, strict=True):
        np.testing.assert_array_equal(numpy(b), numpy(c), a.path)
        np.testing.assert_allclose(numpy(a), numpy(b) + 1, rtol=1e-6)


def test_weights_of_one_array_share_no_memory():
    path = golden_data.load_path("vit_jax_token")
    checkpoint = keras_vit.converters.open_checkpoint(path)
    model = keras_vit.converters.load(checkpoint)
    names = [f"block_0/norm_{i}/{x}" for i in (1, 2) for x in ("gamma", "beta")]
    one = np.full((2, len(checkpoint.weights[names[0]])), 5, "float32")
    weights = checkpoint.weights | dict.fromkeys(names[:2], one[0])
    weights |= {names[2]: one[0], names[3]: one[1]}
    load_weights(model, dataclasses.replace(checkpoint, weights=weights))
    found = [w for w in model.weights if w.path in names]
    found[0].assign_add(keras.ops.ones(found[0].shape))
    kept = [numpy(w) for w in found]
    assert [set(x) for x in kept] == [{6.0}, {5.0}, {5.0}, {5.0}]
    assert (one == 5).all()
