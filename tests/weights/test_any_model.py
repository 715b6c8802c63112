"""`keras_vit.load` and `keras_vit.save` choose the function for a file."""

import numpy as np
import pytest

import keras_vit
from keras_vit import models
from keras_vit_programs import convert
from tests import golden_data
from tests.harness import numpy
from tests.small import vit

pytestmark = pytest.mark.backends("torch")
SIZES = {"hidden_size": 64, "num_heads": 1, "activation": "gelu"}


def assert_same_weights(found, expected):
    for a, b in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "name, format, message",
    [
        ("a.keras", None, "a.keras' exists"),
        ("a.safetensors", "timm", "a.safetensors' exists"),
        ("folder", None, "folder' already has model.safetensors"),
    ],
)
def test_classifier(name, format, message, tmp_path):
    model = vit(**SIZES)
    keras_vit.save(model, tmp_path / name, format)
    assert_same_weights(keras_vit.load(tmp_path / name), model)
    with pytest.raises(FileExistsError, match=message):
        keras_vit.save(model, tmp_path / name, format)
    fewer = keras_vit.load(tmp_path / name, classes=2)
    assert fewer.output_shape == (None, 2)


def test_model_of_pretraining():
    path = golden_data.load_path("facebook_mae")
    given = {"num_heads": 3, "decoder_num_heads": 2}
    model = keras_vit.load(path, **given)
    assert isinstance(model, keras_vit.pretraining.MaskedAutoencoder)
    expected = keras_vit.pretraining.load(path, **given)
    assert_same_weights(model, expected)


@pytest.mark.parametrize("method", ["DINO", "MoCoV3", "MaskedAutoencoder"])
def test_keras_file_of_pretraining(method, tmp_path):
    encoder = vit(**SIZES, include_top=False)
    model = getattr(keras_vit.pretraining, method)(encoder)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert_same_weights(loaded, model)


def test_segmentation_model(tmp_path):
    options = {"position_prefix": "none", "layer_scale": 1.0}
    encoder = vit(**SIZES, **options, include_top=False)
    model = keras_vit.segmentation.EoMT(encoder, classes=2, queries=3, blocks=1)
    keras_vit.save(model, tmp_path / "folder")
    assert_same_weights(keras_vit.load(tmp_path / "folder"), model)
    with pytest.raises(ValueError, match="takes classes, masked: .* Received: input_s"):
        keras_vit.load(tmp_path / "folder", input_shape=(8, 8, 3))
    keras_vit.save(model, tmp_path / "model.keras")
    assert_same_weights(keras_vit.load(tmp_path / "model.keras"), model)


@pytest.mark.parametrize("mode", ["int8", "float8", "int4"])
def test_quantized_model(mode, tmp_path):
    size = {"preprocessing": "torch", "input_shape": (16, 16, 3)}
    model, path = vit(**SIZES, **size), tmp_path / "model.keras"
    model.quantize(mode)
    model.save(path)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3))
    trained = keras_vit.evaluation.load_classifier(str(path))
    scaled = keras_vit.preprocess_input(pixels, mode=trained.mode)
    for found in (keras_vit.load(path)(pixels), trained.model(scaled)):
        np.testing.assert_allclose(numpy(found), numpy(model(pixels)), atol=1e-6)
    for load in (
        lambda: keras_vit.load(path, classes=5),
        lambda: keras_vit.VisionTransformer(weights=path),
        lambda: keras_vit.hub.save(path, tmp_path / "hub"),
        lambda: convert.convert(path, tmp_path / "a.pth", to="timm"),
    ):
        with pytest.raises(ValueError, match="quantized weights, .*as it was saved"):
            load()
    if mode != "int4":  # whose shapes say nothing of the model
        with pytest.raises(ValueError, match="or one of quantized weights. Write a .k"):
            keras_vit.save(model, tmp_path / "model.weights.h5")
    assert [x.name for x in tmp_path.iterdir()] == ["model.keras"]


def test_released_weights(monkeypatch):
    monkeypatch.setattr(models, "ViTB16", lambda **given: given)
    found = keras_vit.load("ViTB16/imagenet21k", classes=5)
    assert found == {"weights": "imagenet21k", "classes": 5}
    with pytest.raises(FileNotFoundError, match="ViTB16/imagenet99"):
        keras_vit.load("ViTB16/imagenet99")
