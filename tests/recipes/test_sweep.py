"""The learning rate's grid, and the validation split that chooses from it."""

import json

import pytest

import keras_vit
from keras_vit import training
from tests.recipes.test_finetune_cifar import facts_of
from tests.recipes.test_finetune_cifar import recipe
from tests.recipes.test_finetune_cifar import refused
from tests.recipes.test_finetune_cifar import rows_of
from tests.recipes.test_finetune_cifar import run

pytestmark = [
    pytest.mark.usefixtures("small_model"),
    pytest.mark.backends("torch"),
]


def test_grids():
    assert training.parse_learning_rates("0.1,0.01,0.1") == (0.01, 0.1)
    assert training.parse_learning_rates("paper", "cifar10") == (
        0.001,
        0.003,
        0.01,
        0.03,
    )
    rates = training.parse_learning_rates("paper", "imagenet2012:5.1.0")
    assert rates == (0.003, 0.01, 0.03, 0.06)


@pytest.mark.parametrize("sweep", ["0.1", "0,1", "a,b", "", "1,inf", "nan,1"])
def test_no_grid(sweep):
    with pytest.raises(ValueError, match="--sweep must be 'paper', or two"):
        recipe.Config(sweep=sweep)


def test_flags_that_do_not_go_together():
    with pytest.raises(ValueError, match="--sweep or --learning-rate"):
        recipe.Config(sweep="paper", learning_rate=0.1)
    with pytest.raises(ValueError, match="--holdout must be .*'much'"):
        recipe.Config(holdout="much")
    with pytest.raises(ValueError, match="share above 0.*--holdout 0"):
        recipe.Config(sweep="paper", holdout=0.0)


def test_dev_images_are_evaluated_on(tmp_path):
    output = tmp_path / "out"
    run(steps=1, batch_size=64, holdout="0.1", cutmix=1.0, output=str(output))
    facts = facts_of(output)
    data = keras_vit.data.load_dataset("digits", holdout=0.1)
    assert facts["data"]["num_validation"] == data.num_validation == 143
    assert "test_accuracy" not in facts
    (row,) = rows_of(output)
    assert "validation_loss" in row and "test_loss" not in row
    # Each of the validation images counted once.
    right = float(row["validation_accuracy"]) * data.num_validation
    assert right == pytest.approx(round(right), abs=1e-2)


@pytest.fixture
def trained(monkeypatch):
    """Folders whose training was asked for, in order."""
    folders = []
    train = recipe.train

    def recorded(config, data, strategy, output, **options):
        folders.append(output.name)
        return train(config, data, strategy, output, **options)

    monkeypatch.setattr(recipe, "train", recorded)
    return folders


@pytest.mark.slow
def test_a_sweep_is_gone_on_with(tmp_path, trained, monkeypatch, capsys):
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
    first = facts_of(output / "sweep" / "lr-0.0001")
    refused(
        "lr-0.0001/config.json' is of another run: batch_size was 32 and is 16",
        **{**settings, "batch_size": 16},
    )
    monkeypatch.setattr(recipe, "train", train)
    run(**settings)
    # The first rate was not trained with again.
    assert trained == ["lr-0.0001", "lr-0.01", "out"]
    assert facts_of(output / "sweep" / "lr-0.0001") == first
    found = json.loads((output / "sweep.json").read_text())
    accuracies = {
        x["learning_rate"]: x["validation_accuracy"] for x in found["rates"]
    }
    assert accuracies[0.0001] == first["validation_accuracy"]
    best = max(accuracies, key=accuracies.get)
    assert found["best"] == best
    said = capsys.readouterr().out
    assert f"{best:<13g}  {accuracies[best]:.4f}  best" in said
    assert (output / "sweep.png").read_bytes().startswith(b"\x89PNG")
    # The last training has all images, and is tested.
    facts = facts_of(output)
    assert facts["config"]["learning_rate"] == best
    assert facts["data"]["num_train"] == first["data"]["num_train"] + 143
    assert "test_accuracy" in facts
    assert (output / "model.keras").exists()
    assert not (output / "sweep" / "lr-0.01" / "model.keras").exists()
    refused("is not empty", **settings)


# Stands for training: what it gave for each rate.
FOUND = {0.001: 0.5, 0.003: 0.75, 0.01: 0.75, 0.03: None}


@pytest.fixture
def quick(monkeypatch):
    """Rates that were trained with, at once; too high ones diverge."""
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
            "config": {"mode": config.mode, "image_size": 8},
            "data": {"name": "digits", "channels": 1, "image_size": 8},
            "kept": {"chosen_by": None},
        }

    monkeypatch.setattr(recipe, "train", train)
    return rates


def test_the_papers_grid_where_one_diverges(tmp_path, quick, capsys):
    output = tmp_path / "out"
    run(steps=1, batch_size=8, sweep="paper", output=str(output))
    # Of equals the lowest.
    trials = [(rate, False) for rate in (0.001, 0.003, 0.01, 0.03)]
    assert quick == [*trials, (0.003, True)]
    said = capsys.readouterr().out
    assert "accuracy on 143 held-out images\n" in said
    assert "0.003          0.7500  best\n0.01           0.7500\n" in said
    assert "0.03           diverged\n" in said
    assert json.loads((output / "sweep.json").read_text())["best"] == 0.003
    # That one diverged is known when the sweep goes on.
    facts = facts_of(output / "sweep" / "lr-0.03")
    assert facts["diverged"] == "The loss is nan at step 1"
    del quick[:]
    run(steps=1, batch_size=8, sweep="paper", output=str(output))
    assert (0.03, False) not in quick


def test_the_last_training_has_the_images_that_a_preset_leaves_out(
    tmp_path, quick, monkeypatch
):
    """As in the paper, whose grid is measured on held-out images only."""
    counts = []
    complete = recipe.resolve_config

    def recorded(config, data):
        counts.append((data.num_train, data.num_validation))
        return complete(config, data)

    monkeypatch.setattr(recipe, "resolve_config", recorded)
    monkeypatch.setattr(recipe.Config, "published_holdout", lambda self: 0.2)
    output = str(tmp_path / "out")
    run(steps=1, batch_size=8, sweep="0.001,0.003", output=output)
    assert counts == [(1295, 143), (1295, 143), (1438, 0)]


def test_all_rates_are_too_high(tmp_path, quick, monkeypatch):
    monkeypatch.setitem(FOUND, 0.01, None)
    with pytest.raises(training.Diverged, match="every learning rate"):
        run(steps=1, sweep="0.01,0.03", output=str(tmp_path / "out"))
