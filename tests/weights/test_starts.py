"""A model that loads its weights does not initialise them."""

import threading

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import initializers
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
def drawn(monkeypatch):
    """The shapes that are drawn."""
    shapes = []
    for kind in (initializers.Uniform, initializers.Normal):
        draw = kind._draw

        def _draw(self, generator, x, draw=draw):
            shapes.append(x.shape)
            draw(self, generator, x)

        monkeypatch.setattr(kind, "_draw", _draw)
    return shapes


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_drawn_that_is_loaded(name, drawn):
    path = golden_data.load_path(CASES[name])
    given = golden_data.load_arguments(CASES[name])
    model = keras_vit.converters.load(path, **given)
    assert not drawn
    assert all(numpy(w).any() for w in model.weights if "kernel" in w.path)


@pytest.mark.parametrize("name", SMALL)
def test_everything_else_is_drawn(name, drawn):
    model = getattr(keras_vit, name)(**SMALL[name], classes=3)
    kernels = [w for w in model.weights if "kernel" in w.path]
    assert len(drawn) >= len(kernels) - 1  # a head's is zeros
    still = {w.path for w in kernels if not numpy(w).any()}
    assert still == {"head/kernel"}


def test_a_file_that_does_not_fit_leaves_drawing_on(drawn):
    path = golden_data.load_path("vit_jax_token")
    with pytest.raises(ValueError, match="does not fit"):
        keras_vit.VisionTransformer(weights=path, mlp_dim=7)
    assert not drawn
    keras_vit.VisionTransformer(**SMALL["VisionTransformer"])
    assert drawn


def test_other_threads_draw():
    found = []

    def build():
        layer = keras_vit.layers.PatchEmbedding(8, 4)
        layer.build((None, 8, 8, 3))
        found.append(numpy(layer.kernel))

    def make():
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
        build()

    with initializers.skip_init():
        make()
    other, own = found
    assert other.any()
    assert not own.any()


def test_models_of_one_checkpoint_share_no_memory():
    """Training writes into the variables."""
    path = golden_data.load_path("vit_jax_token")
    checkpoint = keras_vit.converters.open_checkpoint(path)
    first = keras_vit.converters.load(checkpoint)
    second = keras_vit.converters.load(checkpoint)
    for weight in first.weights:
        weight.assign_add(keras.ops.ones(weight.shape))
    third = keras_vit.converters.load(checkpoint)
    for a, b, c in zip(
        first.weights, second.weights, third.weights, strict=True
    ):
        np.testing.assert_array_equal(numpy(b), numpy(c), a.path)
        np.testing.assert_allclose(numpy(a), numpy(b) + 1, rtol=1e-6)
