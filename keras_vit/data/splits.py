"""Splits of a dataset into training, validation and test images."""

import hashlib
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.utils.types import Array, ArrayLike

# The first of these splits or folders that is there, and has labels, is
# evaluated on.
TEST_SPLITS = ("test", "validation", "valid", "val")
TEST_FRACTION = 0.2
# Fractions of the training set that were held out to choose the learning rate:
# vit_jax/configs and the paper, Section 4.1. Of others, a tenth.
PAPER_HOLDOUT = {
    "cifar10": 0.02,
    "cifar100": 0.02,
    "imagenet2012": 0.01,
    "oxford_flowers102": 0.1,
    "oxford_iiit_pet": 0.1,
}


def parse_holdout(name: str, holdout: float | str | None) -> float:
    """Returns the fraction of a dataset's training images to hold out, given as a
    number, as text, or as "paper" for that of `PAPER_HOLDOUT`; raises a `ValueError` if
    it is not in [0, 1)."""
    if holdout == "paper":
        return PAPER_HOLDOUT.get(name.split(":")[0], 0.1)
    try:
        fraction = float(holdout or 0)
    except ValueError:
        fraction = math.nan
    if not 0 <= fraction < 1:
        raise ValueError(
            "`holdout` must be a fraction of the training images from 0 to "
            f"below 1, or 'paper'. Received: {holdout!r}"
        )
    return fraction


def stratified_split(
    labels: ArrayLike, fraction: float = TEST_FRACTION, seed: int = 0
) -> tuple[Array, Array]:
    """Returns the sorted indices of two parts, by default 80 to 20 within every class
    with at least two examples. They are always the same for a seed."""
    labels = np.asarray(labels)
    if not fraction:
        return np.arange(len(labels)), np.empty(0, int)
    rng = np.random.default_rng(seed)
    test = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        # Each split has one or more, whatever the fraction.
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        test.append(members[:count])
    test = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test), test


def split_by_path(
    paths: Sequence[pathlib.PurePath],
    labels: ArrayLike,
    fraction: float = TEST_FRACTION,
    salt: str = "test",
) -> tuple[Array, Array]:
    """Returns the sorted indices of two parts of files, by a hash of their
    relative paths and a salt.

    A file is in the second part if its hash, a number in [0, 1), is below
    `fraction`. Therefore adding, removing or renaming a file does not move any other.
    There are two exceptions, so that neither part lacks what it needs: the file of each
    class with the largest hash is in the first part, and the file with the smallest
    hash of all is in the second, unless `fraction` is 0 or every class has one file.
    They only matter if all files of a class have a hash below `fraction` (with n files
    and a fraction of 0.2, in one of 5^n classes), or if no file has such a hash.
    """
    labels = np.asarray(labels)
    if not fraction:
        return np.arange(len(labels)), np.empty(0, int)
    # These numbers in [0, 1) depend on the path and the salt alone.
    names = [os.fsencode(path.as_posix()) for path in paths]
    digests = [
        hashlib.sha256(salt.encode() + b"\0" + name).digest()[:8] for name in names
    ]
    hashes = np.array([int.from_bytes(x, "big") / 2**64 for x in digests])
    second = hashes < fraction
    # Sorted by label, and by hash within a label.
    order = np.lexsort((hashes, labels))
    is_last = np.append(np.diff(labels[order]) != 0, True)
    # Files are compared by hash, because one may be listed twice.
    is_largest = np.isin(hashes, hashes[order[is_last]])
    if not is_largest.all():
        second[hashes == hashes[~is_largest].min()] = True
    second[is_largest] = False
    return np.flatnonzero(~second), np.flatnonzero(second)


def make_splits(
    paths: Sequence[pathlib.PurePath],
    labels: Array,
    train: Array,
    test: Array,
    holdout: float,
) -> dict[str, Array]:
    """Returns the indices of the training, validation and test images, by
    `split_by_path`; paths and labels, classes or rows of them, are those of all
    images.

    Without test images, about a fifth of the training images become test
    images; it is a `ValueError` if every class has one image.
    """
    # Rows of several classes are split as if all images were of one class.
    classes = np.zeros(len(labels), int) if labels.ndim == 2 else labels

    def divide(train: Array, *how: Any) -> tuple[Array, Array]:
        kept, other = split_by_path([paths[i] for i in train], classes[train], *how)
        return train[kept], train[other]

    if not len(test):
        train, test = divide(train)
        if not len(test):
            raise ValueError(
                "A fifth of the images is needed as test images, but every class has "
                "only one image: give more images, or test images (a column 'split' "
                f"of a CSV file). Received: {len(labels)} images"
            )
    validation = np.empty(0, int)
    if len(train):
        train, validation = divide(train, holdout, "validation")
    return {"train": train, "validation": validation, "test": test}
