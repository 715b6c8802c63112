"""Datasets that are a CSV file of the paths of images and their labels."""

import csv
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

import numpy as np

from keras_vit._types import Array
from keras_vit._types import StrPath
from keras_vit._warnings import warn
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.folders import files_dataset
from keras_vit.data.image_files import validate_images
from keras_vit.data.labels import encode_labels
from keras_vit.data.labels import summarize
from keras_vit.data.splits import make_splits
from keras_vit.data.splits import parse_holdout

# What the columns may be called, in the order in which they are looked for.
IMAGE_COLUMNS = ("image", "path", "file", "file_name", "filename")
LABEL_COLUMNS = ("label", "labels", "class")
SPLIT_COLUMNS = ("split",)
SPLITS = {
    "train": "train",
    "test": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
}
# Lines of the file: their numbers, and their cells by column.
_Rows: TypeAlias = list[tuple[int, dict[str, str]]]
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

    Images of several classes each, or none, make a multi-label dataset, whose
    labels are rows of zeros and ones.

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
        path: Path of the file, in UTF-8 with commas. `load_dataset` takes it as
            well, if its name ends in .csv.
        image_column: String. Column of the images' paths, relative to the
            folder of the file, or absolute. None takes the first one that is
            there of "image", "path", "file", "file_name" and "filename".
        label_column: String. Column of the classes. None takes "label",
            "labels" or "class".
        split_column: String. Column of "train", "validation" ("valid", "val",
            "dev") and "test". None takes "split" if it is there. Without such
            a column, a hash of each path decides, as in a folder.
        multi_label: Boolean. Whether an image may have several classes, as in
            "cat;dog", or none, an empty cell. None: whether any cell contains
            a semicolon. Lines of the same image must have the same classes.
        holdout: As in `load_dataset`. If there are both validation and test
            images, the validation images are those held out. Without test
            images, they are the test set.
        skip_bad_images: As in `load_dataset`.

    Raises:
        ValueError: if a column, a label or a file is missing, or a file is no
            image.
    """
    path = pathlib.Path(path).expanduser()
    holdout = parse_holdout(path.stem, holdout)
    rows, columns = _read(path, image_column, label_column, split_column)
    files = _files(path, rows, columns["image"])
    good, bad = validate_images(list(dict.fromkeys(files)), skip_bad_images)
    kept = [i for i, file in enumerate(files) if file in good]
    rows, files = [rows[i] for i in kept], [files[i] for i in kept]
    names = _names(path.parent, rows, columns["image"])
    values, is_multi_label = _values(path, rows, columns["label"], multi_label)
    labels, class_names = encode_labels(values)
    if len(class_names) < (1 if is_multi_label else 2):
        raise ValueError(
            f"{str(path)!r} must have two classes or more in its column "
            f"{columns['label']!r}. Received: "
            f"{', '.join(class_names) or 'none'}"
        )
    splits = {"train": np.arange(len(labels)), "validation": [], "test": []}
    if columns["split"]:
        splits = _given_splits(path, rows, names, columns["split"])
    if not len(splits["validation"]):
        splits = make_splits(
            names, labels, splits["train"], splits["test"], holdout
        )
    elif holdout:
        warn(
            f"{str(path)!r} has {len(splits['validation'])} validation images, "
            f"which are those held out: --holdout {holdout:g} is not used."
        )
    _raise_if_contradictory(path, rows, names, values)
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
        files,
        labels,
        splits,
        num_skipped=bad,
        verified=skip_bad_images,
    )


def _read(
    path: pathlib.Path,
    image_column: str | None,
    label_column: str | None,
    split_column: str | None,
) -> tuple[_Rows, dict[str, Any]]:
    """Returns the rows as `(line, dict)`, and the names of the columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            found = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{str(path)!r} is no CSV file in UTF-8: {error}. Save it as 'CSV "
            "UTF-8'."
        ) from error
    columns = {}
    for kind, given, known in (
        ("image", image_column, IMAGE_COLUMNS),
        ("label", label_column, LABEL_COLUMNS),
        ("split", split_column, SPLIT_COLUMNS),
    ):
        wanted = known if given is None else (given,)
        columns[kind] = next((name for name in wanted if name in found), None)
        if columns[kind] is None and (kind != "split" or given is not None):
            raise ValueError(
                f"{str(path)!r} must have a column "
                f"{' or '.join(map(repr, wanted))}, or give {kind}_column to "
                "`from_csv`. Received the columns "
                f"{', '.join(map(repr, found)) or 'none'}, from its first line"
            )
        if found.count(columns[kind]) > 1:
            raise ValueError(
                f"{str(path)!r} must have one column {columns[kind]!r}. "
                f"Received: {found.count(columns[kind])} of that name"
            )
    if not rows:
        raise ValueError(f"{str(path)!r} has no rows below its first line.")
    for line, row in rows:
        # Names without a value have None, and values without a name the key
        # None.
        if None in row or None in row.values():
            raise ValueError(
                f"Line {line} of {str(path)!r} must have {len(found)} values, "
                "as the first line has names, with quotation marks around "
                f"values with commas. Received: {list(row.values())}"
            )
    return rows, columns


