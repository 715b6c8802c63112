"""Inference and training steps of this package and of other packages.

Every contender runs in its own process, with the same sizes and number of
threads, in float32. All processes of a backend are alive together and run
sequentially in every round, so that other load on the machine affects all of
them. The first runs, which compile and allocate, are reported separately. A
training step consists of the forward pass, cross-entropy, gradients and SGD
with momentum. Keras models run by `predict_on_batch` and `train_on_batch`,
except those named "direct call". "matrix products" are those of the model
alone, which is the limit.

`--before FOLDER` adds keras_vit of another clone of the repository, so that a
change and the state before it are measured alternately. "ours is" compares the
best times, "by round" is the median of the ratios of each round. MB is the peak
memory of a process in the measured runs, minus its memory after the import of
its libraries ("libs MB"). It needs Linux.

`--only DINO "DINO, lightly" --what step --size Ti16` measures a step of DINO
with 2 crops of 224 pixels and 2 of 96.
"""

import itertools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

from benchmarks.contenders import BEFORE
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders import OURS
from benchmarks.contenders import SIZES

TOOLS = pathlib.Path(__file__).resolve().parent.parent


def main(a):
    if a.output:
        os.makedirs(a.output)  # raises before anything is measured
    groups = {}
    for setting in itertools.product(
        a.backend, a.size, a.what, a.batch, a.image_size or [224]
    ):
        backend, size, what, batch, pixels = setting
        title = (
            f"{size}, {pixels} px, {what}, batch {batch}, {backend}, "
            f"{a.threads} threads"
        )
        print(f"\n{title}", flush=True)
        groups[title] = rows = measured(a, *setting)
        print(table(rows), flush=True)
    if a.output:
        _write(pathlib.Path(a.output), groups, a.backend[0])


def measured(a, backend, size, what, batch, pixels):
    """Returns a dict of results for each contender."""
    running, rows = {}, []
    try:
        for name, contender in CONTENDERS[backend].items():
            if (a.only and name not in a.only) or what not in contender.of:
                continue
            option = contender.option
            if option and not getattr(a, option) and not a.only:
                print(f"{name:24} skipped: --{option} was not given")
                continue
            running[name] = _start(
                {
                    "backend": backend,
                    "name": name,
                    "size": {**vars(SIZES[size]), "image_size": pixels},
                    "what": what,
                    "batch": batch,
                    "threads": a.threads,
                    # Also for "keras_vit, before, XLA".
                    "tree": a.before
                    if name.startswith(BEFORE)
                    else str(TOOLS.parent),
                },
                a.verbose,
            )
        answers = {name: [_answer(p)] for name, p in running.items()}
        for _ in range(a.rounds):
            for name, found in answers.items():
                if "skipped" not in found[-1]:
                    found.append(_ask(running[name]))
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    for name, (ready, *found) in answers.items():
        last = found[-1] if found else ready
        if "skipped" in last:
            print(f"{name:24} skipped: {last['skipped']}", flush=True)
            continue
        seconds = [answer["seconds"] for answer in found]
        peak = max(answer["peak"] for answer in found)
        rows.append(
            {
                "name": name,
                "best": min(seconds),
                "median": statistics.median(seconds),
                "images_per_second": batch / min(seconds),
                "own_megabytes": peak - ready["libraries"],
                "libraries_megabytes": ready["libraries"],
                "first_call": ready["first"],
                "seconds": seconds,
            }
        )
    return rows


def _start(job, verbose):
    return subprocess.Popen(
        # -P: import keras_vit of `tree`, not of the current folder.
        [sys.executable, "-P", "-m", "benchmarks.worker", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if verbose else subprocess.DEVNULL,
        text=True,
        env={
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **os.environ,
            "OMP_NUM_THREADS": str(job["threads"]),
            "KERAS_BACKEND": job["backend"],
            "PYTHONPATH": os.pathsep.join(
                [job["tree"], str(TOOLS), os.environ.get("PYTHONPATH", "")]
            ),
        },
    )


def _ask(process):
    try:
        process.stdin.write("run\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the missing answer is reported instead
    return _answer(process)


def _answer(process):
    line = process.stdout.readline()
    if line:
        return json.loads(line)
    code = process.wait()
    return {"skipped": f"ended with status {code}; --verbose shows more"}


def table(rows):
    """Returns a table of contenders that were measured concurrently."""
    ours = next((row for row in rows if row["name"] == OURS), None)
    titles = "|best ms|median|images/s|MB|libs MB|first s|ours is|by round"
    lines = [titles.split("|"), ["---"] * 9]
    for row in rows:
        ratios = ["-", "-"]
        if ours:
            pairs = zip(row["seconds"], ours["seconds"], strict=True)
            by_round = statistics.median(a / b for a, b in pairs)
            best = row["best"] / ours["best"]
            ratios = [f"{best:.2f}x", f"{by_round:.2f}x"]
        lines.append(
            [
                row["name"],
                f"{1e3 * row['best']:.1f}",
                f"{1e3 * row['median']:.1f}",
                f"{row['images_per_second']:.1f}",
                f"{row['own_megabytes']:.0f}",
                f"{row['libraries_megabytes']:.0f}",
                f"{row['first_call']:.1f}",
                *ratios,
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _write(folder, groups, backend):
    """Writes the results as JSON and as Markdown."""
    os.environ.setdefault("KERAS_BACKEND", backend)
    from keras_vit.training import run_folder

    facts = {
        "command": sys.argv[1:],
        **run_folder.versions(),
        **run_folder.environment_info(),
        "machine": platform.platform(),
        "results": groups,
    }
    (folder / "results.json").write_text(json.dumps(facts, indent=1))
    text = [f"## {title}\n\n{table(rows)}\n" for title, rows in groups.items()]
    (folder / "results.md").write_text("\n".join(text))
    print(f"wrote {folder}")
