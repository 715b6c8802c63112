"""recipes/detect.py on a folder of images with boxes."""

import csv
import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.evaluation import report
from keras_vit.training import models
from tests.recipes import programs

ON_TORCH = pytest.mark.backends("torch")


@pytest.fixture
def photos(tmp_path):
    """Images of a bright or a dark square each."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 3)):
        folder = tmp_path / "photos" / part
        folder.mkdir(parents=True)
        rows = []
        for i in range(count):
            image = rng.integers(110, 140, (16, 16, 3)).astype("uint8")
            left, top = rng.integers(0, 9, 2)
            color = i % 2 * 255
            image[top : top + 8, left : left + 8] = color
            Image.fromarray(image).save(folder / f"{i}.png")
            name = "bright" if color else "dark"
            rows.append((f"{i}.png", name, left, top, left + 8, top + 8))
        with open(f"{folder}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("path", "class", *"x_min y_min x_max y_max".split())
            )
            writer.writerows(rows)
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(models.COMPACT, "compact-vit", programs.SMALL)


def flags(photos, output, *more):
    return (
        *("--dataset", photos, "--output", output, "--image-size", 16),
        *("--patch-size", 4, "--steps", 12, "--batch-size", 2),
        *("--queries", 3, "--evaluate-every", 6, "--scale", 1.2),
        *("--learning-rate", 0.01, *more),
    )


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize("head", ["fcos", "yolos"])
def test_it_writes_its_results(head, photos, tmp_path):
    output = tmp_path / "run"
    programs.run("detect", *flags(photos, output, "--head", head))
    rows = programs.rows_of(output)
    assert [row["step"] for row in rows] == ["6", "12"]
    found = programs.read_metadata(output)
    metrics = json.loads((output / "coco.json").read_text())
    assert found["test_AP"] == pytest.approx(metrics["AP"], abs=1e-6)
    assert len(metrics) == 12 and "test_AP50" in rows[1]
    data = keras_vit.data.load_detection(str(photos))
    model = keras_vit.load(output / "model.keras")
    assert keras_vit.detection.class_names(model) == ("bright", "dark")
    again = keras_vit.evaluation.evaluate_boxes(
        model, data.evaluation(image_size=16, batch_size=3)
    )
    assert again == pytest.approx(metrics, abs=1e-5)
    with Image.open(output / "detection.png") as picture:
        assert picture.size[0] > 300
    # Its boxes in the files of images, in pixels.
    programs.run(
        "predict", "--weights", output, "--output", tmp_path / "out",
        "--least-score", 0, "--images", photos / "test",
    )  # fmt: skip
    with open(tmp_path / "out" / "predictions.csv", newline="") as file:
        boxes = list(csv.DictReader(file))
    images = np.stack([data.read("test", i)[0] for i in range(3)])
    found = keras_vit.detection.decode(
        model.predict(images / 127.5 - 1), 16, 16
    )
    for i, expected in enumerate(found):
        rows = [row for row in boxes if row["file"].endswith(f"{i}.png")]
        assert {row["class"] for row in rows} <= {"bright", "dark"}
        ours = [float(row["x_min"]) for row in rows]
        np.testing.assert_allclose(ours, expected["boxes"][:, 0], atol=0.06)
    assert (tmp_path / "out" / "predictions.png").exists()
    with pytest.raises(SystemExit):
        programs.run(
            "predict", "--weights", output, "--output", tmp_path / "no",
            "--labels", photos / "train.csv", "--images", photos / "test",
        )  # fmt: skip
    assert not (tmp_path / "no").exists()
    for images in ([], [str(photos / "test")]):
        page = tmp_path / f"report-{len(images)}"
        arguments = [str(output), *images, "--out", str(page)]
        assert report.main(arguments) == 0
        assert (page / "objects.png").exists() == bool(images)
        assert "objects.png" in (page / "report.html").read_text() or not images
    assert not (output / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize("head", ["fcos", "yolos"])
def test_an_interrupted_run_resumes_bit_for_bit(head, photos, tmp_path, capsys):
    """It ends between two evaluations, before a checkpoint is saved."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    more = ("--checkpoint-every", 4, "--head", head)
    programs.run("detect", *flags(photos, whole, *more))
    with programs.interrupted(9):
        programs.run("detect", *flags(photos, broken, *more))
    assert not (broken / "model.keras").exists()
    assert "resuming" not in capsys.readouterr().out
    programs.run("detect", *flags(photos, broken, *more))
    assert "resuming" in capsys.readouterr().out
    programs.assert_same_runs(broken, whole)


