"""Measures keras_vit.

    KERAS_BACKEND=jax python tools/benchmark.py
        what importing it costs
    KERAS_BACKEND=jax python tools/benchmark.py --what pipeline
        images a second at 224 px from JPEG, with and without RandAugment, and
        RandAugment alone against keras-cv's and Keras core's

Each figure is of fresh processes, run alternately: the best, or the best and
the median.
"""

import argparse
import statistics
import subprocess
import sys

import pipeline_benchmark


def seconds_to_import(module):
    code = (
        "import time; start = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="processes a module (default 7)"
    )
    parser.add_argument(
        "--what",
        choices=("import", "pipeline"),
        default="import",
        help="what to measure (default import)",
    )
    arguments = parser.parse_args()
    if arguments.what == "pipeline":
        pipeline_benchmark.main(arguments.rounds)
    else:
        measure_import(range(arguments.rounds))


def measure_import(rounds):
    times = {"keras": [], "keras_vit": []}
    for _ in rounds:
        for module, measured in times.items():
            measured.append(seconds_to_import(module))
    for module, measured in times.items():
        print(
            f"import {module:10} best {min(measured):.2f} s, "
            f"median {statistics.median(measured):.2f} s"
        )
    added = min(times["keras_vit"]) - min(times["keras"])
    print(f"import keras_vit adds {added:.2f} s to import keras (best)")


if __name__ == "__main__":
    main()
