"""Seconds to import keras_vit after Keras, in new processes."""

import statistics
import subprocess
import sys

_IMPORT = """
import time
start = time.perf_counter()
import keras
middle = time.perf_counter()
import keras_vit
print(middle - start, time.perf_counter() - middle)
"""


def main(rounds):
    times = [_import() for _ in range(rounds)]
    for what, seconds in zip(
        ("import keras", "import keras_vit, after it"),
        zip(*times, strict=True),
        strict=True,
    ):
        print(
            f"{what:26} best {min(seconds):6.2f} s, "
            f"median {statistics.median(seconds):6.2f} s",
            flush=True,
        )


def _import():
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(x) for x in done.stdout.split()[-2:]]
