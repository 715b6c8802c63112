"""The README's Python runs, its commands are those that are used, and it stays
short."""

import functools
import pathlib
import re
import tomllib

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SIZES = (ROOT / "docs" / "sizes.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# What is replaced to run in seconds, without a download.
SMALLER = {
    'ViTB16(weights="imagenet")': 'ViTTi16(weights="Ti_16.npz")',
    'ViTB16(weights="imagenet21k"': 'ViTTi16(weights="Ti_16.npz"',
    "target_size=(224, 224)": "target_size=(32, 32)",
    "image_size=224, batch_size=32": "image_size=32, batch_size=4",
    "steps_per_epoch=500": "steps_per_epoch=2",
}


@pytest.mark.slow
def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = keras_vit.ViTTi16(input_shape=(32, 32, 3), classes=7)
    keras_vit.converters.save(file, "Ti_16.npz")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        pathlib.Path("photos", name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (40, 50, 3)).astype("uint8")
            Image.fromarray(pixels).save(f"photos/{name}/{i}.png")
    pathlib.Path("photos/cat/0.png").rename("photo.jpg")
    decode = keras_vit.decode_predictions
    labels = [f"class {i}" for i in range(7)]
    decode = functools.partial(decode, labels=labels)
    monkeypatch.setattr(keras_vit, "decode_predictions", decode)
    names = {}
    unused = dict(SMALLER)
    for block in BLOCKS:
        for text, smaller in SMALLER.items():
            if text in block:
                unused.pop(text, None)
                block = block.replace(text, smaller)
        exec(compile(block, "README.md", "exec"), names)
    assert not unused
    assert names["images"].shape == (1, 32, 32, 3)
    assert names["model"].output_shape == (None, 2)
    saved = keras.models.load_model("photos.keras")
    assert list(saved.class_names) == ["cat", "dog"]
    inputs = np.zeros((1, 32, 32, 3))
    np.testing.assert_array_equal(
        *(model.predict(inputs) for model in (saved, names["model"]))
    )


def test_accuracies_are_those_of_the_cards():
    cards = ROOT / "tools" / "site" / "released.toml"
    pages = tomllib.loads(cards.read_text())["pages"]
    count = 0
    for row in README.splitlines():
        (_, name, *_, cell, _) = [*row.split("|"), "", "", ""][:6]
        tag = re.match(r" `([\w.+-]+)`", name)
        for number, size in re.findall(r"(\d+\.\d) ([\w/+]+)", cell):
            stem = {"R50+B/16": "R50ViTB16"}.get(size, "ViT" + size)
            models = stem.replace("/", ""), f"BiT_{size}"
            found = [
                card["accuracy"][model]
                for page in pages
                for card in [page["cards"].get(tag[1], {})]
                for model in models
                if model in card.get("accuracy", {})
            ]
            assert float(number) in [round(x, 1) for x in found], (row, size)
            count += 1
    assert count > 15


def test_ci_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "\n".join(f"    {x}" for x in script[-2:]) + "\n" in README


def test_parameters_of_the_table_of_sizes():
    from tests.models.test_variants import PARAMETERS

    for variant, count in PARAMETERS.items():
        assert f"`{variant}`" in SIZES
        assert f"{count:,}" in SIZES


def test_number_of_names_of_weights():
    from keras_vit.weights.released import RELEASED

    (count,) = re.findall(r"one of (\d+) names of released weights", README)
    assert int(count) == len({tag for _, tag in RELEASED})
