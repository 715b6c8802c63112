"""Labels of tables: classes by name or number, one or several an image."""

import numpy as np


def encode_labels(values, class_names=None):
    """Returns labels as an array, and the names of the classes.

    Args:
        values: List of one class for each image, or of a list of classes for
            each image. A class is an integer or a string.
        class_names: Names of the classes that integers stand for. None takes
            the distinct values, sorted: as numbers if all of them are integers.

    Returns:
        An integer array of shape `(count,)`, or for lists a float32 array of
        zeros and ones of shape `(count, classes)`; and a tuple of strings.
    """
    is_multi_label = isinstance(values[0], list)
    lists = values if is_multi_label else [[value] for value in values]
    if class_names is None:
        classes = _sorted({value for members in lists for value in members})
        class_names = tuple(map(str, classes))
    else:
        classes = range(len(class_names))
    number = {value: i for i, value in enumerate(classes)}
    numbers = [[number[value] for value in members] for members in lists]
    if not is_multi_label:
        return np.array(numbers, "int32")[:, 0], tuple(class_names)
    rows = np.zeros((len(values), len(class_names)), "float32")
    for row, members in zip(rows, numbers, strict=True):
        row[members] = 1
    return rows, tuple(class_names)


def _sorted(classes):
    try:
        return sorted(classes, key=int)
    except ValueError:
        return sorted(classes, key=str)
