"""Datasets of NumPy arrays."""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from keras_vit.data import short_way
from keras_vit.data.array_source import ArraySource
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.decoding import tf
from keras_vit.data.pipeline import listed_dataset
from keras_vit.data.splits import make_splits, parse_holdout
from keras_vit.utils.array_files import are_pixels, scaled
from keras_vit.utils.scaling import MAX_CHANNELS
from keras_vit.utils.types import Array, ArrayLike, Tensor
from keras_vit.utils.warnings import warn


def from_arrays(
    images: ArrayLike,
    labels: ArrayLike,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    class_names: Sequence[str] | None = None,
    *,
    name: str = "arrays",
    holdout: float | str = 0.0,
) -> ImageDataset:
    """Returns the `ImageDataset` of images and labels in memory.

    Example:

    ```python
    import numpy as np
    import keras_vit

    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3))
    labels = np.arange(60) % 3
    data = keras_vit.data.from_arrays(images.astype("uint8"), labels)
    batches = data.train(image_size=16, batch_size=8)  # for model.fit
    ```

    Args:
        images: Array of shape `(count, height, width, channels)`, with 1 to 16
            channels: uint8, uint16 (whose values are divided by 257), or floats from 0
            to 255. A memory map is read image by image.
        labels: Integer array of shape `(count,)` or `(count, 1)`, with values
            from 0 to the number of classes minus 1. If an image may have
            several classes, an array of zeros and ones of shape
            `(count, classes)`: the dataset is then multi-label.
        test: `(images, labels)` to evaluate on, in the same form. None
            evaluates on about a fifth of `images`, which are not trained on.
            The split depends on a hash of each image's index, so that appending images
            does not move any other image.
        class_names: List of strings. None for "0", "1", ...
        name: String. Name of the dataset.
        holdout: As in `load_dataset`.

    Raises:
        ValueError: if an array has another shape, dtype or range.
    """
    holdout = parse_holdout(name, holdout)
    given = {"images": (images, labels)} | ({"test": test} if test else {})
    parts = {key: _check_images(key, x) for key, (x, _) in given.items()}
    arrays = list(parts.values())
    names = {"images": "labels", "test": "test[1]"}
    found = [
        check_labels(names[key], y, len(parts[key])) for key, (_, y) in given.items()
    ]
    kinds = {(x.shape[-1], *y.shape[1:]) for x, y in zip(arrays, found, strict=True)}
    if len(kinds) > 1:
        raise ValueError(
            "The training and the test images must have the same number of channels, "
            "and the same number of values for each label. Received (channels, "
            f"numbers): {kinds}"
        )
    all_labels = np.concatenate(found)
    sizes = {x.shape[1:3] for x in arrays}
    height, width = next(iter(sizes))
    is_uint8 = all(x.dtype == np.uint8 for x in arrays)
    return indexed_dataset(
        name,
        names_of(all_labels, class_names),
        all_labels,
        parts,
        "images",
        lambda key, index: scaled(parts[key][index]),
        holdout,
        dtype=np.dtype("uint8" if is_uint8 else "float32"),
        channels=arrays[0].shape[-1],
        image_size=height if len(sizes) == 1 and height == width else None,
    )


