"""recipes/detect.py on a folder of images with boxes."""

import csv
import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit_programs import report
from keras_vit_programs.stamps import load_stamps
from tests.recipes import programs
from tests.training.pictures import write_folder

ON_TORCH = pytest.mark.backends("torch")


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize(
    "head", [pytest.param("fcos", marks=pytest.mark.suite("torch")), "yolos"]
)
def test_it_writes_its_results(head, finished, data_folders, tmp_path):
    output, photos = finished(head), data_folders / "squares"
    images = photos / "test" / "images"
    rows = programs.rows_of(output)
    assert [row["step"] for row in rows] == ["6", "12"]
    found = programs.read_metadata(output)
    metrics = json.loads((output / "coco.json").read_text())
    assert found["test_AP"] == pytest.approx(metrics["AP"], abs=1e-6)
    assert len(metrics) == 12 and "test_AP50" in rows[1]
    data = keras_vit.data.load_detection(str(photos))
    model = keras_vit.load(output / "model.keras")
    assert model.class_names == ("bright", "dark")
    again = keras_vit.evaluation.evaluate_boxes(
        model, data.evaluation(image_size=16, batch_size=3)
    )
    assert again == pytest.approx(metrics, abs=1e-5)
    with Image.open(output / "detection.png") as picture:
        assert picture.size[0] > 300
    # Its boxes in the files of images, in pixels.
    programs.run(
        "predict", "--weights", output, "--output", tmp_path / "out",
        "--least-score", 0, "--images", images,
    )  # fmt: skip
    with open(tmp_path / "out" / "predictions.csv", newline="") as file:
        boxes = list(csv.DictReader(file))
    pixels = np.stack([data.read("test", i)[0] for i in range(3)])
    found = keras_vit.detection.decode(model.predict(pixels / 127.5 - 1), 16, 16)
    for i, expected in enumerate(found):
        rows = [row for row in boxes if row["file"].endswith(f"{i}.png")]
        assert {row["class"] for row in rows} <= {"bright", "dark"}
        ours = [float(row["x_min"]) for row in rows]
        np.testing.assert_allclose(ours, expected["boxes"][:, 0], atol=0.06)
    assert (tmp_path / "out" / "predictions.png").exists()
    with pytest.raises(SystemExit):
        programs.run(
            "predict", "--weights", output, "--output", tmp_path / "no",
            "--labels", photos / "train.csv", "--images", images,
        )  # fmt: skip
    assert not (tmp_path / "no").exists()
    for shown in ([], [str(images)]):
        page = tmp_path / f"report-{len(shown)}"
        arguments = [str(output), *shown, "--output", str(page)]
        assert report.main(arguments) == 0
        assert (page / "objects.png").exists() == bool(shown)
        assert "objects.png" in (page / "report.html").read_text() or not shown
    assert not (output / "checkpoints").exists()


@pytest.mark.slow
@ON_TORCH
def test_stamps_on_photographs_and_a_frozen_encoder(tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 4), "uint8")
    pixels[..., 3] = 0
    pixels[4:16, 5:25, 3] = 255
    names = [f"{name}/{i}.png" for name in ("disc", "square") for i in range(5)]
    stamps = write_folder(tmp_path / "stamps", dict.fromkeys(names, pixels))
    data = load_stamps(stamps, 48)
    assert data.class_names == ("disc", "square")
    _, label = data.read("train", 0)
    count = (label[:, 0] >= 0).sum()
    assert 1 <= count <= 3
    # What is not transparent is of 12 x 20 pixels.
    np.testing.assert_allclose(label[:count, 3] / label[:count, 4], 20 / 12, rtol=0.1)
    encoder = keras_vit.VisionTransformer(
        **programs.SMALL[1], patch_size=4, input_shape=(32, 32, 3), classes=2
    )
    keras_vit.save(encoder, tmp_path / "encoder.keras")
    programs.run(
        "detect",
        *("--stamps", stamps, "--output", tmp_path / "run"),
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
    (stamps / "disc" / "9.png").write_text("none")
    line = programs.refused(
        capsys, "detect", "--stamps", stamps, "--output",
        tmp_path / "third",
    )  # fmt: skip
    assert "9.png: " in line
    with pytest.raises(ValueError, match="five or more per class"):
        load_stamps(stamps / "disc")
