"""recipes/segment.py on a folder of images and masks, and its comparison."""

import csv
import json

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit import evaluation
from keras_vit.data import load_segmentation
from keras_vit_programs import charts
from keras_vit_programs.flags import UserError
from tests.recipes import programs, runs

ON_TORCH = pytest.mark.backends("torch")


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
def test_it_learns_and_writes_its_results(finished, data_folders):
    output = finished("segment")
    found = programs.read_metadata(output)
    rows = programs.rows_of(output)
    assert [row["step"] for row in rows] == ["6", "12"]
    score = found["test_mean_iou"]
    assert score > 0.5
    assert float(rows[-1]["test_mean_iou"]) == pytest.approx(score, abs=1e-5)
    # The IoU of each class is that of one confusion matrix of all pixels.
    data = load_segmentation(str(data_folders / "squares"))
    model = keras.models.load_model(output / "model.keras")
    confusion = sum(
        evaluation.confusion_matrix(
            np.argmax(model.predict(images, verbose=0), -1), masks, 2, 255
        )
        for images, masks in data.evaluation(image_size=16, batch_size=3)
    )
    mean, by_class = evaluation.mean_iou(confusion)
    assert mean == pytest.approx(score, abs=1e-5)
    with open(output / "iou.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["class"] for row in table] == ["0", "1"]
    written = [float(row["iou"]) for row in table]
    np.testing.assert_allclose(written, by_class, atol=1e-5)
    with Image.open(output / "segmentation.png") as picture:
        assert picture.size[0] > 300
    assert not (output / "checkpoints").exists()


@pytest.mark.slow
@ON_TORCH
def test_a_run_is_finished_once_all_files_are_written(
    data_folders, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError("No space left on device")

    given = ("segment", data_folders, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(charts, "plot_segmentation", full)
        with pytest.raises(UserError, match="No space left on device"):
            runs.train(*given)
    assert not (tmp_path / "run" / "config.json").exists()
    runs.train(*given)
    for name in ("config.json", "iou.csv", "segmentation.png"):
        assert (tmp_path / "run" / name).exists()


@pytest.mark.nightly
@ON_TORCH
def test_the_comparison(tmp_path, capsys, monkeypatch):
    recipe = programs.load("segment")
    monkeypatch.setattr(recipe, "ENCODER", {**recipe.ENCODER, "steps": 4})
    canvases = recipe.keras_vit.data.canvases
    single = canvases.single_digits
    monkeypatch.setattr(canvases, "single_digits", lambda: single(24, 60, 20))
    output = tmp_path / "digits"
    config = recipe.Config(output=str(output), steps=3, batch_size=4, evaluate_every=3)
    recipe.main(config)
    text = capsys.readouterr().out
    found = json.loads((output / "config.json").read_text())
    assert set(found) == {"encoder", "frozen", "fine-tuned", "scratch"}
    for name in recipe.WAYS:
        score = found[name]["test_mean_iou"]
        assert f"{score:.4f}" in text
        assert (output / "comparison" / name / "segmentation.png").exists()
    encoder, frozen = (
        keras.models.load_model(output / "comparison" / name / "model.keras")
        for name in ("encoder", "frozen")
    )
    for weight in encoder.get_layer("block_0").weights:
        same = {w.path: w for w in frozen.weights}[weight.path]
        np.testing.assert_array_equal(
            *(keras.ops.convert_to_numpy(w) for w in (weight, same))
        )


@ON_TORCH
@pytest.mark.parametrize("name", ["segment", "fcos"])
def test_wrong_labels_are_named_and_nothing_is_written(name, tmp_path):
    folder = runs.folders(tmp_path) / "squares"
    Image.fromarray(np.zeros((8, 16), "uint8")).save(
        folder / "train" / "masks" / "3.png"
    )
    with open(folder / "train.csv", "a") as file:
        file.write("images/0.png,dark,3,3,30,9\n")
    words = r"3.png is of 8 x 16 pixels|train.csv, line 14: the box"
    with pytest.raises(UserError, match=words):
        runs.train(name, tmp_path, tmp_path / "x")
    assert not (tmp_path / "x").exists()
