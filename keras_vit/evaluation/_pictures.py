"""Pictures of results, as matplotlib figures apart from pyplot, whose state
belongs to the caller. matplotlib is imported when something is drawn."""

import numpy as np

from keras_vit._program import plot_label

_RIGHT, _WRONG, _PLAIN = "#1f5fa8", "#c62828", "#9aa5b1"
_NAMED = 40  # classes; more names could not be read
_LONGEST_NAME = 18


def draw_reliability(rows, title=""):
    """Returns a figure of accuracy against confidence.

    Args:
        rows: What `reliability` returns.
        title: String.
    """
    figure = _figure((5, 5.4), title)
    top, bottom = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": (4, 1)}
    )
    left = [row["lower"] for row in rows]
    width = rows[0]["upper"] - rows[0]["lower"]
    bars = {"width": width, "align": "edge", "edgecolor": "white"}
    top.bar(left, [r["accuracy"] or 0 for r in rows], color=_RIGHT, **bars)
    filled = [row for row in rows if row["images"]]
    confidence = [row["confidence"] for row in filled]
    accuracy = [row["accuracy"] for row in filled]
    top.plot((0, 1), (0, 1), "--", color=_PLAIN, label="as right as it is sure")
    top.plot(confidence, accuracy, "o", ms=4, color=_WRONG, label="bin's means")
    top.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    top.legend(frameon=False, fontsize=8)
    bottom.bar(left, [row["images"] for row in rows], color=_PLAIN, **bars)
    bottom.set(xlabel="confidence", ylabel="images")
    return figure


def draw_confusion(confusion, class_names, title=""):
    """Returns a figure of a confusion matrix, each row in shares.

    Args:
        confusion: What `confusion_matrix` returns.
        class_names: List of strings.
        title: String.
    """
    confusion = np.asarray(confusion)
    count = len(class_names)
    named = count <= _NAMED
    side = max(5.0, 0.28 * count) if named else 8.0
    figure = _figure((side + 1.2, side), title)
    axes = figure.subplots()
    images = np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    shown = axes.imshow(confusion / images, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(shown, ax=axes, label="share of the true class", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if named:
        names = [plot_label(name, _LONGEST_NAME) for name in class_names]
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


def draw_top(images, tops, names, title=""):
    """Returns a figure of images, each with bars of its best classes.

    Args:
        images: List of arrays `(height, width)` or `(height, width, 3)` with
            values in [0, 1].
        tops: For each image a list of `(class name, probability)`.
        names: For each image what to write above it.
        title: String.
    """
    columns = min(3, len(images))
    rows = -(-len(images) // columns)
    figure = _figure((4.6 * columns, 1.7 * rows + 0.4), title)
    grid = figure.subplots(rows, 2 * columns, squeeze=False)
    for axes in grid.ravel():
        axes.axis("off")
    for number, (image, top, name) in enumerate(
        zip(images, tops, names, strict=True)
    ):
        row, column = divmod(number, columns)
        left, right = grid[row, 2 * column : 2 * column + 2]
        left.imshow(image, cmap="gray", vmin=0, vmax=1)
        left.set_title(plot_label(name, _LONGEST_NAME), fontsize=8)
        right.barh(range(len(top)), [p for _, p in top], color="#9dc0e6")
        right.set(xlim=(0, 1), ylim=(len(top) - 0.5, -0.5))
        for place, (known, probability) in enumerate(top):
            text = f"{plot_label(known, _LONGEST_NAME)}  {probability:.1%}"
            right.text(0.02, place, text, va="center", fontsize=8)
    return figure


def _figure(size, title):
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=120, layout="constrained")
    figure.suptitle(plot_label(title), fontsize=10)
    return figure
