"""A model's outputs on all images of a set, on any backend."""

import itertools
import sys

import keras
import numpy as np

from keras_vit.data import parse_image_error
from keras_vit.data import parse_label_error


def predict_dataset(model, batches, total, limit=None):
    """Runs a model over batches, with a progress bar on a terminal.

    Args:
        model: `keras.Model`.
        batches: Batches `(images, labels, weights)` that end, such as
            `ImageDataset.test` gives; what has weight 0 is left out.
        total: Integer. Number of images in them.
        limit: Integer. Stop after so many; None for all.

    Returns:
        Arrays of the outputs, in float32, and of the labels.

    Raises:
        ValueError: if an image cannot be read, or a label is out of range;
            the message names the image, or the data set and its split.
    """
    total = min(total, limit or total)
    bar = keras.utils.Progbar(
        total, unit_name="image", verbose=int(sys.stdout.isatty())
    )
    found, labels, done = [], [], 0
    for images, labels_here, weights in _named(batches):
        kept = np.flatnonzero(np.asarray(weights))
        if kept.size:
            result = model.predict_on_batch(np.asarray(images))
            result = keras.ops.convert_to_numpy(result).astype("float32")
            found.append(result[kept])
            labels.append(np.asarray(labels_here)[kept])
            done += kept.size
        bar.update(min(done, total), finalize=done >= total)
        if done >= total:
            break
    if not found:
        raise ValueError("There is no image to look at.")
    return np.concatenate(found)[:total], np.concatenate(labels)[:total]


def _named(batches):
    """The batches; TensorFlow's error for a bad image or label becomes a
    `ValueError` of one line."""
    iterator = iter(batches)
    for _ in itertools.count():
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            if message := parse_label_error(error):
                raise ValueError(message) from error
            path = parse_image_error(error)
            if path is None:
                raise
            raise ValueError(
                f"This image cannot be read: {path!r}. Remove it or convert "
                "it, or leave such files out with --skip-bad-images."
            ) from error
        yield batch
