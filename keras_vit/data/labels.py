"""Labels of tables: classes by name or number, one or several per image."""

import collections
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.utils.types import Array
from keras_vit.utils.warnings import warn

_MAX_LISTED = 5


def encode_labels(
    values: Sequence[Any], class_names: Sequence[str] | None = None
) -> tuple[Array, tuple[str, ...]]:
    """Returns labels, an integer or a string or a list of them for each image,
    as an array of integers or of rows of zeros and ones, and the names of the
    classes.

    Without `class_names`, these are the distinct values, sorted: as numbers if
    all of them are integers. 1 and "1" are the same class.
    """
    is_multi_label = isinstance(values[0], list)
    lists = values if is_multi_label else [[value] for value in values]
    if class_names is None:
        lists = [list(map(str, members)) for members in lists]
        class_names = classes = sorted({x for group in lists for x in group})
        try:
            class_names = classes = sorted(classes, key=int)
        except ValueError:
            pass
    else:
        classes = range(len(class_names))
    number = {value: i for i, value in enumerate(classes)}
    numbers = [[number[value] for value in members] for members in lists]
    if not is_multi_label:
        return np.array(numbers, "int32")[:, 0], tuple(class_names)
    rows = np.zeros((len(values), len(class_names)), "float32")
    for row, members in zip(rows, numbers, strict=True):
        row[members] = 1
    return rows, tuple(class_names)


def warn_similar_names(names: Sequence[str]) -> None:
    """Warns of names of classes that differ only by case, by spaces, or by which of
    Unicode's two encodings of an accent they use."""
    groups = collections.defaultdict(list)
    for name in names:
        plain = unicodedata.normalize("NFKC", "".join(name.split()).casefold())
        groups[plain].append(name)
    found = [", ".join(map(repr, x)) for x in groups.values() if len(x) > 1]
    if found:
        warn(
            "Names of classes differ only by case, spaces or the encoding of "
            f"accents: {summarize(found)}. They are different classes: if they should "
            "be one, give all of its images the same name."
        )


def warn_missing_classes(
    source: str,
    class_names: tuple[str, ...],
    labels: Array,
    splits: Mapping[str, Array],
) -> None:
    """Warns of evaluated classes that no training image has."""
    found = {
        part: set(
            np.unique(labels[splits[part]])
            if labels.ndim == 1
            else np.flatnonzero(labels[splits[part]].any(0))
        )
        for part in ("train", "test")
    }
    missing = sorted(found["test"] - found["train"])
    if missing and len(splits["train"]):
        names = [class_names[i] for i in missing]
        warn(
            f"{source!r}: {len(missing)} of {len(class_names)} classes have test "
            "images but no training image, so that a model cannot learn them: "
            f"{summarize(names, ', ')}."
        )


def summarize(names: list[str], separator: str = "; ") -> str:
    """Returns the first names of a list, and how many more there are."""
    more = len(names) - _MAX_LISTED
    return separator.join(names[:_MAX_LISTED]) + (
        f"{separator}and {more} more" if more > 0 else ""
    )
