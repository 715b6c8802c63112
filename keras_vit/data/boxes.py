"""Find a dataset with boxes by its name: digits, or a folder."""

import csv
import functools
import io
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from keras_vit.data.array_source import scaled_dataset
from keras_vit.data.canvases import BOXES_SIZE, digit_boxes
from keras_vit.data.csv_files import delimiter_of
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.labels import summarize
from keras_vit.data.tfds import download, open_builder
from keras_vit.utils.images import read_image
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array

_COLUMNS = ("path", "class", "x_min", "y_min", "x_max", "y_max")
# A row has the class of a box, its first x, first y, last x and last y in
# pixels, its place in the file, and whether it is a crowd.
Row = tuple[str, Sequence[float | str], str, bool]
# The keys of both are paths of images.
Boxes = dict[str, list[Row]]
Sizes = dict[str, tuple[int, int]]


def load_detection(name: str) -> ImageDataset:
    """Finds a dataset of images with boxes by its name.

    Args:
        name: "digits", handwritten digits on photographs of scikit-learn;
            "voc" or "coco" of TFDS, such as "voc/2012", whose validation images
            are the test set, and whose files are kept in memory; or a folder
            with the annotations `train.json` and `test.json` in COCO's format, or
            `train.csv` and `test.csv` with a header and the columns path, class, x_min,
            y_min, x_max and y_max, in pixels, one line for each box. An image without
            objects has a line without a class. Paths are relative to `FOLDER/train` and
            `FOLDER/test` if these folders exist, otherwise to `FOLDER`. COCO boxes
            without a width or height are left out.

    Returns:
        An `ImageDataset` whose labels are float arrays `(objects, 5)`: class,
        center x, center y, width and height as fractions of the image, as
        `keras_vit.detection.set_loss` takes them. The class is -1 where an
        image has fewer objects than another, and where a random crop has cut off more
        than three quarters of a box. For COCO's crowds and VOC's difficult objects, it
        is `-2 - class`: the losses leave them out, and `evaluate_boxes` counts a
        predicted box in one neither as right nor as wrong.

    Raises:
        ValueError: if there is no such dataset, an image is missing or cannot
            be read, a box is empty, not in its image or without a class, a class of the
            test images is in no training image, an image differs in size from COCO's
            file, or there are no images or boxes to train on. One error lists files and
            lines. All images are read for these checks.

    Example:

    >>> data = keras_vit.data.load_detection("photos")
    >>> batches = data.train(image_size=512, batch_size=8)
    """
    if name == "digits":
        return scaled_dataset(
            functools.cache(digit_boxes),
            "boxes",
            ignore=-1,
            channels=1,
            name=name,
            class_names=tuple("0123456789"),
            image_size=BOXES_SIZE,
            num_train=2000,
            num_test=200,
            can_flip=False,
        )
    folder = pathlib.Path(name).expanduser()
    if name.partition("/")[0] in ("voc", "coco") and not folder.exists():
        parts, names = _from_tfds(name)
    else:
        parts, names = _from_folder(folder)
    most = max(1, *(len(x) for _, x in parts["train"] + parts["test"]))

    def read(part: str, index: int) -> tuple[Array, Array]:
        image, label = parts[part][index]
        missing = np.full((most - len(label), 5), -1.0, "float32")
        file = io.BytesIO(image) if isinstance(image, bytes) else image
        return read_image(file), np.concatenate([label, missing])

    return scaled_dataset(
        read,
        "boxes",
        ignore=-1,
        channels=3,
        name=folder.resolve().name,
        class_names=tuple(names),
        image_size=None,
        num_train=len(parts["train"]),
        num_test=len(parts["test"]),
    )


def _from_tfds(name: str) -> tuple[dict[str, list], list[str]]:
    """Returns the encoded images of a dataset of TFDS, which are kept in
    memory, with their labels, and the names of the classes."""
    tfds = require("tensorflow_datasets")
    builder = open_builder(tfds, name)
    download(builder, name)
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


