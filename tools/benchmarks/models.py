"""Inference and training steps of this package and of other packages.

Every contender runs in its own process, with the same sizes, precision and
number of threads. All processes of a backend are alive together and run
sequentially in every round, so that other load on the machine affects all of
them. The first runs, which compile and allocate, are reported separately. A
training step consists of the forward pass, cross-entropy, gradients and SGD
with momentum; for the matrix products, of their sum and its gradients. Keras
models run by `predict_on_batch` and `train_on_batch`, except those named
"direct call".

`--before FOLDER` adds keras_vit of another clone of the repository, so that a
change and the state before it are measured alternately. "ours is" compares the
best times, "by round" is the median of the ratios of each round.

Two contenders are not models: "matrix products" are those of the model alone,
which is the limit; "matrix rate" is one large square product, and MFU is the
fraction of its speed. MB is the peak memory of a process in the measured runs,
minus its memory after the import of its libraries ("libs MB"); on a GPU, it is
the memory that the backend allocated there.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys

from benchmarks import report
from benchmarks.contenders import BEFORE
from benchmarks.contenders import CONTENDERS
from benchmarks.sizes import SIZES

TOOLS = pathlib.Path(__file__).resolve().parent.parent


def main(a):
    writer = report.Writer(a, a.backend[0])
    for backend in a.backend:
        for size in a.size:
            for what in a.what:
                for batch in a.batch:
                    one = argparse.Namespace(**{**vars(a), "batch": batch})
                    writer.add(measured(one, backend, size, what))
    writer.write(report.bars)


def measured(a, backend, size, what):
    """Returns rows, which are also printed."""
    print(
        f"\n{size} at {_size(a, size).image_size} px, {what}, batch {a.batch}, "
        f"{a.dtype}, {backend}, {a.threads or os.cpu_count()} threads",
        flush=True,
    )
    running, processes = {}, []
    try:
        for name, contender in CONTENDERS[backend].items():
            if a.only and name not in a.only:
                continue
            if what not in contender.of:
                continue
            option = contender.option
            needed = not a.only or option == "before"
            if option and not getattr(a, option) and needed:
                print(f"{name:24} skipped: --{option} was not given")
                continue
            process = _start(a, backend, name, size, what)
            processes.append(process)
            ready = _answer(process)
            if "skipped" in ready:
                print(f"{name:24} skipped: {ready['skipped']}", flush=True)
                continue
            running[name] = (process, ready, [])
        for _ in range(a.rounds):
            for name, (process, _, answers) in list(running.items()):
                answers.append(_ask(process, a.times))
                if "skipped" in answers[-1]:
                    print(f"{name:24} {answers[-1]['skipped']}", flush=True)
                    del running[name]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    rows = [row(a, backend, size, what, n, *r[1:]) for n, r in running.items()]
    print(report.table(rows), flush=True)
    return rows


def _start(a, backend, name, size, what):
    # Also for "keras_vit, before, XLA".
    tree = a.before if name.startswith(BEFORE) else TOOLS.parent
    job = {
        "backend": backend,
        "tree": str(tree),
        "name": name,
        "size": dataclasses.asdict(_size(a, size)),
        "what": what,
        **{key: getattr(a, key) for key in ("batch", "dtype", "threads")},
    }
    threads = {"OMP_NUM_THREADS": str(a.threads)} if a.threads else {}
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **os.environ,
        **threads,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(
            [str(tree), str(TOOLS), os.environ.get("PYTHONPATH", "")]
        ),
    }
    return subprocess.Popen(
        # -P: import keras_vit of `tree`, not of the current folder.
        [sys.executable, "-P", "-m", "benchmarks.worker", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if a.verbose else subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _ask(process, times):
    try:
        process.stdin.write(f"{times}\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the missing answer is reported instead
    return _answer(process)


def _answer(process):
    line = process.stdout.readline()
    if line:
        return json.loads(line)
    code = process.wait()
    return {"skipped": f"ended with status {code}; --verbose shows more"}


def _size(a, size):
    size = SIZES[size]
    return size.of(a.image_size) if a.image_size else size


def row(a, backend, size, what, name, ready, answers):
    """Returns the results of a contender, as written to results.json."""
    seconds = [answer["seconds"] for answer in answers]
    flops = _size(a, size).flops(a.batch) * (3 if what == "step" else 1)
    best = min(seconds)
    peak = max(answer["peak"] for answer in answers)
    libraries = 0 if ready["device"] else ready["libraries"]
    return {
        "backend": backend,
        "model": size,
        "image_size": _size(a, size).image_size,
        "what": what,
        "batch": a.batch,
        "dtype": a.dtype,
        "threads": a.threads or os.cpu_count(),
        "device": ready["device"] or "CPU",
        "name": name,
        "best": best,
        "median": statistics.median(seconds),
        "images_per_second": None if ready["flops"] else a.batch / best,
        "gigaflops_per_second": (ready["flops"] or flops) / best / 1e9,
        "peak_megabytes": peak,
        "libraries_megabytes": ready["libraries"],
        "own_megabytes": peak - libraries,
        "first_call": ready["first"],
        "first_call_megabytes": ready["first_peak"] - libraries,
        "build": ready["built"],
        "seconds": seconds,
    }
