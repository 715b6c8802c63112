"""Datasets of the `datasets` package of Hugging Face.

The package is not imported: its objects have `features` and a length, and are
indexed by integers and by the names of columns.
"""

from typing import Any

import numpy as np

from keras_vit.data.arrays import indexed_dataset
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.labels import encode_labels
from keras_vit.data.splits import TEST_SPLITS, parse_holdout
from keras_vit.utils.images import to_pixels
from keras_vit.utils.types import Array


def from_huggingface(
    dataset: Any,
    image_column: str = "image",
    label_column: str = "label",
    *,
    test_split: str | None = None,
    name: str = "huggingface",
    channels: int = 3,
    image_size: int | None = None,
    holdout: float | str = 0.0,
) -> ImageDataset:
    """Returns the `ImageDataset` of a Hugging Face `Dataset` or `DatasetDict`.

    ```
    dataset = datasets.load_dataset("beans")
    data = keras_vit.data.from_huggingface(dataset, label_column="labels")
    ```

    `dataset` decodes images one at a time, when their batch is read. Classes are the
    names of a `ClassLabel`; for other columns, the distinct values in sorted order. A
    column of lists makes the dataset multi-label.

    Args:
        dataset: A `datasets.DatasetDict` with a split "train"; or a `datasets.Dataset`,
            about a fifth of which becomes the test set, as in `from_arrays`. Streaming
            is not supported.
        image_column: String. Column of the images, with the feature `Image`, or with
            uint8 arrays of shape `(height, width, channels)`.
        label_column: String. Column of the classes.
        test_split: String. The split to evaluate on. None takes "test", or "validation"
            ("valid", "val") if there is no such split or its labels are missing (stored
            as -1).
        name: String. Name of the dataset.
        channels: 3 for color, to which gray images are converted; 1 for gray.
        image_size: Integer. Height and width of the images, if all have this size, such
            as 32 for CIFAR: some protocols treat small images differently.
        holdout: As in `load_dataset`.

    Raises:
        ValueError: if a split or a column is missing or has another type.
    """
    holdout = parse_holdout(name, holdout)
    splits = _choose_splits(dataset, label_column, test_split)
    labels, class_names = _labels(splits, label_column)

    def pixels(key: str, index: int) -> Array:
        return to_pixels(splits[key][index][image_column], channels)

    for key, split in splits.items():
        _check_column(key, split, image_column)
        pixels(key, 0)  # an error now, before the first batch
    return indexed_dataset(
        name,
        class_names,
        labels,
        splits,
        "train",
        pixels,
        holdout,
        dtype=np.dtype("uint8"),
        channels=channels,
        image_size=image_size,
    )


def _check_column(key: str, split: Any, column: str) -> None:
    if column not in split.features:
        raise ValueError(
            f"The split {key!r} must have a column {column!r}. Its columns "
            f"are: {', '.join(map(repr, split.features))}. Give "
            "`image_column` and `label_column`."
        )


def _choose_splits(
    dataset: Any, label_column: str, test_split: str | None
) -> dict[str, Any]:
    """Returns "train", if it is there, and the split to evaluate on, if any."""
    splits = dict(dataset) if hasattr(dataset, "keys") else {"train": dataset}
    for key, split in splits.items():
        if not hasattr(split, "__len__") or not len(split):
            raise ValueError(
                "Each split must be a `datasets.Dataset` with at least one image, "
                f"loaded without `streaming=True`. Received for the split {key!r}: "
                f"{split!r}"
            )
    wanted = TEST_SPLITS if test_split is None else (test_split,)
    chosen = {"train": splits["train"]} if "train" in splits else {}
    for key in wanted:
        if key in splits and key not in chosen:
            _check_column(key, splits[key], label_column)
            values = splits[key][label_column]
            if any(np.ndim(x) or x not in (None, -1) for x in values):
                return {**chosen, key: splits[key]}
    if not chosen or test_split is not None:
        raise ValueError(
            "`dataset` must have a split 'train', or a split to evaluate on "
            f"with labels: {', '.join(map(repr, wanted))}. The splits are: "
            f"{', '.join(map(repr, splits))}. Give `test_split`."
        )
    return chosen


def _labels(splits: dict[str, Any], column: str) -> tuple[Array, tuple[str, ...]]:
    """Returns all labels as an array, and the names of the classes."""
    names, values = {}, []
    for key, split in splits.items():
        _check_column(key, split, column)
        feature = split.features[column]
        if isinstance(feature, list):
            (feature,) = feature
        # A `ClassLabel` has names, and so has that of the members of a list.
        found = getattr(getattr(feature, "feature", feature), "names", None)
        names[key] = found and tuple(found)
        for i, value in enumerate(split[column]):
            value = value.tolist() if hasattr(value, "tolist") else value
            value = list(value) if isinstance(value, tuple) else value
            values.append((f"{key}[{i}]", value))
    class_names, *others = names.values()
    if others and others != [class_names]:
        raise ValueError(
            f"The column {column!r} must have the same class names in the "
            f"splits {' and '.join(map(repr, names))}. Received: {names}"
        )
    is_multi_label = isinstance(values[0][1], list)
    known = range(len(class_names)) if class_names else None
    for where, value in values:
        members = value if is_multi_label else [value]
        if not isinstance(members, list) or not all(
            isinstance(x, int | str) and (known is None or x in known) for x in members
        ):
            raise ValueError(
                f"The column {column!r} must hold classes, integers or names, "
                f"or a list of them for each image, of {class_names or 'any'}. "
                f"Received in {where}: {value!r}. Leave out images without a "
                "label, for example by `dataset.filter`."
            )
    return encode_labels([value for _, value in values], class_names)
