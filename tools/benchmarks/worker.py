"""A process that runs one contender. Each line of its input is a number of
runs, which it answers with their seconds.

On a GPU, times are measured by PyTorch's events and memory by the backend's
allocator. This has not been tested on a GPU.
"""

import importlib
import json
import os
import pathlib
import sys
import time

from benchmarks.contenders import CONTENDERS
from benchmarks.sizes import Size


def main(job):
    if job["threads"] and hasattr(os, "sched_setaffinity"):
        # Before any library starts threads.
        available = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, available[: job["threads"]])
    answer = sys.stdout
    sys.stdout = sys.stderr  # the output of libraries is not an answer

    def send(message):
        print(json.dumps(message), file=answer, flush=True)

    try:
        run, ready = _ready(job)
    except Exception as error:  # libraries raise various exceptions
        send({"skipped": _reason(error, job)})
        raise
    send(ready)
    for line in sys.stdin:
        seconds = _timed(job["backend"], run, int(line))
        send({"seconds": seconds / int(line), "peak": _peak(job["backend"])})


def _ready(job):
    """Imports, builds and warms up, each timed separately."""
    contender = CONTENDERS[job["backend"]][job["name"]]
    module = importlib.import_module(f"benchmarks.{contender.module}")
    for library in contender.libraries:
        _check(importlib.import_module(library), job)
    libraries = _megabytes("VmRSS")
    arguments = {
        "size": Size(**job["size"]),
        **{name: job[name] for name in ("batch", "what", "dtype")},
    }
    function = getattr(module, contender.function)
    started = time.perf_counter()
    if hasattr(module, "runs"):
        run = module.runs(function, **arguments, **contender.arguments)
    else:
        run = function(**arguments)
    built = time.perf_counter() - started
    _forget_peak(job["backend"])
    first = _timed(job["backend"], run, 1)
    at_first = _peak(job["backend"])
    run(2)  # further compilation and allocation
    _forget_peak(job["backend"])
    return run, {
        "built": built,
        "first": first,
        "first_peak": at_first,
        "libraries": libraries,
        "device": _gpu(job["backend"]),
        "flops": getattr(run, "flops", None),
    }


def _check(library, job):
    """Raises an ImportError if keras_vit is imported from another clone."""
    if library.__name__ == "keras_vit":
        found = pathlib.Path(library.__file__).resolve().parents[1]
        if found != pathlib.Path(job["tree"]).resolve():
            raise ImportError(f"keras_vit is imported from {str(found)!r}")


def _reason(error, job):
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, ImportError):
        return f"{text} ({CONTENDERS[job['backend']][job['name']].hint})"
    return text


def _timed(backend, run, times):
    if backend == "torch" and _gpu(backend):
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(times)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3
    started = time.perf_counter()
    run(times)
    return time.perf_counter() - started


def _gpu(backend):
    """Returns the name of the accelerator of the backend, or None."""
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    if backend == "jax":
        import jax

        if jax.default_backend() != "cpu":
            return jax.devices()[0].device_kind
    if backend == "tensorflow":
        import tensorflow as tf

        if found := tf.config.list_physical_devices("GPU"):
            details = tf.config.experimental.get_device_details(found[0])
            return details.get("device_name", "GPU")
    return None


def _forget_peak(backend):
    """Resets the peak memory, to leave out compilation.

    This is not possible for JAX on an accelerator.
    """
    if _gpu(backend) and backend == "torch":
        import torch

        torch.cuda.reset_peak_memory_stats()
    elif _gpu(backend) and backend == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.reset_memory_stats("GPU:0")
    else:
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:  # no Linux
            pass


def _peak(backend):
    """Returns the peak memory in MB, on the accelerator if there is one."""
    if not _gpu(backend):
        return _megabytes("VmHWM")
    if backend == "torch":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    if backend == "jax":
        import jax

        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20


def _megabytes(field):
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) / 1024
    except OSError:  # no Linux
        pass
    return 0.0


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
