"""recipes/segment.py on a folder of images and masks, and its comparison."""

import csv
import json

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit import evaluation
from keras_vit.data import load_segmentation
from keras_vit.training import models
from tests.recipes import programs

ON_TORCH = pytest.mark.backends("torch")


@pytest.fixture
def photos(tmp_path):
    """Images whose left half is dark, and whose right half is bright."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 3)):
        for kind in ("images", "masks"):
            (tmp_path / "photos" / part / kind).mkdir(parents=True)
        for i in range(count):
            bright = np.arange(16)[None, :] >= rng.integers(4, 12)
            image = 60 + 130 * np.broadcast_to(bright, (16, 16))
            image = image[..., None] + rng.integers(0, 40, (16, 16, 3))
            mask = np.broadcast_to(bright, (16, 16)).astype("uint8").copy()
            mask[0] = 255
            folder = tmp_path / "photos" / part
            Image.fromarray(image.astype("uint8")).save(
                folder / "images" / f"{i}.png"
            )
            Image.fromarray(mask).save(folder / "masks" / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(models.COMPACT, "compact-vit", programs.SMALL)


def flags(photos, output, *more):
    return (
        *("--dataset", photos, "--output", output, "--image-size", 16),
        *("--patch-size", 4, "--steps", 12, "--batch-size", 4),
        *("--learning-rate", 0.01, "--evaluate-every", 6, "--scale", 1.2),
        *more,
    )


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
def test_it_learns_and_writes_its_results(photos, tmp_path, capsys):
    output = tmp_path / "run"
    programs.run("segment", *flags(photos, output))
    found = programs.read_metadata(output)
    rows = programs.rows_of(output)
    assert [row["step"] for row in rows] == ["6", "12"]
    score = found["test_mean_iou"]
    assert score > 0.5 and f"{score:.4f}" in capsys.readouterr().out
    assert float(rows[-1]["test_mean_iou"]) == pytest.approx(score, abs=1e-5)
    # The IoU of each class is that of one confusion matrix of all pixels.
    data = load_segmentation(str(photos))
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
def test_an_interrupted_run_resumes_bit_for_bit(photos, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    programs.run("segment", *flags(photos, whole, "--checkpoint-every", 4))
    with programs.interrupted(9):
        programs.run("segment", *flags(photos, broken, "--checkpoint-every", 4))
    programs.run("segment", *flags(photos, broken, "--checkpoint-every", 4))
    programs.assert_same_runs(broken, whole)


@pytest.mark.slow
@ON_TORCH
def test_a_run_is_finished_once_all_files_are_written(
    photos, tmp_path, monkeypatch, capsys
):
    def full(*_):
        raise OSError("No space left on device")

    given = flags(photos, tmp_path / "run", "--model", "compact-vit")
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "plot_segmentation", full)
        line = programs.refused(capsys, "segment", *given)
    assert "No space left on device" in line
    assert not (tmp_path / "run" / "config.json").exists()
    programs.run("segment", *given)
    for name in ("config.json", "iou.csv", "segmentation.png"):
        assert (tmp_path / "run" / name).exists()


@pytest.mark.nightly
@ON_TORCH
def test_the_comparison(tmp_path, capsys, monkeypatch):
    recipe = programs.load("segment")
    monkeypatch.setattr(recipe, "ENCODER", {**recipe.ENCODER, "steps": 4})
    single = recipe.keras_vit.data.single_digits
    monkeypatch.setattr(
        recipe.keras_vit.data, "single_digits", lambda: single(24, 60, 20)
    )
    output = tmp_path / "digits"
    config = recipe.Config(
        output=str(output), steps=3, batch_size=4, evaluate_every=3
    )
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
@pytest.mark.parametrize(
    "more, message",
    [
        (("--mixup", 0.2), "--mixup is for classifiers"),
        (("--holdout", 0.1), "--holdout is for classifiers"),
        (("--test-split", "test"), "--test-split is for classifiers"),
        (("--train", "head"), "give --weights"),
        (("--accumulate", 2), "--accumulate splits a batch"),
        (("--average", 0.9), "give --train head. Received: 0.9"),
        (("--average-from", 0.5), "give --train head. Received: 0.5"),
        (("--scale", 0.5), "--scale must be 1 or more"),
        (("--model", "compact-bit"), "Transformer blocks"),
        (("--blocks", 0, 4), "Received: 0, 4"),
        (("--dataset", "digits", "--ignore-value", 7), "Received: ignore=7"),
    ],
)
def test_wrong_flags(more, message, photos, tmp_path, capsys):
    line = programs.refused(
        capsys,
        "segment",
        "--dataset",
        photos,
        "--output",
        tmp_path / "x",
        *more,
    )
    assert message in line
    assert not (tmp_path / "x").exists()


@ON_TORCH
def test_wrong_masks_are_named_and_nothing_is_written(photos, tmp_path, capsys):
    mask = photos / "train" / "masks" / "3.png"
    Image.fromarray(np.zeros((8, 16), "uint8")).save(mask)
    with pytest.raises(SystemExit):
        programs.run("segment", *flags(photos, tmp_path / "x"))
    text = capsys.readouterr().err
    assert "3.png is of 8 x 16 pixels" in text
    assert not (tmp_path / "x").exists()
