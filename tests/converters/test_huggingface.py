"""Folders for transformers, read by transformers itself."""

import json
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, save
from keras_vit_programs import convert as _cli
from keras_vit_programs.building import build_model as build_for_training
from tests import golden_data, originals
from tests.small import randomize, vit

pytestmark = pytest.mark.backends("torch")


def build(**arguments):
    model = vit(input_shape=(12, 12, 3), mlp_dim=24, **arguments)
    randomize(model, 0.2)
    return model


def test_deit_without_head_keeps_its_tokens(tmp_path):
    """Without a head and a pooler, both kinds of DeiT have the same keys."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    save(build(num_registers=1), tmp_path / "whole")
    model = load(tmp_path / "whole", include_top=False, pooling=None)
    save(model, tmp_path / "folder")
    x = np.random.default_rng(1).uniform(-1, 1, (2, 12, 12, 3))
    expected = keras.ops.convert_to_numpy(model(x))
    again = load(tmp_path / "folder")
    found = keras.ops.convert_to_numpy(again(x))
    np.testing.assert_array_equal(found, expected)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "folder")
    assert type(theirs).__name__ == "DeiTModel"
    batch = torch.tensor(x, dtype=torch.float32).cpu().permute(0, 3, 1, 2)
    with torch.no_grad():
        found = theirs.cpu().eval()(batch).last_hidden_state.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_labels_and_preprocessing_of_a_folder_are_kept(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    save(build(), first)
    path = first / "config.json"
    config = json.loads(path.read_text())
    config["id2label"] = {"0": "cat", "1": "dog", "2": "bird"}
    path.write_text(json.dumps(config))
    processor = {"image_processor_type": "ViTImageProcessor", "mark": 1}
    (first / "preprocessor_config.json").write_text(json.dumps(processor))
    _cli.convert(first, second, dtype="bfloat16")
    config = json.loads((second / "config.json").read_text())
    assert config["id2label"]["2"] == "bird"
    assert config["label2id"] == {"cat": 0, "dog": 1, "bird": 2}
    assert config["dtype"] == "bfloat16"
    found = json.loads((second / "preprocessor_config.json").read_text())
    assert found == processor


@pytest.mark.parametrize(
    "config,expected",
    [
        ({"data": {"class_names": ["cat", "dog", "owl"]}}, True),  # a run
        ({"label_names": ["cat", "dog", "owl"]}, True),  # timm's
        ({"data": {"class_names": ["cat", "dog"]}}, False),
        ({"id2label": {"0": "cat", "1": "dog"}}, False),
        ({"data": {"class_names": 3}}, False),
    ],
)
@pytest.mark.parametrize("source", ["run", "run/model.keras"])
def test_class_names_of_a_run_are_labels(source, config, expected, tmp_path):
    (tmp_path / "run").mkdir()
    build().save(tmp_path / "run/model.keras")
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    _cli.convert(tmp_path / source, tmp_path / "hub", to="huggingface")
    names = ["cat", "dog", "owl"] if expected else ["LABEL_0", "LABEL_1"]
    written = json.loads((tmp_path / "hub/config.json").read_text())
    assert list(written["id2label"].values())[: len(names)] == names
    assert written["id2label"].keys() == {"0", "1", "2"}
    assert written["label2id"][names[1]] == 1


@pytest.mark.parametrize(
    "resizing,resample",
    [
        ({"interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center"}, 3),
        ({"interpolation": "lanczos"}, 1),
        (None, 2),
    ],
)
def test_resizing_of_images_is_kept(resizing, resample, tmp_path):
    """The command, load and save, and a .keras file between them keep it."""
    source = tmp_path / "model.safetensors"
    save(build(), source, "timm")
    scaling = {"mean": [0.5] * 3, "std": [0.5] * 3}
    config = {
        "architecture": "vit_base_patch16_224",
        "pretrained_cfg": {**scaling, **(resizing or {"interpolation": None})},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = {"num_heads": 2}
    _cli.convert(source, tmp_path / "by_command", to="huggingface", settings=settings)
    model = keras_vit.load(source, **settings)
    assert model.resizing == resizing
    keras_vit.save(model, tmp_path / "in_python", "huggingface")
    (tmp_path / "run").mkdir()
    keras_vit.save(model, tmp_path / "run/model.keras")
    loaded = keras_vit.load(tmp_path / "run/model.keras")
    assert loaded.resizing == resizing
    keras_vit.save(loaded, tmp_path / "by_keras", "huggingface")
    keras_vit.hub.save(tmp_path / "run/model.keras", tmp_path / "hub")
    for folder in ("by_command", "in_python", "by_keras", "hub"):
        written = (tmp_path / folder / "preprocessor_config.json").read_text()
        assert json.loads(written)["resample"] == resample, folder
    written = json.loads((tmp_path / "hub/config.json").read_text())
    assert (resizing or {}).items() <= written["pretrained_cfg"].items()
    if resizing:  # of transformers
        again = keras_vit.load(tmp_path / "in_python").resizing
        assert again == {"interpolation": resizing["interpolation"]}


@pytest.mark.parametrize("timm", ["x", {"interpolation": [3], "crop_pct": "a"}])
@pytest.mark.parametrize("resample", [[3], {"a": 3}, "bicubic", 9, None])
def test_resizing_that_cannot_be_read_is_unknown(timm, resample, tmp_path):
    save(build(), tmp_path / "model.safetensors", "timm")
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": timm}))
    preprocessor = json.dumps({"resample": resample})
    (tmp_path / "preprocessor_config.json").write_text(preprocessor)
    model = keras_vit.load(tmp_path / "model.safetensors", num_heads=2)
    assert model.resizing is None


def test_notes_name_what_a_file_does_not_store(tmp_path):
    model = build(classes=2)
    model.class_names, model.preprocess_mode = ("cat", "dog"), "tf"
    keras_vit.save(model, tmp_path / "folder", "huggingface")
    (note,) = _cli.convert(tmp_path / "folder", tmp_path / "a.safetensors", to="timm")
    assert "class names are not stored" in note


def test_unknown_scaling_warns(tmp_path):
    model = build()
    with pytest.warns(UserWarning, match="preprocessor_config.json has a mean"):
        keras_vit.save(model, tmp_path / "unknown", "huggingface")
    model.preprocess_mode = "tf"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        keras_vit.save(model, tmp_path / "known", "huggingface")


@pytest.mark.parametrize(
    "case,mean",
    [
        ("vit_jax_token", 0.5),
        ("timm_base", 0.5),
        ("timm_deit_distilled", 0.485),
        ("torchvision_vit", 0.485),
        ("facebook_dinov2_reg", 0.485),
    ],
)
def test_preprocessing_matches_the_code_base(case, mean, tmp_path):
    given = {} if case.startswith("vit_jax") else {"num_heads": 3}
    folder = tmp_path / "folder"
    _cli.convert(golden_data.load_path(case), folder, to="huggingface", settings=given)
    path = folder / "preprocessor_config.json"
    found = json.loads(path.read_text())
    assert found["image_mean"][0] == mean
    size = json.loads((folder / "config.json").read_text())["image_size"]
    assert found["size"] == {"height": size, "width": size}


NAMES = ["ant", "bee", "cat", "dog", "emu"]


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": dict(enumerate(NAMES))},
        {"label_names": NAMES},
        {"label_names": dict(enumerate(NAMES))},
        {"pretrained_cfg": {"label_names": NAMES}},
        {"labels": NAMES},  # timm before 0.7
        {"data": {"class_names": NAMES}},  # a run of a recipe
    ],
    ids=lambda config: next(iter(config)),
)
def test_class_names_come_with_the_head(config, tmp_path):
    is_timm = "id2label" not in config
    case = originals.CASES["timm-token" if is_timm else "transformers-vit"]
    path, given = originals.save(case, originals.build(case), tmp_path)
    file = tmp_path / "config.json"
    old = {} if is_timm else json.loads(file.read_text())
    file.write_text(json.dumps({**old, **config}))
    build = keras_vit.VisionTransformer
    kept = (
        keras_vit.load(path, **given),
        load(path, **given, dropout=0.1, classes=5, preprocessing="tf"),
        build(weights=str(path), **given, input_shape=(16, 24, 1)),
    )
    new = (
        load(path, **given, classes=4),
        load(path, **given, include_top=False),
    )
    for model in kept:
        assert model.class_names == tuple(NAMES)
        found = keras_vit.decode_predictions(np.eye(5)[:1], top=1, model=model)
        assert found[0][0][1] == "ant"
    for model in new:
        assert model.class_names is None
    save(kept[0], tmp_path / "back")
    assert load(tmp_path / "back").class_names == tuple(NAMES)
    recipe = build_for_training(None, str(tmp_path / "back"), None, classes=5)
    assert recipe.class_names is None  # its head is new
