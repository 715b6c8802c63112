"""The command `keras-vit`; `tests/wheel.py` runs it from a wheel."""

import contextlib
import importlib.machinery
import os
import subprocess
import sys

import pytest

import keras_vit_programs.command as command
from keras_vit_programs import run_folder

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["keras-vit"])
    # Commands replace it.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return tmp_path


PROGRAMS = [name for name in command.COMMANDS if name != "serve-page"]


HELP = """
import contextlib, sys
from keras_vit_programs import command
for name in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        command.main([name, "--help"] if name else [])
    print(end="\f")
assert not hasattr(sys.modules.get("keras"), "__file__")
"""


def test_help_does_not_wait_for_keras(folder, capsys):
    """It is the same with Keras, which these tests have imported."""
    environment = {**os.environ, "PYTHONPATH": str(command.recipes().parent)}
    names = ["", *PROGRAMS]
    found = subprocess.run(
        [sys.executable, "-c", HELP, *names],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    *pages, end = found.stdout.split("\f")
    assert len(pages) == len(names) and not end
    for name, page in zip(names, pages, strict=True):
        assert 0 < max(map(len, page.splitlines())) <= 80
        with pytest.raises(SystemExit) if name else contextlib.nullcontext():
            command.main([name, "--help"] if name else [])
        assert capsys.readouterr().out == page


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
        importlib.machinery.SourceFileLoader,
        "exec_module",
        lambda self, _: ran.append([self.path, *sys.argv]),
    )
    command.main(values)
    recipe = command.COMMANDS[values[0]][0].split()[0]
    program = f"keras-vit {values[0]}"
    assert ran == [[str(command.recipes() / recipe), program, *flags]]


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
    info = run_folder.program_info({})
    assert info["command"] == "keras-vit train --dataset 'a b'"


@pytest.mark.parametrize(
    ("ending", "printed"),
    [
        ("", ""),
        ("raise ImportError", "a message"),
        ("raise OSError('why')", "a messageOSError: why"),
    ],
)
def test_messages_of_tensorflow_are_hidden(folder, ending, printed):
    """Only those of its import, and only if it succeeds."""
    module = folder / "tensorflow.py"
    module.write_text(f"import os\nos.write(2, b'a message')\n{ending}\n")
    paths = os.pathsep.join([str(folder), str(command.recipes().parent)])
    found = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import os, sys, keras_vit_programs.command as c; sys.tracebacklimit = 0; "
            "c.import_tensorflow(); os.write(2, b' and the next one')",
        ],
        env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if ending in ("", "raise ImportError"):
        printed += " and the next one"
    assert found.stderr.startswith(printed)
    assert found.stderr.count("message") == printed.count("message")


def test_tensorflow_is_imported_without_stderr(folder):
    (folder / "tensorflow.py").touch()
    paths = os.pathsep.join([str(folder), str(command.recipes().parent)])
    code = (
        "import keras_vit_programs.command as c; c.import_tensorflow(); print('next')"
    )
    found = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, code],
        env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
    )
    assert found.stdout == b"next\n"
