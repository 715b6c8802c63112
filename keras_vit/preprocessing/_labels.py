import os

import keras
import numpy as np
from keras import ops

from keras_vit.preprocessing import _dtypes
from keras_vit.preprocessing import _imagenet
from keras_vit.preprocessing import _label_files


def decode_predictions(predictions, top=5, labels=None):
    """Names the best classes of each image.

    The labels of ImageNet-2012 (1000 classes) and ImageNet-21k (21843) are
    fetched when they are first needed, and kept in `$KERAS_VIT_HOME` if it
    is set, otherwise in the folder `keras_vit` of Keras's own (`~/.keras`).
    A model of 1000 or 21843 other classes needs `labels`.

    Args:
        predictions: Array or tensor of shape `(batch, classes)`: logits or
            probabilities, of any value but NaN.
        top: Integer from 1 to the number of classes. How many to name.
        labels: The names of the classes, as many as there are, in the order
            of their indices. None for ImageNet's, or a list or tuple of
            names, or the path of a file:

            - `.json`: `{"0": ["n01440764", "tench"], ...}`, as Keras has it;
            - any other ending: text in UTF-8 with one label a line, either
              `name` or `id<TAB>name`.

    Returns:
        A list with one list for each image, of `top` tuples
        `(wordnet_id, name, score)`, best first; of equal scores, the lower
        index first. `wordnet_id` is None if the labels have no ids. `score`
        is the value in `predictions`, a Python float: build the model with
        `classifier_activation="softmax"`, or apply `keras.ops.softmax`, to
        have probabilities.

    Raises:
        ValueError: if `predictions` is not of that shape, holds NaN or is not
            of numbers, if `top` is out of range, or if the labels are not as
            many as the classes or cannot be read.
        FileNotFoundError: if `labels` is a path with no file.
        OSError: if ImageNet's labels cannot be fetched.

    Example:

    >>> keras_vit.preprocessing.decode_predictions(
    ...     np.array([[0.25, 0.5, 0.125]]), top=2, labels=["cat", "dog", "owl"]
    ... )
    [[(None, 'dog', 0.5), (None, 'cat', 0.25)]]
    """
    scores = _scores(predictions)
    classes = scores.shape[1]
    if isinstance(top, bool) or not isinstance(top, (int, np.integer)):
        raise ValueError(f"`top` must be an integer. Received: top={top!r}")
    if not 1 <= top <= classes:
        raise ValueError(
            f"`top` must be from 1 to {classes}, the number of classes in "
            f"`predictions`. Received: top={top}"
        )
    pairs = _pairs(labels, classes)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(*pairs[index], float(row[index])) for index in indices]
        for row, indices in zip(scores, best, strict=True)
    ]


def _scores(predictions):
    if not _dtypes.is_numeric(predictions) or isinstance(
        predictions, keras.KerasTensor
    ):
        raise ValueError(
            "`predictions` must be a NumPy array or a tensor of numbers, "
            "what `model.predict(images)` returns. "
            f"Received: {_dtypes.describe(predictions)}"
        )
    if ops.is_tensor(predictions):
        predictions = ops.convert_to_numpy(predictions)
    elif hasattr(predictions, "detach"):
        # PyTorch's, while Keras runs on something else. NumPy has no
        # bfloat16.
        predictions = predictions.detach().cpu().double()
    # Float64 holds the values of every smaller type, unchanged.
    scores = np.asarray(predictions).astype("float64")
    if scores.ndim != 2:
        raise ValueError(
            "`predictions` must be of shape (batch, classes); for a single "
            "image, pass `predictions[None]`. "
            f"Received: shape {scores.shape}"
        )
    bad = np.flatnonzero(np.isnan(scores).any(axis=1))
    if bad.size:
        raise ValueError(
            "`predictions` must not hold NaN, which has no rank among the "
            "scores. Look for NaN in the model's inputs and weights. "
            f"Received: NaN for {bad.size} of {len(scores)} images, the "
            f"first at index {bad[0]}"
        )
    return scores


def _pairs(labels, classes):
    """Returns `classes` pairs `(id, name)`; they are never guessed."""
    if labels is None:
        if classes == _imagenet.CLASSES_1K:
            return _imagenet.labels_1k()
        if classes == _imagenet.CLASSES_21K:
            return _imagenet.labels_21k()
        raise ValueError(
            f"There are labels for {_imagenet.CLASSES_1K} classes "
            f"(ImageNet-2012) and {_imagenet.CLASSES_21K} (ImageNet-21k). "
            "For other classes pass `labels`, a list of names or the path "
            f"of a file of them. Received: {classes} classes"
        )
    if isinstance(labels, (str, os.PathLike)):
        pairs, source = _label_files.read(labels), f" in {str(labels)!r}"
    else:
        pairs, source = _from_list(labels), ""
    if len(pairs) != classes:
        raise ValueError(
            f"There must be one label for each of the {classes} classes in "
            f"`predictions`. Received: {len(pairs)} labels{source}"
        )
    return pairs


def _from_list(labels):
    if not isinstance(labels, (list, tuple)):
        raise ValueError(
            "`labels` must be a list or tuple of names, or the path of a "
            f"file of them. Received: {_dtypes.describe(labels)}"
        )
    for index, name in enumerate(labels):
        if not isinstance(name, str) or not name.strip():
            raise ValueError(
                "`labels` must be names, strings that are not empty. "
                f"Received: {name!r} for class {index}"
            )
    return [(None, name) for name in labels]
