"""Makes the pictures of docs/gallery.md from scikit-learn's two photographs.

  KERAS_BACKEND=jax python tools/gallery.py dinov2_s14

The argument is the encoder that `tools/trained_encoder.py` writes, whose
attention and position embeddings are shown. The pictures are written to
docs/images, or to the folder that is given as the second argument. Needs the
extra `recipes`.

  python tools/gallery.py --encoder dinov2_s14 astronaut.png coffee.png ...

The picture docs/images/encoder.jpg: features and attention of this encoder on
four photographs of scikit-image.

  python tools/gallery.py --maps dinov2_s14 china.jpg flower.jpg coffee.png ...

The pictures of docs/inside.md: docs/images/maps.jpg has attention, relevance
and features of photographs, and what rollout shows without its options; three
others show filters, attention distance and norms of this encoder.
"""

import os
import pathlib
import sys
from collections.abc import Mapping
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.figure
import numpy as np
from PIL import Image
from PIL import ImageOps
from sklearn.datasets import load_sample_images

import keras_vit
from keras_vit import inspection
from keras_vit.inspection.attention import patch_distances
from keras_vit.inspection.plots import pca_colors
from keras_vit.inspection.plots import robust_scale

NAMES = ("china.jpg", "flower.jpg")
SIZE = 160  # of the pictures' images, in pixels
GRID = (24, 36)  # patches of a photograph
DARK = "#22303c"


def main(model_path: str, folder: str = "docs/images") -> None:
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    photos = np.stack(load_sample_images().images)  # (2, 427, 640, 3)
    data = keras_vit.data.from_arrays(
        photos, np.arange(2), test=(photos, np.arange(2)), class_names=NAMES
    )
    trained = keras_vit.converters.load(model_path)
    patch = inspection.token_layout(trained).patch_size
    size = [n * pixels for n, pixels in zip(GRID, patch, strict=True)]
    model = keras_vit.converters.load(model_path, input_shape=(*size, 3))
    for name, figure in {
        "photo_preprocessing": preprocessing(photos, data),
        "photo_patches": patches(photos),
        "photo_positions": positions(trained),
        "photo_protocols": protocols(data),
        "photo_randaugment": augmentations(data),
        "photo_attention": attention(photos, model),
        "photo_heads": heads(photos, model),
    }.items():
        path = folder / f"{name}.jpg"
        figure.savefig(path, pil_kwargs={"quality": 62, "optimize": True})
        print(f"{path} ({path.stat().st_size // 1024} kB)")


def encoder_picture(path: str, *photos: str) -> None:
    """Four photographs, and what an encoder computes of each."""
    model, sheet, images = encoder_and_photos(path, photos, 448)
    heads = inspection.attention_heads(model, images).mean(axis=1)
    rows = {
        "photograph": sheet,
        "features": pca_colors(inspection.feature_pca(model, images)),
        "attention": [robust_scale(heat) for heat in heads],
    }
    save_rows(rows, 1.9, "docs/images/encoder.jpg")


def maps_pictures(path: str, *photos: str) -> None:
    """Photographs and their maps, with rollout as it was published and as the
    report shows it; and what the encoder has learned."""
    model, sheet, images = encoder_and_photos(path, photos, 308)
    layout = inspection.token_layout(model)
    rows = {"photograph": sheet, "rollout,\nas published": []}
    rows |= {"rollout, masked": [], "last block": [], "relevance": []}
    for image in images:
        maps = inspection.attention_maps(model, image[None])
        whole, masked = (
            inspection.attention_rollout(maps, outliers=outliers)
            for outliers in ("keep", "mask")
        )
        whole, masked, last = (
            x[0, 0, 1:].reshape(layout.grid)
            for x in (whole, masked, maps[-1].mean(1))
        )
        relevance = inspection.relevance(model, image[None])[0]
        rows["rollout,\nas published"].append(whole / whole.max())
        rows["rollout, masked"].append(robust_scale(masked))
        rows["last block"].append(robust_scale(last))
        rows["relevance"].append(robust_scale(relevance))
    found = inspection.feature_pca(model, images, joint=False)
    rows["features"] = pca_colors(found)
    # Smooth maps and this quality, since the picture must be small.
    save_rows(rows, 0.85, "docs/images/maps.jpg", 35, "bilinear")
    uniform = patch_distances(layout).mean()
    distances = inspection.attention_distance(model, images)
    norms = inspection.token_norms(model, images)
    for name, figure in {
        "embedding_filters": inspection.plot_embedding_filters(
            inspection.embedding_filters(model)
        ),
        "attention_distance": inspection.plot_attention_distance(
            distances, uniform
        ),
        "token_norms": inspection.plot_token_norms(norms, layout),
    }.items():
        target = pathlib.Path(f"docs/images/{name}.png")
        figure.savefig(target, dpi=80)
        # 64 colors are enough for these, in a third of the bytes.
        with Image.open(target) as image:
            small = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
        small.save(target, optimize=True)


