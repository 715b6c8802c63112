"""Datasets described by a CSV file with paths of images and their labels."""

import csv
import functools
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np

from keras_vit.data.dataset import ImageDataset
from keras_vit.data.folders import files_dataset
from keras_vit.data.image_files import validate_images
from keras_vit.data.labels import encode_labels, summarize
from keras_vit.data.splits import make_splits, parse_holdout
from keras_vit.utils.types import Array, StrPath
from keras_vit.utils.warnings import warn

# What the columns may be called, in the order in which they are looked for.
COLUMNS = {
    "image": ("image", "path", "file", "file_name", "filename"),
    "label": ("label", "labels", "class"),
    "split": ("split", "is_valid"),
}
SPLITS = {
    "train": "train",
    "test": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
}
IS_VALID = {"true": "validation", "1": "validation", "false": "train", "0": "train"}
SEPARATOR = ";"  # of the classes of an image that has several


def from_csv(
    path: StrPath,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    *,
    multi_label: bool | None = None,
    holdout: float | str = 0.0,
    skip_bad_images: bool = False,
) -> ImageDataset:
    """Returns the `ImageDataset` of a CSV file of paths and labels.

    The first line names the columns:

    ```
    image,label
    photos/1.jpg,cat
    photos/2.jpg,dog
    ```

    If an image can have several classes, or none, the dataset is multi-label, and its
    labels are rows of zeros and ones:

    ```
    data = keras_vit.data.from_csv("photos.csv")
    model.compile("adam", keras_vit.losses.SigmoidCrossentropy())
    model.fit(
        data.train(image_size=224, batch_size=64),
        steps_per_epoch=100,
        shuffle=False,  # the batches are shuffled already
    )
    ```

    Args:
        path: Path of the file, in UTF-8 with commas. `load_dataset` also accepts it if
            its name ends in .csv.
        image_column: String. Column of the images' paths, relative to the
            folder of the file, or absolute. None takes the first existing column among
            "image", "path", "file", "file_name" and "filename".
        label_column: String. Column of the classes. None takes "label",
            "labels" or "class".
        split_column: String. Column with the values "train", "validation" ("valid",
            "val", "dev") and "test". None takes "split", or fastai's "is_valid" with
            "True" and "False", if it exists. Without such a column, the split depends
            on a hash of each path, as for a folder.
        multi_label: Boolean. Whether an image may have several classes, as in
            "cat;dog", or none (an empty cell). None means True if any cell contains a
            semicolon. Lines of the same image must have the same classes.
        holdout: As in `load_dataset`. If there are both validation and test images, the
            validation images are held out. Without test images, the validation images
            are the test set.
        skip_bad_images: As in `load_dataset`.

    Raises:
        ValueError: if a column, a label or a file is missing, or a file is not an
            image.
    """
    path = pathlib.Path(path).expanduser()
    holdout = parse_holdout(path.stem, holdout)
    lines, columns = _read(path, image_column, label_column, split_column)
    if missing := [
        f"{str(line.file)!r} (line {line.number})"
        for line in lines
        if not line.file.is_file()
    ]:
        raise ValueError(
            f"{str(path)!r} names {len(missing)} files that do not exist: "
            f"{summarize(missing)}. Paths are relative to the folder of the "
            "CSV file, with '/' between folders."
        )
    files = list(dict.fromkeys(line.file for line in lines))
    good, bad = validate_images(files, skip_bad_images)
    lines = [line for line in lines if line.file in good]
    splits = {"train": np.arange(len(lines)), "validation": [], "test": []}
    if columns["split"]:
        splits = _splits(path, lines, columns["split"])
    if multi_label is None:
        multi_label = any(SEPARATOR in line.label for line in lines)
    classes = _classes(path, lines, columns["label"], multi_label)
    labels, class_names = encode_labels(
        classes if multi_label else [x for (x,) in classes]
    )
    if len(class_names) < (1 if multi_label else 2):
        raise ValueError(
            f"{str(path)!r} must have two classes or more in its column "
            f"{columns['label']!r}. Received: "
            f"{', '.join(class_names) or 'none'}"
        )
    names = [line.name for line in lines]
    if not len(splits["validation"]):
        splits = make_splits(names, labels, splits["train"], splits["test"], holdout)
    elif holdout:
        warn(
            f"{str(path)!r} has {len(splits['validation'])} validation images, which "
            f"are held out: `holdout={holdout:g}` is not used."
        )
    for part in ("validation", "test"):
        repeated = len(splits[part]) - len({names[i] for i in splits[part]})
        if repeated:
            warn(
                f"{str(path)!r} names {part} images more than once: {repeated} "
                f"of {len(splits[part])} lines repeat an image, which counts "
                "as often in metrics."
            )
    return files_dataset(
        path.stem,
        class_names,
        [line.file for line in lines],
        labels,
        splits,
        num_skipped=bad,
        verified=skip_bad_images,
    )


class _Line(NamedTuple):
    """A line of the file."""

    number: int
    file: pathlib.Path
    # Decides on the split, and does not depend on how the CSV file is named.
    name: pathlib.Path
    label: str
    split: str


