"""Mean intersection over union, as a Keras metric."""

import keras
from keras import ops

from keras_vit.utils import checks
from keras_vit.utils.types import Array, Config, Tensor

# float32 holds the integers up to it, and float32 is the one dtype that all
# backends have on all devices. Counts are sums of a multiple of it and a rest.
_LARGEST_REST = 2**24
# `segment_sum` of PyTorch counts in float32: neighboring pixels are counted
# apart, up to 2**28 of a batch.
_PARTS = 16


@keras.saving.register_keras_serializable("keras_vit")
class MeanIoU(keras.metrics.Metric):
    """Computes the mean intersection over union of logits or probabilities.

    It is the mean over the classes that are in a mask or in a prediction, from one
    confusion matrix of all pixels, as in `evaluation.mean_iou`.
    `keras.metrics.MeanIoU(sparse_y_pred=False)` has the same value, but on PyTorch, it
    adds the pixels one by one in Python, which takes longer than a training step (Keras
    3.15).

    It is NaN if a pixel of a mask has a value of `classes` or more that is not
    `ignore`. Pixels with negative values are ignored.

    Args:
        classes: Integer. Number of classes.
        ignore: Integer. Value of mask pixels that have no class, or None.
        name: String. Name of the metric.
        dtype: As for `keras.metrics.Metric`. Pixels are counted exactly, whatever the
            dtype.

    Call arguments:
        y_true: Integers of shape `(...)`.
        y_pred: Floats of shape `(..., classes)`.

    Example:

    >>> metric = keras_vit.metrics.MeanIoU(2)
    >>> metric.update_state([0, 1], [[0.9, 0.1], [0.6, 0.4]])
    >>> float(metric.result())
    0.25
    """

    def __init__(
        self,
        classes: int,
        ignore: int | None = None,
        name: str = "mean_iou",
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.classes = checks.positive_int("classes", classes)
        self.ignore = ignore
        self._multiples, self._rests = (
            self.add_variable((self.classes,) * 2, "zeros", "float32", name=x)
            for x in ("multiples", "rests")
        )

    @property
    def confusion(self) -> Array:
        """The number of pixels by true and predicted class, in float64."""
        multiples, rests = (
            ops.convert_to_numpy(x).astype("float64")
            for x in (self._multiples, self._rests)
        )
        return multiples * _LARGEST_REST + rests

    def update_state(
        self,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor | None = None,
    ) -> None:
        if sample_weight is not None:
            raise ValueError(
                "`MeanIoU` takes no sample weights: give pixels without a "
                "class the value `ignore`. Received: `sample_weight`"
            )
        y_true = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        y_pred = ops.reshape(y_pred, (-1, self.classes))
        y_pred = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        counted = y_true >= 0
        if self.ignore is not None:
            counted = ops.logical_and(counted, y_true != self.ignore)
        wrong = ops.logical_and(counted, y_true >= self.classes)
        counted = ops.logical_and(counted, y_true < self.classes)
        index = ops.where(counted, y_true * self.classes + y_pred, 0)
        part = ops.arange(ops.shape(index)[0], dtype="int32") % _PARTS
        count = ops.segment_sum(
            ops.cast(counted, "int32"),
            index * _PARTS + part,
            self.classes**2 * _PARTS,
        )
        rests = ops.convert_to_tensor(self._rests)
        count = ops.sum(ops.reshape(count, (*rests.shape, _PARTS)), axis=-1)
        total = ops.cast(rests, "int32") + ops.cast(count, "int32")
        multiples = total // _LARGEST_REST
        total = ops.cast(total - multiples * _LARGEST_REST, "float32")
        self._multiples.assign_add(ops.cast(multiples, "float32"))
        self._rests.assign_add(ops.where(ops.any(wrong), float("nan"), total - rests))

    def result(self) -> Tensor:
        confusion = ops.convert_to_tensor(self._multiples) * _LARGEST_REST
        confusion = confusion + ops.convert_to_tensor(self._rests)
        both = ops.diagonal(confusion)
        either = ops.sum(confusion, 0) + ops.sum(confusion, 1) - both
        found = ops.cast(either > 0, "float32")
        ious = both / ops.maximum(either, 1)
        return ops.sum(ious) / ops.maximum(ops.sum(found), 1)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "classes": self.classes,
            "ignore": self.ignore,
        }