def encoder_and_photos(
    path: str, photos: Sequence[str], size: int
) -> tuple[keras.Model, list[np.ndarray], np.ndarray]:
    """Returns an encoder, and photographs as they are and as it takes them."""
    sheet = [Image.open(photo).convert("RGB") for photo in photos]
    sheet = [np.asarray(ImageOps.fit(photo, (size, size))) for photo in sheet]
    model = keras_vit.converters.load(path, input_shape=(size, size, 3))
    images = keras_vit.preprocess_input(np.stack(sheet), mode="torch")
    return model, sheet, images


def save_rows(
    rows: Mapping[str, Sequence],
    size: float,
    path: str,
    quality: int = 60,
    interpolation: str | None = None,
) -> None:
    """Draws rows of pictures and of maps in [0, 1] with their names."""
    (count,) = {len(row) for row in rows.values()}
    figure, axes = tiles(len(rows), count, size)
    for (name, pictures), line in zip(rows.items(), axes, strict=True):
        line[0].set_ylabel(name, fontsize=9 if size > 1 else 7, color=DARK)
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(
                picture,
                cmap="inferno",
                vmin=0,
                vmax=1,
                interpolation=interpolation,
            )
    figure.savefig(path, pil_kwargs={"quality": quality, "optimize": True})


def tiles(rows, columns, size=1.45, width=None, **subplots):
    """Returns a figure and its `(rows, columns)` axes, without ticks."""
    figure = matplotlib.figure.Figure(
        figsize=(width or columns * size, rows * size + 0.3),
        dpi=100,
        layout="constrained",
    )
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    return figure, axes


def title(axis, text):
    axis.set_title(text, fontsize=9, color=DARK)


def to_unit(images):
    """Returns images in [-1, 1] as images in [0, 1]."""
    return np.clip((np.asarray(images) + 1) / 2, 0, 1)


def preprocessing(photos, data):
    """The photographs, and what each protocol evaluates a model on."""
    names = ("vit_jax", "big_vision", "few-shot", "simmim")
    figure, axes = tiles(2, 5, width=8, width_ratios=(1.5, *[1] * len(names)))
    title(axes[0, 0], "photograph, 640 x 427")
    for row, photo in zip(axes, photos, strict=True):
        row[0].imshow(photo)
    for column, name in enumerate(names, 1):
        title(axes[0, column], f"{name}, {SIZE} x {SIZE}")
        (batch,) = data.test(image_size=SIZE, batch_size=2, protocol=name)
        for row, image in zip(axes, batch[0], strict=True):
            row[column].imshow(to_unit(image))
    return figure


