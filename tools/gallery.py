"""Makes pictures of the documentation, in docs/images.

  KERAS_BACKEND=jax python tools/gallery.py photos dinov2_s14
      those of docs/gallery.md and docs/gallery-data.md, from scikit-learn's two
      photographs
  python tools/gallery.py encoder dinov2_s14 astronaut.png coffee.png ...
      encoder.jpg: features and attention of four photographs of scikit-image
  python tools/gallery.py maps dinov2_s14 china.jpg flower.jpg coffee.png ...
      those of docs/inside.md and docs/report-figures.md: maps.jpg has attention,
      relevance and features of photographs, and what rollout shows without its
      options; three others show filters, attention distance and norms
  python tools/gallery.py pairs two_digits
  python tools/gallery.py texts runs/two_digits/model.keras
      texts.png: relevance of two texts to images with two digits, which
      recipes/pretrain_pairs.py was trained on between the two commands
  python tools/gallery.py speed
      speed.png, from the first table of docs/speed.md

`tools/trained_encoder.py` writes the encoder. Needs the extra `recipes`.
"""

import csv
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from einops import rearrange
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from sklearn.datasets import load_digits, load_sample_images

import keras_vit
from keras_vit import inspection
from keras_vit.inspection.attention import patch_distances
from keras_vit.inspection.plots import pca_colors, robust_scale

IMAGES = pathlib.Path("docs/images")
SIZE = 160  # of the images of a dataset, in pixels
GRID = (24, 36)  # patches of a photograph
# Six training images for each of these settings.
PROTOCOLS = ("simple", "vit_jax", "bit-hyperrule", "mae", "simmim")
AUGMENTATIONS = {
    "light1": {"augment": "light1"},
    "medium1": {"augment": "medium1"},
    "strong2": {"augment": "strong2"},
    "erase": {"erase": 1.0},
    "mixup": {"mixup": 0.8},
    "cutmix": {"cutmix": 1.0},
}
DIGITS = "zero one two three four five six seven eight nine".split()
# Rows of the table of docs/speed.md: their names and colors in the chart.
SPEED = {
    "keras_vit, tanh GELU, as Google's weights": ("keras_vit", "#2a6fbb"),
    "keras-hub": ("keras-hub", "#7b8794"),
    "timm": ("timm", "#b0b9c2"),
    "transformers": ("transformers", "#d5dade"),
}


def photos(path: str) -> None:
    """Two photographs, on their way into an encoder and in it."""
    pictures = np.stack(load_sample_images().images)  # (2, 427, 640, 3)
    two = np.arange(2)
    data = keras_vit.data.from_arrays(pictures, two, test=(pictures, two))
    trained = keras_vit.converters.load(path)
    patch = inspection.token_layout(trained).patch_size
    height, width = (n * pixels for n, pixels in zip(GRID, patch, strict=True))
    model = keras_vit.converters.load(path, input_shape=(height, width, 3))
    inputs = np.stack(
        [
            np.asarray(Image.fromarray(x).resize((width, height), Image.BOX))
            for x in pictures
        ]
    )
    inputs = keras_vit.preprocess_input(inputs, mode="torch")

    tests = {"photograph, 640 x 427": list(pictures)}
    for name in ("vit_jax", "big_vision", "few-shot", "simmim"):
        (batch,) = data.test(image_size=SIZE, batch_size=2, protocol=name)
        tests[f"{name}, {SIZE} x {SIZE}"] = list(in_unit_range(batch[0]))
    heatmaps = {
        "last block": inspection.attention_heads(model, inputs).mean(axis=1),
        "rollout": inspection.attention_heatmap(model, inputs, outliers="mask"),
    }
    maps = inspection.attention_maps(model, inputs[1:])
    layout = inspection.token_layout(model, (height, width))
    for name, figure in {
        "preprocessing": figure_of(tests, 1.8, in_columns=True),
        "patches": figure_of(patches(pictures[1]), 4, in_columns=True),
        "positions": positions(trained),
        "protocols": figure_of(
            {x: training_images(data, protocol=x) for x in PROTOCOLS}, 1.2
        ),
        "randaugment": figure_of(
            {
                name: training_images(data, protocol="simple", **options)
                for name, options in AUGMENTATIONS.items()
            },
            1.2,
        ),
        "attention": inspection.plot_attention_heatmap(list(pictures), heatmaps),
        # The class token's attention of each head.
        "heads": inspection.plot_attention_maps(maps, layout),
    }.items():
        save(figure, f"photo_{name}.jpg", 62)


