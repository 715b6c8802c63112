"""Models that runs begin with, what they train, and what is saved."""

import json
import shutil
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import converters
from keras_vit.config import VARIANTS, Variant
from keras_vit.segmentation import LinearSegmenter
from keras_vit.training.freezing import freeze_weights, set_trainable
from keras_vit_programs import building, defaults, sizes
from keras_vit_programs.runs import save_model, write_model
from tests.small import vit

pytestmark = pytest.mark.backends("torch")


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
    found = sizes.choose_model_and_size(model, image_size, patch_size, side)
    assert found == chosen
    spec = sizes.resolve_model_spec(chosen[0], None, patch_size)
    settings = types.SimpleNamespace(spec=spec, image_size=chosen[1])
    defaults.patch_size(settings, None)


@pytest.mark.parametrize("image_size", [64, (64, 48)])
def test_weights_of_a_run_have_its_settings(weights, image_size, tmp_path):
    facts = {"config": {"mode": "torch", "image_size": image_size}, "data": {}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    shutil.copy(weights, tmp_path / "model.npz")
    spec = sizes.resolve_model_spec(None, str(tmp_path))
    # The image size of a Vision Transformer is that of its weights.
    assert (spec["mode"], spec["image_size"]) == ("torch", 12)
    arguments = {"input_shape": (32, 32, 3), "classes": 2}
    bit = building.build_model("compact-bit", None, None, **arguments)
    keras_vit.converters.save(bit, tmp_path / "model.npz", "bit", overwrite=True)
    keras_vit.converters.save(bit, tmp_path / "other.npz", "bit", overwrite=True)
    for name, size in (("", image_size), ("other.npz", 224)):
        spec = sizes.resolve_model_spec(None, str(tmp_path / name))
        assert spec["image_size"] == size


def test_model_of_weights_has_the_name_of_its_sizes(weights, monkeypatch):
    assert sizes.resolve_model_spec(None, weights)["name"] is None
    assert sizes.resolve_model_spec("ViTB16", None)["name"] == "ViTB16"
    variant = Variant(16, 1, 2, 64, 4)
    monkeypatch.setitem(VARIANTS, "Tiny", variant)
    sizes._checkpoint_spec.cache_clear()
    assert sizes.resolve_model_spec(None, weights)["name"] == "Tiny"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.npz"
    model = vit(input_shape=(12, 12, 3))
    model.get_layer("head").bias.assign([1.0, 2.0, 3.0])
    keras_vit.converters.save(model, path)
    return str(path)


@pytest.mark.parametrize(
    "model, has_weights, patch_size, expected",
    [
        (None, False, None, (None, None)),
        (None, False, 3, (3, None)),
        ("ViTB32", False, None, (32, 224)),
        ("ViTB32", False, 8, (8, 224)),
        ("compact-hybrid", False, None, (1, 32)),
        ("compact-bit", False, None, (None, 32)),
        ("R50ViTB16", False, None, (1, 224)),
        (None, True, None, (4, 12)),
        (None, True, 4, (4, 12)),
        ("vit_small_patch16_224", False, None, "Did you mean ViTS16"),
        ("ViTB61", False, None, "'ViTB61'.*Did you mean ViTB16"),
        ("R50ViTB16", False, 16, "leave out the patch size"),
        ("ViTB16", True, None, "does not hold a ViTB16: its hidden"),
        (None, True, 2, "leave out the patch size"),
    ],
)
def test_model_spec(model, has_weights, patch_size, expected, weights):
    given = (model, weights if has_weights else None, patch_size)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            sizes.resolve_model_spec(*given)
    else:
        found = sizes.resolve_model_spec(*given)
        assert (found["patch_size"], found["image_size"]) == expected


def test_zero_init_head_and_pooling_of_a_kept_head(weights, tmp_path):
    model = keras_vit.converters.load(weights)
    images = np.ones((1, 12, 12, 3), "float32")
    assert np.abs(model.predict(images, verbose=0)).max() > 0
    options = {"input_shape": (12, 12, 3), "classes": 3}
    model = building.build_model(None, weights, None, dropout=0.25, **options)
    assert np.abs(model.predict(images, verbose=0)).max() == 0
    block = model.get_layer("block_0")
    assert block.dropout == block.mlp.dropout == 0.25
    options["keep_head"] = True
    with pytest.raises(ValueError, match="Received: pooling='token'"):
        building.build_model(None, weights, None, mean_pooling=True, **options)
    path = str(tmp_path / "mean.npz")
    keras_vit.converters.save(vit(input_shape=(12, 12, 3), pooling="gap"), path)
    for given in (False, True):
        building.build_model(None, path, None, mean_pooling=given, **options)


@pytest.mark.parametrize(
    "size, patch",
    [
        *((8, 2), (16, 2), (28, 4), (32, 4), (48, 6), (64, 8), (96, 12)),
        *((224, 16), ((64, 48), 8), ((48, 96), 8)),
    ],
)
def test_chosen_patch_size(size, patch):
    assert sizes.choose_patch_size(size) == patch
    sizes.check_patch_size(size, patch)


def test_patch_size_must_divide_the_image_size():
    for size, patch, words in (
        (8, 3, "of 8: give --image-size 9, or"),
        ((64, 50), 16, "64x50: give --image-size 64"),
    ):
        with pytest.raises(ValueError, match=words):
            sizes.check_patch_size(size, patch)
    with pytest.raises(ValueError, match="multiple of 4.* Received: 31"):
        sizes.choose_patch_size(31)


@pytest.mark.parametrize(
    "value, size",
    [
        *(("64", 64), (64, 64), ("64x48", (64, 48)), ([64, 48], (64, 48))),
        *(("8x8", 8), (None, None)),
        *((x, None) for x in ("", "0", "64x", "1x2x3", "64x-8", "a", 0)),
    ],
)
def test_image_size_flag_is_parsed(value, size):
    if size is None and value is not None:
        with pytest.raises(ValueError, match=f"64x48. Received: {value}$"):
            keras_vit.data.protocols.parse_image_size(value)
        return
    assert keras_vit.data.protocols.parse_image_size(value) == size
    if size:
        text = sizes.size_text(size)
        assert keras_vit.data.protocols.parse_image_size(text) == size


HEAD = {"head/kernel", "head/bias"}
LORA = {
    f"block_0/attention/{name}/lora_kernel_{x}"
    for name in ("query", "value")
    for x in "ab"
}


def paths(model):
    return {variable.path for variable in model.trainable_variables}


@pytest.mark.backends("jax", "tensorflow", "torch")
@pytest.mark.parametrize(
    "train, options, expected",
    [
        ("head", {}, HEAD),
        ("lora", {"pooling": "map"}, HEAD | LORA),  # of the blocks alone
    ],
)
def test_all_weights_of_a_saved_classifier_are_trainable(
    train, options, expected, tmp_path
):
    model = vit(**options)
    names = paths(model)
    set_trainable(model, train)
    assert paths(model) == expected
    save_model(model, tmp_path)
    assert paths(model) == expected
    file = tmp_path / "model.keras"
    for loaded in (keras.models.load_model(file), converters.load(file)):
        assert paths(loaded) == names
        assert all(layer.trainable for layer in loaded.layers)


@pytest.mark.backends("torch")
def test_all_weights_of_a_saved_segmenter_are_trainable(tmp_path):
    encoder = vit()
    freeze_weights(encoder)
    model = LinearSegmenter(encoder, 3)
    assert len(model.trainable_weights) == 4  # batch norm and convolution
    write_model(model, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    statistics = 2  # of the batch norm
    assert len(loaded.trainable_weights) == len(loaded.weights) - statistics


@pytest.mark.backends("torch")
def test_an_unused_mask_token_stays_frozen(tmp_path):
    model = vit(mask_token=True)
    names = paths(model)
    set_trainable(model, "head")
    write_model(model, tmp_path / "model.keras")
    assert paths(keras.models.load_model(tmp_path / "model.keras")) == names
