"""Runs the suite's core on the lowest and the newest versions supported.

    python -m tests.versions [ROW ...]

A row has an environment of its own, with one backend, what the package itself
depends on, pytest, pytest-xdist and hypothesis. "lowest" is the lower bound in
pyproject.toml, "newest" what the suite is pinned to there: bounds are what was
run. "nightly" has Keras's nightly build in place of the release. The exit
status is 1 if a row failed.

Downloads are about a gigabyte. With PyTorch from PyPI, which on Linux brings
CUDA along, they are several; pip's PIP_EXTRA_INDEX_URL can name an index of
builds for CPUs.
"""

import argparse
import dataclasses
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
CORE = (
    "tests/test_single_backend.py",
    "tests/test_golden.py",
    "tests/layers/test_contract.py",
    "tests/models/test_vit.py",
    "tests/weights",
    "tests/downloads/test_hub.py",
    "tests/converters/test_round_trips.py",
)
TOOLS = ("pytest", "pytest-xdist", "hypothesis")


@dataclasses.dataclass(frozen=True)
class Row:
    """`lowest` are the packages at their lower bound, or "all"."""

    backend: str
    lowest: tuple | str = ()
    python: str = ""  # as in `python3.12`; that which runs this, if empty
    nightly: bool = False  # Keras's nightly build in place of the release


ROWS = {
    "jax-lowest": Row("jax", "all"),
    "jax-lowest-keras": Row("jax", ("keras",)),
    "jax-newest": Row("jax"),
    "jax-python3.12": Row("jax", python="3.12"),
    "jax-python3.13": Row("jax", python="3.13"),
    "jax-nightly": Row("jax", nightly=True),
    "tensorflow-lowest": Row("tensorflow", "all"),
    "tensorflow-lowest-keras": Row("tensorflow", ("keras",)),
    "tensorflow-newest": Row("tensorflow"),
    "tensorflow-nightly": Row("tensorflow", nightly=True),
    "torch-lowest": Row("torch", "all"),
    "torch-newest": Row("torch"),
    "torch-nightly": Row("torch", nightly=True),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.versions")
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}")
    failed = []
    for name in parser.parse_args().rows or ROWS:
        print(f"\n===== {name} =====", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                run(pathlib.Path(folder), ROWS[name])
            except (OSError, subprocess.CalledProcessError) as error:
                failed.append(f"{name}: {error}")
    print("Failed:", *failed, sep="\n  ") if failed else print("All passed.")
    return len(failed)


def requirements(row):
    """Returns what pip installs for a row."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    pinned = dict(x.split("==") for x in extras["test"])
    found = []
    for requirement in (*project["dependencies"], *extras[row.backend]):
        name, bound = requirement.split(">=")
        if row.lowest == "all" or name in row.lowest:
            found.append(f"{wheel(name)}=={bound}")
        elif name in pinned:
            found.append(f"{wheel(name)}=={pinned[name]}")
        else:
            found.append(requirement)
    return found + [f"{name}=={pinned[name]}" for name in TOOLS]


def wheel(name):
    """Returns the CPU wheel where there is one: it has a third of the size."""
    here = platform.system(), platform.machine()
    smaller = name == "tensorflow" and here == ("Linux", "x86_64")
    return "tensorflow-cpu" if smaller else name


def run(folder, row):
    """Installs the packages of a row in a folder and runs the tests."""
    interpreter = f"python{row.python}" if row.python else sys.executable
    subprocess.check_call([interpreter, "-m", "venv", folder])
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [python, "-m", "pip"]
    subprocess.check_call([*pip, "install", "-qU", *requirements(row)])
    if row.nightly:
        # Both are a folder named keras, and TensorFlow requires the release.
        subprocess.check_call([*pip, "uninstall", "-qy", "keras"])
        nightly = ["install", "-qU", "--force-reinstall", "--no-deps"]
        subprocess.check_call([*pip, *nightly, "--pre", "keras-nightly"])
    subprocess.check_call([*pip, "list"])
    environment = {**os.environ, "KERAS_BACKEND": row.backend}
    environment.pop("PYTHONPATH", None)  # nothing but what is installed
    command = [python, "-m", "pytest", *CORE]
    subprocess.check_call(command, cwd=ROOT, env=environment)


if __name__ == "__main__":
    sys.exit(main())
