"""What tests of recipes share."""

import csv
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

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
