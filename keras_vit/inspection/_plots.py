"""What was found, drawn. Every function returns a `matplotlib.figure.Figure`,
which `savefig` writes; pyplot, whose state is the caller's, is not used."""

import itertools

import numpy as np

from keras_vit._program import plot_label
from keras_vit.inspection import _drawing

_DARK, _BLUE, _RED = _drawing.DARK, _drawing.BLUE, _drawing.RED


def plot_attention_heatmap(images, heatmaps, titles=None):
    """Draws images, what attention leaves of them, and the heat over them.

    The middle column is the paper's Figure 6: the image, darkened where
    little attention falls. In the right one colours run from an image's least
    attention to its most, however little that is more.

    Args:
        images: Batch or list of images `(height, width, channels)`, of uint8
            or of floats in [-1, 1]. They need not be of the heat maps' size.
        heatmaps: What `attention_heatmap` returns, or a list of such maps.
        titles: List of strings, one an image; or None.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    shown = [_drawing.as_rgb(image) for image in images]
    aspects = [image.shape[0] / image.shape[1] for image in shown]
    # A tall image must not make its row as high as the picture.
    heights = [1.9 * min(aspect, 1.5) + 0.1 for aspect in aspects]
    figure = _drawing.figure(6.1, sum(heights) + 0.35)
    rows = figure.subplots(len(shown), 3, squeeze=False, height_ratios=heights)
    for axes, name in zip(
        rows[0], ("image", "attended", "attention"), strict=True
    ):
        axes.set_title(name, fontsize=10, color=_DARK)
    names = titles or [""] * len(shown)
    for (left, middle, right), image, heat, name in zip(
        rows, shown, heatmaps, names, strict=True
    ):
        image = _drawing.enlarged(image, 240)
        fine = _drawing.resized(heat, image.shape[:2])
        left.imshow(image)
        left.set_ylabel(plot_label(name, 24), fontsize=8, color=_DARK)
        middle.imshow(image * fine[..., None])
        right.imshow(image.mean(-1), cmap="gray", vmin=0, vmax=1)
        right.imshow(fine, cmap="inferno", alpha=0.65)
        for axes in (left, middle, right):
            _drawing.bare(axes)
    return figure


def plot_attention_maps(maps, layout, image=0, query=None):
    """Draws the attention of one query in every layer and head.

    Args:
        maps: What `attention_maps` returns.
        layout: What `token_layout` returns.
        image: Integer. Which image of the batch.
        query: Integer. Which token asks; None for the first, the class token,
            or without tokens before the patches for the mean of all patches.

    Returns:
        A `matplotlib.figure.Figure`: a row a layer, a column a head, each map
        scaled to its own largest value.
    """
    if query is None and not layout.num_prefix:
        asked = maps[:, image].mean(axis=2)
    else:
        asked = maps[:, image, :, query or 0]
    tiles = asked[..., layout.num_prefix :]
    tiles = tiles.reshape(*tiles.shape[:2], *layout.grid)
    tiles = tiles / tiles.max((2, 3), keepdims=True)
    layers, heads = tiles.shape[:2]
    aspect = layout.grid[0] / layout.grid[1]
    side = min(0.8, 9 / heads)
    figure = _drawing.figure(side * heads + 0.8, side * aspect * layers + 0.8)
    axes = figure.subplots()
    picture, rows, columns = _drawing.mosaic(tiles)
    axes.imshow(picture, cmap="inferno", vmin=0, vmax=1, aspect="auto")
    _drawing.numbered(
        axes,
        (rows, range(1, layers + 1), "layer"),
        (columns, range(1, heads + 1), "head"),
    )
    return figure


def plot_attention_distance(distances, uniform=None, title=""):
    """Draws how far each head looks, layer by layer: Figure 7, right.

    Args:
        distances: What `attention_distance` returns, of all layers.
        uniform: Float, the distance where every patch attends to all patches
            alike, to be drawn too; or None.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    figure = _drawing.figure(4.6, 3.8, title)
    axes = figure.subplots()
    depth = np.arange(1, len(distances) + 1)
    for head in distances.T:
        axes.plot(depth, head, "o", ms=4, color=_BLUE, alpha=0.55, mew=0)
    mean = distances.mean(axis=1)
    axes.plot(depth, mean, color=_RED, lw=1.4, label="mean of the heads")
    axes.set(xlabel="layer", ylabel="mean attention distance (pixels)")
    if uniform is not None:
        axes.axhline(
            uniform, color=_DARK, ls=":", lw=1.2, label="attention to all alike"
        )
    axes.set_ylim(0, 1.1 * max(distances.max(), uniform or 0, 1e-6))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    _drawing.plain(axes)
    return figure


