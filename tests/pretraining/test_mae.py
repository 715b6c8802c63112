import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining
from keras_vit.layers.positions import sincos_positions
from tests.harness import numpy
from tests.pretraining import small


def test_masked_patches_do_not_reach_the_encoder():
    """Masked pixels affect only the loss."""
    model = small.MODELS["mae"](small.encoder())
    images, noise = small.images(2), np.tile(np.arange(16.0), (2, 1))
    other = images.copy()
    other[:, 4:] = 0  # the first row of four patches stays
    found = numpy(model(images, noise=noise)["prediction"])
    np.testing.assert_array_equal(
        found, numpy(model(other, noise=noise)["prediction"])
    )
    assert model.encode(images, noise)[0].shape == (2, 1 + 4, 16)


def test_positions_match_mae():
    """Columns come first, with the frequencies 10000 ** (-4 i / width)."""
    expected = np.zeros((17, 16))
    for patch in range(16):
        for axis, position in enumerate((patch % 4, patch // 4)):
            for i in range(4):
                angle = position / 10_000 ** (i / 4)
                expected[1 + patch, 8 * axis + i] = np.sin(angle)
                expected[1 + patch, 8 * axis + 4 + i] = np.cos(angle)
    encoder = small.encoder()
    model = small.MODELS["mae"](encoder)
    layer = encoder.get_layer("position_embedding")
    np.testing.assert_allclose(numpy(layer.embedding)[0], expected, atol=1e-6)
    assert not layer.trainable_variables
    assert model.decoder.get_layer("position_embedding").trainable is False
    oblong = sincos_positions((2, 3), 8)[0]
    np.testing.assert_array_equal(oblong[1, 4:], oblong[0, 4:])  # row 0
    np.testing.assert_array_equal(oblong[3, :4], oblong[0, :4])  # column 0


@pytest.mark.parametrize(
    "options, count",
    [
        ({"num_registers": 2, "position_prefix": "class"}, 1),
        ({"num_registers": 2, "position_prefix": "none"}, 0),
        ({"class_token": False}, 0),
    ],
)
def test_positions_follow_the_tokens_of_the_encoder(options, count):
    encoder = small.encoder(**options)
    model = small.MODELS["mae"](encoder)
    embedding = numpy(encoder.get_layer("position_embedding").embedding)
    expected = sincos_positions((4, 4), 16, count, endpoint=False)
    np.testing.assert_allclose(embedding, expected, atol=1e-6)
    prediction = numpy(model(small.images(2))["prediction"])
    assert np.isfinite(prediction).all() and prediction.shape == (2, 16, 48)


def test_learned_positions_are_unchanged():
    encoder = small.encoder()
    before = numpy(encoder.get_layer("position_embedding").embedding).copy()
    pretraining.MaskedAutoencoder(encoder, positions="learned", **small.DECODER)
    layer = encoder.get_layer("position_embedding")
    np.testing.assert_array_equal(numpy(layer.embedding), before)
    assert layer.trainable_variables
    fixed = small.encoder(position_embedding="sincos2d")
    with pytest.raises(ValueError, match="positions='learned'"):
        pretraining.MaskedAutoencoder(fixed, **small.DECODER)


def test_target_is_the_normalized_patch():
    """The variance is that of a sample (`ddof=1`)."""
    model = small.MODELS["mae"](small.encoder())
    images = small.images(1)
    patch = images[0, 4:8, 8:12].reshape(-1).astype("float64")
    target = (patch - patch.mean()) / np.sqrt(patch.var(ddof=1) + 1e-6)
    outputs = {"prediction": ops.zeros((1, 16, 48))}
    losses = numpy(model.patch_losses(images, outputs))
    np.testing.assert_allclose(losses[0, 6], (target**2).mean(), rtol=1e-5)
    # Predicting the target gives the pixels back.
    patches = model.stages.patchify(images)
    target = ops.convert_to_tensor(target[None, None].astype("float32"))
    shown = model.prediction_to_pixels(target, patches[:, 6:7])
    np.testing.assert_allclose(numpy(shown)[0, 0], patch, atol=1e-5)


@pytest.mark.backends("torch")
def test_decoder_size_not_divisible_by_4_is_refused():
    """A size that 4 does not divide would leave fixed positions at random
    values."""
    decoder = {**small.DECODER, "decoder_hidden_size": 6}
    with pytest.raises(ValueError, match="decoder_hidden_size=6"):
        pretraining.MaskedAutoencoder(small.encoder(), **decoder)
