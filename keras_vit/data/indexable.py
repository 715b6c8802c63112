"""Datasets of other libraries: of PyTorch, Grain, Keras and `tf.data`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.data.arrays import check_labels, indexed_dataset, names_of
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.splits import parse_holdout
from keras_vit.utils.images import to_pixels
from keras_vit.utils.types import Array


def from_indexable(
    train: Any,
    test: Any = None,
    class_names: Sequence[str] | None = None,
    *,
    labels: Sequence[Any] | None = None,
    name: str = "indexable",
    channels: int = 3,
    image_size: int | None = None,
    holdout: float | str = 0.0,
) -> ImageDataset:
    """Returns the `ImageDataset` of a dataset of another library.

    Its batches are shuffled, augmented, resumed and shared by processes like those of
    files.

    Example:

    ```python
    import numpy as np
    import keras_vit

    class Squares:  # as a torch.utils.data.Dataset or a source of Grain
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return np.full((16, 16, 3), 6 * index, "uint8"), index % 2

    data = keras_vit.data.from_indexable(Squares())
    batches = data.train(image_size=16, batch_size=8)  # for model.fit
    ```

    Args:
        train: An object with a length whose items are `(image, label)`, or dicts with
            the keys "image" and "label": a `torch.utils.data.Dataset` without
            transforms, or a Grain source. Items are read when their batch is read.
            Alternatively, a `tf.data.Dataset`, of examples or of batches, or a
            `keras.utils.PyDataset`, which is read once and kept in memory. Images are
            Pillow images or uint8 arrays of shape `(height, width, channels)`; labels
            as in `from_arrays`.
        test: Like `train`, to evaluate on. None evaluates on about a fifth of `train`.
        class_names: List of strings. None for "0", "1", ...
        labels: The labels of `train`, followed by those of `test`. None reads each item
            once to obtain them.
        name: String. Name of the dataset.
        channels: 3 for color, to which gray images are converted; 1 for gray.
        image_size: Integer. Height and width of the images, if all have this size.
        holdout: As in `load_dataset`.

    Raises:
        ValueError: if an image or a label has another form.
    """
    holdout = parse_holdout(name, holdout)
    given = {"train": train} if test is None else {"train": train, "test": test}
    parts = {key: _items(source) for key, source in given.items()}
    if labels is None:
        labels = [
            _pair(part[i])[1] for part in parts.values() for i in range(len(part))
        ]
    found = check_labels("labels", np.array(labels), sum(map(len, parts.values())))

    def pixels(key: str, index: int) -> Array:
        return to_pixels(_pair(parts[key][index])[0], channels)

    for key in parts:
        pixels(key, 0)  # an error now, before the first batch
    return indexed_dataset(
        name,
        names_of(found, class_names),
        found,
        parts,
        "train",
        pixels,
        holdout,
        dtype=np.dtype("uint8"),
        channels=channels,
        image_size=image_size,
    )


def _pair(item: Any) -> tuple[Any, Any]:
    return (item["image"], item["label"]) if isinstance(item, dict) else tuple(item)[:2]


def _items(source: Any) -> Any:
    """Returns a sequence of examples."""
    if hasattr(source, "as_numpy_iterator"):
        return list(_rows(source.as_numpy_iterator()))
    if isinstance(source, keras.utils.PyDataset):
        return list(_rows(source[i] for i in range(len(source))))
    return source


def _rows(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields examples, of batches one by one."""
    for image, label in map(_pair, items):
        yield from (
            zip(image, label, strict=True) if np.ndim(image) == 4 else [(image, label)]
        )
