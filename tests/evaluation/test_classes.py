"""What a training says at its end."""

import pytest

from keras_vit.evaluation import class_table
from keras_vit.evaluation.classes import overfitting

pytestmark = pytest.mark.backends("torch")


def test_table_of_classes():
    rows = [
        {
            "class": f"class {i}\n",
            "images": 10 if i else 0,
            "accuracy": i / 12 if i else None,
            "mistaken_for": "x" if i < 11 else None,
            "times": 3,
        }
        for i in range(12)
    ]
    head, *lines = class_table(rows).splitlines()
    assert head.split()[:3] == ["class", "images", "accuracy"]
    assert len(lines) == 11 and lines[5] == "..."
    assert lines[0].split() == ["class", r"1\n", "10", "0.0833", "x", "(3)"]
    assert lines[-1].split() == ["class", r"11\n", "10", "0.9167"]


@pytest.mark.parametrize(
    ("train", "test", "step"),
    [
        ((1.0, 0.5, 0.1), (1.0, 0.8, 0.9), 20),
        ((1.0, 0.5, 0.1), (1.0, 0.8, 0.85), None),  # by less than a tenth
        ((1.0, 0.5, 0.6), (1.0, 0.8, 0.9), None),  # both rise: it diverges
    ],
)
def test_overfitting_is_said(train, test, step):
    rows = [
        {"step": 10 * i + 10, "train_loss": train[i], "test_loss": test[i]}
        for i in range(3)
    ]
    text = overfitting(rows, "test")
    assert bool(text) == bool(step)
    assert not step or f"0.8000 at step {step}, and is 0.9000 now" in text
    assert max(map(len, text.splitlines()), default=0) <= 80