def indexed_dataset(
    name: str,
    class_names: tuple[str, ...],
    labels: Array,
    parts: Mapping[str, Sized],
    train: str,
    pixels: Callable[[str, int], Any],
    holdout: float,
    *,
    dtype: np.dtype,
    channels: int,
    image_size: int | None,
) -> ImageDataset:
    """Returns the `ImageDataset` of images that `pixels` returns for the name of a part
    and an index; the part named `train` is trained on, and the others are evaluated
    on."""
    rows = [(key, i) for key, part in parts.items() for i in range(len(part))]
    indices = np.arange(len(rows))
    is_train = np.array([key == train for key, _ in rows])
    splits = make_splits(
        [pathlib.PurePath(str(i)) for i in indices],
        labels,
        indices[is_train],
        indices[~is_train],
        holdout,
    )

    def image(index: int) -> Array:
        return np.asarray(pixels(*rows[index]), dtype)

    def read(index: Tensor) -> Tensor:
        found = tf.numpy_function(image, [index], tf.as_dtype(dtype))
        return tf.ensure_shape(found, (None, None, channels))

    data = listed_dataset(
        name,
        class_names,
        [f"{key}[{i}]" for key, i in rows],
        labels,
        splits,
        read,
        contents=indices,
        channels=channels,
        image_size=image_size,
    )
    if importlib.util.find_spec("tensorflow"):
        return data
    labels = labels.astype("float32" if labels.ndim == 2 else "int32")

    def example(split: str, index: int) -> tuple[Array, Array]:
        return image(splits[split][index]), labels[splits[split][index]]

    trained = labels[splits["train"]]
    source = ArraySource(example, short_way.images, labels=trained)
    return dataclasses.replace(data, source=source)


def _check_images(name: str, images: Any) -> Any:
    if not hasattr(images, "shape"):
        images = np.asarray(images)
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[-1] > MAX_CHANNELS or 0 in shape:
        raise ValueError(
            f"`{name}` must be of shape (count, height, width, channels) with up to "
            f"{MAX_CHANNELS} channels, and contain at least one image. Received: "
            f"{shape}; give gray images as `images[..., None]`."
        )
    if images.dtype == np.uint8:
        return images
    low, high = float(images.min()), float(images.max())
    # Integers of 16 bits that go up to 255 are not scaled to 65535.
    is_scaled = images.dtype.kind == "f" or high > 255
    if not (is_scaled and are_pixels(images.dtype, low, high)):
        raise ValueError(
            f"`{name}` must be uint8, uint16, or float with values from 0 to 255. "
            f"Received: {images.dtype} with values from {low:g} to {high:g}. "
            "Scale them, as in `images * 255` or `(images + 1) * 127.5`, or "
            'use `images.astype("uint8")` for integers.'
        )
    return images


def check_labels(name: str, labels: ArrayLike, count: int) -> Array:
    """Returns labels as an array of integers or of rows of floats; raises a
    `ValueError` if they are not labels, or not `count` ones."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    is_multi_label = labels.ndim == 2
    if is_multi_label:
        fits = np.isin(labels, (0, 1)).all()
    else:
        fits = np.issubdtype(labels.dtype, np.integer) and (labels >= 0).all()
    if labels.ndim not in (1, 2) or len(labels) != count or not fits:
        raise ValueError(
            f"`{name}` must be {count} integers of 0 or more, the number of each "
            "image's class, or rows of zeros and ones for several classes per image. "
            f"Received: {labels.dtype}, shape {labels.shape}, such as "
            f"{labels.tolist()[:1]}. Names become integers by `np.unique(labels, "
            "return_inverse=True)`; leave out images without a label."
        )
    if not is_multi_label:
        return labels
    if (labels.sum(1) == 1).all():
        warn(
            f"Each row of `{name}` contains a single 1. Rows make a multi-label "
            "dataset; if each image has one class, give `labels.argmax(1)`."
        )
    return labels.astype("float32")


def names_of(labels: Array, class_names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the class names of labels, by default their numbers."""
    is_multi_label = labels.ndim == 2
    count = labels.shape[1] if is_multi_label else int(labels.max()) + 1
    names = tuple(map(str, range(count) if class_names is None else class_names))
    if (
        len(names) < count
        or (is_multi_label and len(names) > count)
        or len(set(names)) < max(len(names), 1 if is_multi_label else 2)
    ):
        raise ValueError(
            "There must be two classes or more, and `class_names` must hold a "
            f"different name for each of the {count} classes of the labels. "
            f"Received: {', '.join(names[:9])}, {len(names)} names"
        )
    return names