def plot_embedding_filters(filters, title=""):
    """Draws the main filters of the patch embedding: Figure 7, left.

    Args:
        filters: What `embedding_filters` returns. Of one channel they are
            grey; of two or more than three, which no screen shows, the three
            main directions of their channels are red, green and blue.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    count, height, width = filters.shape[:3]
    columns = min(7, count)
    rows = -(-count // columns)
    colours = _drawing.as_rgb(_drawing.three_channels(filters) * 2 - 1)
    # Neither black nor white, which filters have at their ends.
    between = _drawing.PALE_RGB
    blank = np.ones((rows * columns - count, height, width, 3)) * between
    tiles = np.concatenate([colours, blank])
    tiles = tiles.reshape(rows, columns, height, width, 3)
    picture, _, _ = _drawing.mosaic(tiles, between)
    wide = 4.6 / picture.shape[1]
    figure = _drawing.figure(4.6, wide * picture.shape[0] + 0.4, title)
    axes = figure.subplots()
    axes.imshow(picture)
    axes.axis("off")
    return figure


def plot_position_similarity(similarity, title=""):
    """Draws how alike position embeddings are: Figure 7, centre.

    Args:
        similarity: What `position_similarity` returns. Of a grid of more than
            16 patches a side, 16 are drawn.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`: the tile in row i and column j compares
        the patch there with all patches.
    """
    rows, columns = map(_drawing.spread, similarity.shape[:2])
    tiles = similarity[np.ix_(rows, columns)]
    picture, places_y, places_x = _drawing.mosaic(tiles)
    tall = 3.9 * picture.shape[0] / picture.shape[1]
    figure = _drawing.figure(4.9, min(max(tall, 1.2), 8) + 0.6, title)
    axes = figure.subplots()
    drawn = axes.imshow(picture, cmap="viridis", vmin=-1, vmax=1)
    _drawing.numbered(
        axes,
        (places_y, rows + 1, "patch row"),
        (places_x, columns + 1, "patch column"),
    )
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
    bar.set_label("cosine similarity", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def plot_token_norms(norms, layout, image=0, title=""):
    """Draws how long tokens become: where registers would help.

    Args:
        norms: What `token_norms` returns, of all layers.
        layout: What `token_layout` returns.
        image: Integer. Which image's patches are drawn.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`: patches and other tokens in every layer,
        and the patches after the last one.
    """
    first = layout.num_prefix
    depth = np.arange(1, len(norms) + 1)
    patches = norms[:, :, first:].reshape(len(norms), -1)
    low, middle, high = np.percentile(patches, (5, 50, 95), axis=1)
    figure = _drawing.figure(8.4, 3.6, title)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    left.fill_between(
        depth, low, high, color=_BLUE, alpha=0.2, lw=0, label="patches, 5-95 %"
    )
    left.plot(depth, middle, color=_BLUE, label="patches, median")
    left.plot(depth, patches.max(1), ":", color=_BLUE, label="longest patch")
    names = np.array(layout.prefix)
    styles = itertools.cycle(
        ((_RED, "-"), (_DARK, "--"), (_drawing.PALE, "-."))
    )
    for name in dict.fromkeys(layout.prefix):
        own = norms[:, :, :first][..., names == name].mean((1, 2))
        colour, style = next(styles)
        words = name.replace("_", " ")
        left.plot(depth, own, style, color=colour, label=words)
    left.set(xlabel="layer", ylabel="length of token", ylim=(0, None))
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend(frameon=False, fontsize=8)
    _drawing.plain(left)
    drawn = right.imshow(
        norms[-1, image, first:].reshape(layout.grid), cmap="magma"
    )
    right.set_title("patches after the last layer", fontsize=9, color=_DARK)
    _drawing.bare(right)
    figure.colorbar(drawn, ax=right, shrink=0.8).ax.tick_params(labelsize=7)
    return figure
