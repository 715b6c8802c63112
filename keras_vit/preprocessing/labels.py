"""Class labels of ImageNet or of a file, and decoding of predictions.

The functions that read labels return a list of pairs `(id, name)`, indexed by
class. `id` is None if the file has no ids.
"""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from keras import Model, ops

from keras_vit.models.graph import output_activation
from keras_vit.utils import downloads
from keras_vit.utils.types import Array, StrPath, Tensor
from keras_vit.utils.warnings import warn

Labels: TypeAlias = list[tuple[str | None, str]]

IMAGENET_CLASSES = 1000
IMAGENET21K_CLASSES = 21843

IMAGENET_INDEX = "imagenet_class_index.json"
IMAGENET21K_IDS = "imagenet21k_wordnet_ids.txt"
IMAGENET21K_NAMES = "imagenet21k_wordnet_lemmas.txt"

_BUCKETS = "https://storage.googleapis.com"
SOURCES = {
    IMAGENET_INDEX: downloads.Source(
        f"{_BUCKETS}/download.tensorflow.org/data/{IMAGENET_INDEX}",
        "md5:c2c37ea517e94d9795004a39431a14cb",  # published by Keras
    ),
    IMAGENET21K_IDS: downloads.Source(f"{_BUCKETS}/bit_models/{IMAGENET21K_IDS}"),
    IMAGENET21K_NAMES: downloads.Source(f"{_BUCKETS}/bit_models/{IMAGENET21K_NAMES}"),
}


def decode_predictions(
    predictions: Tensor,
    top: int = 5,
    labels: StrPath | Sequence[str] | None = None,
    model: Model | None = None,
) -> list[list[tuple[str | None, str, float]]]:
    """Returns the names and scores of the top classes of each image.

    The labels of ImageNet-2012 (1000 classes) and ImageNet-21k (21843) are
    downloaded when first needed, and cached in `$KERAS_VIT_HOME` if it is
    set, otherwise in the folder `keras_vit` in `$KERAS_HOME` or `~/.keras`. A
    model with 1000 or 21843 classes of another dataset requires `labels`.

    Args:
        predictions: Array or tensor of shape `(batch, classes)`: logits or
            probabilities, without NaN.
        top: Integer from 1 to the number of classes. Number of classes to
            return per image.
        labels: The names of all classes, in the order of their indices: None
            for ImageNet's, a list or tuple of strings, or the path of a file:

            - `.json`: `{"0": ["n01440764", "tench"], ...}`, as in Keras;
            - any other suffix: UTF-8 text with one label per line, either
              `name` or `id<TAB>name`.
        model: `keras.Model` that computed `predictions`. If `labels` is None, its
            `class_names` are used. Its logits are converted to probabilities by a
            softmax.

    Returns:
        A list with one list of `top` tuples `(wordnet_id, name, score)` per
        image, with the highest score first; for equal scores, the lower index is first.
        `wordnet_id` is None if the labels have no ids. `score` is a Python
        float: a probability if `model` is given, otherwise the value in
        `predictions`, with a warning if values are outside [0, 1].

    Raises:
        ValueError: if `predictions` has another shape or contains NaN, if a
            file of labels has another form or their number is not the number
            of classes, or if `model` has no layer "head".
        FileNotFoundError: if there is no file of labels.
        OSError: if ImageNet's labels cannot be downloaded.

    Example:

    >>> keras_vit.preprocessing.decode_predictions(
    ...     np.array([[0.25, 0.5, 0.125]]), top=2, labels=["cat", "dog", "owl"]
    ... )
    [[(None, 'dog', 0.5), (None, 'cat', 0.25)]]
    """
    scores = _scores(predictions, model)
    if labels is None:
        labels = getattr(model, "class_names", None)
    pairs = _resolve_labels(labels, scores.shape[1])
    # Stable: of equal scores, the first class comes first, where the last one does in
    # `keras.applications`.
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(*pairs[index], float(row[index])) for index in indices]
        for row, indices in zip(scores, best, strict=True)
    ]


