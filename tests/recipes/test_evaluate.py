import csv
import itertools
import json
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import evaluation
from keras_vit_programs import classifiers
from tests.recipes import programs
from tests.small import vit
from tests.training.mocked import mocked
from tests.training.pictures import write_folder

pytestmark = pytest.mark.backends("torch")


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def evaluated(trained_run, tmp_path_factory):
    output = tmp_path_factory.mktemp("evaluated") / "digits"
    programs.run(
        "evaluate", "--weights", trained_run, "--batch-size", 50,
        "--output", output,
    )  # fmt: skip
    return output


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow", "torch")
def test_metrics_match_model_predict(trained_run, evaluated):
    results = results_of(evaluated)
    # 359 is no multiple of 50.
    data = keras_vit.data.load_dataset("digits")
    images, labels, _ = data.test(image_size=8, batch_size=359)[0]
    model = keras.models.load_model(trained_run / "model.keras")
    logits = model.predict(images, verbose=0)
    assert results["images"] == 359
    assert results["accuracy"] == np.mean(logits.argmax(1) == labels)
    top = np.argsort(-logits)[:, :5]
    assert results["top_5_accuracy"] == np.mean((top == labels[:, None]).any(1))
    expected = keras_vit.evaluation.calibration_error(
        keras_vit.evaluation.softmax(logits), labels
    )
    assert results["calibration_error"] == pytest.approx(expected, abs=1e-4)
    assert results["calibration_bins"] == 15


def test_the_calibration_error_is_explained(trained_run, tmp_path, capsys):
    output = tmp_path / "out"
    programs.run("evaluate", "--weights", trained_run, "--output", output)
    text = capsys.readouterr().out
    assert re.search(r"\ncalibration error +0\.\d+\n", text)
    assert re.search(r"\nmean confidence +0\.\d+\n", text)
    assert "The calibration error is the mean difference between" in text


