"""Position embeddings and their resampling: properties for any grid."""

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers import AddPositionEmbs, MultiHeadAttention, RelativePositionEmbs
from keras_vit.layers.resampling import (
    RESAMPLINGS,
    resample,
    resample_embedding,
    resample_offsets,
    resampling_matrix,
)
from tests.harness import numpy

length = st.integers(1, 12)
method = st.sampled_from(sorted(RESAMPLINGS))
quick = settings(max_examples=60, deadline=None)


@pytest.mark.backends("torch")
@quick
@given(length, method)
def test_same_grid_is_the_identity(n, how):
    np.testing.assert_array_equal(resampling_matrix(n, n, how), np.eye(n))


_TORCH = {
    "bilinear_align_corners": ("bilinear", True, False),
    "bilinear": ("bilinear", False, False),
    "bicubic": ("bicubic", False, False),
    "bicubic_antialias": ("bicubic", False, True),
    "bicubic_align_corners": ("bicubic", True, False),
}


@pytest.mark.backends("torch")
@quick
@given(length, length, length, length, st.sampled_from(sorted(_TORCH)))
def test_every_method_matches_pytorch(rows, columns, new_rows, new_columns, how):
    torch = pytest.importorskip("torch")
    # PyTorch 2.13 repeats the first row when it antialiases one column.
    assume(new_columns > 1 or "antialias" not in how)
    rng = np.random.default_rng(rows * 12 + columns)
    grid = rng.normal(size=(rows, columns, 3))
    mode, align_corners, antialias = _TORCH[how]
    expected = torch.nn.functional.interpolate(
        torch.tensor(grid).permute(2, 0, 1)[None].contiguous(),
        size=(new_rows, new_columns),
        mode=mode,
        align_corners=align_corners,
        antialias=antialias,
    )
    expected = expected[0].permute(1, 2, 0).numpy()
    found = resample(grid, (new_rows, new_columns), how, xp=np)
    # PyTorch's scale is a float32 for some of them, whatever the data.
    np.testing.assert_allclose(found, expected, atol=2e-5)


# The other backends compile each example.
@settings(max_examples=15 if keras.config.backend() == "torch" else 5, deadline=None)
@given(length, length, method)
def test_unknown_size_gives_the_same_matrix(old, new, how):
    dynamic = resampling_matrix(old, ops.convert_to_tensor(new, "int32"), how)
    static = resampling_matrix(old, new, how)
    np.testing.assert_allclose(numpy(dynamic), static, atol=5e-6)


