"""The notebook's cells, run one after the other on handwritten digits."""

import json
import pathlib
import sys
import types

import keras
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "recipes"
KNOBS = {
    "DATASET": "digits",
    "MODEL": "",
    "WEIGHTS": "",
    "IMAGE_SIZE": "",
    "PROTOCOL": "simple",
    "BATCH_SIZE": "16",
    "ACCUMULATE": "2",
    "STEPS": "2",
}


@pytest.mark.backends("jax")  # The notebook's default.
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    notebook = json.loads((FOLDER / "finetune_cifar_tpu.ipynb").read_text())
    assert notebook["nbformat"] == 4
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in KNOBS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OUTPUT", str(tmp_path / "out"))
    # IPython shows pictures; here they are only counted.
    shown = []
    display = types.ModuleType("IPython.display")
    display.Image = lambda filename: pathlib.Path(filename)
    display.display = shown.append
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert "jax finds cpu:0\nstrategy: none on 1 device" in said
    assert "step 2/2" in said
    assert [path.name for path in shown] == ["curves.png", "predictions.png"]
    for path in shown:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_devices_are_named(monkeypatch, capsys):
    """The cell before the training, on every backend."""
    notebook = json.loads((FOLDER / "finetune_cifar_tpu.ipynb").read_text())
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in KNOBS.items():
        monkeypatch.setenv(name, value)
    backend = keras.config.backend()
    monkeypatch.setenv("KERAS_BACKEND", backend)
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    names = {}
    for cell in cells[:3]:
        exec("".join(cell["source"]), names)
    said = capsys.readouterr().out.lower()
    assert f"{backend} finds cpu:0\nstrategy: none on 1 device" in said