def patches(photo: np.ndarray) -> dict[str, list[np.ndarray]]:
    """A photograph, cut into the tokens of a Vision Transformer."""
    photo = np.asarray(Image.fromarray(photo).resize((288, 192)))
    tokens = keras_vit.layers.Patches(32)(photo[None] / np.float32(255))
    tokens = rearrange(
        np.asarray(tokens[0]), "(h w) (p q c) -> h w p q c", h=6, p=32, q=32
    )
    gap = ((0, 0), (0, 0), (0, 5), (0, 5), (0, 0))
    tokens = np.pad(tokens, gap, constant_values=1)
    sheet = rearrange(tokens, "h w p q c -> (h p) (w q) c")
    return {
        "image of 288 x 192 pixels": [photo],
        "6 x 9 patches of 32 x 32 pixels": [sheet],
    }


def positions(model: keras.Model) -> Figure:
    """Similarity of positions: as trained, and resampled to a photograph."""
    places = (0.2, 0.2), (0.5, 0.5), (0.5, 0.9)
    rows, marks = {}, []
    for height, width in (
        model.get_layer("position_embedding").built_grid,
        GRID,
    ):
        similarity = inspection.position_similarity(model, (height, width))
        here = [(int(y * height), int(x * width)) for y, x in places]
        maps = [(similarity[place] + 1) / 2 for place in here]
        rows[f"{height} x {width} patches"] = maps
        marks += here
    figure = figure_of(rows, 2.3)
    for axis, (row, column) in zip(figure.axes, marks, strict=True):
        axis.plot(column, row, "+", color="white", ms=7)
    return figure


def training_images(
    data: keras_vit.data.ImageDataset, **options: Any
) -> list[np.ndarray]:
    """Returns six training images."""
    batches = iter(data.train(image_size=SIZE, batch_size=2, seed=3, **options))
    return [x for _ in range(3) for x in in_unit_range(next(batches)[0])]


def in_unit_range(images: Any) -> np.ndarray:
    """Returns images in [-1, 1] as images in [0, 1]."""
    return np.clip((np.asarray(images) + 1) / 2, 0, 1)


def encoder(path: str, *names: str) -> None:
    """Four photographs, and what an encoder computes of each."""
    model, sheet, images = encoder_and_photos(path, names, 448)
    heads = inspection.attention_heads(model, images).mean(axis=1)
    rows = {
        "photograph": sheet,
        "features": pca_colors(inspection.feature_pca(model, images)),
        "attention": [robust_scale(heat) for heat in heads],
    }
    save(figure_of(rows, 1.9), "encoder.jpg", 60)


