import csv
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import command_line
from tests.recipes import programs
from tests.training.mocked import mocked

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


def test_output_files(evaluated):
    with open(evaluated / "per_class.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == list("0123456789")
    assert sum(int(row["images"]) for row in rows) == 359
    right = sum(int(row["right"]) for row in rows)
    assert right / 359 == pytest.approx(results_of(evaluated)["accuracy"])
    for name in ("reliability.png", "confusion.png"):
        assert (evaluated / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_other_weights_size_and_split(trained_run, tmp_path, capsys):
    programs.run(
        "evaluate", "--weights", trained_run / "model.npz", "--image-size", 16,
        "--split", "all", "--bins", 7, "--output", tmp_path / "out",
    )  # fmt: skip
    results = results_of(tmp_path / "out")
    assert results["images"] == 1797 and results["calibration_bins"] == 7
    assert results["reading"]["image_size"] == 16
    printed = " ".join(capsys.readouterr().out.split())
    assert "config.json, unless flags say otherwise" in printed


def image(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    keras.utils.array_to_img(
        np.full((9, 12, 3), value), data_format="channels_last", scale=False
    ).save(path)


def real_folder(root, classes):
    """Gray levels; the model below knows 0, 100 and 200 by their classes."""
    number = 0
    for name, value in classes.items():
        for part, count in (("train", 1), ("test", 2)):
            for _ in range(count):
                number += 1
                file = f"ILSVRC2012_val_{number:08}.png"
                image(root / part / name / file, value)
    return root


@pytest.fixture
def shades(tmp_path):
    """A run's folder: a model that classifies dark, gray and light."""
    model = keras_vit.VisionTransformer(
        patch_size=4,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        input_shape=(8, 8, 3),
        classes=3,
    )
    folder = tmp_path / "run"
    folder.mkdir()
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    model.save(folder / "model.keras")
    metadata = {
        "config": {"mode": "tf", "protocol": "vit_jax", "image_size": 8},
        "data": {"class_names": ["dark", "grey", "light"]},
    }
    (folder / "config.json").write_text(json.dumps(metadata))
    return model, folder


@pytest.mark.slow
def test_folder_with_fewer_classes_in_another_order(shades, tmp_path):
    pytest.importorskip("tensorflow")
    model, run = shades
    levels = {"dark": 0, "grey": 100, "light": 200}
    scores = {
        name: model.predict(np.full((1, 8, 8, 3), v / 127.5 - 1), verbose=0)[0]
        for name, v in levels.items()
    }
    folder = real_folder(tmp_path / "set", {"grey": 100, "light": 200})
    real = [[0, 1, 2], [], [int(scores["grey"].argmax())]] * 2
    (tmp_path / "real.json").write_text(json.dumps(real))
    programs.run(
        "evaluate", "--weights", run, "--dataset", folder, "--split", "test",
        "--real", tmp_path / "real.json", "--output", tmp_path / "out",
    )  # fmt: skip
    results = results_of(tmp_path / "out")
    indices = {"grey": 1, "light": 2}
    right = [scores[name].argmax() == i for name, i in indices.items()]
    assert results["images"] == 4
    assert results["accuracy"] == np.mean(right)
    # Images 2 and 3 are gray, of which 2 has no label; 5 and 6 are light.
    light = scores["light"].argmax() == scores["grey"].argmax()
    assert results["real_accuracy"] == np.mean([1, light])
    assert "top_5_accuracy" not in results


def test_unknown_classes_are_refused(shades, tmp_path, capsys, trained_run):
    pytest.importorskip("tensorflow")
    _, run = shades
    folder = real_folder(tmp_path / "set", {"grey": 100, "pink": 200})
    line = programs.refused(
        capsys, "evaluate", "--weights", run, "--dataset", folder,
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert "1 of the 2 classes of 'set' are not among them: 'pink'" in line
    assert "train a head: recipes/finetune_cifar" in line
    (run / "config.json").unlink()  # then the names are unknown
    line = programs.refused(
        capsys, "evaluate", "--weights", run, "--dataset", folder,
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert "The model has 3 classes with no names, and 'set' has 2." in line
    line = programs.refused(capsys, "evaluate", "--weights", run)
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
    model = keras_vit.VisionTransformer(
        patch_size=4,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        input_shape=(8, 8, 3),
    )
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
    model = keras_vit.VisionTransformer(
        patch_size=4,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        input_shape=(8, 8, 3),
        classes=10,
    )
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

    monkeypatch.setattr(command_line, "load_dataset", load_dataset)
    programs.refused(capsys, "evaluate", "--weights", tmp_path, *flags)
    assert asked == [expected]


def test_wrong_flags_are_refused(trained_run, capsys, tmp_path):
    assert "Give --weights" in programs.refused(capsys, "evaluate")
    weights = ("--weights", trained_run)
    line = programs.refused(capsys, "evaluate", *weights, "--split", "dev")
    assert "--split must be one of ('test', 'train', 'all')" in line
    line = programs.refused(
        capsys, "evaluate", *weights, "--real", tmp_path / "none.json"
    )
    assert "No such file" in line and "none.json" in line
    (tmp_path / "real.json").write_text("[[1]]")
    line = programs.refused(
        capsys, "evaluate", *weights, "--real", tmp_path / "real.json"
    )
    assert "The images of 'digits' have no names" in line
    line = programs.refused(capsys, "evaluate", "--weights", tmp_path / "x.npz")
    assert "There is no file" in line
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    line = programs.refused(
        capsys, "evaluate", *weights, "--output", tmp_path / "out"
    )
    assert "--overwrite" in line
