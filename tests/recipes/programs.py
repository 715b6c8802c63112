"""What tests of recipes share."""

import csv
import importlib.util
import json
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

RECIPES = pathlib.Path(__file__).parents[2] / "recipes"


def load(name):
    """Returns a recipe as a module."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def rows_of(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def facts_of(folder):
    return json.loads((folder / "config.json").read_text())


def command(name, *argv):
    return subprocess.run(
        [sys.executable, str(RECIPES / f"{name}.py"), *argv],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=300,
    )


def run(name, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")


def refused(capsys, name, *arguments):
    """Returns the one line that a wrong command line is answered with."""
    with pytest.raises(SystemExit) as ended:
        run(name, *arguments)
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line
