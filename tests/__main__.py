"""Runs the whole suite on every backend: `python -m tests`.

Each backend runs in processes of its own, because Keras has one backend per
process. The marker `backends` names the backends on which a test runs; a test
without it runs on all three. A run of all backends fails if a test was skipped
and ran on none of them, and names it. Tests marked `slow`, which plain `pytest`
leaves out, run here; those marked `nightly` in `python -m tests.nightly`.

At the end the largest errors against the golden data are printed. Arguments
after `--` are passed to pytest:

    python -m tests
    python -m tests --backends jax
    python -m tests -- -k golden
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import pytest

BACKENDS = ("jax", "tensorflow", "torch")
# Also those that plain `pytest` leaves out as slow.
SELECTED = "not nightly and not network and not browser"
STYLE = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("pyright", "--pythonpath", sys.executable),
)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    arguments = parser.parse_args()

    failed = [
        " ".join(command[:2])
        for command in STYLE
        if subprocess.call([sys.executable, "-m", *command])
    ]
    ran, skipped, errors, times = set(), set(), {}, []
    for backend in arguments.backends:
        print(f"\n===== {backend} =====", flush=True)
        start = time.monotonic()
        code, found = run(backend, arguments.pytest)
        if code and code != pytest.ExitCode.NO_TESTS_COLLECTED:
            failed.append(backend)
        seconds = time.monotonic() - start
        times.append(f"{backend}: {len(found[0])} tests ran in {seconds:.0f} s")
        ran |= found[0]
        skipped |= found[1]
        for case, largest in found[2].items():
            errors.setdefault(case, {})[backend] = largest
    print_errors(errors, arguments.backends)
    print("\n".join(times))
    if not ran:
        failed.append("no test ran")
    if set(arguments.backends) == set(BACKENDS):
        missing = never_ran(ran, skipped)
        print(f"Ran on no backend: {len(missing)}", *missing, sep="\n  ")
        if missing:
            failed.append("tests that ran on no backend")
    print(f"Failed: {', '.join(failed)}" if failed else "All passed.")
    return 1 if failed else 0


def run(backend, arguments):
    """Returns pytest's exit status on a backend, and what `read` returns."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.xml")
        options = ["-m", SELECTED, "--junitxml", path]
        code = subprocess.call(
            [sys.executable, "-m", "pytest", *options, *arguments],
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                # Libraries leave temporary files behind.
                "TMPDIR": folder,
                "PYTEST_DEBUG_TEMPROOT": tempfile.gettempdir(),
            },
        )
        if not os.path.exists(path):
            return code or 1, (set(), set(), {})
        return code, read(path)


def read(path):
    """Reads pytest's results.

    Returns:
        The names of the tests that ran, and those of the tests and modules
        that were skipped; and `{golden case: (largest error, tolerance)}`.
    """
    ran, skipped, errors = set(), set(), {}
    for test in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = ".".join(filter(None, (test.get("classname"), test.get("name"))))
        (ran if test.find("skipped") is None else skipped).add(name)
        for found in test.iter("property"):
            kind, _, case = found.get("name").partition(": ")
            if kind != "error":
                continue
            error, tolerance = map(float, found.get("value").split())
            errors[case] = max(errors.get(case, (0, 0)), (error, tolerance))
    return ran, skipped, errors


def never_ran(ran, skipped):
    """Returns the skipped tests and modules that ran on no other backend."""
    missing = skipped - ran
    return sorted(
        name for name in missing if not any(test.startswith(f"{name}.") for test in ran)
    )


def print_errors(errors, backends):
    if not errors:
        return
    print("\nLargest absolute error of each golden case:\n")
    print(f"{'case':28} {'tolerance':>9}", *(f"{b:>10}" for b in backends))
    for case, found in sorted(errors.items()):
        figures = (f"{found[b][0]:10.1e}" if b in found else " " * 10 for b in backends)
        tolerance = next(iter(found.values()))[1]
        print(f"{case:28} {tolerance:9.0e}", *figures)
    print()


if __name__ == "__main__":
    sys.exit(main())
