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
import warnings

from keras_vit_programs import convert

convert.skip_package_init()  # no reader needs Keras, and forking stays cheap

from tests.fuzzing import check, readers  # noqa: E402

MAX_SECONDS, MAX_EXTRA_BYTES, MAX_ADDRESSES = 10, 2**27, 2**30
BATCH_SIZE, FURTHER_EVERY = 500, 25
FORK = multiprocessing.get_context("fork")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("--reader", choices=readers.READERS, help="default all")
    parser.add_argument("--count", type=int, default=1000, help="per reader")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        seeds = pathlib.Path(folder) / "seeds"
        seeds.mkdir()
        code = f"from tests.fuzzing import readers as r; r.save_seeds('{seeds}')"
        subprocess.run([sys.executable, "-c", code, seeds], check=True)
        names = [arguments.reader] if arguments.reader else readers.READERS
        numbers = range(arguments.seed, arguments.seed + arguments.count)
        return max(_run(name, seeds, numbers) for name in names)


def _run(name, seeds, numbers):
    """Reads the inputs of one reader; returns 1 if some failed."""
    reader = readers.READERS[name]
    files = readers.seed_files(reader, seeds)
    work = reader, files, check.read_weights(seeds / reader.path), seeds.parent
    counts = collections.Counter()
    while numbers:
        receiver, sender = FORK.Pipe(duplex=False)
        arguments = (sender, numbers[:BATCH_SIZE], *work)
        process = FORK.Process(target=_check_batch, args=arguments)
        process.start()
        sender.close()
        results = []
        try:
            while receiver.poll(10 * MAX_SECONDS):
                results.append(receiver.recv())
        except EOFError:
            process.join()
        process.kill()
        process.join()
        if process.exitcode:
            crash = f"the process ended with {process.exitcode}"
            results.append(("FAILED", crash))
        for number, (kind, text) in zip(numbers, results, strict=False):
            counts[kind] += 1
            if kind == "FAILED":
                print(f"{name} seed {number}: {text}", flush=True)
        numbers = numbers[len(results) :]
    print(name, dict(counts), flush=True)
    return 1 if counts["FAILED"] else 0


def _check_batch(sender, numbers, reader, files, expected, folder):
    folder = folder / "work"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    check.watch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in numbers:
        found = readers.mutated(reader, files, random.Random(number))
        # Its signal ends the process, also one that hangs in C code.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        text = ""
        try:
            further = number % FURTHER_EVERY == 0
            kind = check.outcome(reader, found, expected, folder, further)
        except check.Failure as failure:
            kind, text = "FAILED", ascii(str(failure))
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        size = sum(map(len, found.values()))
        if peak * 2**10 > 4 * size + MAX_EXTRA_BYTES:
            kind, text = "FAILED", f"{peak} KiB for a file of {size} bytes"
        sender.send((kind, text))


if __name__ == "__main__":
    sys.exit(main())
