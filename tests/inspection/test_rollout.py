"""Rollout and the heat map over the image."""

import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.inspection.attention import pooling_weights
from tests import golden_data
from tests.harness import numpy
from tests.inspection import models


@pytest.mark.parametrize(
    "residual,name",
    [(True, "rollout_mean_residual"), (False, "rollout_mean_no_residual")],
)
def test_rollout_matches_golden_values(residual, name, record_error):
    golden = golden_data.io("hf_vit")
    model = keras_vit.converters.load(golden_data.load_path("hf_vit"))
    maps = inspection.attention_maps(model, golden["image"])
    found = inspection.attention_rollout(maps, residual)
    error = np.abs(found - golden[name]).max()
    record_error("hf_vit attention", name, error, 1e-5)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_registers": 2},
        {"num_registers": 1, "distillation": True},
        {"pooling": "gap"},
        {"pooling": "token_gap"},
        {"pooling": "map"},
    ],
    ids=str,
)
@pytest.mark.parametrize("patch", [1, 3])
def test_heatmap_peaks_at_the_attended_patch(arguments, patch):
    """The grid of 2 x 3 shows whether rows and columns are exchanged."""
    model = models.looking_at(patch, **arguments)
    heat = inspection.attention_heatmap(model, models.images())
    assert heat.shape == (2, 16, 24)
    row, column = divmod(patch, models.GRID[1])
    for one in heat:
        assert one.max() == 1
        centers = one[4::8, 4::8]
        assert np.unravel_index(centers.argmax(), (2, 3)) == (row, column)
        assert (np.sort(centers.ravel())[-2:] > 0.8).sum() == 1


@pytest.mark.backends("torch")
def test_uniform_attention_gives_a_uniform_heatmap():
    model = models.looking_at(None, num_registers=2)
    heat = inspection.attention_heatmap(model, models.images())
    np.testing.assert_allclose(heat, 1, atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "arguments,expected",
    [
        ({}, [1, 0]),
        ({"num_registers": 1}, [1, 0, 0]),
        ({"distillation": True}, [0.5, 0.5, 0]),
        ({"pooling": "gap"}, [1]),
        ({"pooling": "token_gap"}, [0.5, 0.5]),
        ({"pooling": "gap", "class_token": True}, [0, 1]),
        ({"pooling": "map", "class_token": True}, [0, 1]),
        ({"include_top": False}, [1, 0]),
    ],
    ids=str,
)
def test_pooling_weights_of_each_pooling(arguments, expected):
    """The weights of each prefix token and the total weight of the patches."""
    model, images = models.looking_at(None, **arguments), models.images()
    layout = inspection.token_layout(model)
    read = numpy(pooling_weights(model, images, layout)[0])
    first = layout.num_prefix
    found = [*read[:first], read[first:].sum()]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.ptp(read[first:]) < 1e-6


@pytest.mark.backends("torch")
def test_pooling_weights_of_attention_pooling():
    """The probe attends to one patch, the blocks attend uniformly."""
    model = models.looking_at(None, pooling="map")
    rng = np.random.default_rng(0)
    pooling = model.get_layer("pooling")
    pooling.attention.key.kernel.assign(rng.normal(size=(16, 2, 8)))
    pooling.attention.query.bias.assign(rng.normal(size=(2, 8)))
    positions = model.get_layer("position_embedding").embedding
    positions.assign(rng.normal(size=positions.shape))
    layout = inspection.token_layout(model)
    read = numpy(pooling_weights(model, models.images(), layout))
    assert read.shape == (2, 6)
    np.testing.assert_allclose(read.sum(-1), 1, atol=1e-6)
    assert np.ptp(read[0]) > 0.1


@pytest.mark.backends("torch")
def test_pooling_weights_of_first_patch():
    model = models.looking_at(None, pooling="first_patch", class_token=True)
    layout = inspection.token_layout(model)
    read = pooling_weights(model, models.images(), layout)[0]
    np.testing.assert_array_equal(read, [0, 1, 0, 0, 0, 0, 0])


@pytest.mark.backends("torch")
def test_masked_rollout_ignores_patches_that_receive_most_attention():
    """All queries of the first layer attend to one patch, as in DINOv2."""
    rng = np.random.default_rng(0)
    maps = rng.uniform(1, 2, (3, 1, 2, 50, 50))
    maps[0, ..., 30] = 500
    maps[..., 0] = 100  # the class token may receive any attention
    maps /= maps.sum(-1, keepdims=True)
    kept = inspection.attention_rollout(maps)[0, 0]
    masked = inspection.attention_rollout(maps, outliers="mask")[0, 0]
    assert kept[1:].argmax() == 29
    assert kept[30] > 5 * np.median(kept[1:])
    assert masked[30] < np.median(masked[1:])
    np.testing.assert_allclose(masked.sum(), 1, atol=1e-6)
    np.testing.assert_array_equal(
        inspection.attention_rollout(maps[1:], outliers="mask"),
        inspection.attention_rollout(maps[1:]),
    )
    # Where all tokens attend to one patch alone, each attends to itself.
    maps[0] = np.eye(50)[30]
    masked = inspection.attention_rollout(maps, outliers="mask")
    np.testing.assert_allclose(masked.sum(-1), 1, atol=1e-6)
    np.testing.assert_array_equal(
        inspection.attention_rollout(maps[:1], False, "mask")[0], np.eye(50)
    )
    with pytest.raises(ValueError, match="outliers='remove'"):
        inspection.attention_rollout(maps, outliers="remove")


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_heads_are_the_attention_of_the_pooled_tokens(pooling):
    model = models.looking_at(3, pooling=pooling, num_registers=2)
    images = models.images()
    layout = inspection.token_layout(model)
    heads = inspection.attention_heads(model, images)
    (maps,) = inspection.attention_maps(model, images, -1)
    first = layout.num_prefix
    query = maps[:, :, 0] if pooling == "token" else maps[:, :, first:].mean(2)
    expected = query[..., first:].reshape(heads.shape)
    assert heads.shape == (2, maps.shape[1], *models.GRID)
    np.testing.assert_allclose(heads, expected, atol=1e-6)
    assert (heads.reshape(2, -1, 6).argmax(-1) == 3).all()
