"""The results by class at the end of a training."""

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


def write_class_results(run: Run, model: keras.Model, summary: dict[str, Any]) -> None:
    """Logs and writes what a classifier does with the images on which its run
    is evaluated: some predictions, the accuracy of each class, the confusion
    matrix of at most 1,000 classes, and the most confident mistakes with the
    relevance of their patches.

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
    text = overfitting(run.checkpoints.rows, split)
    if text and run.keep != "best":
        logger.info(f"\n{text}")
    if len(model.inputs) > 1:  # patches are no pictures
        return
    wrong = np.flatnonzero(predicted != labels)
    # Only mistakes are shown: all probabilities of ImageNet take 0.4 GB.
    likely = sigmoid if run.settings.get("loss") == "sigmoid" else softmax
    sure = likely(logits[wrong]).max(axis=1) if wrong.size else np.zeros(0)
    order = np.argsort(-sure, kind="stable")[:_MISTAKES]
    sure = dict(zip(wrong[order], sure[order], strict=True))
    worst = np.array(sorted(sure), int)
    # The images of both pictures are read together.
    some = evenly(count)
    read = np.union1d(some, worst)
    images = images_at(data.evaluation(**options), read)[0]
    shown = images[np.isin(read, some)]
    draw_predictions(run, logits[some], shown, labels[some], summary)
    if not wrong.size:
        return
    images = images[np.isin(read, worst)]
    titles = [
        f"{_file_name(data, int(i))}true: {printable(names[labels[i]])}\n"
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


def _file_name(data: ImageDataset, index: int) -> str:
    """Returns a line with the end of the name of an evaluated image's file."""
    try:
        (name,) = data.image_names(data.evaluation_split, range(index, index + 1))
    except ValueError:  # of arrays
        return ""
    return f"{printable(pathlib.PurePath(name).name)[-24:]}\n"


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
        if row["mistaken_for"] is not None:
            line += f"  {printable(row['mistaken_for'])} ({row['times']})"
        lines.append(line)
    if len(lines) > 2 * _CLASSES:
        lines[_CLASSES:-_CLASSES] = ["..."]
    return "\n".join([head, *lines])


def overfitting(rows: Sequence[dict[str, Any]], split: str) -> str:
    """Returns a message if the loss of the evaluated images has risen by a
    tenth while that of the training images fell, or ""."""
    name, last = f"{split}_loss", rows[-1]
    best = min(rows, key=lambda row: row[name])
    rises = last[name] > 1.1 * best[name]
    if not rises or last["train_loss"] > best["train_loss"]:
        return ""
    return (
        f"The model overfits: its {split} loss was {best[name]:.4f} at step "
        f"{best['step']}, and is {last[name]:.4f} now.\nFewer --steps, "
        "--augment light1 or more images help; --holdout 0.1 keeps the\n"
        "best step of a validation split. Test images do not choose the step: "
        "their\naccuracy would then be too high."
    )
