"""What importing keras_vit adds to importing Keras, in fresh processes."""

import statistics
import subprocess
import sys


def seconds_to_import(module):
    code = (
        "import time; start = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main(rounds):
    times = {"keras": [], "keras_vit": []}
    for _ in range(rounds):
        for module, measured in times.items():
            measured.append(seconds_to_import(module))
    for module, measured in times.items():
        print(
            f"import {module:10} best {min(measured):.2f} s, "
            f"median {statistics.median(measured):.2f} s"
        )
    added = min(times["keras_vit"]) - min(times["keras"])
    print(f"import keras_vit adds {added:.2f} s to import keras (best)")
