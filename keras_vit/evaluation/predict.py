"""Inference on all images of a dataset."""

import sys
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_vit.data import ImageDataset, find_data_error
from keras_vit.utils.types import Array


def predict_splits(
    model: keras.Model, data: ImageDataset, options: dict[str, Any]
) -> tuple[Array, Array, Array, Array]:
    """Returns the outputs and labels of a dataset's training images, and those of its
    test images; `options` are the arguments of `ImageDataset.batches`."""
    batches = [data.batches(split, **options) for split in ("train", "test")]
    return (
        *predict_dataset(model, batches[0], data.num_train),
        *predict_dataset(model, batches[1], data.num_test),
    )


def predict_dataset(
    model: keras.Model,
    batches: Iterable[tuple],
    total: int,
    limit: int | None = None,
) -> tuple[Array, Array]:
    """Returns the outputs of a model for all images of a dataset.

    It shows a progress bar on a terminal.

    Args:
        model: `keras.Model`.
        batches: Finite iterable of batches `(images, labels, weights)`, such
            as `ImageDataset.test` returns. Images with a weight of 0 are padding and
            are left out.
        total: Integer. Number of images without padding.
        limit: Integer. Maximum number of images; None for no limit.

    Returns:
        Tuple of an array of the outputs, in float32, and an array of the
        labels.

    Raises:
        ValueError: if an image cannot be decoded, if a label is out of range,
            or if there are no images. The message names the image, or the
            dataset and its split.
    """
    total = min(total, limit or total)
    bar = keras.utils.Progbar(
        total, unit_name="image", verbose=int(sys.stdout.isatty())
    )
    found, labels, done = [], [], 0
    try:
        for images, labels_here, weights in batches:
            kept = np.flatnonzero(np.asarray(weights))
            if kept.size:
                images = keras.tree.map_structure(np.asarray, images)
                result = model.predict_on_batch(images)
                result = keras.ops.convert_to_numpy(result).astype("float32")
                found.append(result[kept])
                labels.append(np.asarray(labels_here)[kept])
                done += kept.size
            bar.update(min(done, total), finalize=done >= total)
            if done >= total:
                break
    except Exception as error:
        if wrong := find_data_error(error):
            raise wrong from error
        raise
    if not (found and total):
        raise ValueError("There are no images to predict.")
    return np.concatenate(found)[:total], np.concatenate(labels)[:total]
