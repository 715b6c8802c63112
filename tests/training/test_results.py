"""The code that a run prints for the use of its model."""

import types

import numpy as np
import pytest

import keras_vit
from keras_vit import _logging
from keras_vit.data.splits import stratified_split
from keras_vit.training import training_run as results

pytestmark = pytest.mark.backends("torch")


def printed_code(metadata, folder, capsys):
    _logging.show()
    results.print_results(metadata, folder)
    lines = capsys.readouterr().out.splitlines()
    return [line.strip() for line in lines if line.startswith("  ")]


def metadata_of(name, channels, mode, loss="softmax"):
    data = {"name": name, "channels": channels}
    return {
        "config": {"mode": mode, "image_size": 8, "loss": loss},
        "data": {**data, "max_value": 16 if channels == 1 else 255},
        "seconds": 1.0,
        "kept": {"chosen_by": None},
        "test_accuracy": 0.5,
    }


def scaled(images, code):
    """Returns the images after the preprocessing of the printed code."""
    ran = []
    names = {
        "keras_vit": keras_vit,
        "images": images,
        "model": types.SimpleNamespace(predict=ran.append),
    }
    for line in code:
        if line.startswith(("images =", "logits =")):
            exec(line, names)
    (found,) = ran
    return found


def test_printed_code_scales_digits_as_in_training(tmp_path, capsys):
    datasets = pytest.importorskip("sklearn.datasets")
    code = printed_code(metadata_of("digits", 1, "tf"), tmp_path, capsys)
    raw, labels = datasets.load_digits(return_X_y=True)
    raw = raw.reshape(-1, 8, 8, 1)
    data = keras_vit.data.load_dataset("digits")
    expected = data.test(image_size=8, batch_size=data.num_test)[0][0]
    found = scaled(raw, code)[stratified_split(labels)[1]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


# One of the folders is named digits.
@pytest.mark.parametrize(
    "name, mode, loss",
    [
        ("photos", "tf", "softmax"),
        ("photos", "torch", "sigmoid"),
        ("digits", "tf", "softmax"),
    ],
)
def test_printed_code_scales_photos_as_in_training(
    tmp_path, capsys, name, mode, loss
):
    """Probabilities are printed only where they add up to 1."""
    code = printed_code(metadata_of(name, 3, mode, loss), tmp_path, capsys)
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    expected = keras_vit.preprocess_input(images, mode=mode)
    assert np.array_equal(scaled(images, code), expected)
    decoded = any("decode_predictions" in line for line in code)
    assert decoded == (loss == "softmax")
