"""What the pictures share: colours, tiles, axes without ornament."""

import numpy as np

from keras_vit._program import plot_label
from keras_vit.layers.resampling import resample

DARK, BLUE, RED, PALE = "#22303c", "#1f5fa8", "#c62828", "#9aa5b1"
PALE_RGB = np.array([0.78, 0.82, 0.86])
_MOST_TILES = 16  # along a side: more could not be told apart


def as_rgb(image):
    """Returns an image `(..., channels)` as RGB floats in [0, 1].

    Raises:
        ValueError: if it is neither of uint8 nor of values in [-1, 1].
    """
    image = np.asarray(image)
    if image.dtype == np.uint8:
        scaled = image / 255
    elif image.size and not -1.01 <= image.min() <= image.max() <= 1.01:
        raise ValueError(
            "Images to draw must be of uint8, or have values in [-1, 1], as "
            "preprocess_input(images, mode='tf') gives them. Received: "
            f"{image.dtype} with values from {image.min():g} to "
            f"{image.max():g}"
        )
    else:
        scaled = (image + 1) / 2
    scaled = np.clip(scaled, 0, 1).astype("float32")
    if scaled.shape[-1] == 1:
        return np.repeat(scaled, 3, axis=-1)
    return scaled if scaled.shape[-1] == 3 else three_channels(scaled)


def three_channels(values):
    """Two or many channels as three that differ most, each in [0, 1]."""
    channels = values.shape[-1]
    if channels in (1, 3):
        return values
    flat = values.reshape(-1, channels)
    flat = flat - flat.mean(axis=0)
    directions = np.linalg.svd(flat, full_matrices=False)[2][:3]
    low_rank = flat @ directions.T
    low, high = low_rank.min(0), low_rank.max(0)
    colours = (low_rank - low) / np.where(high > low, high - low, 1)
    missing = 3 - colours.shape[1]
    colours = np.pad(colours, ((0, 0), (0, missing)))
    return colours.reshape(*values.shape[:-1], 3)


def mosaic(tiles, background=np.nan):
    """Puts tiles `(rows, columns, h, w, ...)` side by side, with gaps.

    Returns:
        The picture, and the places of the rows' and columns' middles. One
        picture draws in a fraction of the time of hundreds.
    """
    times = max(1, 16 // max(tiles.shape[2:4]))  # for gaps of an eighth
    tiles = tiles.repeat(times, axis=2).repeat(times, axis=3)
    rows, columns, height, width = tiles.shape[:4]
    gap = max(height, width) // 8
    top = gap + np.arange(rows) * (height + gap)
    left = gap + np.arange(columns) * (width + gap)
    shape = (top[-1] + height + gap, left[-1] + width + gap, *tiles.shape[4:])
    picture = np.full(shape, background, dtype="float64")
    for i, j in np.ndindex(rows, columns):
        area = picture[top[i] : top[i] + height, left[j] : left[j] + width]
        area[:] = tiles[i, j]
    return picture, top + (height - 1) / 2, left + (width - 1) / 2


def spread(count):
    """At most `_MOST_TILES` indices at even distances."""
    most = min(count, _MOST_TILES)
    return np.linspace(0, count - 1, most).round().astype(int)


def enlarged(image, side):
    """Repeats the pixels of a small image, so that heat over it is smooth."""
    times = max(1, side // max(image.shape[:2]))
    return image.repeat(times, axis=0).repeat(times, axis=1)


def resized(heat, size):
    grid = np.asarray(heat, "float32")[..., None]
    return np.clip(resample(grid, size, "bilinear", xp=np)[..., 0], 0, 1)


def figure(width, height, title=""):
    from keras_vit.training import require

    figure = require("matplotlib.figure").Figure(
        figsize=(width, height), dpi=120, layout="constrained"
    )
    if title:
        figure.suptitle(plot_label(title), fontsize=10, color=DARK)
    return figure


def plain(axes):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def bare(axes):
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def numbered(axes, rows, columns):
    """Numbers tiles: each argument is places, numbers and what they count."""
    axes.spines[:].set_visible(False)
    axes.set_yticks(*rows[:2])
    axes.set_xticks(*columns[:2])
    axes.tick_params(labelsize=7, length=0)
    axes.set_ylabel(rows[2], fontsize=9)
    axes.set_xlabel(columns[2], fontsize=9)
