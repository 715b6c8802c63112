"""Plots of evaluation results.

Every function returns a `matplotlib.figure.Figure`. pyplot is not used, so that
the caller's pyplot state does not change.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.evaluation.scores import confusion_matrix
from keras_vit.inspection.plots import new_figure
from keras_vit.utils.files import atomic_write
from keras_vit.utils.optional import require
from keras_vit.utils.text import plot_label
from keras_vit.utils.types import Array, ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _RED, _GRAY = "#1f5fa8", "#c62828", "#9aa5b1"
_MAX_NAMED_CLASSES = 40  # more names would be illegible
_MAX_NAME_LENGTH = 18
# The matrix of 21,843 classes would take 3.8 GB and cannot be read.
_MAX_CLASSES = 1000


def plot_reliability(rows: Sequence[dict[str, Any]], title: str = "") -> "Figure":
    """Plots a reliability diagram: accuracy against confidence.

    Args:
        rows: The output of `reliability`.
        title: String.
    """
    figure = new_figure(5, 5.4, title)
    top, bottom = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": (4, 1)}
    )
    left = [row["lower"] for row in rows]
    width = rows[0]["upper"] - rows[0]["lower"]
    bars = {"width": width, "align": "edge", "edgecolor": "white"}
    top.bar(left, [r["accuracy"] or 0 for r in rows], color=_BLUE, **bars)
    filled = [row for row in rows if row["images"]]
    confidence = [row["confidence"] for row in filled]
    accuracy = [row["accuracy"] for row in filled]
    top.plot((0, 1), (0, 1), "--", color=_GRAY, label="perfect calibration")
    top.plot(confidence, accuracy, "o", ms=4, color=_RED, label="mean of a bin")
    top.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    top.legend(frameon=False, fontsize=8)
    bottom.bar(left, [row["images"] for row in rows], color=_GRAY, **bars)
    bottom.set(xlabel="confidence", ylabel="images")
    return figure


def plot_confusion(
    confusion: ArrayLike, class_names: Sequence[str], title: str = ""
) -> "Figure":
    """Plots a confusion matrix, each row divided by its sum.

    Args:
        confusion: The output of `confusion_matrix`.
        class_names: List of strings, one per class.
        title: String.
    """
    confusion = np.asarray(confusion)
    count = len(class_names)
    named = count <= _MAX_NAMED_CLASSES
    side = max(5.0, 0.28 * count) if named else 8.0
    figure = new_figure(side + 1.2, side, title)
    axes = figure.subplots()
    images = np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    shown = axes.imshow(confusion / images, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(shown, ax=axes, label="fraction of the true class", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if named:
        names = [plot_label(name, _MAX_NAME_LENGTH) for name in class_names]
        axes.set_xticks(range(count), names, rotation=90, fontsize=8)
        axes.set_yticks(range(count), names, fontsize=8)
        for (row, column), number in np.ndenumerate(confusion):
            if number:
                light = number / images[row, 0] > 0.5
                axes.text(
                    column,
                    row,
                    str(number),
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if light else "black",
                )
    return figure


def write_confusion(
    predicted: Array,
    labels: Array,
    class_names: Sequence[str],
    title: str,
    path: pathlib.Path,
) -> None:
    """Writes the plot of a confusion matrix of at most 1,000 classes."""
    if len(class_names) <= _MAX_CLASSES:
        confusion = confusion_matrix(predicted, labels, len(class_names))
        with atomic_write(path) as temporary:
            plot_confusion(confusion, class_names, title).savefig(temporary)


def plot_top_predictions(
    images: Sequence[Array],
    tops: Sequence[Sequence[tuple[str, float]]],
    names: Sequence[str],
    title: str = "",
) -> "Figure":
    """Plots images, each with a bar chart of its top classes.

    Args:
        images: List of arrays `(height, width)` or `(height, width, 3)` with
            values in [0, 1].
        tops: List with one list of `(class name, probability)` per image,
            which may be empty.
        names: List of strings, one title per image.
        title: String.
    """
    columns = min(3, len(images))
    rows = -(-len(images) // columns)
    figure = new_figure(4.6 * columns, 1.7 * rows + 0.4, title)
    grid = figure.subplots(rows, 2 * columns, squeeze=False)
    for axes in grid.ravel():
        axes.axis("off")
    for number, (image, top, name) in enumerate(zip(images, tops, names, strict=True)):
        row, column = divmod(number, columns)
        left, right = grid[row, 2 * column : 2 * column + 2]
        left.imshow(image, cmap="gray", vmin=0, vmax=1)
        left.set_title(plot_label(name, 32), fontsize=8)
        right.barh(range(len(top)), [p for _, p in top], color="#9dc0e6")
        right.set(xlim=(0, 1), ylim=(max(1, len(top)) - 0.5, -0.5))
        if not top:
            right.text(0.02, 0, "none", va="center", fontsize=8)
        for position, (name, probability) in enumerate(top):
            text = f"{plot_label(name, 26)}  {probability:.1%}"
            right.text(0.02, position, text, va="center", fontsize=8)
    return figure


def plot_found(
    images: Sequence[Array], names: Sequence[str], title: str, group: int = 1
) -> "Figure":
    """Plots images of values in [0, 1], four in a row, with their names. Groups of two
    images have a gray background and a gap between them."""
    rows = -(-len(images) // 4) or 1
    figure = new_figure(8.8, 1.9 * rows + 0.4, title)
    parts = figure.subfigures(
        rows, 4 // group, squeeze=False, wspace=0.03, hspace=0.05
    ).ravel()
    if group > 1:
        for part in parts[: len(images) // group]:
            part.set_facecolor("#e8ecf0")
    grid = np.ravel([part.subplots(1, group) for part in parts])
    for axes in grid:
        axes.axis("off")
    for axes, image, name in zip(grid, images, names, strict=False):
        axes.imshow(image, cmap="gray", vmin=0, vmax=1)
        axes.set_title(plot_label(name, 26), fontsize=8)
    return figure


def plot_segmentation(
    images: Array,
    masks: Array,
    predicted: Array,
    class_names: Sequence[str],
    title: str = "",
    ignore: int = 255,
) -> "Figure":
    """Plots images, their masks and the predictions, one row for each.

    Args:
        images: Array of shape `(count, height, width, channels)` with values
            in [0, 1].
        masks: Integer array of shape `(count, height, width)`.
        predicted: Integer array of shape `(count, height, width)`.
        class_names: List of strings, one per class. Those that occur are shown
            in a legend.
        title: String.
        ignore: Integer. Value of the pixels of masks that have no class, which
            are white.
    """
    colors = _class_colors(len(class_names))
    count = len(images)
    figure = new_figure(5.4, 1.7 * count + 0.9, title)
    grid = figure.subplots(count, 3, squeeze=False)
    for axes, name in zip(grid[0], ("image", "truth", "prediction"), strict=True):
        axes.set_title(name, fontsize=9)
    for row, (image, mask, guess) in zip(
        grid, zip(images, masks, predicted, strict=True), strict=True
    ):
        ignored = mask == ignore
        truth = colors[np.where(ignored, 0, mask)]
        truth[ignored] = 1
        gray = image.shape[-1] == 1
        shown = np.repeat(image, 3, -1) if gray else image
        for axes, picture in zip(row, (shown, truth, colors[guess]), strict=True):
            axes.imshow(picture, vmin=0, vmax=1)
            axes.axis("off")
    present = np.union1d(predicted, masks[masks != ignore])
    patch = require("matplotlib.patches").Patch
    patches = [
        patch(
            color=colors[i],
            label=plot_label(class_names[i], _MAX_NAME_LENGTH),
        )
        for i in present[:_MAX_NAMED_CLASSES]
    ]
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=4,
        fontsize=7,
        frameon=False,
    )
    return figure


def _class_colors(count: int) -> Array:
    """Returns an array `(count, 3)`: gray, and colors that differ."""
    hues = np.arange(count) * 0.618 % 1
    values = np.where(np.arange(count) % 2, 0.95, 0.7)
    hsv = np.stack([hues, np.full(count, 0.75), values], -1)
    colors = require("matplotlib.colors").hsv_to_rgb(hsv)
    colors[0] = 0.25
    return colors
