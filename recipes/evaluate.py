"""Evaluates a trained model on a dataset of images.

It measures the accuracy as in "An Image is Worth 16x16 Words", Tables 2 and 5
(https://arxiv.org/abs/2010.11929): top-1, top-5 and ImageNet ReaL. It also
measures the calibration of the probabilities and the accuracy of each class.

  python recipes/evaluate.py --weights runs/digits
      evaluates the model of a training recipe's run on the test images of the
      same dataset
  python recipes/evaluate.py --weights runs/photos --dataset other-photos \\
      --split all
      evaluates it on all images of another folder, with classes of the training
      set
  python recipes/evaluate.py --model ViTB16 --weights imagenet \\
      --dataset imagenet2012 --image-size 224
      evaluates released weights on a dataset of TFDS; a GPU is recommended
  python recipes/evaluate.py --model ViTB16 --weights imagenet \\
      --dataset imagenet2012_real
      uses ReaL labels; so does --dataset FOLDER --real real.json, if the files
      are named ILSVRC2012_val_00000001.JPEG and so on

The output folder contains results.json, per_class.csv, mistakes.csv (the files
of all wrongly classified images), reliability.png and confusion.png; with
imagenet2012_real, only results.json; with a model for several classes per
image, which is evaluated by the mean average precision, results.json and
per_class.csv. Every image is evaluated exactly once. The image size, the
preprocessing and the class names are read from the config.json of the run, if
there is one. The environment variable KERAS_BACKEND selects jax, tensorflow or
torch.
"""

import dataclasses
import os
import re
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

import keras_vit
from keras_vit_programs import (
    charts,
    class_results,
    classifiers,
    console,
    defaults,
    flags,
    run_folder,
)

FILES = (
    *("results.json", "per_class.csv", "mistakes.csv"),
    *("reliability.png", "confusion.png"),
)
CALIBRATION = """The calibration error is the mean difference between the accuracy and
the probability of the predicted class, over bins of images with similar
probabilities; 0 is best. The mean confidence is the mean of this probability.
"""
SPLITS = {"test": ("test",), "train": ("train",), "all": ("train", "test")}


DEFAULTS = (
    flags.Rule("protocol", "as in training if that is known, else vit_jax"),
    defaults.constant("batch_size", 64),
)


@dataclasses.dataclass(frozen=True)
class Config(flags.Evaluation):
    split: str = flags.flag(
        f"images to evaluate on: {', '.join(SPLITS)}; a folder without train "
        "and test sub-folders is split as in training, and 'all' is the whole "
        "folder",
        "test",
        choices=tuple(SPLITS),
    )
    real: str | None = flags.flag(
        "ReaL labels: real.json of google-research/reassessed-imagenet",
        metavar="FILE",
    )
    bins: int = flags.flag("number of bins of the calibration error", 15, minimum=1)

    defaults = DEFAULTS


def main(config):
    with flags.user_errors():
        flags.require("matplotlib")
        config = flags.fill(config)
        trained = classifiers.load_trained(config)
        with warnings.catch_warnings():
            if config.split != "test":
                warnings.filterwarnings("ignore", ".*have no image in the test set")
            data = classifiers.load_data(config, trained)
        known = trained.class_names or data.class_names
        if config.dataset is None and set(data.class_names) - set(known):
            warnings.warn(
                f"{data.name!r} has classes that it lacked in the training.",
                stacklevel=2,
            )
        places, class_names = keras_vit.evaluation.match_class_names(trained, data)
        real = real_labels(config, data)
        options = trained.reading(data, config.batch_size)
        parts = [
            (data.batches(part, **options), getattr(data, f"num_{part}"))
            for part in SPLITS[config.split]
        ]
        output = run_folder.results_folder(
            config.output, f"runs/evaluate-{data.name}", config.overwrite
        )
        whole = data.num_train + data.num_validation + data.num_test
        hint = "" if config.split == "all" else "; --split all takes every image"
        print(
            f"data      {data.name}: {sum(total for _, total in parts)} of "
            f"{whole} images ({config.split}{hint}), "
            f"{len(data.class_names)} classes\n"
            f"{classifiers.describe_classifier(trained, options['protocol'])}\n"
            f"output    {output}",
            flush=True,
        )
        pairs = [
            keras_vit.evaluation.predict_dataset(trained.predictor, *part)
            for part in parts
        ]
        logits, labels = map(np.concatenate, zip(*pairs, strict=True))
        several = trained.multi_label and labels.ndim > 1
        kind = "sigmoid" if several else "softmax"
        probabilities = keras_vit.evaluation.probabilities(trained.model, logits, kind)
        if trained.loss == "sigmoid" and labels.ndim == 1:
            print(
                "The model was trained with a sigmoid for each class. The "
                "calibration error is that of\nthe softmax of its logits."
            )
        run_folder.prepare_output(output, FILES)
    if labels.ndim > 1:  # several labels per image
        rows = np.zeros(probabilities.shape, labels.dtype)
        rows[:, places] = labels
        if several:
            results = measure_multi_label(
                logits, probabilities, rows, class_names, output
            )
        else:
            results = {
                "images": len(rows),
                "real_accuracy": keras_vit.evaluation.real_accuracy(
                    probabilities, rows
                ),
            }
    else:
        labels = places[labels]
        results = measure(probabilities, labels, class_names, config, output)
        dataset = config.dataset or trained.dataset
        files = [
            name
            for part in SPLITS[config.split]
            for name in class_results.file_names(data, part, dataset)
        ]
        predicted, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
        wrong = np.flatnonzero(predicted != labels)
        wrong = wrong[np.argsort(-sure[wrong], kind="stable")]
        path = output / "mistakes.csv"
        class_results.write_mistakes(
            wrong, files, labels, predicted, sure, class_names, path
        )
        if real is not None:
            results["real_accuracy"] = keras_vit.evaluation.real_accuracy(
                probabilities, real
            )
    run_folder.save_json(
        {
            **results,
            "split": config.split,
            "reading": options,
            "data": data.metadata(),
            **run_folder.program_info(dataclasses.asdict(config)),
        },
        output / "results.json",
    )
    print()
    for key, value in results.items():
        shown = value if isinstance(value, int) else f"{value:.4f}"
        print(f"{key.replace('_', ' '):24}{shown}")
    if "calibration_error" in results:
        print(CALIBRATION)
    for name in FILES:
        if (output / name).exists():
            print(f"  {output / name}")


