import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining
from tests.harness import numpy
from tests.pretraining import small


def test_corruption_is_80_10_10_of_masked_patches():
    model = small.MODELS["mpp"](small.encoder())
    model.mask_token.tokens.assign(np.full((1, 1, 16), -1.0))
    count = 2000
    # Each embedding holds its position.
    x = np.tile(np.arange(16.0)[:, None], (count, 1, 16)).astype("float32")
    masked = numpy(pretraining.random_mask(count, 16, 0.5, 1))
    how = numpy(keras.random.uniform((count, 16, 2), seed=2))
    given = map(ops.convert_to_tensor, (x, masked, how))
    found = numpy(model.corrupt(*given))
    assert (found == found[..., :1]).all()
    found, x = found[..., 0], x[..., 0]
    np.testing.assert_array_equal(found[masked == 0], x[masked == 0])
    to_mask = (found == -1)[masked == 1]
    kept = (found == x)[masked == 1]
    for fraction, expected in (
        (to_mask.mean(), 0.8),
        (kept.mean(), 0.1),
        ((~to_mask & ~kept).mean(), 0.1),
    ):
        # Five deviations of as many independent samples.
        bound = 5 * np.sqrt(expected * (1 - expected) / len(to_mask))
        assert abs(fraction - expected) < bound
    # Each of the 15 other patches is equally likely.
    step = (found - x)[(masked == 1) & (found != -1) & (found != x)] % 16
    counts = np.bincount(step.astype(int), minlength=16)
    assert counts[0] == 0
    assert counts[1:].min() > 0.6 * counts[1:].mean()


def test_color_classes_of_a_known_image():
    """3 bits per channel, red first; 4 x 4 pixels of a downsized patch row by
    row."""
    encoder = small.encoder(patch_size=8)
    image = np.full((1, 16, 16, 3), -1.0, "float32")
    image[0, :, :, 0] = 1.0  # the highest level, 7
    image[0, :8, :8, 1] = 0.0  # half the range: level 4
    image[0, 0:2, 0:2, 2] = -0.7  # level 1, in one pixel of one downsized patch
    mean = pretraining.MaskedPatchPrediction(encoder)
    found = numpy(mean.color_classes(mean.stages.patchify(image)))
    assert found.shape == (1, 4, 1)
    red = 7 * 64
    assert found[0, :, 0].tolist() == [red + 4 * 8, red, red, red]
    downsized = pretraining.MaskedPatchPrediction(encoder, target="downsized")
    found = numpy(downsized.color_classes(downsized.stages.patchify(image)))
    assert found.shape == (1, 4, 16)
    assert found[0, 0].tolist() == [red + 4 * 8 + 1] + 15 * [red + 4 * 8]
    # Shown again, a color is in the middle of its level.
    logits = np.eye(512, dtype="float32")[found]
    logits = ops.convert_to_tensor(logits)
    shown = downsized.stages.unpatchify(
        downsized.prediction_to_pixels(logits, None)
    )
    assert np.abs(numpy(shown) - image).max() <= 1 / 8


def test_downsized_target_of_patches_not_divisible_by_4():
    encoder = small.encoder(patch_size=14, input_shape=(28, 28, 1))
    model = pretraining.MaskedPatchPrediction(encoder, target="downsized")
    rows, columns = model._pooling
    np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(rows[0], [1 / 3.5] * 3 + [0.5 / 3.5] + [0] * 10)
    flat = np.full((1, 28, 28, 1), 0.3, "float32")
    assert (numpy(model.color_classes(model.stages.patchify(flat))) == 5).all()


def test_value_range_per_channel():
    encoder = small.encoder()
    model = pretraining.MaskedPatchPrediction(
        encoder, value_range=((0, 0, -10), (1, 255, 10))
    )
    image = np.tile([0.99, 128.0, -9.0], (1, 16, 16, 1)).astype("float32")
    assert (
        numpy(model.color_classes(model.stages.patchify(image)))
        == 7 * 64 + 4 * 8 + 0
    ).all()
    with pytest.raises(ValueError, match="value_range"):
        pretraining.MaskedPatchPrediction(encoder, value_range=(1, -1))
