"""Rotary positions: what they compute, and what Keras does with them."""

import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.converters import load
from tests import originals
from tests.harness import numpy

ON_TORCH = pytest.mark.backends("torch")


def grid(rows, columns):
    return np.zeros((1, rows, columns, 1), "float32")


def test_angles_of_a_rectangle():
    """The formula of the paper, in float64."""
    layer = keras_vit.layers.RotaryPositionEmbs(
        8, base=20, num_prefix_tokens=2, jitter=2.0
    )
    found = numpy(layer(grid(3, 5)))
    assert found.shape == (1, 17, 2, 4)
    np.testing.assert_array_equal(found[0, :2, 0], 0)
    np.testing.assert_array_equal(found[0, :2, 1], 1)
    for row in range(3):
        for column in range(5):
            y, x = (2 * row + 1) / 3 - 1, (2 * column + 1) / 5 - 1
            angles = [2 * np.pi * z / 20**i for z in (y, x) for i in (0, 0.5)]
            table = found[0, 2 + row * 5 + column]
            np.testing.assert_allclose(table[0], np.sin(angles), atol=1e-6)
            np.testing.assert_allclose(table[1], np.cos(angles), atol=1e-6)


@ON_TORCH
@pytest.mark.parametrize("options", [{"shift": 0.3}, {"jitter": 2.0}, {"rescale": 2.0}])
def test_changes_in_training(options):
    """With long periods, angles are small and proportional to coordinates."""
    (name,) = options
    layer = keras_vit.layers.RotaryPositionEmbs(8, base=1e8, seed=0, **options)

    def coordinates(**training):
        table = numpy(layer(grid(2, 4), **training)).reshape(2, 4, 2, 4)
        y, x = (table[:, :, 0, i] / 2 / np.pi * 1e4 for i in (1, 3))
        np.testing.assert_allclose(y, y[:, :1] * np.ones(4), rtol=1e-4)
        return y[:, 0], x[0]

    y, x = coordinates()
    np.testing.assert_allclose(y, [-0.5, 0.5], rtol=1e-3)
    np.testing.assert_array_equal(coordinates()[0], y)
    seen = []
    for _ in range(20):
        new = coordinates(training=True)
        if name == "shift":
            change = [b - a for a, b in zip((y, x), new, strict=True)]
            assert max(np.abs(c).max() for c in change) < 0.3 + 1e-3
        else:
            change = [b / a for a, b in zip((y, x), new, strict=True)]
            assert all(0.499 < c.min() and c.max() < 2.001 for c in change)
        for one in change:
            np.testing.assert_allclose(one, one[0], atol=1e-3)
        seen.append([one[0] for one in change])
    seen = np.array(seen)
    assert len(np.unique(seen[:, 0].round(4))) > 15
    same = np.abs(seen[:, 0] - seen[:, 1]) < 1e-3
    assert same.all() if name == "rescale" else not same.all()


@pytest.mark.slow
@ON_TORCH
def test_attention_maps_equal_transformers(tmp_path, record_error):
    import torch

    case = originals.HUGGINGFACE["dinov3"]
    original = originals.build(case)
    path, _ = originals.save(case, original, tmp_path)
    model = load(path, input_shape=(None, None, 3))
    original.set_attn_implementation("eager")
    x = originals.images(40, 16)
    with torch.no_grad():
        expected = original(
            torch.from_numpy(x).permute(0, 3, 1, 2), output_attentions=True
        ).attentions
    found = inspection.attention_maps(model, x)
    expected = np.stack([maps.numpy() for maps in expected])
    assert found.shape == expected.shape == (2, 2, 2, 15, 15)
    error = np.abs(found - expected).max()
    record_error("dinov3", "attention maps", error, 3e-5)
