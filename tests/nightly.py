"""Runs the tests that take longer than the suite: `python -m tests.nightly`.

Each part tries many inputs, moments or versions, of which the suite has a few:

    pytest    the tests marked `nightly`, on each backend, and random examples
              for those whose examples are the same in every run of the suite
    fuzzing   damaged checkpoint files
    faults    processes that are killed while they train, at random moments
    load      processes that download the same file at the same time
    trained   an encoder with trained weights on photographs, compared with the
              original libraries (downloads from the package index; runs only if
              it is named)
    wheel     the sdist and the wheel, and the quick start in a new environment
              (downloads; runs only if it is named)
    versions  the lowest and newest versions of all dependencies, and Keras's
              nightly build (downloads gigabytes; runs only if it is named)

    python -m tests.nightly
    python -m tests.nightly fuzzing versions

Exit status: 0 if all parts passed, 1 if some did not.
"""

import argparse
import os
import subprocess
import sys
import time

import pytest

from tests.__main__ import BACKENDS

TRAINED = ("-n0", "-s", "-m", "network", "tests/test_trained_encoder.py")
# Of each part: pairs of a backend and the arguments of Python.
PARTS = {
    "pytest": [
        (name, ("-m", "pytest", *options))
        for name in BACKENDS
        for options in (
            ("-m", "nightly"),
            ("tests/layers", "--hypothesis-profile", "random"),
        )
    ],
    "fuzzing": [("torch", ("-m", "tests.fuzzing", "--count", "5000"))],
    "faults": [
        (name, ("-m", "tests.faults", "kills", "30")) for name in BACKENDS
    ],
    "load": [
        ("torch", ("-m", "tests.load")),
        ("torch", ("-m", "tests.load", "--models")),
    ],
    "trained": [(name, ("-m", "pytest", *TRAINED)) for name in BACKENDS],
    "wheel": [("jax", ("-m", "tests.wheel"))],
    "versions": [("torch", ("-m", "tests.versions"))],
}
NAMED = ("trained", "wheel", "versions")
BY_DEFAULT = [name for name in PARTS if name not in NAMED]


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.nightly",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parts = parser.parse_args(argv).parts or BY_DEFAULT
    unknown = set(parts) - set(PARTS)
    if unknown:
        parser.error(f"PART must be one of {list(PARTS)}. Received: {unknown}")
    lines = []
    failed = False
    for part in parts:
        for backend, arguments in PARTS[part]:
            print(f"\n===== {part}, {backend} =====", flush=True)
            start = time.monotonic()
            code = subprocess.call(
                [sys.executable, *arguments],
                env={
                    **os.environ,
                    "KERAS_BACKEND": backend,
                    "OMP_NUM_THREADS": "1",
                    "OMP_WAIT_POLICY": "passive",
                },
            )
            seconds = time.monotonic() - start
            passed = code in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
            result = "passed" if passed else f"failed with status {code}"
            lines.append(f"{part}, {backend}: {result} in {seconds:.0f} s")
            failed = failed or not passed
    print("", *lines, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
