"""The command `keras-vit`; `tests/wheel.py` runs it from a wheel."""

import importlib
import os
import runpy
import subprocess
import sys

import pytest

import keras_vit_command as command
from keras_vit.training import run_folder
from keras_vit.training.command_line import TrainingFlags

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["keras-vit"])
    return tmp_path


def test_help_does_not_wait_for_keras(folder):
    code = "import sys, keras_vit_command as c; c.main([]); "
    code += "sys.exit('keras' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(command.recipes().parent)}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_help_names_all_commands(capsys):
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    for name in [*command.COMMANDS, "new"]:
        assert f"\n  {name} " in printed


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        (["train", "a b"], ["--dataset", "a b"]),
        (["train", "--steps", "3"], ["--steps", "3"]),
        (
            ["predict", "run", "a.png", "b.png", "--top", "3"],
            ["--weights", "run", "--images", "a.png", "b.png", "--top", "3"],
        ),
        (
            ["explain", "run", "a.png"],
            [
                *("--explain", "--output", "runs/explain"),
                *("--weights", "run", "--images", "a.png"),
            ],
        ),
    ],
)
def test_recipes_receive_flags(values, flags, monkeypatch):
    ran = []
    monkeypatch.setattr(
        runpy, "run_path", lambda *a, **_: ran.append([*a, *sys.argv[1:]])
    )
    command.main(values)
    recipe = command.COMMANDS[values[0]][0].split()[0]
    assert ran == [[str(command.recipes() / recipe), *flags]]


def test_recipe_runs(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["train", "--help"])
    assert "--learning-rate" in capsys.readouterr().out


def test_module_runs(capsys):
    assert command.main(["convert", "missing.npz", "--inspect"]) == 1
    assert "missing.npz" in capsys.readouterr().err


def test_new_copies_a_recipe_once(folder, capsys):
    assert command.main(["new", "finetune"]) == 0
    copy = folder / "finetune_cifar.py"
    original = command.recipes() / copy.name
    assert copy.read_bytes() == original.read_bytes()
    copy.write_text("mine")
    assert command.main(["new", "finetune"]) == 1
    assert copy.read_text() == "mine"
    assert command.main(["new", "pretrain"]) == 0  # others begin like it
    assert (folder / "pretrain.py").exists()
    assert command.main(["new", "p"]) == 2
    assert "pretrain_masked" in capsys.readouterr().err


def test_unknown_command_suggests_the_nearest(capsys):
    assert command.main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


def test_a_run_records_its_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keras-vit train", "--dataset", "a b"])
    info = run_folder.program_info(TrainingFlags())
    assert info["command"] == "keras-vit train --dataset 'a b'"


def test_messages_of_tensorflow_are_hidden(monkeypatch, capfd):
    """Only those of its import, which may fail."""

    def load(name):
        os.write(2, b"a message of " + name.encode())
        raise ImportError

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(importlib, "import_module", load)
    command.import_tensorflow()
    os.write(2, b"another")
    assert capfd.readouterr().err == "another"