def _from_folder(folder: pathlib.Path) -> tuple[dict[str, list], list[str]]:
    """Does what `_from_tfds` does, with paths of images."""
    parts, names, problems = {}, [], []
    for part in ("train", "test"):
        files = [folder / f"{part}.json", folder / f"{part}.csv"]
        file = next((x for x in files if x.is_file()), None)
        if file is None:
            raise ValueError(
                "A dataset with boxes is 'digits', voc or coco of TFDS, or a "
                "folder with train.json and test.json, or train.csv and "
                "test.csv. Received: "
                f"{str(folder)!r}, without {part}.json and {part}.csv"
            )
        read = _coco if file.suffix == ".json" else _csv
        try:
            boxes, found, sizes = read(file)
        except (
            KeyError,
            TypeError,
            AttributeError,
            ValueError,
            csv.Error,
        ) as error:
            reason = f"it has no key {error}" if isinstance(error, KeyError) else error
            if isinstance(error, UnicodeDecodeError):
                reason = f"{error}. Save it in UTF-8"
            raise ValueError(
                f"{file} must hold annotations of boxes: {reason}"
            ) from error
        names = names or found  # those of the training images
        place = folder / part if (folder / part).is_dir() else folder
        parts[part] = []
        for path, rows in boxes.items():
            image = place / path
            try:
                height, width = read_image(image).shape[:2]
            except Exception as error:  # Pillow raises many types
                problems.append(f"{image}: {error}")
                continue
            # Boxes are in pixels of the image that was annotated, which may
            # have been resized or rotated since.
            annotated = sizes.get(path, (width, height))
            if annotated != (width, height):
                problems.append(
                    f"{image}: it has {width} x {height} pixels, but its boxes "
                    f"are for {' x '.join(map(str, annotated))}"
                )
            label = np.zeros((len(rows), 5), "float32")
            for row, line in zip(rows, label, strict=True):
                if problem := _write_box(row, line, names, path, (width, height)):
                    problems.append(f"{row[2]}: {problem}")
            parts[part].append((image, label))
        if not boxes or (part == "train" and not any(boxes.values())):
            missing = "boxes" if boxes else "images"
            problems.append(f"{file}: there are no {missing}")
    if problems:
        raise ValueError(
            f"The annotations of {str(folder)!r} cannot be used:\n  "
            + summarize(problems, "\n  ")
        )
    return parts, names


def _write_box(
    row: Row, label: Array, names: list[str], path: str, size: tuple[int, int]
) -> str | None:
    """Writes the class and the box of an image to a row of its label, or
    returns what is wrong with them."""
    name, box, _, is_crowd = row
    try:
        first, last = np.array(box, float).reshape(2, 2)
    except (TypeError, ValueError):
        first = last = np.full(2, np.nan)
    # Annotations are often rounded to a pixel outside.
    if not ((-1 <= first) & (first < last) & (last <= np.add(size, 1))).all():
        return (
            f"the box {list(box)} is empty, or not in {path}, of {size[0]} x "
            f"{size[1]} pixels"
        )
    if name not in names:
        return f"{name!r} is not a class of the training images"
    number = names.index(name)
    label[0] = -2 - number if is_crowd else number
    label[1:3], label[3:] = (first + last) / 2 / size, (last - first) / size


def _coco(file: pathlib.Path) -> tuple[Boxes, list[str], Sizes]:
    """Returns the rows of each image in a file of COCO, the names of the
    classes, and the widths and heights of images that the file has."""
    content = json.loads(file.read_text(encoding="utf-8"))
    categories = sorted(content["categories"], key=lambda x: x["id"])
    names = {x["id"]: str(x["name"]).strip() for x in categories}
    images = {x["id"]: str(x["file_name"]) for x in content["images"]}
    boxes = {path: [] for path in images.values()}
    sizes = {
        images[x["id"]]: (x["width"], x["height"])
        for x in content["images"]
        if x.get("width") and x.get("height")
    }
    for i, x in enumerate(content["annotations"]):
        left, top, width, height = map(float, x["bbox"])
        if width and height:
            number = x["category_id"]
            row = (
                names.get(number, f"category {number}"),
                (left, top, left + width, top + height),
                f"{file}, annotation {x.get('id', i)}",
                bool(x.get("iscrowd")),
            )
            boxes[images[x["image_id"]]].append(row)
    return boxes, list(dict.fromkeys(names.values())), sizes


def _csv(file: pathlib.Path) -> tuple[Boxes, list[str], Sizes]:
    """Does what `_coco` does, without sizes of images."""
    boxes = {}
    with file.open(newline="", encoding="utf-8-sig") as opened:
        rows = csv.DictReader(opened, delimiter=delimiter_of(opened))
        rows.fieldnames = names = [name.strip() for name in rows.fieldnames or ()]
        if names and not {*_COLUMNS} <= {*names}:
            raise ValueError(
                f"its first line must name the columns {', '.join(_COLUMNS)}. "
                f"Received: {', '.join(names)}"
            )
        for line, row in enumerate(rows, start=2):
            path, name, *box = ((row[x] or "").strip() for x in _COLUMNS)
            if not any((path, name, *box)):  # an empty row of a spreadsheet
                continue
            found = boxes.setdefault(path, [])
            if name or any(box):
                found.append((name, box, f"{file}, line {line}", False))
    classes = {name for rows in boxes.values() for name, *_ in rows if name}
    return boxes, sorted(classes), {}
