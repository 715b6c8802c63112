"""Folders for the Hugging Face hub, which four libraries open."""

import json
import pathlib
import re

import huggingface_hub
import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit import hub
from keras_vit.evaluation.classifiers import class_names
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit_programs import convert, runs, verification
from keras_vit_programs.building import build_model
from tests.small import last_differs, randomize

SIZES = {
    "input_shape": (32, 32, 3),
    "patch_size": 8,
    "hidden_size": 48,
    "num_layers": 2,
    "num_heads": 3,
    "classes": 5,
}
NAMES = [f"class {i}" for i in range(5)]


def make_run(folder, **arguments):
    """Writes a folder as a training recipe does, and returns its path."""
    folder.mkdir()
    model = keras_vit.VisionTransformer(**{**SIZES, **arguments})
    randomize(model)
    model.save(folder / "model.keras")
    config = {"dataset": "digits", "mode": "torch"}
    results = {
        "config": config,
        "data": {"class_names": NAMES},
        "test_accuracy": 0.98765,
    }
    (folder / "config.json").write_text(json.dumps(results))
    return folder


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"preprocessing": "torch"},
        {"distillation": True, "activation": "gelu"},
        {"norm_epsilon": 1e-5, "activation": "quick_gelu"},
        {"classes": None, "include_top": False},
        {"hidden_size": 384, "num_heads": 6},
    ],
    ids=["plain", "preprocessing", "distilled", "clip", "features", "small"],
)
def test_four_libraries_give_equal_outputs(arguments, tmp_path, capfd, caplog):
    run = make_run(tmp_path / "run", **arguments)
    missing = hub.save(run, tmp_path / "folder", license="mit")
    assert missing == dict.fromkeys(("keras", "timm", "transformers"))
    table, same, complete = verification.verify_folder(tmp_path / "folder")
    assert same and complete, table
    assert not capfd.readouterr().err and not caplog.records  # of a library
    assert table.count("same") == 3
    config = json.loads((tmp_path / "folder/config.json").read_text())
    assert ("_small_" in config["architecture"]) == ("hidden_size" in arguments)
    if arguments:
        return
    weights = tmp_path / "folder" / "timm.safetensors"
    arrays = safetensors.numpy.load_file(weights)
    arrays["head.bias"] += 1e-3
    safetensors.numpy.save_file(arrays, weights)
    table, same, _ = verification.verify_folder(tmp_path / "folder")
    assert not same
    assert "DIFFERS" in next(x for x in table.splitlines() if "timm" in x)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "outcome, status",
    [((True, True), 0), ((False, True), 1), ((True, False), 3)],
    ids=["same", "differs", "a library is missing"],
)
def test_exit_status_of_verify(outcome, status, tmp_path, monkeypatch, capsys):
    """`verify_folder`, whose results are given here, is tested above."""
    monkeypatch.setattr(
        verification, "verify_folder", lambda folder: ("table", *outcome)
    )
    run = make_run(tmp_path / "run")
    arguments = [run, tmp_path / "folder", "--to", "hub", "--verify"]
    assert convert.main([str(x) for x in arguments]) == status
    assert "table" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_libraries_without_the_model_are_left_out(tmp_path):
    run = make_run(tmp_path / "run", pooling="map", class_token=False)
    missing = hub.save(run, tmp_path / "folder")
    assert missing["timm"] is None
    assert "pooling='map'" in missing["transformers"]
    assert not (tmp_path / "folder/transformers.safetensors").exists()
    card = (tmp_path / "folder/README.md").read_text()
    assert "There is no file for transformers" in card
    _, same, _ = verification.verify_folder(tmp_path / "folder")
    assert same

    run = make_run(tmp_path / "both", pooling="token_gap", layer_scale=1.0)
    missing = hub.save(run, tmp_path / "of_dinov2")
    assert "pooling='token_gap'" in missing["timm"]

    run = make_run(tmp_path / "other", position_embedding="sincos2d")
    missing = hub.save(run, tmp_path / "sincos")
    assert "position_embedding='sincos2d'" in missing["timm"]

    run = make_run(tmp_path / "unlike", block=last_differs, num_layers=3)
    missing = hub.save(run, tmp_path / "blocks")
    assert all("block_2 differs" in missing[x] for x in ("timm", "transformers"))


