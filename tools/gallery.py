"""Makes the pictures of docs/gallery.md from scikit-learn's two photographs.

  KERAS_BACKEND=jax python tools/gallery.py dinov2_s14

The argument is the encoder that `tools/trained_encoder.py` writes, whose
attention and position embeddings are shown. The pictures are written to
docs/images, or to the folder that is given as the second argument. Needs the
extra `recipes`.

  python tools/gallery.py --encoder dinov2_s14 astronaut.png coffee.png ...

The picture docs/images/encoder.jpg: features and attention of this encoder on
four photographs of scikit-image.
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.figure
import numpy as np
from PIL import Image
from PIL import ImageOps
from sklearn.datasets import load_sample_images

import keras_vit
from keras_vit import inspection

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
    size = 448
    sheet = [Image.open(photo).convert("RGB") for photo in photos]
    sheet = [np.asarray(ImageOps.fit(photo, (size, size))) for photo in sheet]
    model = keras_vit.converters.load(path, input_shape=(size, size, 3))
    images = keras_vit.preprocess_input(
        np.stack(sheet).astype("float32"), mode="torch"
    )
    found = inspection.feature_pca(model, images)
    values = np.concatenate([x.reshape(-1, 3) for x in found.components])
    low, high = np.nanpercentile(values, (2, 98), axis=0)
    heads = inspection.attention_heads(model, images).mean(axis=1)
    figure, axes = tiles(3, len(sheet), size=1.9)
    for axis, text in zip(
        axes[:, 0], ("photograph", "features", "attention"), strict=True
    ):
        axis.set_ylabel(text, fontsize=9, color=DARK)
    for column, photo, colors, heat in zip(
        axes.T, sheet, found.components, heads, strict=True
    ):
        column[0].imshow(photo)
        colors = np.clip((colors - low) / (high - low), 0, 1)
        column[1].imshow(np.nan_to_num(colors, nan=0.08))
        ends = np.percentile(heat, (2, 98))
        column[2].imshow(heat, cmap="inferno", vmin=ends[0], vmax=ends[1])
    figure.savefig(
        "docs/images/encoder.jpg", pil_kwargs={"quality": 60, "optimize": True}
    )


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
    else:
        main(*sys.argv[1:])
