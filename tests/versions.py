"""Runs the suite's core on the lowest and the newest versions supported.

    python -m tests.versions [ROW ...]

A row has an environment of its own, with one backend, what the package itself
depends on, and what the tests need. "lowest" is the lower bound in
pyproject.toml, "newest" what the suite is pinned to there: bounds are what was
run. "nightly" has Keras's nightly build in place of the release. The exit
status is 1 if a row failed.

Downloads are about a gigabyte. With PyTorch from PyPI, which on Linux brings
CUDA along, they are several; pip's PIP_EXTRA_INDEX_URL can name an index of
builds for CPUs.
"""

import argparse
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
# What the programs need that the tests of hostile files run.
TOOLS += ("matplotlib", "onnx", "onnxruntime", "onnxscript")


# Backend and kind; the kind "lowest-keras" has only Keras at its lower bound.
ROWS = (
    *("jax-lowest", "jax-lowest-keras", "jax-newest", "jax-nightly"),
    *("jax-python3.12", "jax-python3.13"),
    *("tensorflow-lowest", "tensorflow-lowest-keras", "tensorflow-newest"),
    *("tensorflow-nightly", "torch-lowest", "torch-newest", "torch-nightly"),
)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.versions")
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}")
    failed = []
    for name in parser.parse_args().rows or ROWS:
        print(f"\n===== {name} =====", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                run(pathlib.Path(folder), *name.split("-", 1))
            except (OSError, subprocess.CalledProcessError) as error:
                failed.append(f"{name}: {error}")
    print("Failed:", *failed, sep="\n  ") if failed else print("All passed.")
    return len(failed)


def requirements(backend, kind):
    """Returns what pip installs for a row."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    pinned = dict(x.split("==") for x in extras["test"])
    found = []
    for requirement in (*project["dependencies"], *extras[backend]):
        name, bound = requirement.split(">=")
        if kind in ("lowest", f"lowest-{name}"):
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


def run(folder, backend, kind):
    """Installs the packages of a row in a folder and runs the tests."""
    interpreter = kind if kind.startswith("python") else sys.executable
    subprocess.check_call([interpreter, "-m", "venv", folder])
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [python, "-m", "pip"]
    subprocess.check_call([*pip, "install", "-qU", *requirements(backend, kind)])
    if kind == "nightly":
        # Both are a folder named keras, and TensorFlow requires the release.
        subprocess.check_call([*pip, "uninstall", "-qy", "keras"])
        nightly = ["install", "-qU", "--force-reinstall", "--no-deps"]
        subprocess.check_call([*pip, *nightly, "--pre", "keras-nightly"])
    subprocess.check_call([*pip, "list"])
    environment = {**os.environ, "KERAS_BACKEND": backend}
    environment.pop("PYTHONPATH", None)  # nothing but what is installed
    command = [python, "-m", "pytest", *CORE]
    subprocess.check_call(command, cwd=ROOT, env=environment)


if __name__ == "__main__":
    sys.exit(main())