def _scores(predictions: Any, model: Model | None) -> Array:
    """Returns predictions in float64: the probabilities of a model, or without
    one what they are, with a warning if these are logits."""
    if ops.is_tensor(predictions):
        predictions = ops.convert_to_numpy(predictions)
    elif hasattr(predictions, "detach"):
        # A PyTorch tensor under another backend. NumPy has no bfloat16.
        predictions = predictions.detach().cpu().double()
    # float64 represents the values of all smaller types exactly.
    scores = np.asarray(predictions).astype("float64")
    if scores.ndim != 2 or np.isnan(scores).any():
        raise ValueError(
            "`predictions` must be of shape (batch, classes), without NaN; for "
            "a single image, pass `predictions[None]`. Received: shape "
            f"{scores.shape}, {np.isnan(scores).sum()} values are NaN"
        )
    if model and output_activation(model) == "linear":
        exp = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores = exp / exp.sum(axis=1, keepdims=True)
    if scores.size and (scores.min() < -1e-3 or scores.max() > 1 + 1e-3):
        warn(
            "`predictions` are not probabilities, and are returned as they "
            f"are: they range from {scores.min():.4g} to {scores.max():.4g}. "
            "For probabilities, pass `model=`, or apply `keras.ops.softmax` "
            "(`sigmoid`, if an image has several labels)."
        )
    return scores


def _resolve_labels(labels: StrPath | Sequence[str] | None, classes: int) -> Labels:
    """Returns one pair `(id, name)` for each class."""
    if labels is None and classes == IMAGENET_CLASSES:
        return imagenet_labels()
    if labels is None and classes == IMAGENET21K_CLASSES:
        files = (IMAGENET21K_IDS, IMAGENET21K_NAMES)
        ids, names = (_fetch(file, classes) for file in files)
        return [(x, name) for (_, x), (_, name) in zip(ids, names, strict=True)]
    if isinstance(labels, (dict, set, frozenset)):
        raise ValueError(
            "`labels` must be a list of names in the order of the classes. "
            f"Received: a {type(labels).__name__}"
        )
    if isinstance(labels, (str, os.PathLike)):
        pairs: Labels = read_labels(labels)
    else:
        pairs = [(None, str(name)) for name in labels or ()]
    if len(pairs) != classes:
        raise ValueError(
            f"There must be one label for each of the {classes} classes in "
            "`predictions`: pass `labels`, a list of names or the path of a file of "
            "them, or set `model.class_names` and pass `model`. Received: "
            f"{len(pairs)} labels"
            + (f" in {str(labels)!r}" if isinstance(labels, str) else "")
        )
    return pairs


def default_names(classes: int) -> list[str]:
    """Returns ImageNet's names if the number of classes matches and the names can be
    downloaded; otherwise numbers."""
    try:
        if classes in (IMAGENET_CLASSES, IMAGENET21K_CLASSES):
            return [name for _, name in _resolve_labels(None, classes)]
    except OSError as error:
        warn(f"Classes are numbered, since they have no names here. {error}")
    return [f"class {index}" for index in range(classes)]


def imagenet_labels() -> Labels:
    """Returns the 1000 pairs `(wordnet_id, name)` of ImageNet-2012."""
    return _fetch(IMAGENET_INDEX, IMAGENET_CLASSES)


def _fetch(name: str, count: int) -> Labels:
    """Returns the `count` labels of a file, downloaded if necessary."""

    def check(path: pathlib.Path, source: downloads.Source) -> None:
        found = len(read_labels(path))
        if found != count:  # such as the lines of a login page
            raise ValueError(f"it must hold {count} labels. Received: {found}")

    folder = downloads.cache_dir() / "labels"
    path, _ = downloads.fetch(
        folder, (SOURCES[name],), check, label="ImageNet's labels"
    )
    return read_labels(path)


def read_labels(path: StrPath) -> Labels:
    """Reads a file of labels: if its suffix is `.json`, a class index as in Keras,
    otherwise text with `name` or `id<TAB>name` in each line."""
    path = pathlib.Path(path).expanduser()
    pairs: Labels = []
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            index = json.loads(text)
            for number in range(len(index)):
                wordnet_id, name = index[str(number)]
                pairs.append((str(wordnet_id), str(name)))
            return pairs
        # `splitlines` would also split at characters that names may contain.
        for number, line in enumerate(text.rstrip("\n").split("\n"), start=1):
            parts = [part.strip() for part in line.split("\t")]
            if len(parts) > 2 or not all(parts):
                raise ValueError(f"line {number} is {line!r}")
            pairs.append((parts[0] if len(parts) == 2 else None, parts[-1]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is not a file of labels ({type(error).__name__}: "
            f"{error}). It must be UTF-8 text with one label per line, `name` "
            'or `id<TAB>name`, or JSON, {"0": ["n01440764", "tench"], ...}.'
        ) from error
    return pairs
