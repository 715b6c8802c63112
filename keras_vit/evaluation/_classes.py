import numpy as np

from keras_vit.evaluation._checks import labels_of


def confusion_matrix(predicted, labels, classes):
    """Counts which class was taken for which.

    Args:
        predicted: Array of shape `(images,)` of integers.
        labels: Array of shape `(images,)` of integers.
        classes: Integer. Number of classes.

    Returns:
        Integers of shape `(classes, classes)`: rows are the true classes,
        columns the predicted ones.

    Raises:
        ValueError: if shapes do not fit or a class is out of range.
    """
    labels = labels_of(labels, len(labels), classes)
    predicted = labels_of(predicted, len(labels), classes, "predicted")
    pairs = np.bincount(labels * classes + predicted, minlength=classes**2)
    return pairs.reshape(classes, classes)


def per_class(confusion, class_names):
    """Lists how each class fared.

    Args:
        confusion: What `confusion_matrix` returns.
        class_names: List of strings.

    Returns:
        A list of one dict a class: `class` (its name), `images`, `right`,
        `accuracy` (the share of its images that were found, or recall),
        `precision` (the share of what was taken for it that it is), and
        `mistaken_for` with `times`: the class it was most often taken for.
        What has no value, such as the accuracy of a class without images, is
        None.

    Raises:
        ValueError: if there are not as many names as classes.
    """
    confusion = np.asarray(confusion)
    if confusion.shape != (len(class_names),) * 2:
        raise ValueError(
            f"`confusion` must have a row and a column for each of the "
            f"{len(class_names)} classes. Received: shape {confusion.shape}"
        )
    rows = []
    for index, name in enumerate(class_names):
        images, taken = confusion[index].sum(), confusion[:, index].sum()
        right = confusion[index, index]
        wrong = confusion[index].copy()
        wrong[index] = 0
        other = int(wrong.argmax())
        rows.append(
            {
                "class": name,
                "images": int(images),
                "right": int(right),
                "accuracy": float(right / images) if images else None,
                "precision": float(right / taken) if taken else None,
                "mistaken_for": class_names[other] if wrong[other] else None,
                "times": int(wrong[other]),
            }
        )
    return rows
