"""Runs the whole suite on every backend: `python -m tests`.

Each backend runs in processes of its own, because Keras has one backend per
process. The marker `backends` names the backends on which a test runs; a test
without it runs on all three. A run of all backends fails if a test that was
collected ran on none of them, and names it. Tests marked `slow`, which plain
`pytest` leaves out, run here; those marked `nightly` in `python -m
tests.nightly`.

At the end the largest errors against the golden data are printed. Arguments
after `--` are passed to pytest:

    python -m tests
    python -m tests --backends jax
    python -m tests -- -k golden
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import pytest

BACKENDS = ("jax", "tensorflow", "torch")
# Also those that plain `pytest` leaves out as slow.
SELECTED = "not nightly and not network and not browser"


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=BACKENDS
    )
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    arguments = parser.parse_args()

    style = (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["pyright", "--pythonpath", sys.executable],
    )
    failed = [
        " ".join(command[:2])
        for command in style
        if subprocess.call([sys.executable, "-m", *command])
    ]
    results, seconds = {}, {}
    for backend in arguments.backends:
        print(f"\n===== {backend} =====", flush=True)
        start = time.monotonic()
        code, results[backend] = run(backend, arguments.pytest)
        seconds[backend] = time.monotonic() - start
        if code and code != pytest.ExitCode.NO_TESTS_COLLECTED:
            failed.append(backend)
    print_errors({name: found["errors"] for name, found in results.items()})
    for backend, spent in seconds.items():
        count = len(results[backend]["ran"])
        print(f"{backend}: {count} tests ran in {spent:.0f} s")
    if not any(found["ran"] for found in results.values()):
        failed.append("no test ran")
    if set(arguments.backends) == set(BACKENDS):
        missing = never_ran(results.values())
        print(f"Ran on no backend: {len(missing)}")
        for test in missing:
            print(f"  {test}")
        if missing:
            failed.append("tests that ran on no backend")
    print(f"Failed: {', '.join(failed)}" if failed else "All passed.")
    return 1 if failed else 0


def run(backend, arguments):
    """Runs the suite on one backend.

    Args:
        backend: Name of the backend.
        arguments: List of further arguments of pytest.

    Returns:
        pytest's exit status, and a dictionary: `"collected"` and `"ran"` are
        lists of test ids, `"errors"` maps a golden case to its largest error.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        environment = {**os.environ, "KERAS_BACKEND": backend}
        options = ["-m", SELECTED, "--results", path]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        code = subprocess.call(command, env=environment)
        if not os.path.exists(path):
            return code or 1, {"collected": [], "ran": [], "errors": {}}
        return code, read_results(path)


def read_results(path):
    """Reads the file that pytest's option `--results` writes."""
    with open(path) as file:
        return json.load(file)


def never_ran(results):
    """Returns the ids of tests and modules that were collected, never ran.

    A module is among the collected ids where it skipped itself on import.
    """
    collected = {test for result in results for test in result["collected"]}
    ran = {test for result in results for test in result["ran"]}
    ran |= {test.partition("::")[0] for test in ran}
    return sorted(collected - ran)


def print_errors(errors):
    cases = sorted({case for largest in errors.values() for case in largest})
    if not cases:
        return
    print("\nLargest absolute error of each golden case:\n")
    print(f"{'case':28} {'tolerance':>9}", *(f"{b:>10}" for b in errors))
    for case in cases:
        found = [largest.get(case) for largest in errors.values()]
        tolerance = next(entry[2] for entry in found if entry)
        figures = (
            f"{entry[0]:10.1e}" if entry else " " * 10 for entry in found
        )
        print(f"{case:28} {tolerance:9.0e}", *figures)
    print()


if __name__ == "__main__":
    sys.exit(main())
