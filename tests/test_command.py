"""The command `keras-vit`; `tests/wheel.py` runs it from a wheel."""

import runpy
import sys

import pytest

from keras_vit import __main__ as command

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["keras-vit"])
    return tmp_path


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
    ],
)
def test_recipes_receive_flags(values, flags, monkeypatch):
    ran = []
    monkeypatch.setattr(
        runpy, "run_path", lambda *a, **_: ran.append([*a, *sys.argv[1:]])
    )
    command.main(values)
    recipe = {"train": "finetune_cifar.py", "predict": "predict.py"}[values[0]]
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
    assert command.main(["new", "p"]) == 2
    assert "pretrain_masked" in capsys.readouterr().err


def test_unknown_command_suggests_the_nearest(capsys):
    assert command.main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err
