"""Datasets of NumPy arrays."""

import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._types import Array
from keras_vit._types import ArrayLike
from keras_vit._types import Tensor
from keras_vit._warnings import warn
from keras_vit.data._decode import import_tensorflow
from keras_vit.data._pipeline import listed_dataset
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.splits import hold_out_by_path
from keras_vit.data.splits import parse_holdout
from keras_vit.data.splits import split_by_path


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
        images: Array of shape `(count, height, width, channels)`, with 1 or 3
            channels: uint8, or float with values from 0 to 255. A memory map
            is read image by image.
        labels: Integer array of shape `(count,)` or `(count, 1)`, with values
            from 0 to the number of classes minus 1. If an image may have
            several classes, an array of zeros and ones of shape
            `(count, classes)`: the dataset is then multi-label.
        test: `(images, labels)` to evaluate on, in the same form. None
            evaluates on about a fifth of `images`, which are not trained on.
            A hash of an image's index decides, so that appending images moves
            no other one.
        class_names: List of strings. None for "0", "1", ...
        name: String. Name of the dataset.
        holdout: Float in [0, 1). Fraction of the training images to hold out
            for `ImageDataset.validation`, or "paper"; see `load_dataset`.

    Raises:
        ValueError: if an array has another shape, dtype or range.
    """
    holdout = parse_holdout(name, holdout)
    if test is not None and (
        not isinstance(test, tuple | list) or len(test) != 2
    ):
        raise ValueError(
            "`test` must be a pair of arrays, (images, labels). Received an "
            f"object of type {type(test).__name__}."
        )
    given = {"images": (images, labels)} | ({"test": test} if test else {})
    parts = {key: _check_images(key, x) for key, (x, _) in given.items()}
    arrays = list(parts.values())
    found = [
        _check_labels(key, y, len(parts[key])) for key, (_, y) in given.items()
    ]
    for what, (one, *others) in (
        ("channels", [x.shape[-1] for x in arrays]),
        ("numbers for each label", [(*y.shape[1:], 1)[0] for y in found]),
    ):
        if others and others != [one]:
            raise ValueError(
                f"The training and the test images must have as many {what}. "
                f"Received: {one} and {others[0]}"
            )
    all_labels, count = np.concatenate(found), len(arrays[0])
    names = _class_names(all_labels, class_names)
    indices = np.arange(len(all_labels))
    sizes = {x.shape[1:3] for x in arrays}
    height, width = next(iter(sizes))
    channels = arrays[0].shape[-1]
    is_uint8 = all(x.dtype == np.uint8 for x in arrays)
    dtype = np.dtype("uint8" if is_uint8 else "float32")

    def image(index: int) -> Array:
        if index < count:
            return np.asarray(arrays[0][index], dtype)
        return np.asarray(arrays[1][index - count], dtype)

    return listed_dataset(
        name,
        names,
        [f"{key}[{i}]" for key, x in parts.items() for i in range(len(x))],
        all_labels,
        split_by_index(all_labels, indices[:count], indices[count:], holdout),
        image_reader(image, dtype, channels),
        contents=indices,
        channels=channels,
        image_size=height if len(sizes) == 1 and height == width else None,
    )


def image_reader(
    image: Callable[[int], Array], dtype: np.dtype, channels: int
) -> Callable[[Tensor], Tensor]:
    """Returns a function of an index, a tensor, that returns the pixels of the
    array `(height, width, channels)` that `image` returns."""

    def read(index: Tensor) -> Tensor:
        tf = import_tensorflow()
        pixels = tf.numpy_function(image, [index], tf.as_dtype(dtype))
        return tf.ensure_shape(pixels, (None, None, channels))

    return read


def split_by_index(
    labels: Array, train: Array, test: Array, holdout: float
) -> dict[str, Array]:
    """Returns the indices of the training, validation and test images.

    Without test images, about a fifth of the training images become test
    images, or it is a `ValueError` if every class has one image. Each index is
    used as the path of `split_by_path`. Labels are classes, or rows of zeros
    and ones.
    """
    # Rows of several classes are split as if all images were of one class.
    classes = np.zeros(len(labels), int) if labels.ndim == 2 else labels
    paths = [pathlib.PurePosixPath(str(i)) for i in range(len(labels))]
    if not len(test):
        kept, chosen = split_by_path([paths[i] for i in train], classes[train])
        train, test = train[kept], train[chosen]
        if not len(test):
            raise ValueError(
                "A fifth of the images is needed as test images, and every "
                "class has one image. Give more images, or `test`. Received: "
                f"{len(labels)} images"
            )
    train, validation = hold_out_by_path(paths, classes, train, holdout)
    return {"train": train, "validation": validation, "test": test}


def _check_images(name: str, images: Any) -> Any:
    if not hasattr(images, "shape"):
        images = np.asarray(images)
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[-1] not in (1, 3) or 0 in shape:
        raise ValueError(
            f"`{name}` must be of shape (count, height, width, channels) with "
            f"1 or 3 channels, and hold an image or more. Received: {shape}. "
            "Images of shape (count, height, width) become gray ones by "
            "`images[..., None]`, and those of shape (count, channels, height, "
            "width) fit after `images.transpose(0, 2, 3, 1)`."
        )
    if images.dtype == np.uint8:
        return images
    low, high = float(images.min()), float(images.max())
    is_float = np.issubdtype(images.dtype, np.floating)
    if is_float and low >= 0 and 1 < high <= 255:  # not NaN
        return images
    remedy = "Scale them."
    if not is_float:
        remedy = 'Integers from 0 to 255 fit after `images.astype("uint8")`.'
    elif 0 <= low and high <= 1:
        remedy = "Use `images * 255`."
    elif -1 <= low and high <= 1:
        remedy = "Use `(images + 1) * 127.5`."
    raise ValueError(
        f"`{name}` must be uint8, or float with values from 0 to 255. Received "
        f"{images.dtype} with values from {low:g} to {high:g}. {remedy}"
    )


def _check_labels(name: str, labels: ArrayLike, count: int) -> Array:
    name = "labels" if name == "images" else "test[1]"
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or len(labels) != count:
        raise ValueError(
            f"`{name}` must be of shape ({count},), or ({count}, classes) for "
            f"several classes an image. Received: {labels.shape}"
        )
    wrong = ~np.isin(labels, (0, 1))
    if labels.ndim == 1:
        is_integer = np.issubdtype(labels.dtype, np.integer)
        wrong = labels < 0 if is_integer else np.full(count, True)
    if wrong.any():
        raise ValueError(
            f"`{name}` must be integers of 0 or more, the number of each "
            "image's class, or rows of zeros and ones for several classes an "
            f"image. Received: {labels.dtype}, such as "
            f"{labels[wrong].tolist()[0]!r}. Names become integers by "
            "`class_names, labels = "
            "np.unique(labels, return_inverse=True)`; leave out images without "
            "a label."
        )
    if labels.ndim == 1:
        return labels
    if (labels.sum(1) == 1).all():
        warn(
            f"Each row of `{name}` has one 1. Rows make a multi-label dataset; "
            "if each image has one class, give `labels.argmax(1)`."
        )
    return labels.astype("float32")


def _class_names(
    labels: Array, class_names: Sequence[str] | None
) -> tuple[str, ...]:
    is_multi_label = labels.ndim == 2
    count = labels.shape[1] if is_multi_label else int(labels.max()) + 1
    names = tuple(
        map(str, range(count) if class_names is None else class_names)
    )
    if len(names) < count or (is_multi_label and len(names) > count):
        raise ValueError(
            f"The labels are of {count} classes, and `class_names` must hold "
            f"a name for each. Received: {len(names)} names"
        )
    if len(set(names)) < max(len(names), 1 if is_multi_label else 2):
        raise ValueError(
            "There must be two classes or more, whose names differ from each "
            f"other. Received: {', '.join(names)}"
        )
    return names