def test_output_files(evaluated):
    with open(evaluated / "per_class.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == list("0123456789")
    assert sum(int(row["images"]) for row in rows) == 359
    right = sum(int(row["right"]) for row in rows)
    assert right / 359 == pytest.approx(results_of(evaluated)["accuracy"])
    for name in ("reliability.png", "confusion.png"):
        assert (evaluated / name).read_bytes().startswith(b"\x89PNG")


def real_folder(root, classes):
    """Gray levels; the model below knows 0, 100 and 200 by their classes."""
    number = itertools.count(1)
    images = {
        f"{part}/{name}/ILSVRC2012_val_{next(number):08}.png": np.full(
            (9, 12, 3), value, "uint8"
        )
        for name, value in classes.items()
        for part in ("train", "test", "test")
    }
    return write_folder(root, images)


@pytest.fixture
def shades(tmp_path):
    """A run's folder: a model that classifies dark, gray and light."""
    model = vit()
    folder = tmp_path / "run"
    folder.mkdir()
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    model.save(folder / "model.keras")
    metadata = {
        "config": {"mode": "tf", "protocol": "vit_jax", "image_size": 8},
        "data": {"class_names": ["dark", "gray", "light"]},
    }
    (folder / "config.json").write_text(json.dumps(metadata))
    return model, folder


@pytest.mark.slow
def test_folder_with_fewer_classes_in_another_order(shades, tmp_path):
    pytest.importorskip("tensorflow")
    model, run = shades
    levels = {"dark": 0, "gray": 100, "light": 200}
    scores = {
        name: model.predict(np.full((1, 8, 8, 3), v / 127.5 - 1), verbose=0)[0]
        for name, v in levels.items()
    }
    folder = real_folder(tmp_path / "set", {"gray": 100, "light": 200})
    real = [[0, 1, 2], [], [int(scores["gray"].argmax())]] * 2
    (tmp_path / "real.json").write_text(json.dumps(real))
    programs.run(
        "evaluate", "--weights", run, "--dataset", folder, "--split", "test",
        "--real", tmp_path / "real.json", "--output", tmp_path / "out",
    )  # fmt: skip
    results = results_of(tmp_path / "out")
    indices = {"gray": 1, "light": 2}
    right = [scores[name].argmax() == i for name, i in indices.items()]
    assert results["images"] == 4
    assert results["accuracy"] == np.mean(right)
    # Images 2 and 3 are gray, of which 2 has no label; 5 and 6 are light.
    light = scores["light"].argmax() == scores["gray"].argmax()
    assert results["real_accuracy"] == np.mean([1, light])
    assert "top_5_accuracy" not in results


def test_all_images_and_their_mistakes(shades, tmp_path, capsys, recwarn):
    """A class of two images has none in the test set, which is not used alone."""
    pytest.importorskip("tensorflow")
    model, run = shades
    levels = {"dark": 0, "light": 200}
    images = {
        f"{name}/{i}.png": np.full((9, 12, 3), value + i, "uint8")
        for name, value in levels.items()
        for i in range(2)
    }
    folder = write_folder(tmp_path / "val" / "val", images)
    given = ("evaluate", "--weights", run, "--output", tmp_path / "out")
    line = programs.refused(capsys, *given, "--dataset", folder.parent)
    assert f"Name '{folder}' to split" in line and "with --split all" in line
    programs.run(*given, "--dataset", folder, "--split", "all")
    assert not [x for x in recwarn if "test set" in str(x.message)]
    with open(tmp_path / "out" / "mistakes.csv", newline="") as file:
        rows = {row.pop("file"): row for row in csv.DictReader(file)}
    names = ["dark", "gray", "light"]
    for name, image in images.items():
        scores = model.predict(image[None, :8, :8] / 127.5 - 1, verbose=0)
        chances = evaluation.softmax(scores)[0]
        found, true = names[chances.argmax()], name.partition("/")[0]
        wrong = {"true_class": true, "predicted_class": found}
        wrong["probability"] = f"{chances.max():.4f}"
        assert rows.pop(name, None) == (wrong if found != true else None)
    assert not rows


def test_unknown_classes_are_refused(shades, tmp_path, capsys):
    """tests/training/test_load_classifier.py has the other cases."""
    pytest.importorskip("tensorflow")
    _, run = shades
    folder = real_folder(tmp_path / "set", {"gray": 100, "pink": 200})
    given = ("evaluate", "--weights", run, "--output", tmp_path / "out")
    line = programs.refused(capsys, *given, "--dataset", folder)
    assert "but not all 2 of 'set'. It lacks: 'pink'" in line
    assert "train a head on 'set' with `keras-vit train`" in line
    (run / "config.json").unlink()  # then the names are unknown
    line = programs.refused(capsys, *given)
    assert "is unknown: give" in line and "--dataset" in line
    assert not (tmp_path / "out").exists()


def test_real_labels_need_imagenet_file_names(shades, tmp_path, capsys):
    pytest.importorskip("tensorflow")
    folder = real_folder(tmp_path / "set", {"dark": 0, "light": 200})
    (tmp_path / "real.json").write_text("[[1], [2]]")
    line = programs.refused(
        capsys, "evaluate", "--weights", shades[1], "--dataset", folder,
        "--real", tmp_path / "real.json", "--output", tmp_path / "out",
    )  # fmt: skip
    assert "ILSVRC2012_val_00000001.JPEG to 00000002. Received" in line


@pytest.mark.slow
def test_real_labels_of_tfds(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    model = vit(classes=1000)
    head = model.get_layer("head")
    # The class of the highest bias is predicted, whatever the image.
    weights, name = tmp_path / "model.npz", "imagenet2012_real"
    with mocked(tmp_path / "tfds", {name: {"validation": 8}}, 5):
        data = keras_vit.data.load_dataset(name)
        options = {"image_size": 8, "batch_size": 5}
        _, labels, _ = next(iter(data.test(**options)))
        labels = np.asarray(labels)
        usual = int(labels.sum(axis=0).argmax())
        head.set_weights([np.zeros((16, 1000)), np.eye(1000)[usual]])
        keras_vit.converters.save(model, weights)
        programs.run(
            "evaluate", "--weights", weights, "--dataset", name,
            "--output", tmp_path / "out",
        )  # fmt: skip
    results = results_of(tmp_path / "out")
    assert results["images"] == 5 and "accuracy" not in results
    expected = labels[:, usual].mean()
    assert results["real_accuracy"] == pytest.approx(expected) and expected > 0
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {"results.json"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), ("cifar10", "extra", True)),
        (("--test-split", "test"), ("cifar10", "test", True)),
        # The split of the run is that of its own data set.
        (("--dataset", "cifar10"), ("cifar10", None, False)),
    ],
)
def test_data_default_to_those_of_the_run(
    flags, expected, tmp_path, monkeypatch, capsys
):
    model = vit(classes=10)
    model.save(tmp_path / "model.keras")
    config = {
        "dataset": "cifar10",
        "test_split": "extra",
        "skip_bad_images": True,
    }
    (tmp_path / "config.json").write_text(
        json.dumps({"config": config, "data": {"class_names": ["a"] * 10}})
    )
    asked = []

    def load_dataset(name, *, skip_bad_images, test_split):
        asked.append((name, test_split, skip_bad_images))
        raise ValueError("This is all that the test needs.")

    monkeypatch.setattr(classifiers, "load_dataset", load_dataset)
    programs.refused(capsys, "evaluate", "--weights", tmp_path, *flags)
    assert asked == [expected]


