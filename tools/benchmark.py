"""Measures keras_vit: importing it, converting, inference against timm.

    KERAS_BACKEND=jax python tools/benchmark.py
    python tools/benchmark.py --convert
    KERAS_BACKEND=torch python tools/benchmark.py \\
        --model R50ViTB16 --timm vit_base_r50_s16_224 --batch 8

Each figure is the best and the median of runs that alternate: of fresh
processes for the import and for conversions, of one process for inference.
`--convert` writes random checkpoints of the sizes of B/16 and L/16 and
converts them: seconds beyond a Python that only imports NumPy, and the peak of
memory as a multiple of the file's size. For inference both models have random
weights, and the exact GELU that timm's have.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {  # blocks, hidden size, width of the MLPs, heads
    "B/16": (12, 768, 3072, 12),
    "L/16": (24, 1024, 4096, 16),
}


def seconds_to_import(module):
    code = (
        "import time; start = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def write_random(path, size):
    """An .npz of vit_jax's layout, 224 x 224, 1000 classes."""
    import numpy as np

    blocks, hidden, mlp, heads = SIZES[size]
    projection = {"kernel": (hidden, heads, hidden // heads)}
    projection["bias"] = projection["kernel"][1:]
    norm = {"scale": (hidden,), "bias": (hidden,)}
    layers = {
        "embedding": {"kernel": (16, 16, 3, hidden), "bias": (hidden,)},
        "Transformer/encoder_norm": norm,
        "head": {"kernel": (hidden, 1000), "bias": (1000,)},
    }
    for i in range(blocks):
        block = f"Transformer/encoderblock_{i}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        layers |= {f"{block}/LayerNorm_{n}": norm for n in (0, 2)}
        layers |= {
            f"{attention}/{name}": projection
            for name in ("query", "key", "value")
        }
        layers[f"{attention}/out"] = {
            "kernel": (heads, hidden // heads, hidden),
            "bias": (hidden,),
        }
        for n, (a, b) in enumerate(((hidden, mlp), (mlp, hidden))):
            layers[f"{block}/MlpBlock_3/Dense_{n}"] = {
                "kernel": (a, b),
                "bias": (b,),
            }
    shapes = {f"{k}/{n}": s for k, v in layers.items() for n, s in v.items()}
    shapes["cls"] = (1, 1, hidden)
    shapes["Transformer/posembed_input/pos_embedding"] = (1, 197, hidden)
    random = np.random.default_rng(0)
    arrays = {
        key: random.standard_normal(shape, "float32")
        for key, shape in shapes.items()
    }
    np.savez(path, **arrays)


def measured(*command):
    """`(seconds, peak of memory in bytes)` of a process of its own."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "KERAS_BACKEND": "none"},  # none is loaded
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_maxrss * unit


def convert(rounds):
    tool = ROOT / "tools" / "convert.py"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        bare = min(measured("-c", "import numpy")[0] for _ in range(rounds))
        for size in SIZES:
            source = folder / "source.npz"
            write_random(source, size)
            bytes_ = source.stat().st_size
            print(f"{size}: {bytes_ / 1e6:.0f} MB in .npz")
            first = folder / "first.safetensors"
            for origin, target, layout in (
                (source, first, "timm"),
                (first, folder / "second.npz", "vit_jax"),
                (source, folder / "third.pth", "timm"),
            ):
                options = (origin, target, "--to", layout, "--overwrite")
                times, peaks = zip(
                    *(measured(tool, *options) for _ in range(rounds)),
                    strict=True,
                )
                print(
                    f"  {origin.suffix:12} -> {target.suffix:12} best "
                    f"{min(times) - bare:5.2f} s, median "
                    f"{statistics.median(times) - bare:5.2f} s, peak "
                    f"{max(peaks) / 1e6:5.0f} MB, {max(peaks) / bytes_:.2f} x"
                )


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
    parser.add_argument(
        "--convert", action="store_true", help="measure tools/convert.py"
    )
    parser.add_argument("--model", help="a model of keras_vit, to time")
    parser.add_argument("--timm", help="timm's model of the same architecture")
    parser.add_argument("--batch", type=int, default=8, help="(default 8)")
    arguments = parser.parse_args()
    if arguments.convert:
        convert(arguments.rounds)
        return
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
