"""Kills processes that train, at random moments; the suite kills a few.

    KERAS_BACKEND=jax python -m tests.faults 30

Sends `kill -9` to runs that save after every step, as many times, and compares
the bits at their end with those of a run that was not killed.
"""

import multiprocessing
import pathlib
import random
import signal
import sys
import tempfile
import time

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.training.run_small"])


def kills(count):
    from tests.training import run_small
    from tests.training.test_checkpoints import assert_same_end

    rng = random.Random(0)
    root = pathlib.Path(tempfile.mkdtemp())
    run_small.EVERY = 1
    run_small.main(root / "straight")
    done = chains = here = 0
    while done < count or here:
        folder = root / f"chain-{chains}"
        here += _interrupted(folder, rng, kill=done + here < count)
        if not (folder / "end.npz").exists():
            continue
        assert_same_end(folder, root / "straight")
        left = [p.name for p in folder.rglob(".*")]
        assert not left, left
        done, chains, here = done + here, chains + 1, 0
        print(f"{done} kills, {chains} runs, all exact", flush=True)


def _interrupted(folder, rng, kill):
    """Runs in a process of its own; returns whether it was killed."""
    counter = PROCESSES.RawValue("i", 0)
    process = PROCESSES.Process(target=_run, args=(folder, counter))
    process.start()
    while kill and process.is_alive() and counter.value < 1:
        time.sleep(0.002)
    if kill:
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _run(folder, counter):
    from tests.training import run_small

    run_small.EVERY = 1
    run_small.main(folder, [run_small.CountSteps(counter)])


if __name__ == "__main__":
    kills(int(sys.argv[1]))