@pytest.mark.backends("jax", "tensorflow", "torch")
def test_ten_shots_are_better_than_one(trained_run, tmp_path, capsys):
    output = tmp_path / "out"
    programs.run(
        "few_shot", "--weights", trained_run, "--shots", 1, 10,
        "--l2", 32, 1024, "--output", output,
    )  # fmt: skip
    results = json.loads((output / "results.json").read_text())
    rows = {(r["shots"], r["l2"]): r for r in results["few_shot"]}
    assert list(rows) == [(1, 32), (1, 1024), (10, 32), (10, 1024)]
    for l2 in (32, 1024):
        assert rows[10, l2]["accuracy"] > rows[1, l2]["accuracy"]
    with np.load(output / "features.npz") as stored:
        x, y, test_x, test_y = (
            stored[name] for name in ("train", "train_labels", "test", "test_labels")
        )
    assert x.shape == (1438, 64) and test_x.shape == (359, 64)
    expected = evaluation.few_shot(
        x, y, (1, 10), test_features=test_x, test_labels=test_y, l2=(32, 1024)
    )
    assert expected == results["few_shot"]
    assert results["linear_probe"] > rows[1, 1024]["accuracy"]
    assert results["nearest_neighbors"] > 0.5
    assert results["best_l2"] in (32, 1024)
    assert f"{rows[10, 32]['accuracy']:.4f}" in capsys.readouterr().out


@pytest.mark.backends("torch")
def test_linear_probe_is_skipped_for_large_datasets(capsys):
    recipe = programs.load("few_shot")
    imagenet = 1_281_167 * 1000
    config = recipe.Config(weights="x")
    assert recipe.probe_l2_of(config, imagenet) == 0
    printed = capsys.readouterr().out
    assert "1,281,167,000" in printed and "--probe-l2 0.001" in printed
    cifar100 = 50_000 * 100
    assert recipe.probe_l2_of(config, cifar100) == 0.001
    config = recipe.Config(weights="x", probe_l2=0.5)
    assert recipe.probe_l2_of(config, imagenet) == 0.5
    config = recipe.Config(weights="x", probe_l2=0.0)
    assert recipe.probe_l2_of(config, cifar100) == 0
    assert capsys.readouterr().out == ""


def test_fewer_images_than_shots(trained_run, tmp_path):
    with pytest.warns(UserWarning, match="fewer than 5 images"):
        programs.run(
            "few_shot", "--weights", trained_run, "--max-train", 30,
            "--shots", 5, "--neighbors", 0, "--probe-l2", 0,
            "--output", tmp_path / "out",
        )  # fmt: skip
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert "linear_probe" not in results
    assert results["few_shot"][0]["images"] <= 30
