"""Class labels of ImageNet or of a file, and decoding of predictions.

The functions that read labels return a list of pairs `(id, name)`, indexed by
class. `id` is None if the file has no ids.
"""

import json
import os
import pathlib
import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

import keras
import numpy as np
from keras import ops

from keras_vit import downloads
from keras_vit._types import Array
from keras_vit._types import StrPath
from keras_vit._types import Tensor
from keras_vit._warnings import warn
from keras_vit.preprocessing.inputs import describe
from keras_vit.preprocessing.inputs import is_numeric

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
    IMAGENET21K_IDS: downloads.Source(
        f"{_BUCKETS}/bit_models/{IMAGENET21K_IDS}"
    ),
    IMAGENET21K_NAMES: downloads.Source(
        f"{_BUCKETS}/bit_models/{IMAGENET21K_NAMES}"
    ),
}

_WORDNET_ID = re.compile(r"n\d{8}")


def decode_predictions(
    predictions: Tensor,
    top: int = 5,
    labels: StrPath | Sequence[str] | None = None,
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

    Returns:
        A list with one list of `top` tuples `(wordnet_id, name, score)` per
        image, highest score first; of equal scores, the lower index first.
        `wordnet_id` is None if the labels have no ids. `score` is the value
        in `predictions`, as a Python float: for probabilities, build the
        model with `classifier_activation="softmax"`, or apply
        `keras.ops.softmax`. A warning says so if values are outside [0, 1].

    Raises:
        ValueError: if `predictions` has another shape, is not numeric or
            contains NaN, if `top` is out of range, or if a file of labels has
            another form or their number is not the number of classes.
        FileNotFoundError: if there is no file of labels.
        OSError: if ImageNet's labels cannot be downloaded.

    Example:

    >>> keras_vit.preprocessing.decode_predictions(
    ...     np.array([[0.25, 0.5, 0.125]]), top=2, labels=["cat", "dog", "owl"]
    ... )
    [[(None, 'dog', 0.5), (None, 'cat', 0.25)]]
    """
    scores = _scores(predictions)
    classes = scores.shape[1]
    whole = isinstance(top, (int, np.integer)) and not isinstance(top, bool)
    if not whole or not 1 <= top <= classes:
        raise ValueError(
            f"`top` must be an integer from 1 to {classes}, the number of "
            f"classes in `predictions`. Received: top={top!r}"
        )
    pairs = _resolve_labels(labels, classes)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(*pairs[index], float(row[index])) for index in indices]
        for row, indices in zip(scores, best, strict=True)
    ]


def _scores(predictions: Any) -> Array:
    """Returns predictions in float64, with a warning if these are logits."""
    if not is_numeric(predictions) or isinstance(
        predictions, keras.KerasTensor
    ):
        raise ValueError(
            "`predictions` must be a NumPy array or a tensor of numbers, as "
            "`model.predict(images)` returns. "
            f"Received: {describe(predictions)}"
        )
    if ops.is_tensor(predictions):
        predictions = ops.convert_to_numpy(predictions)
    elif hasattr(predictions, "detach"):
        # A PyTorch tensor under another backend. NumPy has no bfloat16.
        predictions = predictions.detach().cpu().double()
    # float64 represents the values of all smaller types exactly.
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
            "`predictions` must not hold NaN. Look for NaN in the model's "
            "inputs and weights. "
            f"Received: NaN for {bad.size} of {len(scores)} images, the "
            f"first at index {bad[0]}"
        )
    if scores.size and (scores.min() < -1e-3 or scores.max() > 1 + 1e-3):
        warn(
            "`predictions` are not probabilities, and are returned as they "
            f"are: they range from {scores.min():.4g} to {scores.max():.4g}. "
            "For probabilities, apply `keras.ops.softmax` (or `sigmoid`, if "
            "an image has several labels), or build the model with "
            '`classifier_activation="softmax"`.'
        )
    return scores


def _resolve_labels(
    labels: StrPath | Sequence[str] | None, classes: int
) -> Labels:
    """Returns one pair `(id, name)` for each class."""
    if labels is None:
        if classes == IMAGENET_CLASSES:
            return imagenet_labels()
        if classes == IMAGENET21K_CLASSES:
            return imagenet21k_labels()
        raise ValueError(
            f"There are labels for {IMAGENET_CLASSES} classes (ImageNet-2012) "
            f"and {IMAGENET21K_CLASSES} (ImageNet-21k). For other classes "
            "pass `labels`, a list of names or the path of a file of them. "
            f"Received: {classes} classes"
        )
    if isinstance(labels, (str, os.PathLike)):
        pairs, source = read_labels(labels), f" in {str(labels)!r}"
    else:
        pairs, source = _from_list(labels), ""
    if len(pairs) != classes:
        raise ValueError(
            f"There must be one label for each of the {classes} classes in "
            f"`predictions`. Received: {len(pairs)} labels{source}"
        )
    return pairs


def _from_list(labels: Any) -> Labels:
    """Returns the pairs of a list of names."""
    wrong = "" if isinstance(labels, (list, tuple)) else describe(labels)
    for index, name in enumerate([] if wrong else labels):
        if not isinstance(name, str) or not name.strip():
            wrong = wrong or f"{name!r} for class {index}"
    if wrong:
        raise ValueError(
            "`labels` must be a list or tuple of names, strings that are not "
            f"empty, or the path of a file of them. Received: {wrong}"
        )
    return [(None, name) for name in labels]


def imagenet_labels() -> Labels:
    """Returns the 1000 pairs `(wordnet_id, name)` of ImageNet-2012."""
    return _fetch(IMAGENET_INDEX, _parse_imagenet)


def imagenet21k_labels() -> Labels:
    """Returns the 21843 pairs `(wordnet_id, name)` of ImageNet-21k."""
    ids = _fetch(IMAGENET21K_IDS, _parse_imagenet21k_ids)
    names = _fetch(IMAGENET21K_NAMES, _parse_imagenet21k)
    return list(zip(ids, names, strict=True))


def _fetch(name: str, parse: Callable[[pathlib.Path], list]) -> list:
    """Returns the parsed content of a label file, downloaded if necessary."""
    try:
        path, _ = downloads.fetch(
            downloads.cache_dir() / "labels",
            (SOURCES[name],),
            check=lambda path, source: parse(path),
            label="ImageNet's labels",
        )
    except OSError as error:
        raise OSError(
            f"{error}\nOr pass `labels`, the path of a file of your own or a "
            "list of names."
        ) from error
    return parse(path)


def _parse_imagenet(path: pathlib.Path) -> Labels:
    """Reads the file of ImageNet-2012, if it is the right one."""
    labels = _read_json(path)
    _check_count(path, labels, IMAGENET_CLASSES)
    _check_ids(path, [str(wordnet_id) for wordnet_id, _ in labels])
    return labels


def _parse_imagenet21k(path: pathlib.Path) -> list[str]:
    """Reads the lines of a file of ImageNet-21k, if they are as many."""
    lines = [line.strip() for line in _read_lines(path)]
    _check_count(path, lines, IMAGENET21K_CLASSES)
    return lines


def _parse_imagenet21k_ids(path: pathlib.Path) -> list[str]:
    """Reads the ids of ImageNet-21k, if they are ids."""
    ids = _parse_imagenet21k(path)
    _check_ids(path, ids)
    return ids


def _check_count(path: pathlib.Path, labels: list, expected: int) -> None:
    """Raises if a file, such as a login page, has another number of labels."""
    if len(labels) != expected:
        raise ValueError(
            f"{path.name} must hold {expected} labels. Received: "
            f"{len(labels)}, the first of them {str(labels[0])[:60]!r}"
        )


def _check_ids(path: pathlib.Path, ids: list[str]) -> None:
    """Raises if one of the ids is not a WordNet id."""
    for index, wordnet_id in enumerate(ids):
        if not _WORDNET_ID.fullmatch(wordnet_id):
            raise ValueError(
                f"{path.name} must hold WordNet ids, like n01440764. "
                f"Received: {wordnet_id[:60]!r} for class {index}"
            )


def read_labels(path: StrPath) -> Labels:
    """Reads a file of labels: JSON if its suffix is `.json`, else text."""
    path = pathlib.Path(path).expanduser()
    if path.suffix.lower() == ".json":
        return _read_json(path)
    return _read_text(path)


def _read_json(path: pathlib.Path) -> Labels:
    """Reads a class index as in Keras: `{"0": ["n01440764", "tench"], ...}`."""
    try:
        index = json.loads(_read_utf8(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read as JSON: {error}. Its "
            "download may be incomplete, or it is another kind of file."
        ) from error
    entries: list[Any] = [str(index)]  # which is refused below
    if isinstance(index, dict) and index:
        entries = [index.get(str(number)) for number in range(len(index))]
    for number, entry in enumerate(entries):
        if (
            not isinstance(entry, list)
            or len(entry) != 2
            or not all(isinstance(part, str) and part for part in entry)
        ):
            raise ValueError(
                f"{str(path)!r} must hold a JSON object of classes, "
                '{"0": ["n01440764", "tench"], ...}, without gaps. Received: '
                f'{str(entry)[:60]} for "{number}" of {len(entries)} classes'
            )
    return [(wordnet_id, name) for wordnet_id, name in entries]


def _read_text(path: pathlib.Path) -> Labels:
    """Reads one label per line: `name`, or `id<TAB>name`."""
    labels: Labels = []
    for number, line in enumerate(_read_lines(path), start=1):
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) > 2 or not all(parts):
            raise ValueError(
                f"Line {number} of {str(path)!r} must be the name of class "
                f"{number - 1}, or its id, one tab and its name. Received: "
                f"{line!r}"
            )
        labels.append((parts[0] if len(parts) == 2 else None, parts[-1]))
    return labels


def _read_lines(path: pathlib.Path) -> list[str]:
    """Returns the lines of a text file."""
    # `splitlines` would also split at characters that names may contain.
    return _read_utf8(path).rstrip("\n").split("\n")


def _read_utf8(path: pathlib.Path) -> str:
    """Returns the text of a file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. Give the path of a .json file "
            '({"0": ["n01440764", "tench"], ...}) or of a text file with one '
            "label per line."
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not text in UTF-8: {error}. Save it again in "
            "this encoding."
        ) from error
