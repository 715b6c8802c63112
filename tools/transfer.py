"""Measures what weights are worth on a set of images, one table a command.

  python tools/transfer.py probes sets/mnist dinov2_s14 --image-size 56
      k-NN, linear probe and few-shot accuracy of frozen features: those of the
      weights, of the same model with random weights, and the pixels
  python tools/transfer.py training sets/mnist dinov2_s14 --no-flip
      test accuracy of recipes/finetune_cifar.py with --train all, lora and
      head, and from scratch, for three seeds; further flags are the recipe's
  python tools/transfer.py distillation sets/digits runs/bit
      the same from scratch, with the labels only and with the teacher runs/bit

Runs that are finished, in runs/transfer, are not repeated. docs/transfer.md has
results, and tools/transfer_sets.py writes the sets.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator

import keras
import numpy as np

import keras_vit
from keras_vit import evaluation
from keras_vit.data import ImageDataset
from keras_vit.training import command_line as cli

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "recipes"))
SEEDS = (0, 1, 2)
SHOTS = 5
PIXELS = 28  # height and width of the images whose pixels are features
# A name, training features, training labels, test features and test labels.
Features = tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def features(
    weights: str, data: ImageDataset, image_size: int, mode: str
) -> Iterator[Features]:
    """Yields the features to compare."""

    def read(model: keras.Model | None, size: int) -> list[np.ndarray]:
        found = []
        for split, count in (
            ("train", data.num_train),
            ("test", data.num_test),
        ):
            batches = data.batches(
                split,
                image_size=size,
                batch_size=50,
                mode=mode,
                protocol="simple",
            )
            found += evaluation.predict_dataset(model, batches, count)
        return found

    model = keras_vit.converters.load(
        weights,
        input_shape=(image_size, image_size, 3),
        include_top=False,
        pooling=None,
    )
    keras.utils.set_random_seed(0)
    models = {"weights": model, "random": keras.models.clone_model(model)}
    patch = model.get_layer("patch_embedding").kernel.shape[0]
    patches = (image_size // patch) ** 2
    for name, tokens in models.items():
        x, y, test_x, test_y = read(tokens, image_size)
        yield f"{name}, class token", x[:, 0], y, test_x[:, 0], test_y
        x, test_x = (part[:, -patches:].mean(axis=1) for part in (x, test_x))
        yield f"{name}, mean of patches", x, y, test_x, test_y
    images = keras.Input((PIXELS, PIXELS, 3))
    flat = keras.Model(images, keras.layers.Flatten()(images))
    x, y, test_x, test_y = read(flat, PIXELS)
    yield "pixels", x, y, test_x, test_y


def probes(folder: str, weights: str, argv: list[str]) -> None:
    """Prints the accuracy of simple classifiers of frozen features."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--mode", default="torch")
    flags = parser.parse_args(argv)
    data = keras_vit.data.load_dataset(folder)
    classes = len(data.class_names)
    print(f"| features | k-NN | linear probe | {SHOTS} images a class |")
    print("|---|---|---|---|")
    for name, x, y, test_x, test_y in features(
        weights, data, flags.image_size, flags.mode
    ):
        votes = evaluation.nearest_neighbours(x, y, classes, test_x)
        scores = evaluation.linear_probe(x, y, classes).scores(test_x)
        (few,) = evaluation.few_shot(
            x, y, (SHOTS,), test_features=test_x, test_labels=test_y
        )
        found = [evaluation.accuracy(z, test_y) for z in (votes, scores)]
        found.append(few["accuracy"])
        print(f"| {name} | " + " | ".join(f"{a:.3f}" for a in found) + " |")


def training(folder: str, weights: str, argv: list[str]) -> None:
    """Prints the test accuracy of the recipe by what it trains."""
    ways = {
        train: ["--weights", weights, "--train", train]
        for train in ("all", "lora", "head")
    }
    _print_runs(folder, {**ways, "scratch": []}, argv)


def distillation(folder: str, teacher: str, argv: list[str]) -> None:
    """Prints the test accuracy of the recipe by what teaches the model."""
    ways = {
        f"{pathlib.Path(teacher).name}, {target}": [
            *("--teacher", teacher),
            *("--distill", target),
        ]
        for target in keras_vit.distillation.TARGETS
    }
    _print_runs(folder, {"labels only": [], **ways}, argv)


def _print_runs(
    folder: str, ways: dict[str, list[str]], argv: list[str]
) -> None:
    """Prints the test accuracies of runs, by the flags of each way."""
    import finetune_cifar as recipe

    rows = []
    for train, own in ways.items():
        accuracies, seconds = [], []
        for seed in SEEDS:
            name = pathlib.Path(folder).name
            output = pathlib.Path("runs/transfer", name, f"{train}-{seed}")
            flags = ["--dataset", folder, "--output", str(output), *argv]
            flags += [*own, "--seed", str(seed)]
            if not (output / "config.json").exists():
                config = cli.parse_args(recipe.Config, recipe.__doc__, flags)
                recipe.main(config)
            found = json.loads((output / "config.json").read_text())
            accuracies.append(found["test_accuracy"])
            seconds.append(found["seconds"])
        shown = " | ".join(f"{x:.3f}" for x in accuracies)
        mean = f"{np.mean(accuracies):.3f} | {np.std(accuracies, ddof=1):.3f}"
        mean += f" | {np.mean(seconds):.0f}"
        rows.append(f"| {train} | {shown} | {mean} |")
    print("| trained | " + " | ".join(f"seed {x}" for x in SEEDS), end=" ")
    print("| mean | spread | seconds |\n|---|" + "---|" * (len(SEEDS) + 3))
    print("\n".join(rows))


if __name__ == "__main__":
    tables = {
        "probes": probes,
        "training": training,
        "distillation": distillation,
    }
    if len(sys.argv) < 4 or sys.argv[1] not in tables:
        sys.exit(__doc__)
    table, folder, weights, *argv = sys.argv[1:]
    tables[table](folder, weights, argv)
