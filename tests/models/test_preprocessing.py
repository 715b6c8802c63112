"""Models that resize and scale their images themselves."""

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit_programs import convert
from tests.small import randomize, tiny

rng = np.random.default_rng(0)
SHAPE = (16, 16, 3)
PIXELS = rng.integers(0, 256, (2, 41, 30, 3), dtype="uint8")


def preprocess(images, *arguments):
    layer = keras_vit.layers.ImagePreprocessing(*arguments)
    return keras.ops.convert_to_numpy(layer(images))


@pytest.fixture
def pair():
    """Two models of the same weights, with and without preprocessing."""
    inside = tiny(input_shape=SHAPE, preprocessing=True)
    randomize(inside)
    without = tiny(input_shape=SHAPE)
    without.set_weights(inside.get_weights())
    return inside, without


@pytest.mark.parametrize("size", [(20, 17), (60, 50), (41, 90)])
def test_resizing_equals_pillow(size):
    found = (preprocess(PIXELS, size)[0] + 1) * 127.5
    image = Image.fromarray(PIXELS[0])
    expected = image.resize(size[::-1], Image.Resampling.BILINEAR)
    # Pillow rounds to integers after each of the two axes.
    assert np.abs(found - np.asarray(expected, "float32")).max() < 1.02


@pytest.mark.parametrize("mode", ["tf", "torch"])
def test_scaling_equals_preprocess_input(mode):
    expected = keras_vit.preprocess_input(PIXELS, mode)
    for images in (PIXELS, PIXELS.astype("float32")):
        for size in (None, PIXELS.shape[1:3]):
            found = preprocess(images, size, mode)
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_model_equals_layer_and_model(pair):
    inside, without = pair
    assert inside.input_shape == (None, None, None, 3)
    size = without.input_shape[1:3]
    expected = without.predict(preprocess(PIXELS, size), verbose=0)
    for images in (PIXELS, PIXELS.astype("float32")):
        found = inside.predict(images, verbose=0)
        np.testing.assert_allclose(found, expected, atol=2e-5)
    other = PIXELS[:, :37]
    expected = without.predict(preprocess(other, size), verbose=0)
    found = inside.predict(other, verbose=0)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_save_and_load_round_trip(pair, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    keras_vit.converters.save(pair[0], path)
    expected = pair[0].predict(PIXELS, verbose=0)
    loaded = keras_vit.converters.load(path)
    np.testing.assert_array_equal(loaded.predict(PIXELS, verbose=0), expected)
    if suffix == ".keras":
        loaded = keras.saving.load_model(path)
        found = loaded.predict(PIXELS, verbose=0)
        np.testing.assert_array_equal(found, expected)
    without = keras_vit.converters.load(path, preprocessing=False)
    assert without.input_shape == pair[1].input_shape


@pytest.mark.backends("torch")
def test_conversion_drops_preprocessing_with_a_warning(pair, tmp_path, capsys):
    inside, without = pair
    path = tmp_path / "model.npz"
    with pytest.warns(UserWarning, match="does not contain the preprocessing"):
        keras_vit.converters.save(inside, path)
    again = keras_vit.VisionTransformer(
        weights=str(path), num_heads=without.get_layer("block_0").num_heads
    )
    for one, other in zip(again.get_weights(), without.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)

    inside.save(tmp_path / "model.keras")
    notes = convert.convert(
        tmp_path / "model.keras", tmp_path / "new.npz", to="vit_jax"
    )
    assert "preprocessing inside the model is left out" in notes[0]


@pytest.mark.backends("torch")
def test_mode_is_inferred_from_the_weights(tmp_path):
    model = tiny(input_shape=SHAPE)
    for layout, mode in (("vit_jax", "tf"), ("torchvision", "torch")):
        path = tmp_path / f"{layout}.npz"
        keras_vit.converters.save(model, path, layout)
        built = keras_vit.VisionTransformer(
            weights=str(path),
            num_heads=model.get_layer("block_0").num_heads,
            preprocessing=True,
        )
        assert built.get_layer("preprocessing").mode == mode
        assert open_checkpoint(path, num_heads=2).preprocess_mode == mode
    path = tmp_path / "timm.npz"
    keras_vit.converters.save(model, path, "timm")
    with pytest.raises(ValueError, match='preprocessing="torch"'):
        keras_vit.VisionTransformer(weights=str(path), num_heads=2, preprocessing=True)
    folder = tmp_path / "folder"
    inside = tiny(input_shape=SHAPE, preprocessing="torch")
    with pytest.warns(UserWarning, match="does not contain"):
        keras_vit.converters.save(inside, folder, "huggingface")
    assert open_checkpoint(folder).preprocess_mode == "torch"
    # All models of DINOv2 and DeiT have the same mean and standard deviation.
    for name, options in (
        (
            "dinov2",
            {"layer_scale": 1.0, "mask_token": True, "pooling": "token_gap"},
        ),
        ("deit", {"distillation": True}),
    ):
        folder = tmp_path / name
        model = tiny(input_shape=SHAPE, mlp_dim=96, **options)
        keras_vit.converters.save(model, folder, "huggingface")
        (folder / "preprocessor_config.json").unlink()
        found = open_checkpoint(folder)
        assert found.weight_map.variant.startswith(name)
        assert found.preprocess_mode == "torch"
