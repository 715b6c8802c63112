import json
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.training import models

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.npz"
    model = keras_vit.VisionTransformer(
        input_shape=(12, 12, 3),
        patch_size=4,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        classes=3,
    )
    model.get_layer("head").bias.assign([1.0, 2.0, 3.0])
    keras_vit.converters.save(model, path)
    return str(path)


def test_model_spec_of_a_name_and_of_a_file(weights):
    def spec(*arguments):
        found = training.resolve_model_spec(*arguments)
        return found["patch_size"], found["image_size"]

    assert spec(None, None) == (None, None)
    assert spec(None, None, 3) == (3, None)
    assert spec("ViTB32", None) == (32, 224)
    assert spec("ViTB32", None, 8) == (8, 224)
    assert spec("compact-hybrid", None) == (1, 32)
    assert spec("compact-bit", None) == (None, 32)
    assert spec("R50ViTB16", None) == (1, 224)
    assert spec(None, weights) == (4, 12)
    assert spec(None, weights, 4) == (4, 12)


@pytest.mark.parametrize(
    "model, image_size, patch_size, side, chosen",
    [
        (None, None, None, 8, ("compact-vit", 8)),
        (None, None, None, 23, ("compact-vit", 24)),
        (None, None, None, 28, ("compact-hybrid", 32)),
        (None, None, None, 45, ("compact-hybrid", 48)),
        (None, None, None, 1000, ("compact-hybrid", 64)),
        (None, None, None, None, ("compact-hybrid", 64)),
        ("compact-vit", None, None, 31, ("compact-vit", 32)),
        # Given sizes are kept, and a ResNet's stride must divide them.
        (None, 96, None, 28, ("compact-hybrid", 96)),
        (None, 28, None, 28, ("compact-vit", 28)),
        (None, (64, 48), None, 28, ("compact-hybrid", (64, 48))),
        (None, (64, 20), None, 28, ("compact-vit", (64, 20))),
        (None, (64, 44), None, 28, ("compact-vit", (64, 44))),
        (None, None, 4, 28, ("compact-vit", 28)),
    ],
)
def test_default_model_and_size_from_scratch(
    model, image_size, patch_size, side, chosen
):
    sizes = image_size, patch_size, side
    assert models.choose_model_and_size(model, *sizes) == chosen
    spec = training.resolve_model_spec(chosen[0], None, patch_size)
    training.resolve_sizes((chosen[1],), spec["patch_size"], spec["stride"])


@pytest.mark.parametrize("image_size", [64, (64, 48)])
def test_weights_of_a_run_have_its_settings(weights, image_size, tmp_path):
    facts = {"config": {"mode": "torch", "image_size": image_size}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    shutil.copy(weights, tmp_path / "model.npz")
    spec = training.resolve_model_spec(None, str(tmp_path))
    # The image size of a Vision Transformer is that of its weights.
    assert (spec["mode"], spec["image_size"]) == ("torch", 12)
    arguments = {"input_shape": (32, 32, 3), "classes": 2}
    bit = models.build_model("compact-bit", None, None, **arguments)
    keras_vit.converters.save(
        bit, tmp_path / "model.npz", "bit", overwrite=True
    )
    keras_vit.converters.save(
        bit, tmp_path / "other.npz", "bit", overwrite=True
    )
    for name, size in (("", image_size), ("other.npz", 224)):
        spec = training.resolve_model_spec(None, str(tmp_path / name))
        assert spec["image_size"] == size


def test_wrong_models_and_patch_sizes_raise(weights, tmp_path):
    with pytest.raises(ValueError, match="'ViTB61'.*Did you mean ViTB16"):
        training.resolve_model_spec("ViTB61", None)
    with pytest.raises(ValueError, match="leave out the patch size"):
        training.resolve_model_spec("R50ViTB16", None, 16)
    with pytest.raises(ValueError, match="does not hold a ViTB16: its hidden"):
        training.resolve_model_spec("ViTB16", weights)
    with pytest.raises(ValueError, match="leave out the patch size"):
        training.resolve_model_spec(None, weights, 2)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        training.resolve_model_spec(None, str(tmp_path / "none.npz"))


def test_zero_init_head(weights):
    model = keras_vit.converters.load(weights)
    images = np.ones((1, 12, 12, 3), "float32")
    assert np.abs(model.predict(images, verbose=0)).max() > 0
    models.zero_init_head(model)
    assert np.abs(model.predict(images, verbose=0)).max() == 0


def test_a_kept_head_has_its_pooling(weights, tmp_path):
    options = {"input_shape": (12, 12, 3), "classes": 3, "keep_head": True}
    with pytest.raises(ValueError, match="Received: pooling='token'"):
        models.build_model(None, weights, None, mean_pooling=True, **options)
    mean = keras_vit.VisionTransformer(
        input_shape=(12, 12, 3),
        patch_size=4,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        classes=3,
        pooling="gap",
    )
    path = str(tmp_path / "mean.npz")
    keras_vit.converters.save(mean, path)
    for given in (False, True):
        models.build_model(None, path, None, mean_pooling=given, **options)
