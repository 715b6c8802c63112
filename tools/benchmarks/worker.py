"""A process with one contender. It runs it as often as a line of input says,
and answers each line with seconds."""

import importlib
import json
import os
import sys
import time

from benchmarks.contenders import CONTENDERS
from benchmarks.sizes import SIZES


def main(job):
    if job["threads"]:  # before any library starts its own
        available = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, available[: job["threads"]])
    answer = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    backend, name = job["backend"], job["name"]
    module, function, *options = CONTENDERS[backend][name]
    try:
        module = importlib.import_module(f"benchmarks.{module}")
        started = time.perf_counter()
        run = _made(module, function, *options, **_arguments(job))
        built = time.perf_counter() - started
    except ImportError as error:
        print(json.dumps({"skipped": str(error)}), file=answer, flush=True)
        return
    before = _megabytes("VmRSS")
    started = time.perf_counter()
    run(1)
    first = time.perf_counter() - started
    at_first = _megabytes("VmHWM") - before
    run(2)  # whatever is left to compile or to allocate
    _forget_peak()
    ready = {"built": built, "first": first, "first_peak": at_first}
    print(json.dumps(ready), file=answer, flush=True)
    for line in sys.stdin:
        times = int(line)
        started = time.perf_counter()
        run(times)
        seconds = (time.perf_counter() - started) / times
        measured = {"seconds": seconds, "peak": _peak(backend)}
        print(json.dumps(measured), file=answer, flush=True)


def _arguments(job):
    size = SIZES[job["size"]]
    if job["image_size"]:
        size = size.of(job["image_size"])
    return {
        "size": size,
        "batch": job["batch"],
        "what": job["what"],
        "dtype": job["dtype"],
    }


def _made(module, function, compiled=False, **arguments):
    function = getattr(module, function)
    if not hasattr(module, "runs"):
        return function(**arguments)
    more = {"compiled": True} if compiled else {}
    return module.runs(function, **arguments, **more)


def _megabytes(field):
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) / 1024
    except OSError:  # no Linux
        pass
    return 0.0


def _forget_peak():
    """The kernel's record of the peak starts again, without compiling."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def _peak(backend):
    """Most megabytes held since: on a GPU if there is one, else here."""
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated() / 2**20
    if backend == "jax":
        import jax

        if jax.default_backend() != "cpu":
            return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20
    if backend == "tensorflow":
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            return (
                tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
            )
    return _megabytes("VmHWM")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
