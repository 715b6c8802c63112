"""Plots of attention, filters, position embeddings and token norms.

Every function returns a `matplotlib.figure.Figure`, whose method `savefig`
writes it to a file. pyplot is not used, so that the caller's pyplot state does
not change.
"""

import itertools
from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.inspection.features import FeaturePCA
from keras_vit.inspection.tokens import TokenLayout, check_is, check_is_layout
from keras_vit.layers.resampling import resample
from keras_vit.utils import checks
from keras_vit.utils.optional import require
from keras_vit.utils.text import plot_label
from keras_vit.utils.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DARK, _BLUE, _RED, _GRAY = "#22303c", "#1f5fa8", "#c62828", "#9aa5b1"
# A gray that differs from the extreme values of filters.
BACKGROUND = np.array([0.78, 0.82, 0.86])
_MAX_TILES = 16  # rows and columns shown; more would be illegible


def plot_attention_heatmap(
    images: Sequence[Array],
    heatmaps: Sequence[Array] | Mapping[str, Sequence[Array]],
    titles: Sequence[str] | None = None,
) -> "Figure":
    """Plots images, images multiplied by attention, and heat maps.

    The second column is as in the paper's Figure 6. Colors range from the 2nd
    to the 98th percentile of the attention of an image: otherwise, single patches that
    receive most of the attention would make all others black.

    Args:
        images: Batch or list of images `(height, width, channels)`, of uint8
            or of floats in [-1, 1]. They may be larger than the heat maps.
        heatmaps: The output of `attention_heatmap`, or a list of heat maps; or a dict
            from the titles of columns to several such outputs, the first of which
            multiplies the images.
        titles: List of strings, one per image, of one or several lines; or None.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    if not isinstance(heatmaps, Mapping):
        heatmaps = {"attention": heatmaps}
    for maps in heatmaps.values():
        _check_rows(images, titles, heatmaps=maps, axes=2)
    figure, rows = _image_rows(images, titles, ("attended", *heatmaps))
    for (image, axes), *maps in zip(rows, *heatmaps.values(), strict=True):
        fine = [_resize_heat(robust_scale(heat), image.shape[:2]) for heat in maps]
        axes[0].imshow(image * fine[0][..., None])
        for axis, heat in zip(axes[1:], fine, strict=True):
            axis.imshow(image.mean(-1), cmap="gray", vmin=0, vmax=1)
            axis.imshow(heat, cmap="inferno", alpha=0.65, vmin=0, vmax=1)
    return figure


def plot_attention_heads(
    images: Sequence[Array],
    heads: Sequence[Array],
    titles: Sequence[str] | None = None,
) -> "Figure":
    """Plots images and the attention of each head of one block.

    Colors range from the 2nd to the 98th percentile of each map. From
    "Emerging Properties in Self-Supervised Vision Transformers", Figure 1
    (https://arxiv.org/abs/2104.14294).

    Args:
        images: As in `plot_attention_heatmap`.
        heads: The output of `attention_heads` for these images. If there are more than
            8 heads, 8 evenly spaced ones are shown.
        titles: List of strings, one per image; or None.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    _check_rows(images, titles, heads=heads, axes=3)
    indices = _evenly_spaced(len(heads[0]), 8)
    names = ("mean", *(f"head {index + 1}" for index in indices))
    tiles = [
        robust_scale(np.stack([maps.mean(axis=0), *maps[indices]])) for maps in heads
    ]
    return _plot_rows(images, titles, names, tiles)


def plot_feature_pca(
    images: Sequence[Array],
    found: FeaturePCA,
    titles: Sequence[str] | None = None,
) -> "Figure":
    """Plots images and the principal components of their patches.

    The three components are shown as red, green and blue, scaled from the 2nd to the
    98th percentile, over all images if their components are joint; the background is
    dark.

    Args:
        images: As in `plot_attention_heatmap`.
        found: The output of `feature_pca` for these images.
        titles: List of strings, one per image; or None.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    check_is("found", found, FeaturePCA, "the output of `feature_pca`")
    _check_rows(images, titles, found=found.components, axes=3)
    colors = [[picture] for picture in pca_colors(found)]
    return _plot_rows(images, titles, ("features",), colors, 2.6)


def pca_colors(found: FeaturePCA) -> list[Array]:
    """Returns the components of each image as RGB colors in [0, 1]."""
    values = [x.reshape(-1, 3) for x in found.components]
    if found.explained.ndim == 1:  # joint
        values = [np.concatenate(values)] * len(values)
    colors = []
    for components, own in zip(found.components, values, strict=True):
        low, high = np.nanpercentile(own, (2, 98), axis=0)
        scaled = (components - low) / np.maximum(high - low, 1e-12)
        colors.append(np.nan_to_num(np.clip(scaled, 0, 1), nan=0.08))
    return colors


def plot_attention_maps(
    maps: Array, layout: TokenLayout, image: int = 0, query: int | None = None
) -> "Figure":
    """Plots the attention of one query in every layer and head.

    Args:
        maps: The output of `attention_maps`.
        layout: The output of `token_layout`.
        image: Integer. Index of the image in the batch.
        query: Integer. Index of the query token; None for the class token,
            or, without one, for the mean of all patches.

    Returns:
        A `matplotlib.figure.Figure` with a row per layer and a column per
        head. The colors of each map range from its 2nd to its 98th percentile.
    """
    check_is("maps", maps, 5, "the output of `attention_maps`")
    check_is_layout(layout)
    _check_index("image", image, maps.shape[1])
    _check_index("query", 0 if query is None else query, maps.shape[3])
    if query is None and not layout.num_prefix:
        attention = maps[:, image].mean(axis=2)
    else:
        attention = maps[:, image, :, query or 0]
    tiles = attention[..., layout.num_prefix :]
    tiles = robust_scale(tiles.reshape(*tiles.shape[:2], *layout.grid))
    layers, heads = tiles.shape[:2]
    aspect = layout.grid[0] / layout.grid[1]
    side = min(0.8, 9 / heads)
    figure = new_figure(side * heads + 0.8, side * aspect * layers + 0.8)
    axes = figure.subplots()
    picture, rows, columns = _mosaic(tiles)
    axes.imshow(picture, cmap="inferno", vmin=0, vmax=1, aspect="auto")
    _label_tiles(
        axes,
        (rows, range(1, layers + 1), "layer"),
        (columns, range(1, heads + 1), "head"),
    )
    return figure


def plot_attention_distance(
    distances: Array, uniform: float | None = None, title: str = ""
) -> "Figure":
    """Plots the attention distance of heads by layer (Figure 7, right).

    Args:
        distances: The output of `attention_distance` for all layers.
        uniform: Float. The attention distance of uniform attention, in
            pixels, shown as a line for comparison; None for no line.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    check_is("distances", distances, 2, "the output of `attention_distance`")
    if uniform is not None:
        checks.positive_float("uniform", uniform)
    figure = new_figure(4.6, 3.8, title)
    axes = figure.subplots()
    depth = np.arange(1, len(distances) + 1)
    for head in distances.T:
        axes.plot(depth, head, "o", ms=4, color=_BLUE, alpha=0.55, mew=0)
    mean = distances.mean(axis=1)
    axes.plot(depth, mean, color=_RED, lw=1.4, label="mean of the heads")
    axes.set(xlabel="layer", ylabel="mean attention distance (pixels)")
    if uniform is not None:
        axes.axhline(uniform, color=_DARK, ls=":", lw=1.2, label="uniform attention")
    axes.set_ylim(0, 1.1 * max(distances.max(), uniform or 0, 1e-6))
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    _style(axes)
    return figure


def plot_embedding_filters(filters: Array, title: str = "") -> "Figure":
    """Plots principal components of the patch embedding (Figure 7, left).

    Args:
        filters: The output of `embedding_filters`. If there are not three
            channels, their mean is shown in gray.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    check_is("filters", filters, 4, "the output of `embedding_filters`")
    count, height, width = filters.shape[:3]
    columns = min(7, count)
    rows = -(-count // columns)
    tiles = np.ones((rows * columns, height, width, 3)) * BACKGROUND
    tiles[:count] = _to_rgb(filters * 2 - 1)
    tiles = tiles.reshape(rows, columns, height, width, 3)
    picture, _, _ = _mosaic(tiles, BACKGROUND)
    wide = 4.6 / picture.shape[1]
    figure = new_figure(4.6, wide * picture.shape[0] + 0.4, title)
    axes = figure.subplots()
    axes.imshow(picture)
    axes.axis("off")
    return figure


def plot_position_similarity(similarity: Array, title: str = "") -> "Figure":
    """Plots the similarity of position embeddings (Figure 7, center).

    Args:
        similarity: The output of `position_similarity`. If there are more than 16 rows
            or columns of patches, 8 are shown.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`. The tile in row i and column j compares
        the patch at this position with all patches.
    """
    check_is("similarity", similarity, 4, "the output of `position_similarity`")
    # Sixteen maps a side of as many patches have less than a pixel a patch.
    rows, columns = (
        _evenly_spaced(count, count if count <= _MAX_TILES else 8)
        for count in similarity.shape[:2]
    )
    tiles = similarity[np.ix_(rows, columns)]
    picture, centers_y, centers_x = _mosaic(tiles)
    tall = 3.9 * picture.shape[0] / picture.shape[1]
    figure = new_figure(4.9, min(max(tall, 1.2), 8) + 0.6, title)
    axes = figure.subplots()
    image = axes.imshow(picture, cmap="viridis", vmin=-1, vmax=1)
    _label_tiles(
        axes,
        (centers_y, rows + 1, "patch row"),
        (centers_x, columns + 1, "patch column"),
    )
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("cosine similarity", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def plot_token_norms(
    norms: Array, layout: TokenLayout, image: int = 0, title: str = ""
) -> "Figure":
    """Plots the L2 norms of tokens by layer.

    Args:
        norms: The output of `token_norms` for all layers.
        layout: The output of `token_layout`.
        image: Integer. Index of the image whose patches are shown.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`: left, the norms of patches and other
        tokens by layer; right, a map of the patches' norms after the last
        layer.
    """
    check_is("norms", norms, 3, "the output of `token_norms`")
    check_is_layout(layout)
    _check_index("image", image, norms.shape[1])
    first = layout.num_prefix
    depth = np.arange(1, len(norms) + 1)
    patches = norms[:, :, first:].reshape(len(norms), -1)
    low, middle, high = np.percentile(patches, (5, 50, 95), axis=1)
    figure = new_figure(8.4, 3.6, title)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    left.fill_between(
        depth, low, high, color=_BLUE, alpha=0.2, lw=0, label="patches, 5-95 %"
    )
    left.plot(depth, middle, color=_BLUE, label="patches, median")
    left.plot(depth, patches.max(1), ":", color=_BLUE, label="patches, maximum")
    names = np.array(layout.prefix)
    styles = itertools.cycle(((_RED, "-"), (_DARK, "--"), (_GRAY, "-.")))
    for name in dict.fromkeys(layout.prefix):
        own = norms[:, :, :first][..., names == name].mean((1, 2))
        color, style = next(styles)
        words = name.replace("_", " ")
        left.plot(depth, own, style, color=color, label=words)
    left.set(xlabel="layer", ylabel="L2 norm of token", ylim=(0, None))
    left.locator_params(axis="x", integer=True)
    left.legend(frameon=False, fontsize=8)
    _style(left)
    mappable = right.imshow(norms[-1, image, first:].reshape(layout.grid), cmap="magma")
    right.set_title("patches after the last layer", fontsize=9, color=_DARK)
    _hide_ticks(right)
    figure.colorbar(mappable, ax=right, shrink=0.8).ax.tick_params(labelsize=7)
    return figure


def _to_rgb(image: Array) -> Array:
    """Converts an image of uint8 or in [-1, 1] to RGB floats in [0, 1]."""
    image = np.asarray(image)
    if image.dtype == np.uint8:
        scaled = image / 255
    elif image.size and not -1.01 <= image.min() <= image.max() <= 1.01:
        raise ValueError(
            "Images to plot must be of uint8, or have values in [-1, 1], as "
            "from preprocess_input(images, mode='tf'). Received: "
            f"{image.dtype} with values from {image.min():g} to "
            f"{image.max():g}"
        )
    else:
        scaled = (image + 1) / 2
    scaled = np.clip(scaled, 0, 1).astype("float32")
    if scaled.shape[-1] != 3:
        return np.repeat(scaled.mean(-1, keepdims=True), 3, axis=-1)
    return scaled


def _mosaic(
    tiles: Array, background: float | Array = np.nan
) -> tuple[Array, Array, Array]:
    """Assembles tiles `(rows, columns, h, w, ...)` to one image, with gaps, and
    returns it and the centers of the rows and columns of tiles, in its pixels.

    matplotlib draws one image much faster than hundreds.
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


def robust_scale(maps: Array) -> Array:
    """Scales each map from its 2nd to its 98th percentile to [0, 1]."""
    low, high = np.percentile(maps, (2, 98), axis=(-2, -1), keepdims=True)
    return np.clip((maps - low) / np.maximum(high - low, 1e-12), 0, 1)


def _check_index(name: str, value: Any, count: int) -> None:
    """Raises a `ValueError` if a value is not an index of `count` items."""
    fits = type(value) is not bool and value in range(-count, count)
    checks.require(fits, name, value, f"an index of {count} items")


def _check_rows(images: Any, titles: Any, axes: int, **maps: Any) -> None:
    """Raises a `ValueError` if there are not as many titles and maps as images, or
    if these and the maps of each, of `axes` axes, have another shape."""
    rows = {"images": (images, 3), **{name: (x, axes) for name, x in maps.items()}}
    for name, (items, count) in rows.items():
        check_is(name, items, Sized, "one item for each image")
        for item in items:
            check_is(name, item, count, f"arrays of {count} axes, one for each image")
    named = {name: x for name, (x, _) in rows.items()}
    if titles is not None:
        check_is("titles", titles, list | tuple, "a list, one for each image")
        named["titles"] = titles
    for name, items in named.items():
        expected = f"{len(images)}, one for each image"
        checks.require(len(items) == len(images) > 0, name, len(items), expected)


def _image_rows(
    images: Sequence[Array],
    titles: Sequence[str] | None,
    columns: Sequence[str],
    height: float = 1.9,
) -> tuple["Figure", list[tuple[Array, Array]]]:
    """Returns a figure that shows a row per image and, for each, its pixels
    and the axes of the further columns, which have titles."""
    shown = [enlarge(_to_rgb(image), 240) for image in images]
    # The height of rows with tall images is limited.
    heights = [
        height * min(image.shape[0] / image.shape[1], 1.5) + 0.1 for image in shown
    ]
    count = len(columns) + 1
    width = min(height * count + 0.4, 10)
    heights = [x * (width - 0.4) / (height * count) for x in heights]
    figure = new_figure(width, sum(heights) + 0.35)
    rows = figure.subplots(len(shown), count, squeeze=False, height_ratios=heights)
    for axes, name in zip(rows[0], ("image", *columns), strict=True):
        axes.set_title(name, fontsize=9, color=_DARK)
    for axes in rows.flat:
        _hide_ticks(axes)
    for axes, image, name in zip(
        rows[:, 0], shown, titles or [""] * len(shown), strict=True
    ):
        axes.imshow(image)
        lines = [plot_label(line, 28) for line in name.split("\n")]
        axes.set_ylabel("\n".join(lines), fontsize=7, color=_DARK)
    return figure, list(zip(shown, rows[:, 1:], strict=True))


def _plot_rows(
    images: Sequence[Array],
    titles: Sequence[str] | None,
    columns: Sequence[str],
    tiles: Sequence[Any],
    height: float = 1.9,
) -> "Figure":
    """Plots a row per image: the image and maps of its patches or pictures."""
    figure, rows = _image_rows(images, titles, columns, height)
    for (image, axes), row in zip(rows, tiles, strict=True):
        extent = (0, image.shape[1], image.shape[0], 0)
        for axis, tile in zip(axes, row, strict=True):
            axis.imshow(tile, cmap="inferno", extent=extent)
    return figure


def _evenly_spaced(count: int, most: int = _MAX_TILES) -> Array:
    """Returns at most `most` evenly spaced indices below `count`."""
    number = min(count, most)
    return np.linspace(0, count - 1, number).round().astype(int)


def enlarge(image: Array, side: int) -> Array:
    """Repeats the pixels of a small image, so that its heat map is smooth."""
    times = max(1, side // max(image.shape[:2]))
    return image.repeat(times, axis=0).repeat(times, axis=1)


def _resize_heat(heat: Array, size: Sequence[int]) -> Array:
    """Resizes a heat map to the size of its image."""
    grid = np.asarray(heat, "float32")[..., None]
    return np.clip(resample(grid, size, "bilinear", xp=np)[..., 0], 0, 1)


def new_figure(width: float, height: float, title: str = "") -> "Figure":
    """Returns an empty figure with a title, without pyplot."""
    figure = require("matplotlib.figure", "recipes").Figure(
        figsize=(width, height), dpi=120, layout="constrained"
    )
    if title:
        figure.suptitle(plot_label(title), fontsize=10, color=_DARK)
    return figure


def _style(axes: "Axes") -> None:
    """Leaves out the upper and right borders, and adds a grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _hide_ticks(axes: "Axes") -> None:
    """Leaves out the ticks and borders of an image."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _label_tiles(axes: "Axes", rows: Sequence[Any], columns: Sequence[Any]) -> None:
    """Labels rows and columns of tiles, each `(centers, numbers, name)`."""
    axes.spines[:].set_visible(False)
    axes.set_yticks(*rows[:2])
    axes.set_xticks(*columns[:2])
    axes.tick_params(labelsize=7, length=0)
    axes.set_ylabel(rows[2], fontsize=9)
    axes.set_xlabel(columns[2], fontsize=9)
