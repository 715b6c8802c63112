"""Measurements in new processes."""

import os
import statistics
import subprocess
import sys

# Prints the largest resident memory of its process in MB.
PEAK = """
import resource, sys
kilo = 1 if sys.platform == "linux" else 1024
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / kilo / 1024)
"""


def numbers(code, *arguments, **environment):
    """Returns the numbers that end the output of a Python program."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        check=True,
    )
    found = []
    for word in reversed(done.stdout.split()):
        try:
            found.insert(0, float(word))
        except ValueError:
            break
    return found


def show(what, seconds):
    """Prints the best and the median of the seconds of all rounds."""
    print(
        f"{what:30} best {min(seconds):6.2f} s, "
        f"median {statistics.median(seconds):6.2f} s",
        flush=True,
    )