@pytest.mark.backends("torch")
@quick
@given(length, length, length)
def test_bicubic_offset_matches_pytorch_scale_factor(side, rows, columns):
    """DINOv2 passes a scale factor slightly above the exact one."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(rows * 12 + columns)
    grid = rng.normal(size=(side, side, 2))
    expected = torch.nn.functional.interpolate(
        torch.tensor(grid).permute(2, 0, 1)[None],
        scale_factor=((rows + 0.1) / side, (columns + 0.1) / side),
        mode="bicubic",
    )
    expected = expected[0].permute(1, 2, 0).numpy()
    assume((rows, columns) != (side, side))
    assert expected.shape == (rows, columns, 2)
    found = resample(grid, (rows, columns), "bicubic_offset", xp=np)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_skipped_tokens_get_no_position():
    """Registers follow a class token, and both precede the patches."""
    layer = AddPositionEmbs(grid_size=(1, 3), num_prefix_tokens=1, num_skipped_tokens=2)
    zeros = np.zeros((1, 6, 8), "float32")
    for grid in (None, np.zeros((1, 1, 3, 8)), np.zeros((1, 3, 1, 8))):
        found = numpy(layer(zeros, grid))[0]
        stored = numpy(layer.embedding)[0]
        np.testing.assert_array_equal(found[0], stored[0])
        np.testing.assert_array_equal(found[1:3], 0)
        assert found[3:].any(axis=1).all()
    wide = numpy(
        AddPositionEmbs("sincos2d", num_skipped_tokens=2)(zeros, np.zeros((1, 2, 2, 8)))
    )
    assert not wide[0, :2].any() and wide[0, 2:].any(axis=1).all()


def brute_offsets(offsets, old, new, how):
    """`fit_offsets` by looking at every pair of patches."""
    steps = np.zeros((2 * old[0] - 1, 2 * old[1] - 1, offsets.shape[1]))
    for row in range(1 - old[0], old[0]):
        for column in range(1 - old[1], old[1]):
            far = row * old[1] + column + old[0] * old[1] - 1
            steps[row + old[0] - 1, column + old[1] - 1] = offsets[far]
    steps = resample(steps, (2 * new[0] - 1, 2 * new[1] - 1), how, xp=np)
    count = new[0] * new[1]
    found = [[] for _ in range(2 * count - 1)]
    for p in range(count):
        for q in range(count):
            row = p // new[1] - q // new[1] + new[0] - 1
            column = p % new[1] - q % new[1] + new[1] - 1
            found[p - q + count - 1].append(steps[row, column])
    return np.array([np.mean(each, axis=0) for each in found])


side = st.integers(1, 5)


@pytest.mark.backends("torch")
@quick
@given(side, side, side, side, method)
def test_offsets_are_means_over_pairs(rows, columns, wide, long, how):
    rng = np.random.default_rng(rows * 12 + columns)
    old, new = (rows, columns), (wide, long)
    offsets = rng.normal(size=(2 * rows * columns - 1, 3))
    found = resample_offsets(offsets, old, new, how, np)
    if old == new:
        np.testing.assert_array_equal(found, offsets)
    elif "offset" not in how:
        expected = brute_offsets(offsets, old, new, how)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    ones = resample_offsets(np.ones_like(offsets), old, new, how, np)
    np.testing.assert_allclose(ones, 1, atol=1e-12)


def test_relative_positions_with_negligible_dropout_match():
    """The reference implementation adds the same scores as the fused
    kernel."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 8)).astype("float32")
    layer = MultiHeadAttention(2, dropout=1e-7)
    plain = layer(x)
    relative = RelativePositionEmbs(4)
    relative.build((None, 2, 2))
    relative.offsets.assign(rng.normal(size=(7, 4)))
    offsets = relative(np.zeros((2, 2, 2)))
    found = layer(x, relative=offsets)
    again = layer(x, relative=offsets, training=True)
    np.testing.assert_allclose(numpy(found), numpy(again), atol=1e-6)
    assert np.abs(numpy(found) - numpy(plain)).max() > 1e-3
    # The two tokens before the patches neither ask nor are asked.
    np.testing.assert_allclose(numpy(found)[:, :2], numpy(plain)[:, :2], atol=1e-6)


@pytest.mark.backends("torch")
def test_learned_positions_are_normal_with_stddev_0_02():
    layer = AddPositionEmbs(grid_size=24)
    layer.build((None, 576, 64))
    embedding = numpy(layer.embedding)
    assert abs(embedding.std() - 0.02) < 0.001 and abs(embedding.mean()) < 1e-3


def test_resampling_is_exact_under_half_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    layer = AddPositionEmbs(grid_size=(4, 4))
    x = ops.zeros((1, 49, 8), "bfloat16")
    found = layer(x, ops.zeros((1, 7, 7, 8), "bfloat16"))
    exact = resample_embedding(
        numpy(layer.embedding), (4, 4), (7, 7), layer.resampling, 0
    )
    rounded = ops.cast(ops.convert_to_tensor(exact), "bfloat16")
    difference = ops.cast(found, "float32") - ops.cast(rounded, "float32")
    assert not numpy(difference).any()


@pytest.mark.backends("torch")
def test_weights_of_another_kind_raise(tmp_path):
    def model_of(kind):
        tokens = keras.Input((6, 8))
        layer = AddPositionEmbs(kind, grid_size=(3, 2), name="positions")
        return keras.Model(tokens, layer(tokens))

    path = str(tmp_path / "w.weights.h5")
    for kind, other in (
        ("learned", "sincos2d"),
        ("sincos2d", "learned_2d"),
        ("learned_2d", "learned"),
    ):
        model_of(kind).save_weights(path)
        with pytest.raises(ValueError, match="positions"):
            model_of(other).load_weights(path)