@pytest.mark.backends("torch")
def test_class_names_are_kept(tmp_path):
    """Of a run for which there are no files of other libraries, a .keras file
    and a folder of transformers, and of the folders written from them."""
    keras_only = {"position_embedding": "sincos2d", "pooling": "map"}
    run = make_run(tmp_path / "run", **keras_only, class_token=False)
    model = keras_vit.VisionTransformer(**SIZES)
    model.class_names = NAMES
    model.save(tmp_path / "model.keras")
    other = make_run(tmp_path / "other")
    convert.convert(other, tmp_path / "transformers", to="huggingface")
    sources = [run, tmp_path / "model.keras", tmp_path / "transformers"]
    for i, source in enumerate(sources):
        missing = hub.save(source, tmp_path / f"folder-{i}")
        assert bool(missing["timm"]) == bool(missing["transformers"]) == (i < 1)
        hub.save(tmp_path / f"folder-{i}", tmp_path / f"again-{i}")
        for name in ("folder", "again"):
            folder = tmp_path / f"{name}-{i}"
            assert class_names(open_checkpoint(folder), 5) == NAMES
    config = json.loads((tmp_path / "folder-2/config.json").read_text())
    assert config["label_names"] == NAMES
    assert list(config["id2label"].values()) == NAMES


@pytest.mark.backends("torch")
def test_model_card_and_config(tmp_path):
    yaml = pytest.importorskip("yaml")
    run = make_run(tmp_path / "run")
    hub.save(run, tmp_path / "folder", license="apache-2.0")
    text = (tmp_path / "folder/README.md").read_text()
    _, header, body = text.split("---\n", 2)
    card = yaml.safe_load(header)
    assert card["library_name"] == "keras"
    assert card["license"] == "apache-2.0"
    result = card["model-index"][0]["results"][0]
    assert result["metrics"][0]["value"] == 0.9877
    assert result["dataset"]["name"] == "digits"
    assert "mode='torch'" in body
    assert f"Classes: {len(NAMES)}: {', '.join(NAMES)}\n" in body
    assert open_checkpoint(tmp_path / "folder").preprocess_mode == "torch"
    again = keras_vit.converters.load(tmp_path / "folder")
    images = np.random.default_rng(0).normal(size=(1, 32, 32, 3))
    images = images.astype("float32")
    expected = keras.saving.load_model(run / "model.keras")
    np.testing.assert_array_equal(
        again.predict(images, verbose=0), expected.predict(images, verbose=0)
    )


@pytest.mark.backends("torch")
@pytest.mark.parametrize("protocol, crop", [("simple", 1.0), ("timm-0.95", 0.95)])
def test_resizing_is_that_of_the_run_and_not_of_its_weights(protocol, crop, tmp_path):
    model = keras_vit.VisionTransformer(**{**SIZES, "classes": 10})
    model.resizing = {"interpolation": "bicubic", "crop_pct": 0.8}
    data = keras_vit.data.load_dataset("digits")
    reading = {"image_size": 32, "mode": "tf", "protocol": protocol}
    settings = {"learning_rate": 0.1, **reading}
    strategy = keras_vit.distribution.get_strategy("none")
    with runs.Run(tmp_path / "run", data, strategy, 1, 8, 1, reading, settings) as run:
        run.checkpoints.rows.append({"step": 1, "test_accuracy": 0.5})
        run.save(model, more=lambda *given: None)
    hub.save(tmp_path / "run", tmp_path / "folder")
    text = (tmp_path / "folder/config.json").read_text()
    assert json.loads(text)["pretrained_cfg"]["crop_pct"] == crop
    assert f"crop_pct={crop:g}, " in (tmp_path / "folder/README.md").read_text()
    found = keras_vit.evaluation.load_classifier(str(tmp_path / "folder"))
    assert found.settings.protocol.value == protocol


