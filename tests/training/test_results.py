"""What a run prints and draws of its results."""

import functools
import textwrap
import types

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.data.splits import stratified_split
from keras_vit.preprocessing import preprocess_input
from keras_vit_programs import curves, logs, run_report
from keras_vit_programs import runs as results
from tests.small import hybrid, tiny

pytestmark = pytest.mark.backends("torch")


def printed_code(metadata, folder, capsys):
    logs.show()
    run_report.print_results(metadata, folder)
    lines = capsys.readouterr().out.splitlines()
    return [line.strip() for line in lines if line.startswith("  ")]


def metadata_of(name, channels, mode, loss="softmax"):
    data = {"name": name, "channels": channels}
    return {
        "config": {"mode": mode, "image_size": 8, "loss": loss},
        "data": {**data, "max_value": 16 if channels == 1 else 255},
        "resumed_from": 0,
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
def test_printed_code_scales_photos_as_in_training(tmp_path, capsys, name, mode, loss):
    """Probabilities are printed only where they add up to 1."""
    code = printed_code(metadata_of(name, 3, mode, loss), tmp_path, capsys)
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    expected = keras_vit.preprocess_input(images, mode=mode)
    assert np.array_equal(scaled(images, code), expected)
    decoded = any("decode_predictions" in line for line in code)
    assert decoded == (loss == "softmax")


def test_sample_evenly_spreads_over_the_dataset():
    images = np.arange(103, dtype="float32").reshape(-1, 1, 1, 1)
    batches = [
        (images[i : i + 10], images[i : i + 10, 0, 0, 0].astype(int))
        for i in range(0, 103, 10)
    ]
    picked, labels = curves.sample_evenly(batches, 103, 5)
    assert labels.tolist() == [0, 25, 51, 76, 102]
    assert np.array_equal(picked[:, 0, 0, 0], labels)
    assert len(curves.sample_evenly(batches, 103, 500)[1]) == 103


def classifier(channels):
    inputs = keras.Input((4, 4, channels))
    outputs = keras.layers.GlobalMaxPooling2D()(inputs)
    return keras.Model(inputs, keras.layers.Dense(2)(outputs))


def count_of(path, color):
    """The number of pixels of a picture that have a color."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return np.sum(np.abs(pixels - color).max(-1) <= 1)


@pytest.mark.parametrize(
    "mode, color",
    [("tf", (200, 120, 40)), ("torch", (200, 120, 40)), ("tf", (90,))],
)
def test_plotted_predictions_keep_the_colors_of_the_images(tmp_path, mode, color):
    """Images of one color are as in the folder; names may be any text."""
    images = np.full((2, 4, 4, len(color)), color, "uint8")
    images = preprocess_input(images, mode=mode)
    model, path = classifier(len(color)), tmp_path / "predictions.png"
    # Some would be formulas, or no text at all.
    names = ["$^$ and \udce9", "a name that is far too long for a picture"]
    logits = model.predict(images, verbose=0)
    found = curves.plot_predictions(
        logits, images, [0, 1], names, path, "$^$", mode=mode
    )
    assert np.array_equal(found, logits.argmax(-1))
    # Two squares of more than an inch, at 110 pixels an inch.
    assert count_of(path, color) > 2 * 110**2


@pytest.mark.backends("tensorflow")
def test_predictions_of_a_run_keep_the_colors_of_the_images(tmp_path):
    images = np.full((4, 6, 6, 3), (200, 120, 40), np.uint8)
    data = keras_vit.data.from_arrays(images, [0, 1, 0, 1], (images, [0] * 4))
    reading = {"image_size": 4, "mode": "torch", "protocol": "simple"}
    alone = keras_vit.distribution.get_strategy("none")
    run = results.Run(tmp_path, data, alone, 1, 2, 1, reading, reading)
    metadata = {"model": {"name": "m"}, "test_accuracy": 0.5}
    results.write_predictions(run, classifier(3), metadata)
    path = tmp_path / "predictions.png"
    assert count_of(path, (200, 120, 40)) > 4 * 110**2


def test_documented_run_of_a_program_without_flags(tmp_path):
    """The example of `Run`, with a model; what it needs is missed at once."""
    data = keras_vit.data.load_dataset("digits")
    alone = keras_vit.distribution.get_strategy("none")
    names = {
        "Run": functools.partial(results.Run, tmp_path / "run", data, alone),
        "model_of": lambda: tiny(input_shape=(8, 8, 1), classes=10),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "rate": lambda step: 0.1,
    }
    code = results.Run.__doc__.split("```")[1].removeprefix("python\n")
    code = code.replace("folder, data, strategy, 500, 64, 100", "2, 64, 1")
    code = code.replace("= ...", "= model_of()").replace("schedule", "rate")
    code = code.replace("(...)", "('sgd', loss)")
    exec(textwrap.dedent(code), names)
    assert {"model.keras", "config.json", "predictions.png"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    for given in ({}, {"image_size": 8}):
        with pytest.raises(ValueError, match=r"`reading`.*'mode'.*Received: "):
            names["Run"](2, 64, 1, given, {"image_size": 8, "mode": "tf"})


@pytest.mark.parametrize("model, pixels", [(tiny, 4), (hybrid, 8)])
def test_the_size_of_patches_is_in_pixels_of_the_image(model, pixels):
    """Those of a hybrid are 1 x 1 on the feature map of its ResNet."""
    model = model()
    assert pixels == keras_vit.inspection.token_layout(model).patch_size[0]
    data = keras_vit.data.load_dataset("digits")
    strategy = keras_vit.distribution.Strategy("none", "as asked")
    run = types.SimpleNamespace(
        data=data,
        settings={"patch_size": model.config.patch_size[0]},
        strategy=strategy,
        steps=1,
        batch_size=1,
        evaluate_every=2,
        summary="",
        folder="out",
    )
    text = run_report.describe_run(run, model, 0)
    words = " ".join(text.split())
    assert f", patches {pixels} x {pixels} " in words
    assert " training 1 step of 1 image (0.0 epochs), on torch " in words
    assert " rows one after every 2 steps" in words
