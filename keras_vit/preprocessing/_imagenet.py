"""ImageNet's labels, fetched once from where Google keeps them."""

import os
import pathlib
import re
import tempfile

import keras

from keras_vit.preprocessing import _label_files

CLASSES_1K = 1000
CLASSES_21K = 21843

INDEX_1K = "imagenet_class_index.json"
IDS_21K = "imagenet21k_wordnet_ids.txt"
NAMES_21K = "imagenet21k_wordnet_lemmas.txt"

# Where each file comes from and its MD5, if whoever keeps it gives one.
SOURCES = {
    INDEX_1K: (
        "https://storage.googleapis.com/download.tensorflow.org/data/"
        "imagenet_class_index.json",
        "c2c37ea517e94d9795004a39431a14cb",
    ),
    IDS_21K: (
        "https://storage.googleapis.com/bit_models/imagenet21k_wordnet_ids.txt",
        None,
    ),
    NAMES_21K: (
        "https://storage.googleapis.com/bit_models/"
        "imagenet21k_wordnet_lemmas.txt",
        None,
    ),
}

WORDNET_ID = re.compile(r"n\d{8}")


def labels_1k():
    """Returns the 1000 pairs `(wordnet_id, name)` of ImageNet-2012."""
    return _obtain(INDEX_1K, _parse_1k)


def labels_21k():
    """Returns the 21843 pairs `(wordnet_id, name)` of ImageNet-21k."""
    ids = _obtain(IDS_21K, _parse_ids)
    names = _obtain(NAMES_21K, _parse_names)
    return list(zip(ids, names, strict=True))


def home():
    """Returns the folder that fetched files are kept in.

    It is `$KERAS_VIT_HOME` if that is set, otherwise the folder `keras_vit`
    of Keras's own (`$KERAS_HOME`, or `~/.keras`).
    """
    own = os.environ.get("KERAS_VIT_HOME")
    if own:
        return pathlib.Path(own).expanduser()
    keras_home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(keras_home).expanduser() / "keras_vit"


def _parse_1k(path):
    labels = _label_files.read_json(path)
    _check_count(path, labels, CLASSES_1K)
    _check_ids(path, [wordnet_id for wordnet_id, _ in labels])
    return labels


def _parse_ids(path):
    ids = [line.strip() for line in _label_files.read_lines(path)]
    _check_count(path, ids, CLASSES_21K)
    _check_ids(path, ids)
    return ids


def _parse_names(path):
    names = [line.strip() for line in _label_files.read_lines(path)]
    _check_count(path, names, CLASSES_21K)
    return names


def _check_count(path, labels, expected):
    if len(labels) != expected:
        raise ValueError(
            f"{path.name} must hold {expected} labels. Received: "
            f"{len(labels)}, the first of them {str(labels[0])[:60]!r}"
        )


def _check_ids(path, ids):
    for index, wordnet_id in enumerate(ids):
        if not WORDNET_ID.fullmatch(wordnet_id):
            raise ValueError(
                f"{path.name} must hold WordNet ids, like n01440764. "
                f"Received: {wordnet_id[:60]!r} for class {index}"
            )


def _obtain(name, parse):
    """Returns what `parse` makes of a file, fetching it if it is not there."""
    path = home() / name
    if not path.exists():
        return _fetch(path, parse)
    try:
        return parse(path)
    except ValueError as error:
        raise ValueError(
            f"The labels kept at {str(path)!r} cannot be used: {error}\n"
            "Delete the file to have it fetched again from "
            f"{SOURCES[name][0]}, or pass `labels`."
        ) from error


def _fetch(path, parse):
    """Downloads a file to `path`, whole and checked, or not at all."""
    url, md5 = SOURCES[path.name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # `get_file` writes straight to its target and leaves a file there
        # whose digest is wrong; so the target is in a folder of its own. It
        # also goes to /tmp, silently, if its folder cannot be written to;
        # the line above and the next fail instead.
        with tempfile.TemporaryDirectory(
            dir=path.parent, prefix="download-"
        ) as folder:
            file = keras.utils.get_file(
                path.name,
                origin=url,
                file_hash=md5,
                hash_algorithm="md5",
                cache_dir=folder,
                cache_subdir="",
            )
            labels = parse(pathlib.Path(file))
            os.replace(file, path)
    # `get_file` raises bare `Exception`s.
    except Exception as error:
        raise OSError(
            f"ImageNet's labels could not be fetched from {url}\n"
            f"  {type(error).__name__}: {error}\n"
            f"Without a network, put this file at {str(path)!r} by hand (or "
            "in the folder that KERAS_VIT_HOME names), or pass `labels`, the "
            "path of a file of your own or a list of names."
        ) from error
    return labels
