"""Read thousands of damaged checkpoints.

    python -m tests.fuzzing --reader npz --count 100000 --seed 0
    python -m tests.fuzzing --reader npz --count 1 --seed 4711   # one again

Reading must end in the weights, or in one ValueError or OSError that names the
file. Nothing else may be raised, run or written, and no more be used than 10
seconds of a processor and 4 times the file's size plus 128 MiB of memory.
Inputs run in child processes, so that a crash is noticed too.

Exit status: 0 if none failed, 1 if some did.
"""

import argparse
import collections
import multiprocessing
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings

from tools import convert

convert.skip_package_init()  # no reader needs Keras, and forking stays cheap

from tests.fuzzing import check  # noqa: E402
from tests.fuzzing import readers  # noqa: E402

MAX_SECONDS, MAX_EXTRA_BYTES, MAX_ADDRESSES = 10, 2**27, 2**30
BATCH_SIZE, FURTHER_EVERY = 500, 25
FORK = multiprocessing.get_context("fork")


def main(argv=None):
    arguments = _parser().parse_args(argv)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        seeds = f"{folder}/seeds"
        os.mkdir(seeds)
        code = (
            f"from tests.fuzzing import readers as r; r.save_seeds({seeds!r})"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        names = [arguments.reader] if arguments.reader else readers.READERS
        failed = [run(name, seeds, arguments, folder) for name in names]
    return 1 if sum(failed) else 0


def run(name, seeds, arguments, folder):
    """Run the inputs of one reader and return how many failed."""
    reader = readers.READERS[name]
    files = readers.seed_files(reader, seeds)
    expected = check.read_weights(pathlib.Path(seeds) / reader.path)
    counts, start = collections.Counter(), time.monotonic()
    seed, end = arguments.seed, arguments.seed + arguments.count
    while seed < end:
        batch = range(seed, min(seed + BATCH_SIZE, end))
        results, exit_code = _run_batch(reader, files, expected, batch, folder)
        if exit_code:
            crash = f"the process ended with {exit_code}"
            results.append((seed + len(results), "FAILED", crash))
        for number, kind, text in results:
            counts[kind] += 1
            if kind == "FAILED":
                print(f"{name} seed {number}: {text}", flush=True)
                if arguments.save:
                    _save(arguments.save, name, number, reader, files)
        seed += len(results)
    found = ", ".join(f"{counts[kind]:,} {kind}" for kind in sorted(counts))
    seconds = time.monotonic() - start
    print(f"{name}: {found}; {seconds:.0f} s", flush=True)
    return counts["FAILED"]


def _run_batch(*work):
    """Check inputs in a child process.

    Returns:
        List of `(seed, outcome, message)`, and the exit code of the process,
        which is not 0 if the input after them ended it.
    """
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_check_batch, args=(sender, *work))
    process.start()
    sender.close()
    results = []
    try:
        while receiver.poll(10 * MAX_SECONDS):
            results.append(receiver.recv())
    except EOFError:
        process.join()
    else:
        process.kill()
        process.join()
    return results, process.exitcode


def _check_batch(sender, reader, files, expected, batch, folder):
    folder = pathlib.Path(folder) / "work"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    check.watch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in batch:
        found = readers.mutated(reader, files, random.Random(seed))
        # Its signal ends the process, also one that hangs in C code.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        text = ""
        try:
            further = seed % FURTHER_EVERY == 0
            kind = check.outcome(reader, found, expected, folder, further)
        except check.Failure as failure:
            kind, text = "FAILED", ascii(str(failure))
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        size = sum(map(len, found.values()))
        if peak * 2**10 > 4 * size + MAX_EXTRA_BYTES:
            kind, text = "FAILED", f"{peak} KiB for a file of {size} bytes"
        sender.send((seed, kind, text))


def _save(folder, name, seed, reader, files):
    found = readers.mutated(reader, files, random.Random(seed))
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
    parser.add_argument("--reader", choices=readers.READERS, help="default all")
    parser.add_argument("--count", type=int, default=1000, help="per reader")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--save", help="folder for the inputs that failed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
