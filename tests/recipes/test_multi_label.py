"""Images of several classes: trained, evaluated and predicted."""

import csv
import json

import keras
import numpy as np
import pytest

import keras_vit
from tests.recipes import programs

recipe = programs.load("finetune_cifar")
CLASSES = ("blue", "green", "red")
FLAGS = {"image_size": 8, "patch_size": 4, "batch_size": 8, "protocol": "whole"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A CSV file of images whose channels are bright or dark."""
    pytest.importorskip("tensorflow")
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(40):
        bright = rng.integers(0, 2, 3)
        pixels = np.full((10, 12, 3), 40) + 180 * bright
        keras.utils.array_to_img(pixels, scale=False).save(folder / f"{number}.png")
        names = [n for n, b in zip(CLASSES[::-1], bright, strict=True) if b]
        rows.append((f"{number}.png", ";".join(names)))
    with open(folder / "photos.csv", "w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *rows])
    return folder / "photos.csv"


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "photos"
    config = recipe.Config(
        dataset=str(photos),
        loss="sigmoid",
        steps=40,
        evaluate_every=20,
        learning_rate=0.01,
        keep="best",
        patience=9,
        average_from=0.75,
        output=str(output),
        **FLAGS,
    )
    recipe.main(config)
    return output


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_training_is_evaluated_by_average_precision(run, tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    rows = programs.rows_of(run)
    assert list(rows[0])[:5] == [
        "step",
        "train_loss",
        "train_mean_average_precision",
        "test_loss",
        "test_mean_average_precision",
    ]
    facts = programs.read_metadata(run)
    found = facts["test_mean_average_precision"]
    assert found > 0.9
    assert facts["kept"]["chosen_by"] == "test_mean_average_precision"
    programs.run("evaluate", "--weights", run, "--output", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    # Of the run it is that of rounded logits.
    assert results["mean_average_precision"] == pytest.approx(found, abs=0.02)
    assert results["classes_without_images"] == 0
    with open(tmp_path / "out" / "per_class.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["class"] for row in table] == list(CLASSES)
    assert np.mean([float(row["average_precision"]) for row in table]) == pytest.approx(
        results["mean_average_precision"]
    )
    data = keras_vit.data.load_dataset(facts["config"]["dataset"])
    options = {"image_size": 8, "protocol": "whole", "batch_size": 8}
    # A head that ends in a sigmoid has the same results.
    for activation in (None, "sigmoid"):
        model = keras_vit.converters.load(
            run / "model.keras", classifier_activation=activation
        )
        outputs, labels = keras_vit.evaluation.predict_dataset(
            model, data.test(**options), data.num_test
        )
        expected = metrics.average_precision_score(labels, outputs)
        assert results["mean_average_precision"] == pytest.approx(expected)
    folder = tmp_path / "sigmoid"
    folder.mkdir()
    (folder / "config.json").write_bytes((run / "config.json").read_bytes())
    model.save(folder / "model.keras")
    programs.run("evaluate", "--weights", folder, "--output", folder / "out")
    with open(folder / "out" / "per_class.csv", newline="") as file:
        assert list(csv.DictReader(file)) == table


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_all_likely_classes_are_predicted(run, photos, tmp_path):
    programs.run(
        "predict", "--weights", run, "--images", photos.parent,
        "--output", tmp_path / "out",
    )  # fmt: skip
    facts = json.loads((tmp_path / "out" / "predictions.json").read_text())
    with open(tmp_path / "out" / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    model = keras.models.load_model(run / "model.keras")
    for one, row in zip(facts["predictions"], rows, strict=True):
        image = keras.utils.load_img(row["file"], target_size=(8, 8))
        image = keras_vit.preprocess_input(np.asarray(image)[None])
        logits = model.predict(image, verbose=0)[0].astype("float64")
        expected = 1 / (1 + np.exp(-logits))
        likely = [i for i in np.argsort(-expected) if expected[i] > 0.5]
        names = [CLASSES[i] for i in likely]
        assert [known["name"] for known in one["classes"]] == names
        for i, known in enumerate(one["classes"]):
            assert row[f"class_{i + 1}"] == known["name"]
            probability = expected[likely[i]]
            assert known["probability"] == pytest.approx(probability, abs=1e-4)
    counts = {len(one["classes"]) for one in facts["predictions"]}
    assert len(counts) > 1
