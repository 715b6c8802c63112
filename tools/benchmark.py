"""Measures keras_vit: what importing it costs, and inference against timm.

    KERAS_BACKEND=jax python tools/benchmark.py
    KERAS_BACKEND=torch python tools/benchmark.py \\
        --model R50ViTB16 --timm vit_base_r50_s16_224 --batch 8

Each figure is the best and the median of runs that alternate: of fresh
processes for the import, of one process for inference. Both models have random
weights, and the exact GELU that timm's have.
"""

import argparse
import statistics
import subprocess
import sys
import time


def seconds_to_import(module):
    code = (
        "import time; start = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def against_timm(name, timm_name, batch, rounds):
    import numpy as np
    import timm
    import torch

    import keras_vit

    ours = getattr(keras_vit, name)(activation="gelu")
    theirs = timm.create_model(timm_name).eval()
    height, width, channels = ours.input_shape[1:]
    images = np.random.default_rng(0).uniform(
        -1, 1, (batch, height, width, channels)
    )
    images = torch.tensor(images, dtype=torch.float32)
    turned = images.permute(0, 3, 1, 2).contiguous()
    calls = {
        name: lambda: ours(images, training=False),
        timm_name: lambda: theirs(turned),
    }
    times = {model: [] for model in calls}
    with torch.no_grad():
        for _ in range(rounds + 1):
            for model, call in calls.items():
                start = time.perf_counter()
                call()
                times[model].append(time.perf_counter() - start)
    best = {}
    for model, measured in times.items():
        measured = measured[1:]  # the first warms up
        best[model] = min(measured)
        print(
            f"{model:24} best {1e3 * min(measured):.0f} ms, "
            f"median {1e3 * statistics.median(measured):.0f} ms"
        )
    print(f"keras_vit takes {best[name] / best[timm_name]:.2f} of timm (best)")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="runs of each (default 7)"
    )
    parser.add_argument("--model", help="a model of keras_vit, to time")
    parser.add_argument("--timm", help="timm's model of the same architecture")
    parser.add_argument("--batch", type=int, default=8, help="(default 8)")
    arguments = parser.parse_args()
    if arguments.model:
        if not arguments.timm:
            parser.error("--model needs --timm, the model to compare with")
        against_timm(
            arguments.model, arguments.timm, arguments.batch, arguments.rounds
        )
        return
    rounds = range(arguments.rounds)
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
