"""Mean intersection over union, as a Keras metric."""

import numbers

import keras
from keras import ops

from keras_vit import _checks


@keras.saving.register_keras_serializable("keras_vit")
class MeanIoU(keras.metrics.Metric):
    """Computes the mean intersection over union of logits or probabilities.

    It is the mean over the classes that are in a mask or in a prediction, from
    one confusion matrix of all pixels, as `evaluation.mean_iou` computes it.
    `keras.metrics.MeanIoU(sparse_y_pred=False)` has the same value. On PyTorch,
    it adds the pixels one by one in Python, which takes longer than a training
    step (Keras 3.15).

    Args:
        classes: Integer. Number of classes.
        ignore: Integer. Value of the pixels of masks that have no class, or
            None.
        name: String. Name of the metric.
        dtype: Dtype of the confusion matrix.

    Call arguments:
        y_true: Integers of shape `(...)`.
        y_pred: Floats of shape `(..., classes)`.

    Example:

    >>> metric = keras_vit.segmentation.MeanIoU(2)
    >>> metric.update_state([0, 1], [[0.9, 0.1], [0.6, 0.4]])
    >>> float(metric.result())
    0.25
    """

    def __init__(self, classes, ignore=None, name="mean_iou", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.classes = _checks.positive_int("classes", classes)
        if ignore is not None and not isinstance(ignore, numbers.Integral):
            raise ValueError(
                "`ignore` must be an integer or None. Received: "
                f"ignore={ignore!r}"
            )
        self.ignore = ignore
        self.confusion = self.add_weight(
            shape=(self.classes, self.classes),
            initializer="zeros",
            name="confusion",
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        if sample_weight is not None:
            raise ValueError(
                "`MeanIoU` takes no sample weights: give pixels without a "
                "class the value `ignore`. Received: `sample_weight`"
            )
        y_true = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        y_pred = ops.reshape(y_pred, (-1, self.classes))
        y_pred = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        counted = ops.logical_and(y_true >= 0, y_true < self.classes)
        if self.ignore is not None:
            counted = ops.logical_and(counted, y_true != self.ignore)
        index = ops.where(counted, y_true * self.classes + y_pred, 0)
        # Integers: float32 cannot count the pixels of a batch above 2**24.
        count = ops.segment_sum(
            ops.cast(counted, "int32"), index, self.classes**2
        )
        count = ops.reshape(count, (self.classes, self.classes))
        self.confusion.assign_add(ops.cast(count, self.dtype))

    def result(self):
        confusion = ops.convert_to_tensor(self.confusion)
        both = ops.diagonal(confusion)
        either = ops.sum(confusion, 0) + ops.sum(confusion, 1) - both
        found = ops.cast(either > 0, self.dtype)
        ious = both / ops.maximum(either, 1)
        return ops.sum(ious) / ops.maximum(ops.sum(found), 1)

    def get_config(self):
        return {
            **super().get_config(),
            "classes": self.classes,
            "ignore": self.ignore,
        }