def real_labels(config, data):
    """Returns the ReaL labels of the images.

    The number in the name of a file selects its labels.
    """
    if config.real is None:
        return None
    labels = keras_vit.evaluation.load_real_labels(config.real)
    found = []
    for part in SPLITS[config.split]:
        for name in data.image_names(part):
            match = re.search(r"ILSVRC2012_val_(\d{8})", name)
            number = int(match[1]) if match else 0
            if not 1 <= number <= len(labels):
                raise ValueError(
                    "--real is for images named ILSVRC2012_val_00000001.JPEG "
                    f"to {len(labels):08}. Received: {name!r}. For ImageNet in "
                    "TFDS, use --dataset imagenet2012_real."
                )
            found.append(labels[number - 1])
    return found


def measure(probabilities, labels, class_names, config, output):
    """Writes per_class.csv and the plots, and returns the metrics by name."""
    predicted = probabilities.argmax(axis=1)
    rows = keras_vit.evaluation.per_class((predicted, labels), class_names)
    there = [row for row in rows if row["images"]]
    results = {
        "images": len(labels),
        "accuracy": keras_vit.evaluation.accuracy(probabilities, labels),
    }
    if len(class_names) > 5:
        results["top_5_accuracy"] = keras_vit.evaluation.accuracy(
            probabilities, labels, 5
        )
    results["mean_per_class_accuracy"] = float(
        np.mean([row["accuracy"] for row in there])
    )
    results["mean_confidence"] = float(np.mean(probabilities.max(axis=1)))
    results["calibration_error"] = keras_vit.evaluation.calibration_error(
        probabilities, labels, config.bins
    )
    results["calibration_bins"] = config.bins
    run_folder.save_csv(rows, output / "per_class.csv")
    images = console.counted(len(labels), "image")
    title = f"accuracy {results['accuracy']:.2%} of {images}"
    error = f"calibration error {results['calibration_error']:.4f}"
    bins = keras_vit.evaluation.reliability(probabilities, labels, config.bins)
    figure = charts.plot_reliability(bins, f"{title}, {error}")
    with run_folder.atomic_write(output / "reliability.png") as temporary:
        figure.savefig(temporary)
    charts.write_confusion(
        predicted, labels, class_names, title, output / "confusion.png"
    )
    print(f"\n{class_results.class_table(rows)}")
    return results


def measure_multi_label(logits, probabilities, labels, class_names, output):
    """Writes per_class.csv, with the average precision of each class and the
    precision and recall of sigmoids above 0.5, and returns the metrics."""
    labels, predicted = labels > 0, probabilities > 0.5
    averages = keras_vit.evaluation.average_precisions(logits, labels)
    rows = []
    for index, name in enumerate(class_names):
        images, found = labels[:, index].sum(), predicted[:, index].sum()
        right = (labels & predicted)[:, index].sum()
        rows.append(
            {
                "class": name,
                "images": int(images),
                "right": int(right),
                "average_precision": averages[index],
                "precision": float(right / found) if found else None,
                "recall": float(right / images) if images else None,
            }
        )
    run_folder.save_csv(rows, output / "per_class.csv")
    return {
        "images": len(labels),
        "mean_average_precision": keras_vit.evaluation.mean_average_precision(
            logits, labels
        ),
        "classes_without_images": averages.count(None),
    }


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
