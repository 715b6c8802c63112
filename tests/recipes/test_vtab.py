import json

import numpy as np
import pytest

import keras_vit
from tests.recipes import programs
from tests.small import vit
from tests.training.mocked import mocked

pytest.importorskip("tensorflow_datasets")
# Nineteen models: nothing is compiled with PyTorch.
pytestmark = pytest.mark.backends("torch")
TASKS = keras_vit.data.VTAB_TASKS
SPECIALIZED = ("camelyon", "eurosat", "resisc45", "retinopathy")


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """All datasets with three random images per split, and small weights."""
    counts = {"train": 100, "validation": 8, "test": 8}
    sets = {task.tfds: counts for task in TASKS.values()}
    weights = tmp_path / "weights.npz"
    keras_vit.converters.save(vit(), weights)
    with mocked(tmp_path / "tfds", sets):
        yield (
            # One batch holds every split, of which only three images are read.
            *("--weights", weights, "--image-size", 12, "--batch-size", 64),
            *("--steps", 2, "--output", tmp_path / "out"),
        )


def results_of(folder):
    return json.loads((folder / "out" / "results.json").read_text())


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SPECIALIZED, id="specialized", marks=pytest.mark.slow),
        pytest.param(tuple(TASKS), id="all", marks=pytest.mark.nightly),
    ],
)
def test_second_run_adds_tasks(names, prepared, tmp_path, capsys, monkeypatch):
    """Tasks that are not available are reported."""
    found = keras_vit.data.load_vtab

    def load_vtab(name, validate):
        if name == "resisc45":
            raise ValueError("It is downloaded by hand.")
        return found(name, validate)

    with monkeypatch.context() as patch:
        patch.setattr(keras_vit.data, "load_vtab", load_vtab)
        with pytest.raises(SystemExit):
            programs.run("vtab", *prepared, "--tasks", "resisc45", "eurosat")
    printed = capsys.readouterr()
    assert "1 tasks were left out" in printed.err and "resisc45" in printed.err
    assert "It is downloaded by hand." in printed.out
    first = results_of(tmp_path)
    assert list(first["tasks"]) == ["eurosat"] and not first["means"]
    programs.run("vtab", *prepared, "--tasks", *names)
    results = results_of(tmp_path)
    assert sorted(results["tasks"]) == sorted(names)
    assert results["tasks"]["eurosat"] == first["tasks"]["eurosat"]
    assert capsys.readouterr().out.count("done before") == 1
    accuracies = {name: row["accuracy"] for name, row in results["tasks"].items()}
    means = results["means"]
    assert means["specialized"] == np.mean([accuracies[n] for n in SPECIALIZED])
    if names is SPECIALIZED:
        assert list(means) == ["specialized"]
    else:
        assert list(means) == [*keras_vit.data.VTAB_GROUPS, "all"]
        assert means["all"] == np.mean(list(accuracies.values()))
    for row in results["tasks"].values():
        assert row["images"] == 3 and row["train_loss"] > 0
    line = programs.refused(capsys, "vtab", *prepared, "--seed", 1)
    assert "is of another run: seed was 0 and is 1" in line


def test_wrong_flags_are_refused(prepared, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text("{}")
    for arguments, words in (
        (("--tasks", "dtd"), "Give --weights"),
        ((*prepared, "--tasks", "dt"), "Received: dt"),
        ((*prepared, "--image-size", 13), "--image-size"),
        ((*prepared, "--mode", "caffe"), "Received: caffe"),
        (prepared, "does not hold results of this recipe"),
    ):
        assert words in programs.refused(capsys, "vtab", *arguments)
