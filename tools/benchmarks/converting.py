"""Time and memory of converting a checkpoint.

Random checkpoints of the sizes of B/16 and L/16: seconds in addition to those
of a Python process that only imports NumPy, and the peak memory as a multiple
of the file size.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TOOLS = pathlib.Path(__file__).resolve().parent.parent
SIZES = {  # blocks, hidden size, width of the MLPs, heads
    "B/16": (12, 768, 3072, 12),
    "L/16": (24, 1024, 4096, 16),
}


def write_random(path, size):
    """Writes an .npz file in vit_jax's layout, 224 x 224, 1000 classes."""
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
    """Returns the seconds and the peak memory in bytes of a new process."""
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
    tool = TOOLS / "convert.py"
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