@pytest.mark.backends("torch")
def test_existing_files_are_not_replaced(tmp_path):
    run = make_run(tmp_path / "run")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match="README.md.*`overwrite=True`"):
        hub.save(run, folder)
    assert [path.name for path in folder.iterdir()] == ["README.md"]
    (folder / "notes.txt").write_text("mine")
    hub.save(run, folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [folder, run]
    with pytest.raises(FileNotFoundError):
        hub.save(tmp_path / "absent", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--license", "mit"], "--license needs --to hub"),
        (["--push", "a/b"], "--push needs --to hub"),
        (["--to", "hub", "--dtype", "float16"], "--dtype has no effect"),
        (["--to", "hub", "--encoder"], "--encoder has no effect"),
        (["--to", "hub", "--private"], "--private needs --push"),
        (["--to", "hub", "--push", "name"], "named OWNER/NAME.*'name'"),
    ],
)
def test_wrong_flags_are_refused_before_work(arguments, message, tmp_path, capsys):
    target = tmp_path / "folder"
    assert convert.main(["absent.npz", str(target), *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not target.exists()


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_push_uploads_the_folder(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run")
    uploaded = []

    def create_repo(self, repo_id, private, exist_ok):
        if repo_id == "owner/taken":
            raise RuntimeError("403 Forbidden\nand a second line")
        return f"https://hub/{repo_id}?private={private}"

    def upload_folder(self, repo_id, folder_path, commit_message):
        uploaded.append((repo_id, pathlib.Path(folder_path)))

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)

    def push(repository, target):
        flags = ["--to", "hub", "--push", repository, "--private"]
        status = convert.main([str(run), str(target), *flags])
        return status, capsys.readouterr()

    status, printed = push("owner/name", tmp_path / "folder")
    assert status == 0, printed.err
    assert "https://hub/owner/name?private=True" in printed.out
    assert uploaded == [("owner/name", tmp_path / "folder")]
    status, printed = push("owner/taken", tmp_path / "other")
    assert status == 1
    assert printed.err.count("\n") == 1 and "403" in printed.err
    assert (tmp_path / "other/model.keras").exists() and len(uploaded) == 1


@pytest.mark.backends("torch")
def test_commands_say_which_libraries_load_a_hybrid(tmp_path, capsys):
    source = str(tmp_path / "model.keras")
    sizes = {"input_shape": (32, 32, 3), "classes": 3}
    build_model("compact-hybrid", None, None, **sizes).save(source)
    target = str(tmp_path / "a.safetensors")
    assert convert.main([source, target, "--to", "timm"]) == 0
    assert "note: timm loads the file only into" in capsys.readouterr().out
    assert convert.main([source, str(tmp_path / "hub"), "--to", "hub"]) == 0
    assert ", which keras and keras_vit can load\n" in capsys.readouterr().out


@pytest.mark.backends("torch")
def test_cards_say_that_a_keras_model_scales_images_itself(tmp_path):
    """Images that are scaled by `preprocess_input` would be scaled twice."""
    options = {"patch_size": 8, "hidden_size": 24, "num_layers": 1, "num_heads": 3}
    for preprocessing in (None, "torch"):
        model = keras_vit.VisionTransformer(
            **options, input_shape=(16, 16, 3), preprocessing=preprocessing
        )
        model.save(tmp_path / "a.keras")
        keras_vit.hub.save(tmp_path / "a.keras", tmp_path / "hub", overwrite=True)
        card = (tmp_path / "hub" / "README.md").read_text()
        assert ("values from 0 to 255" in card) == (preprocessing is not None)
