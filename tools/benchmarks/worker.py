"""A process that runs one contender, once for each line of its input, which it
answers with the seconds and the peak memory."""

import importlib
import json
import os
import pathlib
import sys
import time
from types import SimpleNamespace

from benchmarks.contenders import CONTENDERS


def main(job):
    # Before libraries start threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
    answer = sys.stdout
    sys.stdout = sys.stderr  # the output of libraries is not an answer

    def send(message):
        print(json.dumps(message), file=answer, flush=True)

    try:
        run, ready = _ready(job)
    except Exception as error:  # libraries raise various exceptions
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        send({"skipped": reason})
        raise
    send(ready)
    for _ in sys.stdin:
        send({"seconds": _timed(run), "peak": _megabytes("VmHWM")})


def _ready(job):
    """Imports, builds and warms up."""
    contender = CONTENDERS[job["backend"]][job["name"]]
    for library in contender.libraries:
        _check(importlib.import_module(library), job)
    module = importlib.import_module(f"benchmarks.{contender.module}")
    import numpy as np

    libraries = _megabytes("VmRSS")
    size = SimpleNamespace(**job["size"])
    shape = (job["batch"], size.image_size, size.image_size, 3)
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    build = getattr(module, contender.function, contender.function)
    run = module.runs(build, size, images, job["what"], **contender.arguments)
    first = _timed(run)
    run()  # further compilation and allocation
    run()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forgets the peak, which compiling raised
    return run, {"first": first, "libraries": libraries}


def _check(library, job):
    """Raises an ImportError if keras_vit is imported from another clone."""
    if library.__name__ == "keras_vit":
        found = pathlib.Path(library.__file__).resolve().parents[1]
        if found != pathlib.Path(job["tree"]).resolve():
            raise ImportError(f"keras_vit is imported from {str(found)!r}")


def _timed(run):
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _megabytes(field):
    """Returns a field of the process's status, which Linux has."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