def maps(path: str, *names: str) -> None:
    """Photographs and their maps, with rollout as it was published and as the
    report shows it; and what the encoder has learned."""
    model, sheet, images = encoder_and_photos(path, names, 308)
    layout = inspection.token_layout(model)
    rows = {"photograph": sheet, "rollout,\nas published": []}
    rows |= {"rollout, masked": [], "last block": [], "relevance": []}
    for image in images:
        attention = inspection.attention_maps(model, image[None])
        whole, masked = (
            inspection.attention_rollout(attention, outliers=outliers)
            for outliers in ("keep", "mask")
        )
        whole, masked, last = (
            x[0, 0, 1:].reshape(layout.grid)
            for x in (whole, masked, attention[-1].mean(1))
        )
        relevance = inspection.relevance(model, image[None])[0]
        rows["rollout,\nas published"].append(whole / whole.max())
        rows["rollout, masked"].append(robust_scale(masked))
        rows["last block"].append(robust_scale(last))
        rows["relevance"].append(robust_scale(relevance))
    found = inspection.feature_pca(model, images, joint=False)
    rows["features"] = pca_colors(found)
    # Smooth maps and this quality, since the picture must be small.
    save(figure_of(rows, 0.85, interpolation="bilinear"), "maps.jpg", 35)
    uniform = patch_distances(layout).mean()
    distances = inspection.attention_distance(model, images)
    norms = inspection.token_norms(model, images)
    for name, figure in {
        "embedding_filters": inspection.plot_embedding_filters(
            inspection.embedding_filters(model)
        ),
        "attention_distance": inspection.plot_attention_distance(distances, uniform),
        "token_norms": inspection.plot_token_norms(norms, layout),
    }.items():
        target = IMAGES / f"{name}.png"
        figure.savefig(target, dpi=80)
        # 64 colors are enough for these, in a third of the bytes.
        with Image.open(target) as image:
            small = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
        small.save(target, optimize=True)


