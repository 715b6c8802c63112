"""Inference and training steps, each contender in a process of its own."""

import importlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from benchmarks.contenders import BACKENDS, BEFORE, CONTENDERS, OURS, SIZES, WHAT
from benchmarks.processes import TOOLS, environment, forget_peak, resident, timed

COLUMNS = "|best ms|median|images/s|MiB|libs MiB|first s|ours is|by round"


def models(
    size: tuple[str, ...] = ("S16",),
    what: tuple[str, ...] = WHAT,
    backend: tuple[str, ...] = BACKENDS,
    batch_size: tuple[int, ...] = (8,),
    image_size: tuple[int, ...] = (224,),
    only: tuple[str, ...] = (),
    before: str = "",
    compile: bool = False,
    export: bool = False,
    rounds: int = 7,
    threads: int = os.cpu_count() or 1,
    verbose: bool = False,
) -> None:
    """Inference and training steps of this package and of other packages.

    Every contender runs in its own process, with the same sizes and number of
    threads, in float32. All processes of a backend are alive together and run
    sequentially in every round, so that other load on the machine affects all
    of them. The first runs, which compile and allocate, are reported
    separately. A training step consists of the forward pass, cross-entropy,
    gradients and SGD with momentum. Keras models run by `predict_on_batch` and
    `train_on_batch`, except those named "direct call". "matrix products" are
    those of the model alone, which is the limit.

    `--before FOLDER` adds keras_vit of another clone of the repository, so that
    a change and the state before it are measured alternately; `--compile` adds
    PyTorch's packages with torch.compile, and `--export` keras_vit's model in
    every export format. "ours is" compares the best times, "by round" is the
    median of the ratios of each round. MiB is the peak memory of a process in
    the measured runs, minus its memory after the import of its libraries ("libs
    MiB"). `--verbose` shows the output of the processes. It needs Linux.

    `--only DINO "DINO, lightly" --what step --size Ti16` measures a step of
    DINO with 2 crops of 224 pixels and 2 of 96.
    """
    given = {"before": before, "compile": compile, "export": export}
    for setting in itertools.product(backend, size, what, batch_size, image_size):
        title = "{}, {}, {}, batch {}, {} px".format(*setting)
        print(f"\n{title}, {threads} threads", flush=True)
        names = [
            name
            for name, x in CONTENDERS.items()
            if setting[0] in x.backends
            and setting[2] in x.of
            and (name in only if only else not x.option or given.get(x.option))
            and (before or x.option != "before")
        ]
        workers, ready = {}, {}
        try:
            for name in names:
                tree = before if name.startswith(BEFORE) else str(TOOLS.parent)
                sizes = vars(SIZES[setting[1]])
                job = (name, *setting[2:], threads, tree, sizes)
                workers[name] = start(setting[0], job, verbose)
            ready = {name: answer(worker) for name, worker in workers.items()}
            found = {name: [] for name in names}
            for _, name in itertools.product(range(rounds), names):
                if "skipped" not in ready[name]:
                    found[name].append(ask(workers[name], ready[name]))
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()
        for name, facts in ready.items():
            if "skipped" in facts:
                print(f"{name:24} skipped: {facts['skipped']}", flush=True)
                del found[name]
        print(table(found, ready, setting[3]), flush=True)


def start(backend: str, job: tuple, verbose: bool) -> subprocess.Popen:
    """Starts the process of a contender."""
    *_, threads, tree, _ = job
    return subprocess.Popen(
        # -P: import keras_vit of `tree`, not of the current folder.
        [sys.executable, "-P", "-m", "benchmarks.models", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if verbose else subprocess.DEVNULL,
        text=True,
        env={
            **environment(tree),
            "OMP_NUM_THREADS": str(threads),
            "KERAS_BACKEND": backend,
        },
    )


def ask(worker: Any, facts: dict) -> dict:
    """Returns the answer for another run; a process that ended is skipped."""
    try:
        worker.stdin.write("run\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass  # the missing answer is reported instead
    found = answer(worker)
    facts.update({k: v for k, v in found.items() if k == "skipped"})
    return found


def answer(worker: Any) -> dict:
    line = worker.stdout.readline()
    if line:
        return json.loads(line)
    code = worker.wait()
    return {"skipped": f"ended with status {code}; --verbose shows more"}


def table(found: dict[str, list[dict]], ready: dict[str, dict], batch: int) -> str:
    """Returns a table of contenders that were measured concurrently."""
    times = {name: [x["seconds"] for x in xs] for name, xs in found.items()}
    ours = times.get(OURS)
    lines = [COLUMNS.split("|"), ["---"] * 9]
    for name, seconds in times.items():
        ratios = ["-", "-"]
        if ours:
            best = min(seconds) / min(ours)
            by_round = map(lambda a, b: a / b, seconds, ours)
            ratios = [f"{best:.2f}x", f"{statistics.median(by_round):.2f}x"]
        libraries = ready[name]["libraries"]
        own = max(x["peak"] for x in found[name]) - libraries
        lines.append(
            [
                name,
                f"{1e3 * min(seconds):.1f}",
                f"{1e3 * statistics.median(seconds):.1f}",
                f"{batch / min(seconds):.1f}",
                f"{own / 2**20:.0f}",
                f"{libraries / 2**20:.0f}",
                f"{ready[name]['first']:.1f}",
                *ratios,
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def work(
    name: str,
    what: str,
    batch: int,
    pixels: int,
    threads: int,
    tree: str,
    sizes: dict[str, int],
) -> None:
    """Runs a contender once for each line of the input, which it answers with
    the seconds and the peak memory."""
    # The cores are chosen before libraries start threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    output = sys.stdout
    sys.stdout = sys.stderr  # the output of libraries is not an answer

    def send(**message: Any) -> None:
        print(json.dumps(message), file=output, flush=True)

    try:
        for library in CONTENDERS[name].libraries:
            module = importlib.import_module(library)
            path = pathlib.Path(module.__file__ or "").resolve().parents[1]
            if library == "keras_vit" and path != pathlib.Path(tree).resolve():
                raise ImportError(f"keras_vit is imported from {str(path)!r}")
        libraries = resident("VmRSS")
        shape = (batch, pixels, pixels, 3)
        images = np.random.default_rng(0).uniform(-1, 1, shape)
        images, size = images.astype("float32"), SimpleNamespace(**sizes)
        run = CONTENDERS[name].start(size, images, what)
        first = timed(run)
        run()  # further compilation and allocation
        run()
        forget_peak()  # which compiling raised
    except Exception as error:  # libraries raise various exceptions
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        send(skipped=reason)
        raise
    send(first=first, libraries=libraries)
    for _ in sys.stdin:
        send(seconds=timed(run), peak=resident("VmHWM"))


if __name__ == "__main__":
    work(*json.loads(sys.argv[1]))
