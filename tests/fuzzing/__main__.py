"""Breaks small checkpoints in thousands of ways and reads each.

    python -m tests.fuzzing --reader npz --count 100000 --seed 0
    python -m tests.fuzzing --reader all --count 2000
    python -m tests.fuzzing --reader npz --count 1 --seed 4711   # one again

Each must load right, or end in one ValueError or OSError that names the file:
nothing else may be raised, run or written, and 10 seconds (of a processor) or
memory beyond 4 times the file and 128 MiB not be used. Batches run in processes
of their own, so that a crash is seen. What fails is saved and printed.

Exit status: 0 none failed, 1 some did.
"""

import argparse
import collections
import math
import os
import pathlib
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings

from tools import convert

convert.enter_beside_the_door()  # no reader needs Keras, and forks are cheap

from tests.fuzzing import _judge  # noqa: E402
from tests.fuzzing import _readers  # noqa: E402

SECONDS, MEMORY = 10, 2**27
_BATCH, _FURTHER = 500, 25  # every so many are inspected and converted, too
_ADDRESSES, _WAIT = 2**30, 120


def main(argv=None):
    arguments = _parser().parse_args(argv)
    _judge.remember()
    warnings.simplefilter("ignore")
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        seeds = arguments.seeds or f"{folder}/seeds"
        if not os.path.exists(f"{seeds}/a.npz"):
            _readers.make_seeds(seeds)
        names = list(_readers.READERS)
        if arguments.reader != "all":
            names = [arguments.reader]
        failed = 0
        for name in names:
            failed += run(name, seeds, arguments, folder)
    return 1 if failed else 0


def run(name, seeds, arguments, folder):
    """Runs one reader's mutations and prints a line; returns the failures."""
    reader = _readers.READERS[name]
    files = _readers.seed_files(reader, seeds)
    expected = _judge.opened(pathlib.Path(seeds) / reader.path)
    if reader.reference is not None:
        reader.reference(pathlib.Path(seeds) / reader.path)  # imports it
    counts, start = collections.Counter(), time.monotonic()
    busy, peak = 0.0, 0
    first, end = arguments.seed, arguments.seed + arguments.count
    stop = time.monotonic() + arguments.seconds
    while first < end and time.monotonic() < stop:
        wanted = range(first, min(first + _BATCH, end))
        work = (reader, files, expected, wanted, folder)
        lines, status, used = _batch(work)
        for seed, kind, more, text in lines:
            counts[kind] += 1
            peak = max(peak, int(more))
            if kind == "FAILED":
                _report(name, seed, text, reader, files, arguments.save)
        first = int(lines[-1][0]) + 1 if lines else first
        busy += used
        if status:
            counts["FAILED"] += 1
            why = f"the process ended: {_named(status)}"
            _report(name, first, why, reader, files, arguments.save)
            first += 1
    total = sum(counts.values())
    told = ", ".join(f"{counts[kind]:,} {kind}" for kind in sorted(counts))
    print(
        f"{name}: {total:,} inputs from seed {arguments.seed}: {told}; "
        f"{time.monotonic() - start:.0f} s, {total / max(busy, 1e-9):.0f} a "
        f"second of a processor, peak {peak / 2**10:.0f} MiB more",
        flush=True,
    )
    return counts["FAILED"]


def _batch(work):
    """Runs inputs in a process of their own.

    Returns:
        List of `(seed, kind, KiB more, text)` of what was judged; the exit
        status, which is not 0 if the next one ended it; seconds of a
        processor.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            with os.fdopen(writing, "w") as out:
                _child(out, *work)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    found, waited = b"", 0
    while True:
        if select.select([reading], [], [], _WAIT)[0]:
            more, waited = os.read(reading, 2**16), 0
            if not more:
                break
            found += more
        elif waited:  # twice: the whole machine may have stood still
            os.kill(child, signal.SIGKILL)
            break
        else:
            waited = 1
    os.close(reading)
    _, status, usage = os.wait4(child, 0)
    lines = found.decode().split("\n")[:-1]
    lines = [line.split("\t", 3) for line in lines]
    return lines, status, usage.ru_utime + usage.ru_stime


def _child(out, reader, files, expected, seeds, folder):
    folder = pathlib.Path(folder) / "work"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _judge.watch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in seeds:
        found = _readers.mutated(reader, files, random.Random(seed))
        # Without a handler: it also ends what never comes back to Python.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        text = ""
        try:
            further = seed % _FURTHER == 0
            kind = _judge.outcome(reader, found, expected, folder, further)
        except _judge.Failure as failure:
            kind, text = "FAILED", " ".join(str(failure).split())
        signal.setitimer(signal.ITIMER_PROF, 0)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        size = sum(map(len, found.values()))
        if more > (4 * size + MEMORY) / 2**10:
            kind, text = "FAILED", f"{more} KiB for a file of {size} bytes"
        out.write(f"{seed}\t{kind}\t{more}\t{ascii(text)}\n")
        out.flush()


def _named(status):
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"status {os.WEXITSTATUS(status)}"


def _report(name, seed, why, reader, files, folder):
    print(f"{name} seed {seed}: {why}", flush=True)
    if folder is None:
        return
    found = _readers.mutated(reader, files, random.Random(int(seed)))
    for path, data in found.items():
        path = pathlib.Path(folder) / f"{name}-{seed}" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzzing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = (*_readers.READERS, "all")
    parser.add_argument("--reader", choices=names, default="all")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="that each may take"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--save", help="folder for the inputs that failed")
    parser.add_argument(
        "--seeds", help="folder of what is broken; made if it is not there"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