def patches(photos):
    """A photograph, cut into the tokens of a Vision Transformer."""
    patch = 32
    photo = np.asarray(Image.fromarray(photos[1]).resize((288, 192)))
    rows, columns = 192 // patch, 288 // patch
    flat = keras_vit.layers.Patches(patch)(photo[None].astype("float32"))
    tokens = np.asarray(flat).reshape(rows, columns, patch, patch, 3) / 255
    figure, axes = tiles(1, 2, width=8, size=2.9)
    title(axes[0, 0], f"image of {columns * patch} x {rows * patch} pixels")
    axes[0, 0].imshow(photo)
    title(axes[0, 1], f"{rows} x {columns} patches of {patch} x {patch} pixels")
    gap = 5
    sheet = np.ones((rows * (patch + gap), columns * (patch + gap), 3))
    for i, j in np.ndindex(rows, columns):
        top, left = i * (patch + gap), j * (patch + gap)
        sheet[top : top + patch, left : left + patch] = tokens[i, j]
    axes[0, 1].imshow(sheet)
    return figure


def positions(model):
    """Similarity of positions: as trained, and resampled to a photograph."""
    layer = model.get_layer("position_embedding")
    grids = (layer.built_grid, GRID)
    where = (
        ("upper left", 0.2, 0.2),
        ("center", 0.5, 0.5),
        ("right", 0.5, 0.9),
    )
    figure, axes = tiles(2, 3, width=7, height_ratios=(1, 1))
    for row, grid in zip(axes, grids, strict=True):
        similarity = inspection.position_similarity(model, grid)
        for axis, (name, y, x) in zip(row, where, strict=True):
            i, j = int(y * grid[0]), int(x * grid[1])
            axis.imshow(similarity[i, j], cmap="viridis", vmin=-1, vmax=1)
            axis.plot(j, i, "+", color="white", ms=7)
            title(axis, f"{grid[0]} x {grid[1]} patches, {name}")
    return figure


def protocols(data):
    """Six training images of each protocol."""
    names = ("simple", "vit_jax", "bit-hyperrule", "mae", "simmim")
    figure, axes = tiles(len(names), 6, size=1.2)
    for row, name in zip(axes, names, strict=True):
        show_batch(row, data, name, protocol=name)
    return figure


def augmentations(data):
    """Six training images of levels of RandAugment, erasing and mixing."""
    figure, axes = tiles(6, 6, size=1.2)
    settings = {
        "light1": {"augment": "light1"},
        "medium1": {"augment": "medium1"},
        "strong2": {"augment": "strong2"},
        "erase": {"erase": 1.0},
        "mixup": {"mixup": 0.8},
        "cutmix": {"cutmix": 1.0},
    }
    for row, (name, options) in zip(axes, settings.items(), strict=True):
        show_batch(row, data, name, protocol="simple", **options)
    return figure


def show_batch(row, data, name, **options):
    images = []
    for images_of_batch, _ in data.train(
        image_size=SIZE, batch_size=2, seed=3, **options
    ):
        images.extend(to_unit(images_of_batch))
        if len(images) >= len(row):
            break
    row[0].set_ylabel(name, fontsize=9, color=DARK)
    for axis, image in zip(row, images, strict=False):
        axis.imshow(image)


def attention(
    photos: np.ndarray, model: keras.Model
) -> matplotlib.figure.Figure:
    """Attention over whole photographs: rollout, and the last block."""
    images = model_inputs(photos, model)
    maps = {
        "last block": inspection.attention_heads(model, images).mean(axis=1),
        "rollout": inspection.attention_heatmap(model, images, outliers="mask"),
    }
    return inspection.plot_attention_heatmap(list(photos), maps)


def heads(photos, model):
    """The class token's attention, or the patches' mean, of each head."""
    images = model_inputs(photos, model)[1:]
    maps = inspection.attention_maps(model, images)
    layout = inspection.token_layout(model, images.shape[1:3])
    return inspection.plot_attention_maps(maps, layout)


def model_inputs(photos, model):
    height, width = model.input_shape[1:3]
    resized = [
        np.asarray(Image.fromarray(photo).resize((width, height), Image.BOX))
        for photo in photos
    ]
    images = np.stack(resized).astype("float32")
    return keras_vit.preprocess_input(images, mode="torch")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--encoder":
        encoder_picture(*sys.argv[2:])
    elif sys.argv[1] == "--maps":
        maps_pictures(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
