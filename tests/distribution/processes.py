"""Programs in processes of their own, on logical devices of this machine."""

import os
import pathlib
import subprocess
import sys

import keras

ROOT = pathlib.Path(__file__).parents[2]


def start(module, *arguments, devices=4, **environment):
    """Starts a module of the tests, and returns its process."""
    flag = f"--xla_force_host_platform_device_count={devices}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": keras.config.backend(),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LOGICAL_DEVICES": str(devices),
        "XLA_FLAGS": f"{flag} {os.environ.get('XLA_FLAGS', '')}",
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(processes):
    """Returns what processes print, after their end without an error."""
    printed = []
    try:
        for process in processes:
            printed.append(process.communicate(timeout=900)[0])
            assert process.returncode == 0, printed[-1]
    finally:
        for process in processes:
            process.kill()
    return printed
