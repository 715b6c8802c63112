"""Plots of training runs: learning curves, learning rate sweep, predictions.

pyplot is not used, so that the caller's pyplot state does not change.
"""

import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_vit.data.dataset import ImageDataset
from keras_vit.preprocessing import preprocess_input
from keras_vit.training.callbacks import SCORES
from keras_vit.utils.files import atomic_write, log_os_errors
from keras_vit.utils.optional import require
from keras_vit.utils.scaling import Mode
from keras_vit.utils.text import plot_label
from keras_vit.utils.types import Array, ArrayLike, StrPath

_TRAIN, _TEST, _WRONG = "#9aa5b1", "#1f5fa8", "#c62828"
_COLORS = {"train": _TRAIN, "validation": _TEST, "test": _TEST}
_LONGEST_NAME = 16
_LONGEST_LIST = 22


def pixel_range(
    mode: Mode, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the lowest and the highest value of preprocessed pixels, one per
    channel."""
    ends = np.zeros((2, 1, channels), "float32")
    ends[1] = 255
    ends = np.asarray(preprocess_input(ends, mode=mode))[:, 0]
    low, high = (tuple(float(value) for value in end) for end in ends)
    return low, high


def unit_range(images: Array, mode: Mode) -> Array:
    """Inverts `preprocess_input` to values in [0, 1], and to gray for images that
    are not of 1 or 3 channels."""
    low, high = pixel_range(mode, images.shape[-1])
    found = np.clip((images - low) / np.subtract(high, low), 0, 1)
    return found if images.shape[-1] in (1, 3) else found.mean(-1, keepdims=True)


def _figure(title: str, size: tuple[float, float]) -> Any:
    figure = require("matplotlib.figure").Figure(
        figsize=size, dpi=120, layout="constrained"
    )
    figure.suptitle(plot_label(title), fontsize=11)
    return figure


def _finish(axes: Any, **labels: Any) -> None:
    axes.set(**labels)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def plot_learning_curves(
    rows: Sequence[dict[str, Any]], path: StrPath, title: str = ""
) -> None:
    """Plots learning curves by step: the loss, and the score of the model."""
    figure = _figure(title, (9, 3.6))
    steps = [row["step"] for row in rows]
    columns = {name for row in rows for name in row}  # of which rows may miss some
    found = {name.partition("_")[2] for name in columns}
    names = [name for name in reversed(SCORES) if name in found]
    for axes, name in zip(
        figure.subplots(1, len(names), squeeze=False)[0], names, strict=True
    ):
        for split, color in _COLORS.items():
            if f"{split}_{name}" in columns:
                values = [row.get(f"{split}_{name}", math.nan) for row in rows]
                axes.plot(steps, values, "o-", ms=3, color=color, label=split)
        _finish(axes, xlabel="step", ylabel=name.replace("_", " "))
    _save(figure, path)


def plot_sweep(
    results: dict[float, float | None], path: StrPath, title: str, metric: str
) -> None:
    """Plots a metric, measured on the validation split, against the learning
    rate; its value is None if training diverged."""
    figure = _figure(title, (5, 3.6))
    axes = figure.subplots()
    good = {rate: found for rate, found in results.items() if found is not None}
    axes.plot(list(good), list(good.values()), "o-", color=_TEST)
    for rate in results.keys() - good.keys():
        axes.axvline(rate, color=_WRONG, ls=":", label=f"{rate:g} diverged")
    _finish(axes, xlabel="learning rate", ylabel=metric, xscale="log")
    axes.set_xticks(list(results), [f"{rate:g}" for rate in results])
    axes.minorticks_off()
    _save(figure, path)


def plot_grid(rows: dict[str, Array], path: pathlib.Path, title: str) -> None:
    """Plots rows of images with values in [0, 1], or of maps
    `(images, rows, columns)`, by name."""
    count = len(next(iter(rows.values())))
    figure = _figure(title, (1.1 * count + 0.6, 1.1 * len(rows) + 0.6))
    grid = figure.subplots(len(rows), count, squeeze=False)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            if image.ndim == 2:
                axes.imshow(image, cmap="inferno")
            else:
                image = image[..., 0] if image.shape[-1] == 1 else image
                axes.imshow(image, cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, fontsize=9)
    with log_os_errors(path.name):
        _save(figure, path)


def sample_evenly(
    batches: Iterable[Any],
    total: int,
    count: int = 25,
    multi_label: bool = False,
) -> tuple[Array, Array]:
    """Selects at most `count` images and labels at equal distances in `total`
    images of batches `(images, labels, weights)`.

    Test sets are often sorted by class, so that the first images would all be
    of the same class. Labels may be one-hot, and images of weight 0 are padding
    at the end.
    """
    return images_at(batches, evenly(total, count), multi_label)


def evenly(total: int, count: int = 25) -> Array:
    """Returns at most `count` indices at equal distances below `total`."""
    return np.linspace(0, total - 1, min(count, total)).astype(int)


def images_at(
    batches: Iterable[Any], wanted: ArrayLike, multi_label: bool = False
) -> tuple[Array, Array]:
    """Returns the images and labels at some indices of batches, by index; see
    `sample_evenly`."""
    places = set(np.asarray(wanted).tolist())
    images, labels, index = [], [], 0
    for batch_images, batch_labels, *_ in batches:
        for image, row in zip(
            np.asarray(batch_images), np.asarray(batch_labels), strict=True
        ):
            if index in places:
                images.append(image)
                labels.append(row)
            index += 1
    labels = np.stack(labels)
    if labels.ndim > 1 and not multi_label:
        labels = labels.argmax(-1)
    return np.stack(images), labels


def some_test_images(data: ImageDataset, **reading: Any) -> Array:
    """Returns at most 8 test images, read with these arguments of `test`."""
    batches = data.test(**reading, batch_size=min(8, data.num_test))
    return sample_evenly(batches, data.num_test, count=8)[0]


def plot_predictions(
    logits: Array,
    images: Array,
    labels: ArrayLike,
    class_names: Sequence[str],
    path: StrPath,
    title: str = "",
    mode: Mode = "tf",
) -> Array:
    """Plots images with their predicted and true labels, errors in red."""
    labels = np.asarray(labels)
    if labels.ndim > 1:
        labels, predicted = labels > 0, logits > 0
    else:
        predicted = np.argmax(logits, axis=-1)
    columns = min(5, len(images))
    rows = -(-len(images) // columns)
    many = labels.ndim > 1  # classes per image
    longest, cell = (_LONGEST_LIST, 2.3) if many else (_LONGEST_NAME, 1.8)
    size = cell * columns + 0.2, 1.95 * rows + 0.5
    figure = require("matplotlib.figure").Figure(figsize=size, dpi=110)
    figure.suptitle(plot_label(title), fontsize=11)
    # All images are in one plot, whose unit is an inch: a plot for each image
    # takes five times as long, 0.75 s instead of 0.15 s for 25 images.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    height, width = np.array(images.shape[1:3]) * (1.5 / max(images.shape[1:3]))
    for index, (shown, true, guess) in enumerate(
        zip(unit_range(images, mode), labels, predicted, strict=True)
    ):
        row, column = divmod(index, columns)
        # The center of the image.
        x, y = cell * (column + 0.5) + 0.1, 1.95 * row + 1.65
        left, top = x - width / 2, y - height / 2
        axes.imshow(
            shown[..., 0] if shown.shape[-1] == 1 else shown,
            cmap="gray",
            vmin=0,
            vmax=1,
            extent=(left, left + width, top + height, top),
            aspect="auto",
        )
        right = np.array_equal(guess, true)
        axes.text(
            x,
            y - 0.78,
            f"predicted {plot_label(_name_of(guess, class_names), longest)}\n"
            f"true {plot_label(_name_of(true, class_names), longest)}",
            fontsize=8,
            horizontalalignment="center",
            color="black" if right else _WRONG,
            fontweight="normal" if right else "bold",
        )
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
    _save(figure, path)
    return predicted


def _name_of(label: Any, class_names: Sequence[str]) -> str:
    """Returns the name of a class, or of the classes of a row of booleans."""
    if np.ndim(label) == 0:
        return class_names[int(label)]
    names = [class_names[int(i)] for i in np.flatnonzero(label)]
    return ", ".join(names) or "none"


def _save(figure: Any, path: StrPath) -> None:
    with atomic_write(path) as temporary:
        figure.savefig(temporary)
