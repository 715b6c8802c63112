"""ImageNet's labels, fetched once from where Google keeps them."""

import re

from keras_vit import downloads
from keras_vit.preprocessing import _label_files

CLASSES_1K = 1000
CLASSES_21K = 21843

INDEX_1K = "imagenet_class_index.json"
IDS_21K = "imagenet21k_wordnet_ids.txt"
NAMES_21K = "imagenet21k_wordnet_lemmas.txt"

# Where each file comes from; whoever keeps the first gives its MD5.
_BUCKETS = "https://storage.googleapis.com"
SOURCES = {
    INDEX_1K: downloads.Source(
        f"{_BUCKETS}/download.tensorflow.org/data/{INDEX_1K}",
        "md5:c2c37ea517e94d9795004a39431a14cb",
    ),
    IDS_21K: downloads.Source(f"{_BUCKETS}/bit_models/{IDS_21K}"),
    NAMES_21K: downloads.Source(f"{_BUCKETS}/bit_models/{NAMES_21K}"),
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
    try:
        path, _ = downloads.fetch(
            downloads.home() / "labels",
            (SOURCES[name],),
            check=lambda path, source: parse(path),
            what="ImageNet's labels",
        )
    except OSError as error:
        raise OSError(
            f"{error}\nOr pass `labels`, the path of a file of your own or a "
            "list of names."
        ) from error
    return parse(path)
