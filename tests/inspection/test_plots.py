"""Every plot shows its data."""

import io

import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.inspection import plots
from keras_vit.inspection.tokens import TokenLayout

pytestmark = pytest.mark.backends("torch")

LAYOUT = TokenLayout(("class_token", "register_tokens"), (2, 3), (8, 8))
BARE = TokenLayout((), (2, 3), (8, 8))
RNG = np.random.default_rng(0)


def pixels(figure):
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer)
    return np.asarray(Image.open(buffer).convert("RGB"))


def assert_drawn(figure):
    """Hiding any image, line or area changes pixels of the saved picture."""
    whole = pixels(figure)
    # Layout would move everything where an artist is missing.
    figure.set_layout_engine("none")
    np.testing.assert_array_equal(pixels(figure), whole)
    artists = [
        artist
        for axes in figure.axes
        for artist in (*axes.images, *axes.lines, *axes.collections)
        # A color bar has an empty collection of dividers.
        if not hasattr(artist, "get_segments") or artist.get_segments()
    ]
    assert artists
    for artist in artists:
        artist.set_visible(False)
        assert (pixels(figure) != whole).any(), artist
        artist.set_visible(True)


def maps(tokens):
    scores = RNG.uniform(size=(3, 2, 4, tokens, tokens))
    return scores / scores.sum(-1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [2, 3])
def test_plot_attention_heatmap(channels):
    images = [
        RNG.integers(0, 255, (20, 30, channels)).astype("uint8"),
        RNG.uniform(-1, 1, (90, 20, channels)).astype("float32"),
    ]
    heat = RNG.uniform(size=(2, 16, 24))
    figure = inspection.plot_attention_heatmap(images, heat, ["a", "b" * 99])
    assert len(figure.axes) == 6
    # Over the image as it is, whatever size the heat map has.
    image, masked, over = (axes.images for axes in figure.axes[:3])
    assert image[0].get_array().shape == (160, 240, 3)
    assert over[1].get_array().shape == (160, 240)
    light, dark = image[0].get_array(), masked[0].get_array()
    assert (dark <= light + 1e-6).all()
    assert dark.mean() < 0.9 * light.mean()
    assert_drawn(figure)


def test_one_bright_patch_does_not_hide_the_others():
    """As in the first block of DINOv2."""
    heat = RNG.uniform(size=(1, 24, 24))
    heat[0, 3, 5] = 1000
    image = np.full((24, 24, 3), 255, "uint8")
    columns = {"last block": heat, "rollout": 2 * heat}
    figure = inspection.plot_attention_heatmap([image], columns)
    assert [x.get_title() for x in figure.axes][2:] == list(columns)
    for axes in figure.axes[2:]:
        assert axes.images[1].get_array().std() > 0.1
    tiles = inspection.plot_attention_heads([image], heat[:, None]).axes
    assert [x.get_title() for x in tiles] == ["image", "mean", "head 1"]
    assert tiles[2].images[0].get_array().std() > 0.1


def test_image_values_out_of_range_raise():
    """The images are preprocessed with mode "torch", or are floats up to
    255."""
    heat = [np.ones((4, 4))]
    for scale in (2.6, 255):
        image = np.full((4, 4, 3), scale)
        with pytest.raises(ValueError, match=r"values in \[-1, 1\]"):
            inspection.plot_attention_heatmap([image], heat)


def test_plot_attention_maps():
    found = maps(8)
    figure = inspection.plot_attention_maps(found, LAYOUT, image=1)
    picture = figure.axes[0].images[0].get_array()
    # Five times as large, and gaps of one: an eighth.
    assert picture.shape == (3 * 11 + 1, 4 * 16 + 1)
    tile = found[1, 1, 2, 0, 2:].reshape(2, 3)
    low, high = np.percentile(tile, (2, 98))
    scaled = np.clip((tile - low) / (high - low), 0, 1)
    np.testing.assert_allclose(picture[12:22:5, 33:48:5], scaled)
    figure = inspection.plot_attention_maps(maps(6), BARE)
    assert_drawn(figure)


def test_plot_attention_distance():
    distances = RNG.uniform(10, 90, (5, 3))
    figure = inspection.plot_attention_distance(distances, 50.0, "title")
    *heads, mean, uniform = figure.axes[0].lines
    for head, expected in zip(heads, distances.T, strict=True):
        np.testing.assert_array_equal(head.get_ydata(), expected)
    np.testing.assert_allclose(mean.get_ydata(), distances.mean(1))
    assert set(uniform.get_ydata()) == {50.0}
    assert_drawn(figure)


@pytest.mark.parametrize("channels", [2, 3])
def test_plot_embedding_filters(channels):
    filters = RNG.uniform(size=(9, 8, 8, channels))
    figure = inspection.plot_embedding_filters(filters)
    picture = figure.axes[0].images[0].get_array()
    # Twice as large, and gaps of two.
    assert picture.shape == (2 * 18 + 2, 7 * 18 + 2, 3)
    if channels == 3:
        found = picture[20:36:2, 20:36:2]
        np.testing.assert_allclose(found, filters[8], atol=1e-6)
    empty = picture[20:, 38:].reshape(-1, 3)
    np.testing.assert_allclose(empty, len(empty) * [plots.BACKGROUND])
    assert_drawn(figure)


def test_plot_position_similarity():
    similarity = RNG.uniform(-1, 1, (2, 40, 2, 40))
    figure = inspection.plot_position_similarity(similarity)
    picture = figure.axes[0].images[0].get_array()
    assert picture.shape == (2 * 7 + 5, 8 * 45 + 5)  # 8 of 40 columns
    np.testing.assert_allclose(picture[12:14, -45:-5], similarity[1, -1])
    assert_drawn(figure)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LAYOUT, BARE])
def test_plot_token_norms(layout):
    norms = RNG.uniform(1, 9, (4, 2, layout.num_prefix + 6))
    figure = inspection.plot_token_norms(norms, layout, image=1)
    names = figure.axes[0].get_legend_handles_labels()[1]
    assert ("register tokens" in names) == bool(layout.prefix)
    np.testing.assert_array_equal(
        figure.axes[1].images[0].get_array(),
        norms[3, 1, layout.num_prefix :].reshape(2, 3),
    )
    assert_drawn(figure)
