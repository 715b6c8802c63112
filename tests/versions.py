"""Runs the suite's core on the lowest and the newest versions supported.

A row has an environment of its own, with one backend, what the package itself
depends on, pytest, pytest-xdist and hypothesis. "lowest" is the lower bound in
pyproject.toml, "newest" what the suite is pinned to there: bounds are what was
run. "nightly" has Keras's nightly build in place of the release. It ends in a
table, and with status 1 if a row failed.

    python -m tests.versions
    python -m tests.versions --rows jax-lowest torch-lowest
    python -m tests.versions --folder ~/rows -- -k golden

Downloads of a first run are about a gigabyte. With PyTorch from PyPI, which on
Linux brings CUDA along, they are several; pip's PIP_EXTRA_INDEX_URL can name an
index of builds for CPUs.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree

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
SHOWN = ("keras", "keras-nightly", "jax", "tensorflow", "torch", "numpy")


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
    parser = argparse.ArgumentParser(
        prog="python -m tests.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW"
    )
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        help="where environments are made, and kept for the next time",
    )
    parser.add_argument(
        "--list", action="store_true", help="only print what the rows install"
    )
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    arguments = parser.parse_args()
    if arguments.list:
        for name in arguments.rows:
            then = ", then keras-nightly" if ROWS[name].nightly else ""
            print(f"{name}: {' '.join(requirements(ROWS[name]))}{then}")
        return 0
    with tempfile.TemporaryDirectory(prefix="keras_vit-rows-") as temporary:
        folder = arguments.folder or pathlib.Path(temporary)
        results = {}
        for name in arguments.rows:
            print(f"\n===== {name} =====", flush=True)
            results[name] = run(folder / name, ROWS[name], arguments.pytest)
    print_results(results)
    failed = [name for name, found in results.items() if found["failed"]]
    print(f"Failed: {', '.join(failed)}" if failed else "All passed.")
    return 1 if failed else 0


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


def run(folder, row, arguments):
    """Returns `{"text", "passed", "failed", "skipped", "seconds"}` and the
    versions of a row."""
    start = time.monotonic()
    interpreter = sys.executable
    if row.python:
        interpreter = f"python{row.python}"
        if not runs(interpreter):
            return result(f"not run: there is no {interpreter}")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        subprocess.check_call([interpreter, "-m", "venv", folder])
    install = [python, "-m", "pip", "install", "-qU", *requirements(row)]
    if subprocess.call(install):
        return result("cannot be installed", failed=1)
    if row.nightly:
        # Both are a folder named keras, and TensorFlow requires the release.
        pip = [python, "-m", "pip"]
        subprocess.call([*pip, "uninstall", "-qy", "keras"])
        nightly = ["install", "-qU", "--force-reinstall", "--no-deps"]
        if subprocess.call([*pip, *nightly, "--pre", "keras-nightly"]):
            return result("cannot be installed", failed=1)
    report = folder / "core.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", f"--junitxml={report}"]
    environment = {**os.environ, "KERAS_BACKEND": row.backend}
    environment.pop("PYTHONPATH", None)  # nothing but what is installed
    code = subprocess.call(
        [*command, *(() if arguments else CORE), *arguments],
        cwd=ROOT,
        env=environment,
    )
    counts = counted(report)
    if code and not counts["failed"]:
        return result(f"pytest ended with {code}", failed=1)
    seconds = time.monotonic() - start
    return result(versions_in(python), seconds=seconds, **counts)


def result(text, passed=0, failed=0, skipped=0, seconds=0.0):
    return locals()


def runs(interpreter):
    try:
        command = [interpreter, "-c", "import ensurepip"]
        return subprocess.call(command, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def versions_in(python):
    listed = subprocess.check_output(
        [python, "-m", "pip", "list", "--format=json"], text=True
    )
    found = {
        x["name"].replace("_", "-").removesuffix("-cpu"): x["version"]
        for x in json.loads(listed)
    }
    version = subprocess.check_output([python, "--version"], text=True).split()
    shown = [f"{name} {found[name]}" for name in SHOWN if name in found]
    return ", ".join([f"Python {version[1]}", *shown])


def counted(report):
    """What pytest's report counts."""
    if not report.exists():
        return {"passed": 0, "failed": 0, "skipped": 0}
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    count = {key: int(suite.get(key)) for key in ("tests", "skipped")}
    failed = int(suite.get("failures")) + int(suite.get("errors"))
    passed = count["tests"] - count["skipped"] - failed
    return {"passed": passed, "failed": failed, "skipped": count["skipped"]}


def print_results(results):
    print(f"\n{'row':24} {'passed':>6} {'failed':>6} {'skipped':>7} {'s':>5}")
    for name, found in results.items():
        figures = "{passed:6} {failed:6} {skipped:7} {seconds:5.0f}"
        print(f"{name:24} {figures.format(**found)}  {found['text']}")
    print()


if __name__ == "__main__":
    sys.exit(main())
