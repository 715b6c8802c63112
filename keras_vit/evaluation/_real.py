"""ImageNet's reassessed labels: "Are we done with ImageNet?"
(https://arxiv.org/abs/2006.07159)."""

import json
import pathlib

import numpy as np

from keras_vit.evaluation._checks import scores_of


def real_accuracy(scores, labels):
    """Returns the share of images whose best class is one of its labels.

    Images without any label are left out, as in google-research's
    reassessed-imagenet.

    Args:
        scores: Array of shape `(images, classes)`.
        labels: For each image the list of its right classes, maybe empty; or
            an array of shape `(images, classes)`, positive where a class is
            right.

    Returns:
        A float in [0, 1].

    Raises:
        ValueError: if shapes do not fit, a label is out of range, or no image
            has a label.
    """
    scores = scores_of(scores)
    right = _as_array(labels, *scores.shape)
    labelled = right.any(axis=1)
    if not labelled.any():
        raise ValueError("None of the images has a label.")
    best = scores.argmax(axis=1)
    return float(right[np.arange(len(best)), best][labelled].mean())


def _as_array(labels, images, classes):
    if isinstance(labels, np.ndarray) and labels.ndim == 2:
        if labels.shape != (images, classes):
            raise ValueError(
                f"`labels` must be of shape {(images, classes)}, that of the "
                f"scores. Received: {labels.shape}"
            )
        return labels > 0
    if len(labels) != images:
        raise ValueError(
            f"`labels` must be {images} lists, one an image. Received: "
            f"{len(labels)}"
        )
    right = np.zeros((images, classes), bool)
    for row, members in zip(right, labels, strict=True):
        if any(not 0 <= label < classes for label in members):
            raise ValueError(
                f"Labels must be from 0 to {classes - 1}. Received: "
                f"{list(members)}"
            )
        row[list(members)] = True
    return right


def read_real(path):
    """Reads `real.json`: a list of labels for each validation image.

    Args:
        path: String or path of the file, from
            https://github.com/google-research/reassessed-imagenet.

    Returns:
        A list of lists of integers. The first belongs to
        ILSVRC2012_val_00000001.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is another kind of file.
    """
    path = pathlib.Path(path).expanduser()
    try:
        labels = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. real.json is in "
            "https://github.com/google-research/reassessed-imagenet"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} cannot be read as JSON: {error}"
        ) from error
    if (
        not isinstance(labels, list)
        or not labels
        or not all(
            isinstance(members, list)
            and all(type(label) is int and label >= 0 for label in members)
            for members in labels
        )
    ):
        raise ValueError(
            f"{str(path)!r} must hold a list with one list of class numbers "
            "for each validation image, [[65], [], [795, 970], ...]."
        )
    return labels