@ON_TORCH
@pytest.mark.parametrize(
    "more, message",
    [
        (("--accumulate", 2), "--accumulate is not for detectors"),
        (("--augment", "light1"), "--augment is not for detectors"),
        (("--mixup", 0.2), "--mixup is not for detectors"),
        (("--protocol", "vit_jax"), "--protocol is not for detectors"),
        (("--average-from", 0), "Received: 0.0, 0.0"),
        (("--train", "head"), "give --weights"),
        (("--stamps", "x"), "Give --stamps or --dataset"),
        (("--model", "compact-bit"), "Transformer blocks"),
        (("--average", 0.9), "Received: 0.9, None"),
        (("--scale", 0.5), "--scale must be 1 or more"),
        (("--queries", 0), "--queries must be 1 or more"),
        (("--dataset", "nothing"), "Received: 'nothing'"),
    ],
)
def test_wrong_flags(more, message, photos, tmp_path, capsys):
    output = tmp_path / "x"
    given = ("--dataset", photos, "--output", output, *more)
    assert message in programs.refused(capsys, "detect", *given)
    assert not output.exists()


@ON_TORCH
def test_a_box_outside_is_named_and_nothing_is_written(
    photos, tmp_path, capsys
):
    with open(photos / "train.csv", "a") as file:
        file.write("0.png,dark,3,3,30,9\n")
    with pytest.raises(SystemExit):
        programs.run("detect", *flags(photos, tmp_path / "x"))
    assert "train.csv, line 14: the box" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@ON_TORCH
def test_stamps_on_photographs_and_a_frozen_encoder(photos, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in ("disc", "square"):
        (tmp_path / "stamps" / name).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, (20, 30, 4)).astype("uint8")
            pixels[..., 3] = 0
            pixels[4:16, 5:25, 3] = 255
            path = tmp_path / "stamps" / name / f"{i}.png"
            Image.fromarray(pixels).save(path)
    data = keras_vit.data.load_stamps(tmp_path / "stamps", 48)
    assert data.class_names == ("disc", "square")
    _, label = data.read("train", 0)
    count = (label[:, 0] >= 0).sum()
    assert 1 <= count <= 3
    # What is not transparent is of 12 x 20 pixels.
    np.testing.assert_allclose(
        label[:count, 3] / label[:count, 4], 20 / 12, rtol=0.1
    )
    encoder = keras_vit.VisionTransformer(
        **programs.SMALL[1], patch_size=4, input_shape=(32, 32, 3), classes=2
    )
    keras_vit.save(encoder, tmp_path / "encoder.keras")
    programs.run(
        "detect",
        *("--stamps", tmp_path / "stamps", "--output", tmp_path / "run"),
        *("--weights", tmp_path / "encoder.keras", "--train", "head"),
        *("--image-size", 32, "--steps", 2, "--batch-size", 4),
    )
    metadata = programs.read_metadata(tmp_path / "run")
    assert metadata["data"]["class_names"] == ["disc", "square"]
    trained = keras_vit.load(tmp_path / "run" / "model.keras")
    found = {w.path: keras.ops.convert_to_numpy(w) for w in trained.weights}
    for weight in encoder.get_layer("block_0").weights:
        array = keras.ops.convert_to_numpy(weight)
        np.testing.assert_array_equal(found[weight.path], array)
    (tmp_path / "stamps" / "disc" / "9.png").write_text("none")
    line = programs.refused(
        capsys, "detect", "--stamps", tmp_path / "stamps", "--output",
        tmp_path / "third",
    )  # fmt: skip
    assert "9.png: " in line
    with pytest.raises(ValueError, match="five or more of a class"):
        keras_vit.data.load_stamps(photos / "train")
