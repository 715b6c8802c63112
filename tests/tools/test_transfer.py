"""tools/transfer.py and tools/transfer_sets.py."""

import importlib.util
import json
import pathlib
import random

import numpy as np
import pytest
from PIL import Image

import keras_vit
from tests.small import vit

pytestmark = pytest.mark.backends("torch")
TOOLS = pathlib.Path(__file__).parents[2] / "tools"


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sets_are_the_same_each_time():
    sets = load("transfer_sets")
    splits = [split for split, _, _ in sets.digits()]
    assert (len(splits), splits.count("test")) == (1797, 360)
    picture = Image.new("RGBA", (40, 30), (255, 0, 0, 255))
    photos = [Image.new("RGB", (300, 200), (0, 0, shade)) for shade in (1, 2)]
    (first, mask), (second, _) = (
        map(np.asarray, sets.composed(picture, photos, random.Random(0)))
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(mask, first[..., 0] > 127)
    assert first.shape == (84, 84, 3)
    # The picture has its own proportions.
    rows, columns = np.nonzero(first[..., 0] > 250)
    height, width = (np.ptp(x) + 1 for x in (rows, columns))
    assert width / height == pytest.approx(4 / 3, abs=0.1)
    assert 0.6 * 84 - 2 <= width <= 0.95 * 84


@pytest.mark.slow
def test_table_of_frozen_features(tmp_path, capsys):
    pytest.importorskip("tensorflow")
    transfer = load("transfer")
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 12)):
        for i in range(count):
            folder = tmp_path / "set" / split / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 128, (8, 8, 3)) + 127 * (i % 2)
            image = Image.fromarray(pixels.astype("uint8"))
            image.save(folder / f"{i}.png")
    model = vit(input_shape=(16, 16, 3), include_top=False)
    weights = str(tmp_path / "encoder.npz")
    keras_vit.converters.save(model, weights)
    folder = str(tmp_path / "set")
    transfer.probes(folder, weights, ["--image-size", "8", "--mode", "tf"])
    header, _, *rows = capsys.readouterr().out.splitlines()[-7:]
    assert header.startswith("| features | k-NN |") and len(rows) == 5
    pixels = rows[-1].split(" | ")
    assert pixels[0] == "| pixels" and float(pixels[1]) == 1.0


def test_runs_are_those_of_the_recipe(tmp_path, monkeypatch, capsys):
    transfer = load("transfer")
    recipe = importlib.import_module("finetune_cifar")
    seen = []

    def main(config):
        seen.append((config.train, bool(config.weights), config.seed))
        assert (config.dataset, config.steps) == ("set", 1)
        results = {"test_accuracy": config.seed / 10, "seconds": 2.0}
        pathlib.Path(config.output).mkdir(parents=True)
        path = pathlib.Path(config.output, "config.json")
        path.write_text(json.dumps(results))

    monkeypatch.setattr(recipe, "main", main)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # finished runs are read
        transfer.training("set", "x.npz", ["--steps", "1"])
        rows = capsys.readouterr().out.splitlines()[-4:]
        assert [row.split(" | ")[0] for row in rows] == [
            *("| all", "| lora", "| head", "| scratch")
        ]
        assert rows[0] == "| all | 0.000 | 0.100 | 0.200 | 0.100 | 0.100 | 2 |"
    trained = (("all", True), ("lora", True), ("head", True), ("all", False))
    assert seen == [(*pair, seed) for pair in trained for seed in range(3)]