def pairs(folder: str) -> None:
    """Images of one and of two digits on black, and pairs.csv with their names."""
    rng, target, digits = np.random.default_rng(0), pathlib.Path(folder), load_digits()
    target.mkdir(parents=True)
    with open(target / "pairs.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("image", "text", "split"))
        for split, count in (("train", 4000), ("test", 400)):
            for i in range(count):
                image, numbers, _ = on_black(rng, digits, split, 1 + i % 2)
                path = target / f"{split}_{i}.png"
                Image.fromarray(image).save(path)
                text = " and ".join(DIGITS[number] for number in numbers)
                rows.writerow((path.name, text, split))


def on_black(
    rng: np.random.Generator, digits: Any, split: str, count: int
) -> tuple[np.ndarray, list[int], list[tuple[int, int]]]:
    """Returns an image of 16 x 16 pixels with different digits of scikit-learn in some
    of its four quarters, their numbers, and the rows and columns of their corners."""
    image = np.zeros((16, 16), "uint8")
    is_train = np.arange(len(digits.target)) < 1437
    numbers = sorted(rng.choice(10, count, replace=False).tolist())
    corners = [(8 * (i // 2), 8 * (i % 2)) for i in rng.permutation(4)[:count].tolist()]
    for number, (y, x) in zip(numbers, corners, strict=True):
        which = (digits.target == number) & (is_train == (split == "train"))
        pixels = digits.images[rng.choice(np.flatnonzero(which))]
        image[y : y + 8, x : x + 8] = np.minimum(16 * pixels, 255)
    return image, numbers, corners


def texts(path: str) -> None:
    """What the texts of the two digits of an image depend on."""
    model = keras_vit.zero_shot(keras_vit.load(path), DIGITS, ["{}"])
    rng, digits = np.random.default_rng(1), load_digits()
    images, numbers, corners = zip(
        *(on_black(rng, digits, "test", 2) for _ in range(200)), strict=True
    )
    colored = np.repeat(np.stack(images)[..., None], 3, axis=-1)
    inputs = keras_vit.preprocess_input(colored)
    logits = model.predict(inputs, verbose=0)
    best = np.argsort(-logits, axis=-1)[:, :2]
    both = np.mean([{*x} == {*y} for x, y in zip(best, numbers, strict=True)])
    print(f"the two most probable classes are the digits: {both:.3f}")
    rows: dict[str, list] = {"image": [x / 255 for x in images[:6]]}
    for this in (0, 1):
        wanted = [x[this] for x in numbers]
        heat = np.maximum(inspection.relevance(model, inputs, wanted), 0)
        scale = 16 // heat.shape[1]
        heat = heat.repeat(scale, axis=1).repeat(scale, axis=2)
        heat /= heat.sum(axis=(1, 2), keepdims=True)
        shares = np.array(
            [
                [one[y : y + 8, x : x + 8].sum() for y, x in places]
                for one, places in zip(heat, corners, strict=True)
            ]
        )
        own, other = shares[:, this], shares[:, 1 - this]
        print(
            f"text {this + 1}: {own.mean():.3f} of its relevance is on its digit, "
            f"{other.mean():.3f} on the other; more on its own: {(own > other).mean()}"
        )
        rows[f"text {this + 1}"] = [robust_scale(x) for x in heat[:6]]
    figure = figure_of(rows, 1.1)
    lines = np.reshape(figure.axes, (3, 6))
    for this, line in enumerate(lines[1:]):
        for axis, found in zip(line, numbers, strict=False):
            axis.set_title(DIGITS[found[this]], fontsize=8, color="#22303c")
    figure.savefig(IMAGES / "texts.png")


def encoder_and_photos(
    path: str, names: Sequence[str], size: int
) -> tuple[keras.Model, list[np.ndarray], np.ndarray]:
    """Returns an encoder, and photographs as they are and as it takes them."""
    sheet = [Image.open(name).convert("RGB") for name in names]
    sheet = [np.asarray(ImageOps.fit(photo, (size, size))) for photo in sheet]
    model = keras_vit.converters.load(path, input_shape=(size, size, 3))
    images = keras_vit.preprocess_input(np.stack(sheet), mode="torch")
    return model, sheet, images


def figure_of(
    rows: Mapping[str, Sequence],
    size: float,
    in_columns: bool = False,
    interpolation: str | None = None,
) -> Figure:
    """Returns a figure of rows or columns of pictures, and of maps in [0, 1],
    with their names."""
    (count,) = {len(row) for row in rows.values()}
    height, width = (count, len(rows)) if in_columns else (len(rows), count)
    figure = Figure(
        figsize=(width * size, height * size + 0.3),
        dpi=100,
        layout="constrained",
    )
    axes = figure.subplots(height, width, squeeze=False)
    lines = axes.T if in_columns else axes
    for (name, pictures), line in zip(rows.items(), lines, strict=True):
        write = line[0].set_title if in_columns else line[0].set_ylabel
        write(name, fontsize=9 if size > 1 else 7, color="#22303c")
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(
                picture,
                cmap="inferno",
                vmin=0,
                vmax=1,
                interpolation=interpolation,
            )
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
    return figure


def save(figure: Figure, name: str, quality: int) -> None:
    path = IMAGES / name
    figure.savefig(path, pil_kwargs={"quality": quality, "optimize": True})
    print(f"{path} ({path.stat().st_size // 1024} kB)")


def speed() -> None:
    """Milliseconds of a batch of 8 and of one image; cells of the table are
    such as "398 / 106"."""
    page = pathlib.Path("docs/speed.md").read_text()
    table = page.split("\n\n| ")[1].split("\n\n")[0].splitlines()
    (_, *columns), _, *rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in table
    ]
    cells = {name: values for name, *values in rows}
    figure = Figure((8, 5), layout="constrained")
    for index, (title, axes) in enumerate(
        zip(("8 images", "1 image"), figure.subplots(2, 1), strict=True)
    ):
        for i, (row, (name, color)) in enumerate(SPEED.items()):
            found = [
                (place, float(cell.split("/")[index]))
                for place, cell in enumerate(cells[row])
                if cell
            ]
            places, times = np.transpose(found)
            bars = axes.bar(places + 0.2 * i, times, 0.18, color=color, label=name)
            axes.bar_label(bars, fmt="%.0f", fontsize=8)
        axes.set_xticks(np.arange(len(columns)) + 0.1, columns)
        axes.set_ylabel("ms")
        axes.set_title(f"ViT-S/16, inference, {title}", fontsize=10)
        axes.margins(y=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(ncols=len(SPEED), fontsize=8)
    figure.savefig(IMAGES / "speed.png", dpi=110)


if __name__ == "__main__":
    programs = {x.__name__: x for x in (photos, encoder, maps, pairs, texts, speed)}
    if len(sys.argv) < 2 or sys.argv[1] not in programs:
        sys.exit(__doc__)
    programs[sys.argv[1]](*sys.argv[2:])
