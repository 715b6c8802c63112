"""Names the most likely classes of image files.

  python recipes/predict.py --weights runs/photos --images new/ one.jpg
      a model of a recipe's run, which knows the names of its classes
  python recipes/predict.py --model ViTB16 --weights imagenet --images cat.jpg
      released weights, and ImageNet's names, which are downloaded
  python recipes/predict.py --weights mine.npz --labels names.txt --images a.png

Folders are searched for JPEG, PNG, BMP and GIF. The output folder gets
predictions.csv, predictions.json and predictions.png, the images with bars of
their classes.
Sizes, pixels and names of classes are taken from the run's config.json, where
there is one. KERAS_BACKEND chooses jax, tensorflow or torch.

From "An Image is Worth 16x16 Words" (https://arxiv.org/abs/2010.11929) comes
only how images are resized: `--protocol vit_jax`, Section 4.1.

Measured 2026-11-21 on 2 busy CPU cores: 10 digits as PNG files, all named
right by the model of `finetune_cifar.py --steps 500`, 10 s on JAX.
"""

import csv
import dataclasses
import os
import pathlib
import shlex
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

import keras_vit
from keras_vit import evaluation
from keras_vit import training

FILES = ("predictions.csv", "predictions.json", "predictions.png")
DRAWN = 24  # images in the picture


@dataclasses.dataclass(frozen=True)
class Config(keras_vit.evaluation.TrainedFlags):
    images: tuple[str, ...] = training.flag(
        (), "image files, and folders of them", "PATH"
    )
    labels: str | None = training.flag(
        None,
        "names of the classes, one a line; without it, those of the run, or "
        "ImageNet's for 1000 or 21843 classes",
        "FILE",
    )
    top: int = training.flag(5, "classes an image")
    batch_size: int = training.flag(32, "images at a time")
    output: str = training.flag("runs/predict", "folder for results", "DIR")

    def __post_init__(self):
        super().__post_init__()
        training.check_numbers(self, "top", minimum=1)
        if not self.images:
            raise ValueError("Give --images.")


def main(config):
    with training.user_errors():
        training.require("matplotlib")
        trained = config.trained()
        data, files = keras_vit.data.load_files(
            config.images, config.skip_bad_images
        )
        data = keras_vit.evaluation.fitted(data, trained)
        options = trained.reading(data, min(config.batch_size, data.num_test))
        classes = keras_vit.evaluation.num_classes_of(trained)
        names = config.labels or trained.class_names
        top = min(config.top, classes)
        # What is wrong with the names is said before the model runs.
        decoded(np.zeros((1, classes)), top, names)
        output = training.check_output(config.output, config.overwrite)
        print(
            f"images    {len(files)}\n{trained.describe()}\noutput    {output}",
            flush=True,
        )
        logits, _ = keras_vit.evaluation.predict_dataset(
            trained.model, data.test(**options), len(files)
        )
        found = decoded(
            keras_vit.evaluation.probabilities(trained.model, logits),
            top,
            names,
        )
        training.open_output(output, FILES)
    width = min(max(len(str(path)) for path in files), 40)
    print()
    for path, classes in zip(files, found, strict=True):
        shown = "  ".join(f"{name} {p:.1%}" for _, name, p in classes)
        print(f"{str(path)[-width:]:{width}}  {shown}")
    facts = {
        "predictions": [
            {
                "file": str(path),
                "classes": [
                    {"id": known_id, "name": name, "probability": p}
                    for known_id, name, p in classes
                ],
            }
            for path, classes in zip(files, found, strict=True)
        ],
        "skipped": data.num_skipped,
        "config": dataclasses.asdict(config),
        "reading": options,
        "command": shlex.join(sys.argv),
        "versions": training.versions(),
    }
    training.save_json(facts, output / "predictions.json")
    save_table(files, found, output / "predictions.csv")
    figure = evaluation.draw_top(
        [keras_vit.data.load_thumbnail(path) for path in files[:DRAWN]],
        [[(name, p) for _, name, p in row] for row in found[:DRAWN]],
        [path.name for path in files[:DRAWN]],
        f"{min(len(files), DRAWN)} of {len(files)} images",
    )
    with training.replacing(output / "predictions.png") as temporary:
        figure.savefig(temporary)
    print()
    for name in FILES:
        print(f"  {pathlib.Path(output) / name}")


def save_table(files, found, path):
    """Writes one row an image: its path, and its classes from the likeliest."""
    header = ["file"]
    for i in range(1, len(found[0]) + 1):
        header += [f"class_{i}", f"probability_{i}"]
    with (
        training.replacing(path) as temporary,
        open(temporary, "w", newline="", errors="backslashreplace") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(header)
        for image, classes in zip(files, found, strict=True):
            cells = [(name, f"{p:.6g}") for _, name, p in classes]
            writer.writerow([image, *(x for cell in cells for x in cell)])


def decoded(probabilities, top, names):
    if isinstance(names, tuple):
        names = list(names)
    return keras_vit.decode_predictions(probabilities, top, names)


if __name__ == "__main__":
    training.run(main, Config, __doc__)
