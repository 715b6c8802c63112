"""What a training says at its end."""

import csv
import re
import types

import numpy as np
import pytest

import keras_vit
from keras_vit import evaluation
from keras_vit_programs import class_results
from keras_vit_programs.class_results import class_table, overfitting
from tests.small import randomize, vit

pytestmark = pytest.mark.backends("torch")


def test_table_of_classes():
    rows = [
        {
            "class": f"class {i}\n",
            "images": 10 if i else 0,
            "right": i,
            "accuracy": i / 12 if i else None,
            "mistaken_for": "x" if i < 11 else None,
            "times": 3,
        }
        for i in range(12)
    ]
    head, *lines, last = class_table(rows).splitlines()
    assert head.split()[:3] == ["class", "images", "accuracy"]
    assert len(lines) == 11 and lines[5] == "..."
    assert lines[0].split() == ["class", r"1\n", "10", "0.0833", "x", "(3)"]
    assert lines[-1].split() == ["class", r"11\n", "10", "0.9167"]
    assert last == (
        "66 of 110 images are classified correctly; the most frequent class alone "
        "gives 10."
    )
    rows[0] |= {"images": 1000, "right": 0, "accuracy": 0.0}
    assert "classified" not in class_table(rows)  # too many to count
    rows[1]["times"] = 1
    assert "0.0833  several classes, once each\n" in class_table(rows[1:2])


@pytest.mark.parametrize(
    ("train", "test", "images", "step"),
    [
        ((1.0, 0.5, 0.1), (1.0, 0.8, 0.9), 50, 20),
        ((1.0, 0.5, 0.1), (1.0, 0.8, 0.9), 37, None),  # by less than an image's loss
        ((1.0, 0.5, 0.1), (1.0, 0.8, 0.87), 1000, None),  # by less than a tenth
        ((1.0, 0.5, 0.6), (1.0, 0.8, 0.9), 1000, None),  # both rise: it diverges
    ],
)
def test_overfitting_is_said(train, test, images, step):
    rows = [
        {"step": 10 * i + 10, "train_loss": train[i], "test_loss": test[i]}
        for i in range(3)
    ]
    text = overfitting(rows, "test", images)
    assert bool(text) == bool(step)
    assert not step or f"0.8000 at step {step}, and is 0.9000 now" in text
    assert max(map(len, text.splitlines()), default=0) <= 80


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_mistakes_have_the_probabilities_of_the_loss(loss, tmp_path, monkeypatch):
    data = keras_vit.data.load_dataset("digits")
    model = vit(input_shape=(8, 8, 1), classes=10)
    randomize(model)
    options = {"image_size": 8, "mode": "tf", "protocol": "simple"}
    run = types.SimpleNamespace(
        data=data,
        reading=options,
        settings={"loss": loss},
        keep="last",
        folder=tmp_path,
        micro_batch_size=100,
        checkpoints=types.SimpleNamespace(rows=[{"test_loss": 1.0, "train_loss": 1.0}]),
    )
    drawn = []
    plot = class_results.plot_attention_heatmap
    monkeypatch.setattr(
        class_results,
        "plot_attention_heatmap",
        lambda *given: drawn.append(given) or plot(*given),
    )
    summary = {"model": {"name": "m"}, "test_accuracy": 0.5}
    class_results.write_class_results(run, model, summary)
    assert (tmp_path / "predictions.png").exists()
    images, labels, _ = data.test(image_size=8, batch_size=359)[0]
    logits = model.predict(images, verbose=0)
    chances = evaluation.probabilities(model, logits, loss)
    chances[chances.argmax(1) == labels] = 0
    order = np.argsort(-chances.max(1), kind="stable")
    with open(tmp_path / "mistakes.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["file", "true_class", "predicted_class", "probability"]
    assert rows == [
        [str(i), str(labels[i]), str(chances[i].argmax()), f"{chances[i].max():.4f}"]
        for i in order
        if chances[i].any()
    ]
    most = order[:8]
    ((shown, _, titles),) = drawn
    np.testing.assert_allclose(shown, images[most], atol=1e-5)
    assert titles == [
        f"true: {labels[i]}\nmodel: {chances[i].max():.0%} {chances[i].argmax()}"
        for i in most
    ]
    # A classifier without a mistake has none to draw.
    (tmp_path / "mistakes.png").unlink()
    right = np.eye(10, dtype="float32")[labels]
    monkeypatch.setattr(class_results, "predict_dataset", lambda *_: (right, labels))
    class_results.write_class_results(run, model, summary)
    assert not (tmp_path / "mistakes.png").exists()
    assert len((tmp_path / "mistakes.csv").read_text().splitlines()) == 1


@pytest.mark.parametrize("protocol, sides", [("simple", (8, 16)), ("mae", (8, 8))])
def test_mistakes_have_the_aspect_and_the_name_of_whole_images(
    protocol, sides, tmp_path, monkeypatch
):
    digits = keras_vit.data.load_dataset("digits")
    model = vit(input_shape=(8, 8, 1), classes=10)
    randomize(model)
    reading = {"image_size": 8, "mode": "tf", "protocol": protocol}
    # Digits have no protocols, and are squares.
    data = types.SimpleNamespace(
        name="wide",
        class_names=digits.class_names,
        multi_label=False,
        num_evaluation=100,
        evaluation_split="test",
        evaluation=lambda **_: [
            [x[:100] for x in digits.test(image_size=8, batch_size=100)[0]]
        ],
        read=lambda split, index: (np.zeros((10, 20, 1)), 0),
        image_names=lambda split: [f"a/{i}.png" for i in range(100)],
    )
    run = types.SimpleNamespace(
        data=data,
        reading=reading,
        settings={},
        keep="best",
        folder=tmp_path,
        micro_batch_size=100,
        checkpoints=types.SimpleNamespace(rows=[{"test_loss": 1.0, "train_loss": 1.0}]),
    )
    drawn, plot = [], class_results.plot_attention_heatmap
    monkeypatch.setattr(class_results, "draw_predictions", lambda *given: None)
    monkeypatch.setattr(
        class_results,
        "plot_attention_heatmap",
        lambda *given: drawn.append(given) or plot(*given),
    )
    class_results.write_class_results(run, model, {})
    ((shown, _, titles),) = drawn
    assert {image.shape[:2] for image in shown} == {sides}
    logits = model.predict(data.evaluation()[0][0], verbose=0)
    labels = data.evaluation()[0][1]
    wrong = logits.argmax(1) != labels
    pattern = r"(\d+)\.png\ntrue: (\d)\nmodel: \d+% (\d)"
    named = [re.fullmatch(pattern, x) for x in titles]
    for index, label, predicted in (map(int, found.groups()) for found in named):
        assert wrong[index]
        assert (predicted, label) == (logits[index].argmax(), labels[index])
