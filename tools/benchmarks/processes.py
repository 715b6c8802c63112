"""Functions that run in new processes, with their time and memory."""

import importlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

TOOLS = pathlib.Path(__file__).resolve().parents[1]


class Finished(NamedTuple):
    value: Any  # what the function returned
    seconds: float  # of the whole process
    peak: int  # its largest resident memory in bytes


def environment(*folders: str) -> dict[str, str]:
    """Returns an environment in which `benchmarks` can be imported, and the
    modules of other folders before it."""
    path = [*folders, str(TOOLS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def run(function: Callable, *arguments: Any, **variables: str) -> Finished:
    """Calls a function of a module in a new process, with environment
    variables."""
    command = [sys.executable, "-m", "benchmarks.processes"]
    command += [function.__module__, function.__name__, json.dumps(arguments)]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        env={**environment(), **variables},
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    value, peak = json.loads(done.stdout.splitlines()[-1])
    return Finished(value, seconds, peak)


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def resident(field: str) -> int:
    """Returns bytes of this process, on Linux: VmRSS, the resident memory, or
    VmHWM, its peak."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Resets VmHWM to the current memory."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def main(module: str, name: str, arguments: str) -> None:
    function = getattr(importlib.import_module(module), name)
    value = function(*json.loads(arguments))
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(f"\n{json.dumps([value, peak])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
