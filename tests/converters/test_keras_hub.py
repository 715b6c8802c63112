"""Presets of keras-hub: its golden outputs, and the way to timm and back."""

import json
import shutil

import keras
import numpy as np
import pytest

from keras_vit.converters import load, open_checkpoint, save
from keras_vit.weights.files import read
from keras_vit_programs import convert as _cli
from tests import golden_data

CASES = golden_data.KERAS_HUB
# DINOv2's embeddings for the images of pre-training, which keras-hub resamples.
RESAMPLED = "dinov2_embedding/4"


def run(model, images):
    return keras.ops.convert_to_numpy(model(images, training=False))


def edit(folder, file, **changes):
    """Changes options of a backbone or a task in a preset."""
    path = folder / file
    content = json.loads(path.read_text())
    options = content["config"]
    options.get("backbone", content)["config"].update(changes.pop("backbone", {}))
    options.update(changes)
    path.write_text(json.dumps(content))


@pytest.fixture
def vit(tmp_path):
    shutil.copytree(golden_data.FOLDER / "keras_hub_vit", tmp_path / "vit")
    return tmp_path / "vit"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("eager")
def test_outputs_match_keras_hub(case, record_error):
    golden = golden_data.io(case)
    found = run(load(golden_data.folder(case)), golden["image"])
    assert found.shape == golden["output"].shape
    error = np.abs(found - golden["output"]).max()
    record_error(case, "output", error, golden_data.TOLERANCE)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("program", [True, False], ids=["file", "model"])
def test_preset_is_written_back_bit_for_bit(case, program, tmp_path):
    source, target = golden_data.folder(case), tmp_path / "back"
    if program:
        _cli.convert(source, target)
    else:
        save(load(source), target, "keras_hub")
    expected, found = read(source), read(target)
    if case == "keras_hub_dinov2":
        assert found[RESAMPLED].shape == (1, 17, 16)  # of its images
        expected[RESAMPLED] = expected["dinov2_embedding/3"]
    golden_data.assert_same(found, expected)
    for name in ("config.json", "task.json"):
        if not (source / name).exists():
            continue
        old, new = (
            json.loads((folder / name).read_text()) for folder in (source, target)
        )
        for key in ("module", "class_name", "registered_name"):
            assert new[key] == old[key]
        # What it leaves out has its default.
        names = {"name", "backbone", "preprocessor", "position_embedding_shape"}
        for key in new["config"].keys() - names:
            assert new["config"][key] == old["config"][key], key


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", CASES[:2])
def test_classifier_runs_in_timm_and_comes_back(case, tmp_path):
    timm = pytest.importorskip("timm")
    import torch
    from safetensors.torch import load_file

    golden, source = golden_data.io(case), golden_data.folder(case)
    target = tmp_path / "model.safetensors"
    keep = {"grid_size": (4, 6), "num_heads": 2}
    if case == "keras_hub_vit":
        with pytest.raises(ValueError, match="no place for:\n  pre_logits"):
            _cli.convert(source, target, to="timm")
        return
    notes = _cli.convert(source, target, to="timm")
    assert not notes
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=(16, 24),
        patch_size=4,
        embed_dim=16,
        depth=2,
        num_heads=2,
        mlp_ratio=1.5,
        num_classes=5,
        reg_tokens=1,
    )
    model.load_state_dict(load_file(target), strict=True)
    images = torch.tensor(golden["image"]).permute(0, 3, 1, 2)
    with torch.no_grad():
        found = model.eval()(images).numpy()
    np.testing.assert_allclose(found, golden["logits"], rtol=0, atol=3e-6)
    _cli.convert(target, tmp_path / "back", to="keras_hub", settings=keep)
    golden_data.assert_same(read(tmp_path / "back"), read(source))


