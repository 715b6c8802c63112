"""Long campaigns against training; the suite runs short ones.

KERAS_BACKEND=jax python -m tests.faults kills 30
    kill -9 at random moments of runs that save after every step; counts
    those after which the run ended with the bits of one that was not
    killed
KERAS_BACKEND=jax python -m tests.faults memory 2000
    the memory of the recipe's own loop on digits, with checkpoints and
    evaluations, every tenth of so many steps
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


def memory(steps):
    import keras

    from keras_vit.training import models
    from tests.recipes import programs

    class Memory(keras.callbacks.Callback):
        done = 0

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            if self.done % (steps // 10) == 0:
                kib = pathlib.Path("/proc/self/statm").read_text().split()[1]
                text = f"memory {self.done} {int(kib) * 4 / 1024:.1f} MiB"
                print(text, flush=True)

    models.COMPACT["compact-vit"] = programs.SMALL
    with (
        tempfile.TemporaryDirectory() as folder,
        programs.more_callbacks(Memory()),
    ):
        programs.run(
            *("finetune_cifar", "--steps", steps, "--batch-size", 16),
            *("--checkpoint-every", 50, "--output", f"{folder}/run"),
        )


if __name__ == "__main__":
    {"kills": kills, "memory": memory}[sys.argv[1]](int(sys.argv[2]))
