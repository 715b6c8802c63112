"""Kinds and placements of positions: combinations, storing, loading."""

import itertools

import numpy as np
import pytest

import keras_vit
from keras_vit.config import POSITION_EMBEDDINGS, POSITION_PLACEMENTS
from keras_vit.converters import describe, load, open_checkpoint, save
from tests.harness import numpy
from tests.markers import on_all
from tests.small import images, randomize, tiny

COMBINATIONS = [
    case
    for case in itertools.product(POSITION_EMBEDDINGS, POSITION_PLACEMENTS)
    # "learned" is "learned_1d"; of none, the placement does not matter.
    if case[0] != "learned"
    and case not in (("relative", "stem"), ("none", "every_layer_shared"))
    and (case[0] != "rope" or case[1] == "every_layer_shared")
]
# Kinds that have weights or change the attention. All combinations run under
# PyTorch, which builds models fastest; tests/layers tests what they compute.
ON_ALL_BACKENDS = (
    ("learned_1d", "every_layer"),
    ("learned_2d", "every_layer_shared"),
    ("relative", "every_layer"),
    ("rope", "every_layer_shared"),
)


def build(kind, placement, **options):
    model = tiny(**options, position_embedding=kind, position_placement=placement)
    randomize(model)
    return model


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize("kind, placement", on_all(COMBINATIONS, ON_ALL_BACKENDS))
def test_files_store_positions_and_load_at_another_image_size(
    kind, placement, tmp_path
):
    """The resampled weights match a model that resamples them at every
    call."""
    model = build(kind, placement)
    described = describe(model)[1]
    assert described["position_embedding"] == kind.removesuffix("_1d")
    assert described["position_placement"] == ("stem" if kind == "none" else placement)
    save(model, tmp_path / "m.weights.h5")
    arguments = open_checkpoint(tmp_path / "m.weights.h5").arguments()
    for name in ("position_embedding", "position_placement", "grid_size"):
        assert arguments[name] == described[name]
    again = load(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(numpy(again(images())), numpy(model(images())))
    save(model, tmp_path / "model.keras")
    wide = load(tmp_path / "model.keras", input_shape=(16, 20, 3))
    any_size = load(tmp_path / "model.keras", input_shape=(None, None, 3))
    x = images(2, 16, 20, 3)
    expected = numpy(any_size(x))
    np.testing.assert_allclose(numpy(wide(x)), expected, atol=5e-5)
    if kind not in ("none", "rope", "sincos2d"):
        other = build(kind, placement, input_shape=(16, 20, 3))
        assert np.abs(numpy(other(x)) - expected).max() > 1e-3


@pytest.mark.backends("torch")
def test_learned_positions_are_inferred_from_the_arrays(tmp_path):
    """Keras's own files have no metadata of ours: names and shapes suffice."""
    for kind, placement in ON_ALL_BACKENDS:
        model = build(kind, placement)
        model.save_weights(tmp_path / "bare.weights.h5")
        again = keras_vit.VisionTransformer(
            weights=str(tmp_path / "bare.weights.h5"),
            input_shape=(8, 12, 3),
            activation="gelu_tanh",
            norm_epsilon=1e-6,
            resampling="bilinear_align_corners",
        )
        found, expected = again(images()), model(images())
        np.testing.assert_array_equal(numpy(found), numpy(expected))


@pytest.mark.backends("torch")
def test_relative_positions_are_of_every_layer():
    model = build("relative", None)
    assert {"position_embedding_0", "position_embedding_1"} <= {
        layer.name for layer in model.layers
    }
