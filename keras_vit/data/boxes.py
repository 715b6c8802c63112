"""Find a dataset with boxes by its name: digits, or a folder."""

import csv
import functools
import io
import json
import pathlib
from typing import Any

import numpy as np

from keras_vit._program import require
from keras_vit._types import Array
from keras_vit.data.canvases import BOXES_SIZE
from keras_vit.data.canvases import digit_boxes
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.masks import read_image
from keras_vit.data.segmentation import Crop
from keras_vit.data.segmentation import cropped_dataset

_COLUMNS = ("path", "class", "x_min", "y_min", "x_max", "y_max")
_MOST_PROBLEMS = 8
_TFDS = ("voc", "coco")
# A box of which less remains in a crop is left out.
_LEAST_PART = 0.25


def load_detection(name: str) -> ImageDataset:
    """Finds a dataset of images with boxes by its name.

    Args:
        name: "digits", handwritten digits on photographs of scikit-learn;
            "voc" or "coco" of TFDS, such as "voc/2012", whose validation images
            are the test set, and whose files are kept in memory; or a folder
            with the annotations `train.json` and `test.json` of COCO, or
            `train.csv` and `test.csv` with a header and the columns path,
            class, x_min, y_min, x_max and y_max, in pixels, one line for each
            box. An image without objects has a line without a class. Paths
            begin at `FOLDER/train` and `FOLDER/test`, if there are such
            folders, else at `FOLDER`. Boxes of COCO without a width or height
            are left out.

    Returns:
        An `ImageDataset` whose labels are float arrays `(objects, 5)`: class,
        center x, center y, width and height as fractions of the image, as
        `keras_vit.detection.set_loss` takes them. The class is -1 where an
        image has fewer objects than another, and where a random crop has cut
        more than three quarters of a box off. It is `-2 - class` of a crowd of
        COCO and of a difficult object of VOC: the losses leave them out, and
        `evaluate_boxes` counts a box in one neither as right nor as wrong.

    Raises:
        ValueError: if there is no such dataset, an image is missing or cannot
            be read, a box is empty or not in its image or has no class, the
            class of a test image is in no training image, an image is of
            another size than in the file of COCO, or there are no images or
            no boxes to train on. One error lists files and lines. All images
            are read for this.

    Example:

    >>> data = keras_vit.data.load_detection("photos")
    >>> batches = data.train(image_size=512, batch_size=8)
    """
    if name == "digits":
        read = functools.cache(digit_boxes)
        return boxes_dataset(
            read,
            1,
            tuple("0123456789"),
            2000,
            200,
            name,
            image_size=BOXES_SIZE,
            can_flip=False,
        )
    if name.partition("/")[0] in _TFDS and not pathlib.Path(name).exists():
        parts, names = _from_tfds(name)
    else:
        parts, names = _from_folder(name)
    most = max(len(x) for images in parts.values() for _, x in images)

    def read(part: str, index: int) -> tuple[Array, Array]:
        image, label = parts[part][index]
        missing = np.full((max(1, most) - len(label), 5), -1.0, "float32")
        file = io.BytesIO(image) if isinstance(image, bytes) else image
        return read_image(file), np.concatenate([label, missing])

    counts = len(parts["train"]), len(parts["test"])
    title = pathlib.Path(name).expanduser().resolve().name
    return boxes_dataset(read, 3, tuple(names), *counts, title)


def _from_tfds(name: str) -> tuple[dict[str, list], list[str]]:
    """Returns the encoded images of a dataset of TFDS, which are kept in
    memory, with their labels, and the names of the classes."""
    tfds = require("tensorflow_datasets")
    builder = tfds.builder(name)
    builder.download_and_prepare()
    skip = {"image": tfds.decode.SkipDecoding()}
    parts = {"train": [], "test": []}
    for part, images in parts.items():
        # The test images of COCO have no boxes.
        split = "validation" if part == "test" else "train"
        examples = builder.as_dataset(split=split, decoders=skip)
        for example in tfds.as_numpy(examples):
            objects = example["objects"]
            top, left, bottom, right = objects["bbox"].T
            x, y = (left + right) / 2, (top + bottom) / 2
            columns = objects["label"], x, y, right - left, bottom - top
            label = np.stack(columns, axis=1).astype("float32")
            for flag in ("is_crowd", "is_difficult"):
                if flag in objects:
                    label[objects[flag], 0] = -2 - label[objects[flag], 0]
            kept = (label[:, 3:] > 0).all(1)
            images.append((bytes(example["image"]), label[kept]))
    return parts, builder.info.features["objects"]["label"].names


def _from_folder(name: str) -> tuple[dict[str, list], list[str]]:
    """Does what `_from_tfds` does, with paths of images."""
    folder = pathlib.Path(name).expanduser()
    problems: list[str] = []
    parts, names = {}, []
    for part in ("train", "test"):
        files = [folder / f"{part}.json", folder / f"{part}.csv"]
        file = next((x for x in files if x.is_file()), None)
        if file is None:
            raise ValueError(
                "A dataset with boxes is 'digits', voc or coco of TFDS, or a "
                "folder with train.json and test.json, or train.csv and "
                "test.csv. Received: "
                f"{name!r}, without {part}.json and {part}.csv"
            )
        place = folder / part if (folder / part).is_dir() else folder
        try:
            boxes, found, sizes = (_coco if file.suffix == ".json" else _csv)(
                file
            )
        except (
            KeyError,
            TypeError,
            AttributeError,
            ValueError,
            csv.Error,
        ) as error:
            raise ValueError(
                f"{file} must hold annotations of boxes: {error!r}"
            ) from error
        names = names or found  # those of the training images
        parts[part] = _check(boxes, names, sizes, place, problems)
        if not boxes or (part == "train" and not any(boxes.values())):
            missing = "boxes" if boxes else "images"
            problems.append(f"{file}: there are no {missing}")
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        raise ValueError(
            f"The annotations of {name!r} cannot be used:\n"
            + "\n".join(f"  {line}" for line in problems[:_MOST_PROBLEMS])
            + (f"\n  and {more} more" if more > 0 else "")
        )
    return parts, names


