"""Runs the tests that take longer than the suite: `python -m tests.nightly`.

    pytest    the tests marked `nightly`, on each backend, and random examples
              for those whose examples are the same in every run of the suite
    fuzzing   damaged checkpoint files
    faults    processes that are killed while they train, at random moments

These download, and run only if they are named:

    trained   an encoder with trained weights on photographs, compared with the
              original libraries
    wheel     the sdist and the wheel, and the quick start in a new environment
    versions  the lowest and newest versions of all dependencies, and Keras's
              nightly build

The exit status is 0 if all parts passed.
"""

import os
import subprocess
import sys

import pytest

from tests.__main__ import BACKENDS

TRAINED = ("-n0", "-s", "-m", "network", "tests/test_trained_encoder.py")
# The arguments of Python for each part, which run on each of the backends.
PARTS = {
    "pytest": (
        (BACKENDS, ("-m", "pytest", "-m", "nightly")),
        (
            BACKENDS,
            ("-m", "pytest", "tests/layers", "--hypothesis-profile", "random"),
        ),
    ),
    "fuzzing": ((("torch",), ("-m", "tests.fuzzing", "--count", "5000")),),
    "faults": ((BACKENDS, ("-m", "tests.faults", "30")),),
    "trained": ((BACKENDS, ("-m", "pytest", *TRAINED)),),
    "wheel": ((("jax",), ("-m", "tests.wheel")),),
    "versions": ((("torch",), ("-m", "tests.versions")),),
}
BY_DEFAULT = ("pytest", "fuzzing", "faults")


def main():
    failed = []
    for part in sys.argv[1:] or BY_DEFAULT:
        for backends, arguments in PARTS[part]:
            for backend in backends:
                print(f"\n===== {part}, {backend} =====", flush=True)
                variables = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
                code = subprocess.call(
                    [sys.executable, *arguments],
                    env={**os.environ, **variables},
                )
                if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                    failed.append(f"{part}, {backend}")
    print("Failed:", *failed, sep="\n  ") if failed else print("All passed.")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
