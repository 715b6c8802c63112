"""`keras_vit.load` and `keras_vit.save` choose the function for a file."""

import numpy as np
import pytest

import keras_vit
from keras_vit import exporting, models
from keras_vit.families import FAMILIES
from keras_vit.weights import open_checkpoint
from keras_vit_programs import convert
from tests import golden_data
from tests.harness import numpy
from tests.pretraining.small import DECODER
from tests.small import tiny, vit

pytestmark = pytest.mark.backends("torch")
FOLDERS = {"eomt": "eomt_head/class/", "yolos": "class_3/"}
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


TEXT = keras_vit.config.TextConfig(
    vocabulary_size=9,
    context_length=4,
    hidden_size=64,
    num_layers=1,
    num_heads=2,
    projection_size=None,
)
ENCODER = {"position_prefix": "none", "layer_scale": 1.0, "include_top": False}
MODELS = {
    "vit": lambda: vit(**SIZES),
    "hybrid": lambda: keras_vit.HybridVisionTransformer(
        **{**SIZES, "patch_size": 1, "num_layers": 1},
        resnet_layers=(1,),
        width_factor=0.5,
        input_shape=(16, 16, 3),
        classes=3,
    ),
    "bit": lambda: keras_vit.BiT(resnet_layers=(1,), width_factor=0.5, classes=3),
    "mae": lambda: keras_vit.pretraining.MaskedAutoencoder(plain(), **DECODER),
    "simmim": lambda: keras_vit.pretraining.MaskedImageModeling(plain()),
    "mpp": lambda: keras_vit.pretraining.MaskedPatchPrediction(plain()),
    "dino": lambda: keras_vit.pretraining.DINO(plain(), output_dim=8),
    "mocov3": lambda: keras_vit.pretraining.MoCoV3(plain(), output_dim=8),
    "linear_segmenter": lambda: keras_vit.segmentation.LinearSegmenter(plain(), 2),
    "eomt": lambda: keras_vit.segmentation.EoMT(
        vit(**SIZES, **ENCODER), classes=2, queries=3, blocks=1
    ),
    "yolos": lambda: keras_vit.detection.YOLOS(
        plain(resampling="bicubic"), classes=2, queries=3
    ),
    "fcos": lambda: keras_vit.detection.FCOS(plain(), 2, filters=8, depth=1),
    "dual_encoder": lambda: keras_vit.DualEncoder(
        plain(pooling="map"), keras_vit.text.TextEncoder(TEXT)
    ),
}


def plain(**options):
    return vit(**SIZES, **options, include_top=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_loaded_with_its_own_options(family, tmp_path):
    """From a .keras file, and from a folder if it can be one."""
    model, options = MODELS[family](), FAMILIES[family].options
    names = ["model.keras", *(["folder"] if family in ("vit", *FOLDERS) else [])]
    for name in names:
        path = tmp_path / name
        keras_vit.save(model, path)
        assert open_checkpoint(path, decoder=True, text=True).family == family
        assert_same_weights(keras_vit.load(path), model)
        for option in {"classes", "masked", "pooling", "mask_ratio"} - {*options}:
            with pytest.raises(ValueError, match=f"{name}' holds.*{option}|as it was"):
                keras_vit.load(path, **{option: 2})
    for option in options:
        assert f"`{option}`" in (keras_vit.load.__doc__ or "").partition("Args:")[0]


@pytest.mark.parametrize("family, head", FOLDERS.items())
def test_folders_of_detectors_and_segmenters(family, head, tmp_path):
    model = MODELS[family]()
    model.class_names = ("a", "b")
    keras_vit.save(model, tmp_path / "folder", "huggingface")
    path = tmp_path / "folder"
    other = keras_vit.load(path, classes=5)
    expected = {x.path: numpy(x) for x in keras_vit.load(path).weights}
    for weight in other.weights:
        if weight.path.startswith(head):
            assert weight.shape[-1] == 6
            assert np.ptp(numpy(weight)) > 0 or weight.path.endswith("bias")
        else:
            np.testing.assert_array_equal(numpy(weight), expected[weight.path])
    assert other.class_names is None
    assert keras_vit.load(path).class_names == ("a", "b")
    # As a .keras file, and exported, it is the whole model.
    convert.convert(path, tmp_path / "whole.keras")
    assert_same_weights(keras_vit.load(tmp_path / "whole.keras"), model)
    form = exporting.FORMATS["onnx"]
    assert_same_weights(exporting.read_model(path, None, {}, None, form), model)
    for door in (
        keras_vit.converters.load,
        lambda path: keras_vit.VisionTransformer(weights=path),
        lambda path: keras_vit.hub.save(path, tmp_path / "hub"),
        lambda path: convert.convert(path, tmp_path / "a.pth", to="timm"),
        lambda path: keras_vit.converters.save(model, tmp_path / "a.pth"),
        lambda path: keras_vit.save(model, tmp_path / "a.pth", family),
    ):
        with pytest.raises(ValueError, match="`keras_vit.load` loads it|cannot be wr"):
            door(path)
    (path / "config.json").unlink()
    bare = keras_vit.load(path / "model.safetensors", num_heads=1)
    assert_same_weights(bare, model)


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
        with pytest.raises(
            ValueError, match="or a model with quantized weights. Write a .k"
        ):
            keras_vit.save(model, tmp_path / "model.weights.h5")
    assert [x.name for x in tmp_path.iterdir()] == ["model.keras"]


def test_released_weights(monkeypatch):
    monkeypatch.setattr(models, "ViTB16", lambda **given: given)
    found = keras_vit.load("ViTB16/imagenet21k", classes=5)
    assert found == {"weights": "imagenet21k", "classes": 5}
    with pytest.raises(FileNotFoundError, match="ViTB16/imagenet99"):
        keras_vit.load("ViTB16/imagenet99")


def test_arguments_and_names_of_classes(tmp_path):
    """A file that does not store an epsilon is written with a warning, and read with
    the argument; names of classes must be as many as the classes."""
    model = tiny(input_shape=(16, 16, 3), norm_epsilon=1e-3)
    path = tmp_path / "a.safetensors"
    with pytest.warns(UserWarning, match="does not store .*norm_epsilon=0.001"):
        keras_vit.save(model, path, format="timm")
    options = {"norm_epsilon": 1e-3, "num_heads": model.config.num_heads}
    assert keras_vit.load(path, **options).config.norm_epsilon == 1e-3
    with pytest.raises(TypeError, match="'num_classes'.* 'classes'"):
        keras_vit.load(path, num_heads=3, num_classes=3)
    model.class_names = ["a", "b", "c"]
    with pytest.raises(ValueError, match="classes and 3 `class_names`"):
        keras_vit.save(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