def boxes_dataset(
    read: Any,
    channels: int,
    class_names: tuple[str, ...],
    num_train: int,
    num_test: int,
    name: str,
    image_size: int | None = None,
    **fields: Any,
) -> ImageDataset:
    """Returns the `ImageDataset` of images and boxes that `read` returns."""
    return cropped_dataset(
        read,
        crop_boxes,
        channels,
        ignore=-1,
        name=name,
        class_names=class_names,
        image_size=image_size,
        num_train=num_train,
        num_test=num_test,
        **fields,
    )


def crop_boxes(label: Array, crop: Crop, size: tuple[int, int]) -> Array:
    """Returns the classes and boxes `(objects, 5)` of a crop, given those of
    the image that it is of."""
    scaled, new = (np.array(x[::-1], float) for x in (crop.scaled, size))
    offset = [
        pad[0] - first for pad, first in zip(crop.pad, crop.first, strict=True)
    ][::-1]
    half = label[:, 3:] / 2
    first, last = (
        (label[:, 1:3] + sign * half) * scaled + offset for sign in (-1, 1)
    )
    inside = np.clip(first, 0, new), np.clip(last, 0, new)
    kept = (inside[1] - inside[0]).prod(1)
    kept = (
        (label[:, 0] != -1)
        & (kept >= _LEAST_PART * (last - first).prod(1))
        & (kept > 0)
    )
    first, last = (x / new for x in inside)
    center, extent = (first + last) / 2, last - first
    if crop.flip:
        center[:, 0] = 1 - center[:, 0]
    found = np.concatenate([label[:, :1], center, extent], 1)
    return np.where(kept[:, None], found, -1).astype("float32")


def _coco(
    file: pathlib.Path,
) -> tuple[dict[str, list], list[str], dict[str, tuple[int, int]]]:
    """Returns the boxes of each image, with their class, where they are in the
    file and whether they are of a crowd, the names of the classes, and the
    widths and heights of images that the file has."""
    content = json.loads(file.read_text(encoding="utf-8"))
    categories = sorted(content["categories"], key=lambda x: x["id"])
    names = {x["id"]: str(x["name"]) for x in categories}
    images = {x["id"]: str(x["file_name"]) for x in content["images"]}
    boxes = {path: [] for path in images.values()}
    sizes = {
        str(x["file_name"]): (x["width"], x["height"])
        for x in content["images"]
        if x.get("width") and x.get("height")
    }
    for i, x in enumerate(content["annotations"]):
        if 0 not in x["bbox"][2:]:
            left, top, width, height = map(float, x["bbox"])
            number = x["category_id"]
            boxes[images[x["image_id"]]].append(
                (
                    names.get(number, f"category {number}"),
                    [left, top, left + width, top + height],
                    f"{file}, annotation {x.get('id', i)}",
                    bool(x.get("iscrowd")),
                )
            )
    return boxes, list(names.values()), sizes


def _csv(
    file: pathlib.Path,
) -> tuple[dict[str, list], list[str], dict[str, tuple[int, int]]]:
    """Does what `_coco` does, without sizes of images."""
    boxes: dict[str, list] = {}
    with file.open(newline="", encoding="utf-8-sig") as opened:
        for line, row in enumerate(csv.DictReader(opened), start=2):
            path, name, *box = (row[column] for column in _COLUMNS)
            found = boxes.setdefault(path, [])
            if name or any(box):
                where = f"{file}, line {line}"
                found.append((name, box, where, False))
    names = {name for x in boxes.values() for name, *_ in x if name}
    return boxes, sorted(names), {}


def _check(
    boxes: dict[str, list],
    names: list[str],
    sizes: dict[str, tuple[int, int]],
    place: pathlib.Path,
    problems: list[str],
) -> list[tuple[pathlib.Path, Array]]:
    """Returns paths and labels of images, and adds what is wrong to
    `problems`."""
    images = []
    for path, found in boxes.items():
        try:
            height, width = read_image(place / path).shape[:2]
        except Exception as error:  # Pillow raises many types
            problems.append(f"{place / path}: {error}")
            continue
        # Boxes are in pixels of the image that was annotated, which may have
        # been resized or rotated since.
        if sizes.get(path, (width, height)) != (width, height):
            problems.append(
                f"{place / path}: it has {width} x {height} pixels, but its "
                f"boxes are for {' x '.join(map(str, sizes[path]))}"
            )
        label = np.zeros((len(found), 5), "float32")
        for i, (name, box, where, is_crowd) in enumerate(found):
            try:
                left, top, right, bottom = map(float, box)
            except (TypeError, ValueError):
                left = top = right = bottom = np.nan
            # Annotations are often rounded to a pixel outside.
            if not (
                -1 <= left < right <= width + 1
                and -1 <= top < bottom <= height + 1
            ):
                problems.append(
                    f"{where}: the box {list(box)} is empty, or not in {path}, "
                    f"of {width} x {height} pixels"
                )
            elif name not in names:
                problems.append(
                    f"{where}: {name!r} is no class of the training images"
                )
            else:
                number = names.index(name)
                label[i, 0] = -2 - number if is_crowd else number
                label[i, 1:3] = (
                    (left + right) / 2 / width,
                    (top + bottom) / 2 / height,
                )
                label[i, 3:] = (right - left) / width, (bottom - top) / height
        images.append((place / path, label))
    return images
