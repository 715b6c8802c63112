"""Pictures with alpha on photographs, with their boxes."""

import functools
import pathlib
from typing import Any

import numpy as np

from keras_vit.data.array_source import scaled_dataset
from keras_vit.data.canvases import free_place, photo_window, photographs
from keras_vit.data.dataset import ImageDataset
from keras_vit.utils import checks
from keras_vit.utils.images import open_image
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, StrPath

_MOST = 3  # pictures on a photograph
_SIDES = 0.25, 0.6  # of a picture, as fractions of that of the photograph
_LEAST = 5  # pictures of a class


def load_stamps(
    folder: StrPath, size: int = 112, num_train: int = 2000, num_test: int = 200
) -> ImageDataset:
    """Composes images of one to three pictures on scikit-learn's photographs.

    Args:
        folder: Path of a folder with PNG files that have alpha,
            `FOLDER/CLASS/**/*.png`, such as a folder of Debian's
            tuxpaint-stamps-default. Of each class, the last fifth of the
            pictures by name is in test images only, and so is the right part
            of each photograph. Classes of fewer than five pictures are left
            out.
        size: Integer. Height and width of the images, in pixels, at most 192.
        num_train: Integer. Number of training images.
        num_test: Integer. Number of test images.

    Returns:
        An `ImageDataset`, as that of `load_detection`.

    Raises:
        ValueError: if there is no class of five pictures or more, or a picture
            cannot be read.
    """
    size = checks.positive_int("size", size)
    root = pathlib.Path(folder).expanduser()
    parts = {"train": [], "test": []}
    names = []
    for place in sorted(x for x in root.glob("*") if x.is_dir()):
        files = sorted(place.rglob("*.png"))
        if len(files) >= _LEAST:
            names.append(place.name)
            first = len(files) - len(files) // _LEAST
            parts["train"].append(files[:first])
            parts["test"].append(files[first:])
    if not names:
        raise ValueError(
            "Pictures must be FOLDER/CLASS/*.png, five or more per class. Received: "
            f"{str(folder)!r}, without them"
        )
    for files in parts["train"] + parts["test"]:
        for file in files:
            try:
                _picture(file)
            except Exception as error:  # Pillow raises many types
                raise ValueError(f"{file}: {error}") from error
    photos = {part: photographs(part) for part in parts}

    @functools.cache
    def read(part: str, index: int) -> tuple[Array, Array]:
        rng = np.random.default_rng((part == "test", 3, index))
        canvas = photo_window(rng, photos[part], size)
        image = require("PIL.Image").fromarray(canvas)
        label, places = np.full((_MOST, 5), -1.0, "float32"), []
        for i in range(rng.integers(1, _MOST + 1)):
            side = round(size * rng.uniform(*_SIDES))
            place = free_place(rng, places, side, size)
            number = rng.integers(len(names))
            files = parts[part][number]
            picture = _picture(files[rng.integers(len(files))])
            if place is None:
                continue
            places.append((*place, side))
            scale = side / max(picture.size)
            width, height = (max(1, round(n * scale)) for n in picture.size)
            picture = picture.resize((width, height))
            top, left = place
            image.paste(picture, (left, top), picture)
            box = np.array([left + width / 2, top + height / 2, width, height])
            label[i] = number, *box / size
        return np.asarray(image), label

    return scaled_dataset(
        read,
        "boxes",
        ignore=-1,
        channels=3,
        name=root.resolve().name,
        class_names=tuple(names),
        image_size=size,
        num_train=num_train,
        num_test=num_test,
    )


@functools.lru_cache(2000)
def _picture(file: pathlib.Path) -> Any:
    """Returns what is not transparent of a picture, of at most 128 pixels."""
    with open_image(file) as image:
        picture = image.convert("RGBA")
    box = picture.getchannel("A").point(lambda x: 255 * (x > 127)).getbbox()
    if box is None:
        raise ValueError("all of its pixels are transparent")
    picture = picture.crop(box)
    picture.thumbnail((128, 128))
    return picture
