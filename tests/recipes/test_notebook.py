"""The notebook's cells, run one after the other on handwritten digits."""

import json
import pathlib
import sys
import types

import keras
import pytest

from keras_vit import training
from keras_vit.weights.released import RELEASED
from keras_vit_programs import presets
from tests.recipes import programs

NOTEBOOK = pathlib.Path(__file__).parents[2] / "recipes"
NOTEBOOK = json.loads((NOTEBOOK / "finetune_cifar_tpu.ipynb").read_text())
CELLS = [
    "".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"
]
# What makes a short run of the settings that CPUs have.
SHORT = {
    "BATCH_SIZE": "16",
    "ACCUMULATE": "2",
    "STEPS": "4",
    "WARMUP_STEPS": "1",
    "EVALUATE_EVERY": "2",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that runs the first `count` cells, and the paths of
    the images that they display."""
    displayed = []
    display = types.ModuleType("IPython.display")
    display.Image = pathlib.Path
    display.display = displayed.append
    ipython = types.ModuleType("IPython")
    # Matplotlib reads the version.
    ipython.display, ipython.version_info = display, (9, 0)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.chdir(tmp_path)
    for name, value in SHORT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KERAS_BACKEND", keras.config.backend())

    def run(output=None, count=None):
        monkeypatch.setenv("OUTPUT", output or "")
        if output is None:  # the original value is restored at the end
            monkeypatch.delenv("OUTPUT")
        names = {}
        for cell in CELLS[:count]:
            exec(cell, names)
        return names, displayed

    return run


def test_notebook_stores_no_outputs():
    assert NOTEBOOK["nbformat"] == 4
    for cell in NOTEBOOK["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.suite("jax")
@pytest.mark.usefixtures("eager")
def test_notebook_runs(run, capsys):
    """The notebook runs on every backend."""
    names, displayed = run("out")
    printed = capsys.readouterr().out.lower()
    backend = keras.config.backend()
    assert f"{backend}: cpu:0\nstrategy: none on 1 device" in printed
    assert "1438 training and 359 test images" in printed
    rows = names["checkpoint"].rows
    assert [row["step"] for row in rows] == [2, 4]
    assert f"test accuracy {rows[-1]['test_accuracy']:.4f}" in printed
    assert [path.name for path in displayed] == [
        "curves.png",
        "predictions.png",
        "attention.png",
    ]
    for path in displayed:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert pathlib.Path("out/model.npz").exists()


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_interrupted_run_resumes_bit_for_bit(run, monkeypatch):
    """All cells run again after the interruption."""
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig",
        lambda figure, path, **_: pathlib.Path(path).touch(),
    )
    run("whole")
    batches = []

    def interrupt(callback, batch, logs=None):
        batches.append(batch)
        if len(batches) == 6:  # in the second interval of four micro-batches
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.ResumableCheckpoint, "on_train_batch_begin", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run("resumed")
    assert not pathlib.Path("resumed/model.npz").exists()
    resumed, _ = run("resumed")
    assert resumed["step"] == 2
    files = [f"{name}/model.keras" for name in ("resumed", "whole")]
    programs.assert_same_weights(*files)
    # A run that is complete is only shown.
    run("resumed")
    monkeypatch.setenv("LEARNING_RATE", "0.1")
    with pytest.raises(ValueError, match="is of another run"):
        run("resumed")


@pytest.mark.backends("torch")
def test_output_folder_may_be_in_google_drive(run, monkeypatch):
    mounted = []
    colab = types.ModuleType("google.colab")
    colab.drive = types.SimpleNamespace(mount=mounted.append)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    names, _ = run(count=6)
    assert not mounted and names["OUTPUT"] == pathlib.Path("runs/notebook")
    monkeypatch.setenv("DRIVE", "True")
    names, _ = run(count=6)
    (folder,) = mounted
    assert pathlib.Path(folder, "MyDrive") in names["OUTPUT"].parents
    # A folder that is given stays.
    names, _ = run("out", count=6)
    assert names["OUTPUT"] == pathlib.Path("out")


@pytest.mark.backends("torch")
def test_accelerator_settings_match_the_presets(run, monkeypatch):
    """Settings for accelerators, which are not run here, refer to existing
    presets and weights."""
    for name in SHORT:
        monkeypatch.delenv(name)
    names, _ = run("out", count=5)
    names["on_cpu"] = False
    exec(CELLS[5], names)
    preset = presets.FINE_TUNING["vit_jax-augreg"].settings
    assert names["STEPS"] == preset["steps"]
    assert names["WARMUP_STEPS"] == preset["warmup_steps"]
    assert names["LEARNING_RATE"] == preset["learning_rate"]
    assert names["PROTOCOL"] == preset["protocol"]
    assert names["BATCH_SIZE"] == preset["batch_size"]
    assert names["BATCH_SIZE"] % names["ACCUMULATE"] == 0
    assert names["STEPS"] % names["EVALUATE_EVERY"] == 0
    assert (names["MODEL"], names["WEIGHTS"]) in RELEASED
