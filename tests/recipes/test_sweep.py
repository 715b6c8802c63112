"""The sweep over learning rates and its validation split."""

import dataclasses
import json

import pytest

import keras_vit
from keras_vit import training
from keras_vit_programs import flags, presets, setup
from tests.recipes.test_finetune_cifar import (
    read_metadata,
    recipe,
    refused,
    rows_of,
    run,
)

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.usefixtures("few_files"),
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("0.1,0.01,0.1",), (0.01, 0.1)),
        (("paper", "cifar10"), (0.001, 0.003, 0.01, 0.03)),
        (("paper", "imagenet2012:5.1.0"), (0.003, 0.01, 0.03, 0.06)),
        *(((x,), None) for x in ("0.1", "0,1", "a,b", "", "1,inf", "nan,1")),
    ],
)
def test_learning_rates_are_parsed(given, expected):
    if expected is None:
        with pytest.raises(ValueError, match="--sweep must be 'paper', or two"):
            recipe.Config(sweep=given[0])
    else:
        assert flags.parse_learning_rates(*given) == expected


@pytest.fixture
def trained(monkeypatch):
    """The names of the folders that were trained in, in order."""
    folders = []
    train = recipe.train

    def recorded(config, data, strategy, output, **options):
        folders.append(output.name)
        return train(config, data, strategy, output, **options)

    monkeypatch.setattr(recipe, "train", recorded)
    return folders


@pytest.mark.slow
def test_interrupted_sweep_resumes(tmp_path, trained, monkeypatch, capsys):
    output = tmp_path / "out"
    settings = {"steps": 2, "batch_size": 32, "output": str(output)}
    settings["sweep"] = "0.01,0.0001"
    train = recipe.train

    def interrupted(config, data, strategy, folder, **options):
        if folder.name == "lr-0.01":
            raise KeyboardInterrupt
        return train(config, data, strategy, folder, **options)

    monkeypatch.setattr(recipe, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(**settings)
    trial = output / "sweep" / "lr-0.0001"
    first = read_metadata(trial)
    data = keras_vit.data.load_dataset("digits", holdout=0.1)
    assert first["data"]["num_validation"] == data.num_validation == 143
    assert "test_accuracy" not in first
    *_, row = rows_of(trial)
    assert "validation_loss" in row and "test_loss" not in row
    # Each of the validation images counted once.
    right = float(row["validation_accuracy"]) * data.num_validation
    assert right == pytest.approx(round(right), abs=1e-2)
    refused(
        "lr-0.0001/config.json' is of another run: batch_size was 32 and is 16",
        **{**settings, "batch_size": 16},
    )
    changed = {**first, "data": {**first["data"], "num_train": 9}}
    (trial / "config.json").write_text(json.dumps(changed))
    words = f"training images was 9 and is {data.num_train}"
    refused(words, **settings)
    (trial / "config.json").write_text(json.dumps(first))
    monkeypatch.setattr(recipe, "train", train)
    run(**settings)
    # The first rate was not trained with again.
    assert trained == ["lr-0.0001", "lr-0.01", "out"]
    assert read_metadata(trial) == first
    found = json.loads((output / "sweep.json").read_text())
    accuracies = {x["learning_rate"]: x["validation_accuracy"] for x in found["rates"]}
    assert accuracies[0.0001] == first["validation_accuracy"]
    best = max(accuracies, key=accuracies.get)
    assert found["best"] == best
    printed = capsys.readouterr().out
    assert f"{best:<13g}  {accuracies[best]:.4f}  best" in printed
    assert (output / "sweep.png").read_bytes().startswith(b"\x89PNG")
    # The last training has all images, and is tested.
    metadata = read_metadata(output)
    assert metadata["config"]["learning_rate"] == best
    assert metadata["data"]["num_train"] == first["data"]["num_train"] + 143
    assert "test_accuracy" in metadata
    assert (output / "model.keras").exists()
    assert not (output / "sweep" / "lr-0.01" / "model.keras").exists()
    refused("contains a finished run", **settings)
    with pytest.raises(ValueError, match="contains a finished run"):
        setup.begin(recipe.Config(**settings), load=None)  # before the data is read
    refused("leave out --learning-rate", **settings, learning_rate=0.1)


# The accuracy of the replaced training for each learning rate.
FOUND = {0.001: 0.5, 0.003: 0.75, 0.01: 0.75, 0.03: None}


@pytest.fixture
def quick(monkeypatch):
    """Replaces the training; returns its learning rates. High ones diverge."""
    rates = []

    def train(config, data, strategy, output, keep=True):
        rate = config.learning_rate
        rates.append((rate, keep))
        output.mkdir(parents=True, exist_ok=True)
        if FOUND[rate] is None:
            raise training.Diverged("The loss is nan at step 1")
        return {
            f"{data.evaluation_split}_accuracy": FOUND[rate],
            "seconds": 1,
            "resumed_from": 0,
            "config": {"mode": config.mode, "image_size": 8},
            "data": {"name": "digits", "channels": 1, "max_value": 16},
            "kept": {"chosen_by": None},
        }

    monkeypatch.setattr(recipe, "train", train)
    return rates


def test_sweep_continues_after_a_diverged_run(tmp_path, quick, capsys):
    output = tmp_path / "out"
    run(steps=1, batch_size=8, sweep="paper", output=str(output))
    # The lowest of equal ones is chosen.
    trials = [(rate, False) for rate in (0.001, 0.003, 0.01, 0.03)]
    assert quick == [*trials, (0.003, True)]
    printed = capsys.readouterr().out
    assert "accuracy on 143 validation images\n" in printed
    assert (
        "0.003          0.7500  best, the lowest of equals\n0.01           0.7500\n"
        in printed
    )
    assert "0.03           diverged\n" in printed
    assert json.loads((output / "sweep.json").read_text())["best"] == 0.003
    # A resumed sweep does not repeat the diverged run.
    metadata = read_metadata(output / "sweep" / "lr-0.03")
    assert metadata["diverged"] == "The loss is nan at step 1"
    del quick[:]
    run(steps=1, batch_size=8, sweep="paper", output=str(output))
    assert (0.03, False) not in quick


def test_final_training_includes_the_validation_images(tmp_path, quick, monkeypatch):
    """The paper measures the learning rates on a validation split only."""
    counts = []
    complete = recipe.resolve_config

    def recorded(config, data):
        counts.append((data.num_train, data.num_validation))
        return complete(config, data)

    monkeypatch.setattr(recipe, "resolve_config", recorded)
    preset = presets.FINE_TUNING[None]
    preset = dataclasses.replace(preset, left_out={"digits": 0.2})
    monkeypatch.setitem(presets.FINE_TUNING, None, preset)
    output = str(tmp_path / "out")
    run(steps=1, batch_size=8, sweep="0.001,0.003", output=output)
    assert counts == [(1295, 143), (1295, 143), (1438, 0)]


def test_sweep_raises_if_every_run_diverges(tmp_path, quick, monkeypatch):
    monkeypatch.setitem(FOUND, 0.01, None)
    with pytest.raises(training.Diverged, match="every learning rate"):
        run(steps=1, sweep="0.01,0.03", output=str(tmp_path / "out"))
