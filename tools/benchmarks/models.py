"""Inference and training steps of this package against its peers.

Every contender runs in a process of its own, with the same sizes, precision
and threads. All of one backend are alive together and take turns, round after
round, so that what else the machine does befalls them all. The first runs,
which compile and allocate, are apart. Peak memory is the most that the process
held in the turns that were timed (on a GPU: what the backend allocated there).
A training step is forward, cross-entropy, gradients and SGD with momentum; of
the matrix products, their sum and its gradients.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders import LIMIT
from benchmarks.contenders import OURS
from benchmarks.sizes import SIZES

TOOLS = pathlib.Path(__file__).resolve().parent.parent


def main(a):
    rows = []
    for backend in a.backend:
        for size in a.size:
            for what in a.what:
                rows += _measured(a, backend, size, what)
    if a.output:
        _write(rows, pathlib.Path(a.output))
    return rows


def _measured(a, backend, size, what):
    print(
        f"\n{size} at {_size(a, size).image_size} px, {what}, batch {a.batch}, "
        f"{a.dtype}, {backend}, {a.threads or os.cpu_count()} threads"
    )
    running = {}
    try:
        for name in CONTENDERS[backend]:
            if (
                a.only
                and name not in a.only
                or "compile" in name
                and not a.compile
            ):
                continue
            process = _start(a, backend, name, size, what)
            ready = _answer(process, name)
            if ready is None or "skipped" in ready:
                print(f"{name:24} skipped: {(ready or {}).get('skipped')}")
                process.kill()
                continue
            running[name] = (process, ready, [])
        for _ in range(a.rounds):
            for name, (process, _, turns) in running.items():
                process.stdin.write(f"{a.times}\n")
                process.stdin.flush()
                turns.append(_answer(process, name))
    finally:
        for process, _, _ in running.values():
            process.kill()
    rows = [_row(a, backend, size, what, n, *r[1:]) for n, r in running.items()]
    _print(rows)
    return rows


def _start(a, backend, name, size, what):
    job = {
        "backend": backend,
        "name": name,
        "size": size,
        "what": what,
        "batch": a.batch,
        "dtype": a.dtype,
        "threads": a.threads,
        "image_size": a.image_size,
    }
    threads = {}
    if a.threads:
        threads = {"OMP_NUM_THREADS": str(a.threads)}
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **os.environ,
        **threads,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(
            [str(TOOLS), os.environ.get("PYTHONPATH", "")]
        ),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if a.verbose else subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _answer(process, name):
    line = process.stdout.readline()
    if not line:
        print(f"{name} ended without an answer; --verbose shows why")
        return None
    return json.loads(line)


def _size(a, size):
    size = SIZES[size]
    return size.of(a.image_size) if a.image_size else size


def _row(a, backend, size, what, name, ready, turns):
    seconds = [turn["seconds"] for turn in turns]
    flops = _size(a, size).flops(a.batch) * (3 if what == "step" else 1)
    return {
        "backend": backend,
        "model": size,
        "image_size": _size(a, size).image_size,
        "what": what,
        "batch": a.batch,
        "dtype": a.dtype,
        "threads": a.threads or os.cpu_count(),
        "name": name,
        "best": min(seconds),
        "median": statistics.median(seconds),
        "images_per_second": a.batch / min(seconds),
        "gigaflops_per_second": flops / min(seconds) / 1e9,
        "peak_megabytes": max(turn["peak"] for turn in turns),
        "first_call": ready["first"],
        "first_call_megabytes": ready["first_peak"],
        "build": ready["built"],
        "seconds": seconds,
    }


def _print(rows):
    found = {row["name"]: row for row in rows}
    print(
        f"{'':24}{'best ms':>9}{'median':>9}{'images/s':>10}{'Gflop/s':>9}"
        f"{'of limit':>10}{'MB':>7}{'first s':>9}{'ours is':>9}"
    )
    ours, limit = found.get(OURS), found.get(LIMIT)
    for row in rows:
        share = f"{limit['best'] / row['best']:.2f}" if limit else "-"
        times = f"{row['best'] / ours['best']:.2f}" if ours else "-"
        print(
            f"{row['name']:24}{1e3 * row['best']:9.0f}"
            f"{1e3 * row['median']:9.0f}{row['images_per_second']:10.1f}"
            f"{row['gigaflops_per_second']:9.0f}{share:>10}"
            f"{row['peak_megabytes']:7.0f}{row['first_call']:9.1f}"
            f"{times:>8}x"
        )


def _write(rows, path):
    path.write_text(json.dumps(rows, indent=1))
