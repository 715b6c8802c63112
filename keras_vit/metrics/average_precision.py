"""Mean average precision, as a Keras metric."""

import keras
from keras import ops

from keras_vit.utils.types import Config, Tensor

# Larger logits share a bin: their probabilities are within 1.2e-7, which is the
# precision of float32, of 1.
_LARGEST_LOGIT = 16.0


@keras.saving.register_keras_serializable("keras_vit")
class MeanAveragePrecision(keras.metrics.Metric):
    """Mean over classes of the average precision of multi-label classifiers.

    The average precision of a class is the sum over all thresholds of the precision
    times the increase of the recall, without interpolation, as in scikit-learn's
    `average_precision_score`. Classes without positives are ignored; scikit-learn's
    `average="macro"` counts them as 0.

    The metric counts positives and images by class and by score, and needs
    memory for 2 x `classes` x `bins` floats whatever the number of images. Its
    value is that of scikit-learn for logits that are clipped to [-16, 16] and
    rounded down to multiples of 32 / `bins`. Without the rounding, the value
    is higher by 0.0005 for 4096 bins, normally distributed logits and 80
    classes with 0.5% to 20% of 5,000 images each;
    `keras_vit.evaluation.mean_average_precision` computes it.

    Labels between 0 and 1, such as those of mixup, count partly as a positive and
    partly as a negative.

    Args:
        classes: Integer. Number of classes.
        bins: Integer. Number of bins into which scores are sorted.
        from_logits: Boolean. Whether predictions are logits, and not
            probabilities.
        name: String.
        dtype: As for `keras.metrics.Metric`.

    Example:

    ```python
    model.compile(
        optimizer,
        keras_vit.losses.SigmoidCrossentropy(),
        weighted_metrics=[
            keras_vit.metrics.MeanAveragePrecision(20, from_logits=True)
        ],
    )
    ```
    """

    def __init__(
        self,
        classes: int,
        bins: int = 4096,
        from_logits: bool = False,
        name: str = "mean_average_precision",
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.classes, self.bins, self.from_logits = classes, bins, from_logits
        self._positives, self._images = (
            self.add_variable((classes, bins), "zeros", "float32", name=name)
            for name in ("positives", "images")
        )

    def update_state(
        self,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor | None = None,
    ) -> None:
        """Counts a batch.

        Args:
            y_true: Tensor of shape `(batch, classes)` with values in [0, 1].
            y_pred: Tensor of the same shape.
            sample_weight: Tensor of shape `(batch,)`. Images with a weight of 0 are
                ignored.
        """
        y_pred = ops.cast(ops.convert_to_tensor(y_pred), "float32")
        y_true = ops.cast(ops.convert_to_tensor(y_true), "float32")
        if not self.from_logits:
            y_pred = ops.log(y_pred) - ops.log1p(-y_pred)
        weights = ops.ones_like(y_pred)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            weights = weights * ops.reshape(sample_weight, (-1, 1))
        # NaN becomes 0, as no backend may index with it.
        logits = ops.nan_to_num(y_pred, posinf=_LARGEST_LOGIT, neginf=-_LARGEST_LOGIT)
        bins = ops.floor((logits + _LARGEST_LOGIT) * (self.bins / (2 * _LARGEST_LOGIT)))
        bins = ops.cast(ops.clip(bins, 0, self.bins - 1), "int32")
        cells = bins + self.bins * ops.arange(self.classes, dtype="int32")
        for counts, values in (
            (self._positives, weights * y_true),
            (self._images, weights),
        ):
            added = ops.segment_sum(
                ops.reshape(values, (-1,)),
                ops.reshape(cells, (-1,)),
                num_segments=self.classes * self.bins,
            )
            counts.assign_add(ops.reshape(added, counts.shape))

    def result(self) -> Tensor:
        """Returns the mean average precision, 0 if there are no positives."""
        # Thresholds from the highest to the lowest.
        found = ops.flip(ops.convert_to_tensor(self._positives), axis=1)
        images = ops.flip(ops.convert_to_tensor(self._images), axis=1)
        images = ops.cumsum(images, axis=1)
        precision = ops.divide_no_nan(ops.cumsum(found, axis=1), images)
        positives = ops.sum(found, axis=1)
        average = ops.divide_no_nan(ops.sum(found * precision, axis=1), positives)
        classes = ops.sum(ops.cast(positives > 0, "float32"))
        return ops.divide_no_nan(ops.sum(average), classes)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "classes": self.classes,
            "bins": self.bins,
            "from_logits": self.from_logits,
        }


def get_metric(multi_label: bool, classes: int) -> str | MeanAveragePrecision:
    """Returns the metric of a classifier whose outputs are logits."""
    if multi_label:
        return MeanAveragePrecision(classes, from_logits=True)
    return "accuracy"
