"""Recipes run as from the command line, in this process."""

import pathlib
import runpy
import sys

import pytest

RECIPES = pathlib.Path(__file__).parents[2] / "recipes"


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