@pytest.mark.backends("torch")
def test_activation_of_the_head_is_kept_or_noted(vit, tmp_path):
    golden = golden_data.io("keras_hub_vit")
    assert np.abs(golden["output"].sum(-1) - 1).max() < 1e-5
    logits = load(vit, classifier_activation=None)
    np.testing.assert_allclose(
        run(logits, golden["image"]), golden["logits"], rtol=0, atol=3e-6
    )
    with pytest.warns(UserWarning, match="softmax of the head is not stored"):
        _cli.convert(vit, tmp_path / "a.npz", to="vit_jax")
    save(load(vit), tmp_path / "back", "keras_hub")
    task = json.loads((tmp_path / "back" / "task.json").read_text())
    assert task["config"]["activation"] == "softmax"


@pytest.mark.backends("torch")
def test_preprocessing_is_read_and_written(vit, tmp_path):
    assert open_checkpoint(vit).preprocess_mode is None
    model = load(vit, preprocessing="torch", input_shape=(16, 24, 3))
    with pytest.warns(UserWarning, match="does not contain the preprocessing"):
        save(model, tmp_path / "back", "keras_hub")
    assert open_checkpoint(tmp_path / "back").preprocess_mode == "torch"
    content = json.loads((tmp_path / "back" / "image_converter.json").read_text())
    assert content["class_name"] == "ViTImageConverter"
    assert content["config"]["image_size"] == [16, 24]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "file,changes,words",
    [
        ("task.json", {"pooling": "gap"}, "'pooling' in its config.json must be"),
        (
            "task.json",
            {"activation": {"a": 1}},
            "'activation' in its config.json must be a name",
        ),
        ("task.json", {"backbone": {"use_mha_bias": False}}, "use_mha_bias"),
        ("task.json", {"backbone": {"image_shape": 3}}, "TypeError"),
        ("task.json", {"backbone": {"patch_size": 0}}, "ZeroDivisionError"),
        (
            "task.json",
            {"backbone": {"layer_norm_epsilon": "x"}},
            "to float: 'x'",
        ),
    ],
)
def test_unsupported_config_is_refused(vit, file, changes, words):
    edit(vit, file, **changes)
    with pytest.raises(ValueError, match=words):
        open_checkpoint(vit)


@pytest.mark.backends("torch")
def test_other_backbones_and_missing_files_are_refused(vit):
    (vit / "task.json").unlink()
    content = json.loads((vit / "config.json").read_text())
    content["class_name"] = "ResNetBackbone"
    (vit / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="Received: 'ResNetBackbone'"):
        open_checkpoint(vit)
    (vit / "model.weights.h5").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        open_checkpoint(vit)


@pytest.mark.backends("torch")
def test_existing_preset_is_replaced_only_on_demand(vit, tmp_path):
    with pytest.raises(FileExistsError, match="already has model.weights.h5"):
        _cli.convert(golden_data.folder("keras_hub_deit"), vit)
    source = golden_data.folder("keras_hub_dinov2")
    _cli.convert(source, vit, overwrite=True)
    assert not (vit / "task.json").exists()
    assert open_checkpoint(vit).weight_map.variant == "dinov2-swiglu"
    with pytest.raises(ValueError, match="not made by keras_vit"):
        open_checkpoint(vit / "model.weights.h5")


# keras-hub needs tensorflow-text, which the extra `test` does not install:
# pip install --no-deps keras-hub
@pytest.mark.nightly
@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", CASES)
def test_written_preset_runs_in_keras_hub(case, tmp_path):
    """`--verify` runs it there."""
    pytest.importorskip("keras_hub")
    from keras_vit_programs.verification import verify

    source, target = golden_data.folder(case), tmp_path / "back"
    _cli.convert(source, target)
    text, same, complete = verify(source, target)
    ran = [line for line in text.splitlines() if " in keras-hub " in line]
    expected = 2 if case != "keras_hub_dinov2" else 1
    assert len([line for line in ran if line.endswith("same")]) >= expected
    assert same and complete, text