def _files(path: pathlib.Path, rows: _Rows, column: str) -> list[pathlib.Path]:
    files = [path.parent / row[column].strip() for _, row in rows]
    missing = [
        f"{str(file)!r} (line {line})"
        for (line, _), file in zip(rows, files, strict=True)
        if not file.is_file()
    ]
    if missing:
        raise ValueError(
            f"{str(path)!r} names {len(missing)} files that do not exist: "
            f"{summarize(missing)}. Paths are relative to the folder of the "
            "CSV file."
        )
    return files


def _values(
    path: pathlib.Path, rows: _Rows, column: str, multi_label: bool | None
) -> tuple[list[str] | list[list[str]], bool]:
    """Returns the classes of each image, and whether they are lists."""
    cells = [row[column].strip() for _, row in rows]
    if multi_label is None:
        multi_label = any(SEPARATOR in cell for cell in cells)
    if multi_label:
        lists = [map(str.strip, cell.split(SEPARATOR)) for cell in cells]
        return [list(filter(None, names)) for names in lists], True
    for (line, _), cell in zip(rows, cells, strict=True):
        if not cell:
            raise ValueError(
                f"Line {line} of {str(path)!r} has no class in the column "
                f"{column!r}. Remove the line, or, if images may have no "
                "class, use `from_csv(..., multi_label=True)`."
            )
    return cells, False


def _raise_if_contradictory(
    path: pathlib.Path,
    rows: _Rows,
    names: Sequence[pathlib.Path],
    values: Sequence[Any],
) -> None:
    """Raises an error if two lines give an image different classes."""
    first = {}
    for (line, _), name, value in zip(rows, names, values, strict=True):
        classes = sorted(value) if isinstance(value, list) else [value]
        other, known = first.setdefault(name, (line, classes))
        if known != classes:
            raise ValueError(
                f"Lines of {str(path)!r} with the same image must have the "
                f"same classes. Received: {str(name)!r} is "
                f"{SEPARATOR.join(known)!r} in line {other} and "
                f"{SEPARATOR.join(classes)!r} in line {line}. An image of "
                f"several classes has one line with "
                f"{SEPARATOR.join(sorted({*known, *classes}))!r}"
            )


def _given_splits(
    path: pathlib.Path, rows: _Rows, names: Sequence[pathlib.Path], column: str
) -> dict[str, Array]:
    """Returns the indices of the images of each split."""
    splits, split_of = {"train": [], "validation": [], "test": []}, {}
    for i, ((line, row), name) in enumerate(zip(rows, names, strict=True)):
        split = SPLITS.get(row[column].strip().lower())
        other = split_of.setdefault(name, split)
        if split is None or split != other:
            raise ValueError(
                f"Line {line} of {str(path)!r} must have one of "
                f"{', '.join(SPLITS)} in the column {column!r}, the same one "
                "in each line of an image, or the accuracy would be wrong. "
                f"Received: {row[column]!r} for {str(name)!r}, before {other!r}"
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


def _names(
    folder: pathlib.Path, rows: _Rows, column: str
) -> list[pathlib.Path]:
    """Returns the paths that decide on the splits.

    They do not depend on how the CSV file is named. Absolute paths within its
    folder, also through links, are those of relative ones.
    """
    folder = folder.resolve()
    resolve = functools.cache(pathlib.Path.resolve)

    def name(cell: str) -> pathlib.Path:
        path = pathlib.Path(os.path.normpath(cell.strip()))
        if path.is_absolute():
            for parent in path.parents:
                if resolve(parent) == folder:
                    return path.relative_to(parent)
        return path

    return [name(row[column]) for _, row in rows]