def delimiter_of(file: TextIO) -> str:
    """Returns the delimiter of an open CSV file, from its first line: a comma, or the
    semicolon or tab that spreadsheets write in some languages."""
    first = re.sub('"[^"]*"', "", file.readline())  # names may have commas
    file.seek(0)
    return max(",;\t", key=first.count)


def _read(path: pathlib.Path, *given: str | None) -> tuple[list[_Line], dict[str, Any]]:
    """Returns the lines, and the names of the columns, some of which are
    given."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            delimiter = delimiter_of(file)
            reader = csv.DictReader(
                file, delimiter=delimiter, strict=True, skipinitialspace=True
            )
            found = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = found
            # Spreadsheets write rows of empty cells.
            rows = [(reader.line_num, row) for row in reader if any(row.values())]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{str(path)!r} is not a CSV file in UTF-8: {error}. Save it as 'CSV "
            "UTF-8'."
        ) from error
    names = {name.lower(): name for name in found} | {name: name for name in found}
    chosen = {}
    for kind, column in zip(COLUMNS, given, strict=True):
        wanted = COLUMNS[kind] if column is None else (column,)
        chosen[kind] = next((names[name] for name in wanted if name in names), None)
        if chosen[kind] is None and (kind != "split" or column is not None):
            raise ValueError(
                f"{str(path)!r} must have a column "
                f"{' or '.join(map(repr, wanted))}, or give {kind}_column to "
                "`from_csv`. Received the columns "
                f"{', '.join(map(repr, found)) or 'none'}, from its first line"
            )
        if found.count(chosen[kind]) > 1:
            raise ValueError(
                f"{str(path)!r} must have one column {chosen[kind]!r}. "
                f"Received: {found.count(chosen[kind])} of that name"
            )
    if not rows:
        raise ValueError(f"{str(path)!r} has no rows below its first line.")
    folder, lines = path.parent.resolve(), []
    resolve = functools.cache(pathlib.Path.resolve)

    def name_of(cell: str) -> pathlib.Path:
        # An absolute path within the folder of the file, also through links, is
        # that of the relative one.
        image = pathlib.Path(os.path.normpath(cell))
        if image.is_absolute():
            for parent in image.parents:
                if resolve(parent) == folder:
                    return image.relative_to(parent)
        return image

    for number, row in rows:
        # Names without a value have None, and values without a name the key
        # None.
        if None in row or None in row.values():
            raise ValueError(
                f"Line {number} of {str(path)!r} must have {len(found)} values, one "
                "for each name in the first line, with quotation marks around values "
                f"that contain {delimiter!r}. Received: {list(row.values())}"
            )
        image, label, split = (row.get(x, "").strip() for x in chosen.values())
        lines.append(_Line(number, path.parent / image, name_of(image), label, split))
    return lines, chosen


def _classes(
    path: pathlib.Path, lines: Sequence[_Line], column: str, multi_label: bool
) -> list[list[str]]:
    """Returns the classes of each line; raises an error if an image has no class, or
    other classes in another line."""
    found, first = [], {}
    for line in lines:
        cells = line.label.split(SEPARATOR) if multi_label else [line.label]
        classes = list(filter(None, map(str.strip, cells)))
        if not classes and not multi_label:
            raise ValueError(
                f"Line {line.number} of {str(path)!r} has no class in the "
                f"column {column!r}. Remove the line, or, if images may have "
                "no class, use `from_csv(..., multi_label=True)`."
            )
        other, known = first.setdefault(line.name, (line.number, sorted(classes)))
        if known != sorted(classes):
            raise ValueError(
                f"Lines of {str(path)!r} with the same image must have the "
                f"same classes. Received: {str(line.name)!r} is "
                f"{SEPARATOR.join(known)!r} in line {other} and "
                f"{SEPARATOR.join(sorted(classes))!r} in line {line.number}. "
                "An image of several classes has one line with "
                f"{SEPARATOR.join(sorted({*known, *classes}))!r}"
            )
        found.append(classes)
    return found


def _splits(
    path: pathlib.Path, lines: Sequence[_Line], column: str
) -> dict[str, Array]:
    """Returns the indices of the lines of each split."""
    splits, split_of = {"train": [], "validation": [], "test": []}, {}
    known = IS_VALID if column.lower() == "is_valid" else SPLITS
    for i, line in enumerate(lines):
        split = known.get(line.split.lower())
        other = split_of.setdefault(line.name, split)
        if split is None or split != other:
            raise ValueError(
                f"Line {line.number} of {str(path)!r} must have one of "
                f"{', '.join(known)} in the column {column!r}, the same one "
                "in each line of an image, or the accuracy would be wrong. "
                f"Received: {line.split!r} for {str(line.name)!r}, before "
                f"{other!r}"
            )
        splits[split].append(i)
    if not splits["test"]:
        splits["test"], splits["validation"] = splits["validation"], []
    if not splits["test"]:
        raise ValueError(
            f"{str(path)!r} must have test or validation images in the column "
            f"{column!r}. Received: 'train' in each line. Without the column, "
            "a fifth of the images is the test set."
        )
    return {name: np.array(rows, int) for name, rows in splits.items()}
