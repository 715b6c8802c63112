"""Time and memory of converting a checkpoint.

B/16 and L/16 with random weights: seconds in addition to those of a Python
process that only imports NumPy, and the peak memory as a multiple of the file
size.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.processes import numbers
from benchmarks.startup import WRITE

TOOL = pathlib.Path(__file__).resolve().parent.parent / "convert.py"


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


def main(a):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        bare = min(measured("-c", "import numpy")[0] for _ in range(a.rounds))
        for name in ("ViTB16", "ViTL16"):
            source = folder / "source.npz"
            numbers(WRITE, name, source)
            bytes_ = source.stat().st_size
            print(f"{name}: {bytes_ / 1e6:.0f} MB in .npz")
            first = folder / "first.safetensors"
            for origin, target, layout in (
                (source, first, "timm"),
                (first, folder / "second.npz", "vit_jax"),
                (source, folder / "third.pth", "timm"),
            ):
                options = (origin, target, "--to", layout, "--overwrite")
                times, peaks = zip(
                    *(measured(TOOL, *options) for _ in range(a.rounds)),
                    strict=True,
                )
                print(
                    f"  {origin.suffix:12} -> {target.suffix:12} best "
                    f"{min(times) - bare:5.2f} s, median "
                    f"{statistics.median(times) - bare:5.2f} s, peak "
                    f"{max(peaks) / 1e6:5.0f} MB, {max(peaks) / bytes_:.2f} x"
                )
