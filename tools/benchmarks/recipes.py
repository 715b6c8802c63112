"""Accuracy of models that the recipes train."""

import dataclasses
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.processes import TOOLS

MASKED, CONTRASTIVE = ("mpp", "mim", "mae"), ("dino", "mocov3")
METHODS = (*MASKED, *CONTRASTIVE)
TUNING, BATCH, SHOTS, RATE = 200, 50, 10, 3e-3
# Models of random weights: sizes of images and patches of the recipes.
SIZES = {"random, 8 px": (8, 2), "random, 16 px": (16, 4)}
SEEDS = (0, 1, 2)


def run(recipe: str, output: pathlib.Path, *flags: str) -> dict[str, Any]:
    """Runs a recipe, unless it is finished, and returns its `config.json`."""
    path = output / "config.json"
    if not path.exists():
        command = [sys.executable, str(TOOLS.parent / "recipes" / recipe)]
        command += ["--output", str(output), *flags]
        subprocess.run(command, check=True)
    return json.loads(path.read_text())


def training(images: str, weights: str, *flags: str) -> None:
    """Test accuracy of recipes/finetune_cifar.py by what it trains.

    `--train` all, lora and head, and from scratch, for three seeds; further
    flags are the recipe's. Runs are kept in runs/transfer, and finished ones
    are not repeated.
    """
    ways = {
        train: ("--weights", weights, "--train", train)
        for train in ("all", "lora", "head")
    }
    _print_runs(images, {**ways, "scratch": ()}, flags)


def distillation(images: str, teacher: str, *flags: str) -> None:
    """Test accuracy of recipes/finetune_cifar.py by what teaches the model.

    Labels only, and each target of distillation, for three seeds; further
    flags are the recipe's. Runs are kept in runs/transfer, and finished ones
    are not repeated.
    """
    import keras_vit

    name = pathlib.Path(teacher).name
    ways = {
        f"{name}, {target}": ("--teacher", teacher, "--distill", target)
        for target in keras_vit.distillation.TARGETS
    }
    _print_runs(images, {"labels only": (), **ways}, flags)


def _print_runs(
    images: str, ways: dict[str, tuple[str, ...]], flags: tuple[str, ...]
) -> None:
    """Prints the test accuracies of runs, by the flags of each way."""
    folder = pathlib.Path("runs/transfer", pathlib.Path(images).name)
    rows = []
    for way, own in ways.items():
        found = [
            run(
                "finetune_cifar.py",
                folder / f"{way}-{seed}",
                *("--dataset", images, *flags, *own, "--seed", str(seed)),
            )
            for seed in SEEDS
        ]
        accuracies = [x["test_accuracy"] for x in found]
        shown = [*accuracies, statistics.mean(accuracies)]
        shown.append(statistics.stdev(accuracies))
        seconds = statistics.mean(x["seconds"] for x in found)
        cells = " | ".join(f"{x:.3f}" for x in shown)
        rows.append(f"| {way} | {cells} | {seconds:.0f} |")
    print("| trained | " + " | ".join(f"seed {x}" for x in SEEDS), end=" ")
    print("| mean | spread | seconds |\n|---|" + "---|" * (len(SEEDS) + 3))
    print("\n".join(rows))


def self_supervised(
    steps: int = 1000, seeds: int = 3, methods: tuple[str, ...] = METHODS
) -> None:
    """Self-supervised pre-training: accuracy on digits.

    The recipes pre-train on 1,438 digits without labels, once for each method
    and seed, all for the same number of steps of 64 images, which cost
    different times. Each encoder is then evaluated on the 359 test images: by
    its 20 nearest neighbors among all training images with their labels; by a
    ridge regression of its features with 10 labels per class (100 images, other
    ones for each seed); and by fine-tuning for 200 steps with 10 labels per
    class. The first rows are random weights, for which fine-tuning is training
    from scratch. A figure is the mean over the seeds, followed by the smallest
    and the largest.
    """
    with tempfile.TemporaryDirectory() as folder:
        for method in (*SIZES, *methods):
            found, seconds = [], []
            for seed in range(seeds):
                path = pathlib.Path(folder, f"{method}-{seed}")
                before = _child_seconds()
                if method in METHODS:
                    kind = "masked" if method in MASKED else "contrastive"
                    run(
                        f"pretrain_{kind}.py",
                        path,
                        *("--method", method, "--seed", str(seed)),
                        *(
                            "--steps",
                            str(steps),
                            "--evaluate-every",
                            str(steps),
                        ),
                    )
                seconds.append(_child_seconds() - before)
                found.append(_evaluate(path, method, seed))
            columns = ("k-NN", "linear", "fine-tuned")
            print(
                f"{method:14}",
                *(
                    f"{name} {statistics.mean(x):.3f} ({min(x):.3f} to {max(x):.3f}) "
                    for name, *x in zip(columns, *found, strict=True)
                ),
                f"{statistics.mean(seconds):.0f} s CPU",
                flush=True,
            )


def _child_seconds() -> float:
    """Returns the CPU seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _evaluate(path: pathlib.Path, method: str, seed: int) -> tuple[float, float, float]:
    """Returns the accuracies of neighbors, of a ridge regression and of
    fine-tuning."""
    import keras
    import numpy as np

    import keras_vit
    from keras_vit import data, evaluation
    from keras_vit_programs import building

    keras.utils.set_random_seed(seed)
    digits = data.load_dataset("digits")
    if method in SIZES:
        size, patch_size = SIZES[method]
        model = building.build_model(
            *(None, None, patch_size, seed),
            input_shape=(size, size, 1),
            classes=10,
        )
    else:
        model = keras_vit.converters.load(
            path / "encoder.keras", include_top=True, classes=10
        )
    size = model.input_shape[1]
    (x, y, *_), (test_x, test_y, *_) = (
        digits.batches(split, image_size=size, batch_size=1797)[0]
        for split in ("train", "test")
    )
    features = keras.Model(model.input, model.get_layer("pooling").output)
    known, new = (features.predict(z, verbose=0) for z in (x, test_x))
    votes = evaluation.nearest_neighbors(known, y, 10, new)
    (ridge,) = evaluation.few_shot(
        known, y, SHOTS, [seed], test_features=new, test_labels=test_y
    )
    rate = keras_vit.schedules.warmup_cosine(RATE, TUNING, 0.1)
    model.compile(
        keras_vit.optimizers.PublishedAdamW(rate, 0.05, decay_kernels_only=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(y == n))[:SHOTS] for n in range(10)]
    chosen = np.concatenate(chosen)
    source = digits.source.sample("train", len(y), chosen)
    few = dataclasses.replace(digits, num_train=len(chosen), source=source)
    batches = few.train(image_size=size, batch_size=BATCH, seed=seed)
    model.fit(batches, steps_per_epoch=TUNING, verbose=0, shuffle=False)
    logits = model.predict(test_x, verbose=0)
    return (
        float(evaluation.accuracy(votes, test_y)),
        ridge["accuracy"],
        float(evaluation.accuracy(logits, test_y)),
    )
