"""The results by class at the end of a training."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.data.dataset import ImageDataset
from keras_vit.data.protocols import PLAIN
from keras_vit.evaluation.predict import predict_dataset
from keras_vit.evaluation.scores import per_class, sigmoid, softmax
from keras_vit.inspection import plot_attention_heatmap, relevance
from keras_vit.utils.files import atomic_write
from keras_vit.utils.logging import logger
from keras_vit.utils.text import printable
from keras_vit.utils.types import Array
from keras_vit_programs.charts import write_confusion
from keras_vit_programs.curves import evenly, images_at, unit_range
from keras_vit_programs.images import resize
from keras_vit_programs.run_folder import save_csv
from keras_vit_programs.runs import Run, draw_predictions, write_predictions

_CLASSES = 5  # best and worst classes in a table
_MISTAKES = 8
_FEW = 1000  # evaluated images of which counts say more than the accuracy alone


def write_class_results(run: Run, model: keras.Model, summary: dict[str, Any]) -> None:
    """Logs and writes what a classifier does with the images on which its run
    is evaluated: some predictions, the accuracy of each class, the confusion
    matrix of at most 1,000 classes, all mistakes, and the most confident ones with
    the relevance of their patches.

    Args:
        run: `runs.Run`. If its images may have several classes, only predictions
            are written.
        model: `keras.Model`. Its trained classifier.
        summary: Dict. The content of `config.json`.
    """
    data, names = run.data, run.data.class_names
    if data.multi_label:
        write_predictions(run, model, summary)
        return
    count, split = data.num_evaluation, data.evaluation_split
    # Padded, so that the model is compiled for batches of one size.
    options = {**run.reading, "one_hot": False, "pad": True}
    options["batch_size"] = min(run.micro_batch_size, count)
    batches = data.evaluation(**options)
    logits, labels = predict_dataset(model, batches, count)
    predicted = logits.argmax(axis=1)
    rows = per_class((predicted, labels), names)
    save_csv(rows, run.folder / "per_class.csv")
    title = f"{data.name}: {count} {split} images"
    path = run.folder / "confusion.png"
    write_confusion(predicted, labels, names, title, path)
    logger.info(f"\n{class_table(rows)}")
    text = overfitting(run.checkpoints.rows, split, count)
    if text and run.keep != "best":
        logger.info(f"\n{text}")
    wrong = np.flatnonzero(predicted != labels)
    # Only those of mistakes: all probabilities of ImageNet take 0.4 GB.
    likely = sigmoid if run.settings.get("loss") == "sigmoid" else softmax
    sure = np.zeros(count)
    if wrong.size:
        sure[wrong] = likely(logits[wrong]).max(axis=1)
    wrong = wrong[np.argsort(-sure[wrong], kind="stable")]
    files = file_names(data, split, run.settings.get("dataset"))
    path = run.folder / "mistakes.csv"
    write_mistakes(wrong, files, labels, predicted, sure, names, path)
    if len(model.inputs) > 1:  # patches are no pictures
        return
    worst = wrong[:_MISTAKES]  # the most confident first
    # The images of both pictures are read together.
    some = evenly(count)
    read = np.union1d(some, worst)
    images = images_at(data.evaluation(**options), read)[0]
    shown = images[np.isin(read, some)]
    draw_predictions(run, logits[some], shown, labels[some], summary)
    if not wrong.size:
        return
    images = images[np.searchsorted(read, worst)]
    titles = [
        f"{_end_of_name(files[i])}true: {printable(names[labels[i]])}\n"
        f"model: {sure[i]:.0%} {printable(names[predicted[i]])}"
        for i in worst
    ]
    try:
        maps = {"relevance": list(relevance(model, images))}
    except ValueError:  # a BiT, for example, has no attention
        return
    shown = list(2 * unit_range(images, run.reading["mode"]) - 1)
    if run.reading.get("protocol", "simple") in PLAIN:  # which crop nothing
        shown = [
            _stretched(image, data.read(split, int(i))[0].shape)
            for image, i in zip(shown, worst, strict=True)
        ]
    with atomic_write(run.folder / "mistakes.png") as path:
        plot_attention_heatmap(shown, maps, titles).savefig(path)


def file_names(data: ImageDataset, split: str, dataset: str | None) -> list[str]:
    """Returns the names of a split's images, relative to the dataset's folder if they
    are in it; their indices if they have no names."""
    try:
        names = data.image_names(split)
    except ValueError:  # of arrays
        return [*map(str, range(getattr(data, f"num_{split}")))]
    root = pathlib.Path(dataset or "").expanduser()
    root = root if root.is_dir() else root.parent  # of a table
    return [os.path.relpath(x, root) if os.path.lexists(x) else x for x in names]


def write_mistakes(
    wrong: Array,
    files: Sequence[str],
    labels: Array,
    predicted: Array,
    sure: Array,
    names: Sequence[str],
    path: pathlib.Path,
) -> None:
    """Writes a table of wrongly classified images.

    Args:
        wrong: Integer array. Their indices, in the order of the rows.
        files: List of the names of all images, or of their indices.
        labels: Integer array. The classes of all images.
        predicted: Integer array. Their predicted classes.
        sure: Array. The probabilities of the predicted classes.
        names: List of the class names.
        path: Path of the CSV file.
    """
    rows = [
        {
            "file": files[i],
            "true_class": names[int(labels[i])],
            "predicted_class": names[int(predicted[i])],
            "probability": f"{sure[i]:.4f}",
        }
        for i in wrong
    ]
    columns = ("file", "true_class", "predicted_class", "probability")
    save_csv(rows, path, columns)


def _end_of_name(file: str) -> str:
    """Returns a line with the end of the name of an image's file, or "" for an
    index."""
    name = printable(os.path.basename(file))[-24:]
    return "" if file.isdecimal() else f"{name}\n"


def _stretched(image: Array, shape: Sequence[int]) -> Array:
    """Returns an image with the aspect ratio of a shape, and its own height."""
    height = image.shape[0]
    width = max(1, round(height * shape[1] / shape[0]))
    return resize(image.astype("float32"), (height, width))


def class_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the accuracies of the classes as text, the lowest first; of many
    classes, the lowest and the highest ones."""
    rows = [row for row in rows if row["images"]]
    rows.sort(key=lambda row: row["accuracy"])
    head = f"{'class':24}{'images':>8}{'accuracy':>10}  most often taken for"
    lines = []
    for row in rows:
        name = printable(row["class"])[:23]
        line = f"{name:24}{row['images']:8}{row['accuracy']:10.4f}"
        if row["times"] == 1 and row["images"] - row["right"] > 1:
            line += "  several classes, once each"
        elif row["mistaken_for"] is not None:
            line += f"  {printable(row['mistaken_for'])} ({row['times']})"
        lines.append(line)
    if len(lines) > 2 * _CLASSES:
        lines[_CLASSES:-_CLASSES] = ["..."]
    total, most = (f(row["images"] for row in rows) for f in (sum, max))
    if total <= _FEW:
        right = sum(row["right"] for row in rows)
        lines.append(
            f"{right} of {total} images are classified correctly; the most frequent "
            f"class alone gives {most}."
        )
    return "\n".join([head, *lines])


def overfitting(rows: Sequence[dict[str, Any]], split: str, images: int) -> str:
    """Returns a message if the loss of the evaluated images has risen by a tenth, and
    by more than one image can explain, while that of the training images fell, or
    ""."""
    name, last = f"{split}_loss", rows[-1]
    best = min(rows, key=lambda row: row[name])
    # The loss of an image whose class has a probability of 2% is 4.
    rises = last[name] - best[name] > max(best[name] / 10, 4 / images)
    if not rises or last["train_loss"] > best["train_loss"]:
        return ""
    return (
        f"The model overfits: its {split} loss was {best[name]:.4f} at step "
        f"{best['step']}, and is {last[name]:.4f} now.\nFewer --steps, "
        "--augment light1 or more images help; --holdout 0.1 keeps the\n"
        "best step of a validation split. Test images do not choose the step: "
        "their\naccuracy would then be too high."
    )
