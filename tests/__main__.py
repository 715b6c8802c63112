"""Runs the whole suite on every backend: `python -m tests`.

Each backend has a process of its own, because Keras has one backend a
process. At the end stands a table of the largest errors against the golden
data. Arguments behind `--` go to pytest:

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

BACKENDS = ("jax", "tensorflow", "torch")


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

    style = (["check", "."], ["format", "--check", "."])
    failed = [
        f"ruff {command[0]}"
        for command in style
        if subprocess.call([sys.executable, "-m", "ruff", *command])
    ]
    errors, seconds = {}, {}
    for backend in arguments.backends:
        print(f"\n===== {backend} =====", flush=True)
        start = time.monotonic()
        code, errors[backend] = run(
            backend, arguments.backends, arguments.pytest
        )
        seconds[backend] = time.monotonic() - start
        if code:
            failed.append(backend)
    print_errors(errors)
    for backend, spent in seconds.items():
        print(f"{backend}: {spent:.0f} s")
    print(f"Failed: {', '.join(failed)}" if failed else "All passed.")
    return 1 if failed else 0


def run(backend, together, arguments):
    """Returns pytest's exit status and the largest errors it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "errors.json")
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "KERAS_VIT_ERRORS": path,
            "KERAS_VIT_BACKENDS": " ".join(together),
            # Two workers with threads of their own would fight for two cores.
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
        }
        workers = ["-n", "2"]
        command = [sys.executable, "-m", "pytest", *workers, *arguments]
        code = subprocess.call(command, env=environment)
        if not os.path.exists(path):
            return code, {}
        with open(path) as file:
            return code, json.load(file)


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
