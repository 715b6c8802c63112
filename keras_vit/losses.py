"""Losses of the published training code."""

from typing import Any

import keras
from keras import ops

from keras_vit.utils import checks
from keras_vit.utils.types import Config, Tensor

__all__ = ["DistillationLoss", "get_loss", "SigmoidCrossentropy"]

DISTILLATION_LOSSES = ("soft", "hard", "cosine", "smooth_l1", "mse")


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """Binary cross-entropy of logits, summed over classes.

    The paper uses it to pre-train on ImageNet-21k ("An Image is Worth 16x16
    Words", Appendix B.1, and the authors' code). The loss of an image is the sum over
    classes, and the loss of a batch is the mean over images.
    `keras.losses.BinaryCrossentropy` is the mean over classes, so that its gradients
    are smaller by a factor of the number of classes.

    Args:
        reduction: As for `keras.losses.Loss`.
        name: String.
        dtype: As for `keras.losses.Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "sigmoid_crossentropy",
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        if y_true.shape[-1] not in (None, y_pred.shape[-1]):
            raise ValueError(
                f"Labels must be of shape (batch, {y_pred.shape[-1]}), like "
                f"predictions. Received: {tuple(y_true.shape)}. Make class "
                "numbers one-hot: keras.ops.one_hot(labels, classes)."
            )
        # log(1 + exp(-|x|)) does not overflow.
        return ops.sum(
            ops.relu(y_pred) - y_pred * y_true + ops.log1p(ops.exp(-ops.abs(y_pred))),
            axis=-1,
        )


@keras.saving.register_keras_serializable("keras_vit")
class DistillationLoss(keras.losses.Loss):
    """Measures how a student's outputs differ from those of its teacher.

    For logits:

    - `kind="soft"`: `temperature ** 2 * KL(softmax(teacher / temperature),
      softmax(student / temperature))`, of "Distilling the Knowledge in a Neural
      Network" (https://arxiv.org/abs/1503.02531, Section 2) and Equation 2 of
      DeiT (https://arxiv.org/abs/2012.12877). `timm.task` uses the same loss; the code
      of DeiT also divides it by the number of classes.
    - "hard": the cross-entropy with the class that the teacher predicts,
      which is not smoothed; Equation 3 of DeiT.

    For features:

    - "cosine": 1 minus the cosine of the angle between the two vectors.
    - "smooth_l1": the mean of PyTorch's `smooth_l1_loss`, which is quadratic up
      to a difference of 1.
    - "mse": the mean squared error, as in `timm.task`.

    Args:
        kind: String, as above.
        temperature: Float above 0. It is used only by "soft".
        **kwargs: As for `keras.losses.Loss`.

    Call arguments:
        y_true: Outputs of the teacher, of shape `(batch, columns)`.
        y_pred: Outputs of the student, of the same shape.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        kind: str,
        temperature: float = 1.0,
        name: str = "distillation_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.kind = checks.one_of("kind", kind, DISTILLATION_LOSSES)
        self.temperature = checks.positive_float("temperature", temperature)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if self.kind == "soft":
            teacher = ops.log_softmax(y_true / self.temperature, axis=-1)
            student = ops.log_softmax(y_pred / self.temperature, axis=-1)
            terms = ops.exp(teacher) * (teacher - student)
            return ops.sum(terms, axis=-1) * self.temperature**2
        if self.kind == "hard":
            return keras.losses.sparse_categorical_crossentropy(
                ops.argmax(y_true, axis=-1), y_pred, from_logits=True
            )
        if self.kind == "cosine":
            return 1 + keras.losses.cosine_similarity(y_true, y_pred)
        if self.kind == "smooth_l1":
            return keras.losses.huber(y_true, y_pred, delta=1.0)
        return keras.losses.mean_squared_error(y_true, y_pred)

    def get_config(self) -> Config:
        own = {"kind": self.kind, "temperature": self.temperature}
        return {**super().get_config(), **own}


LOSSES = ("softmax", "sigmoid")


def get_loss(
    name: str, one_hot: bool, label_smoothing: float = 0.0
) -> keras.losses.Loss:
    """Returns a cross-entropy loss of logits.

    Args:
        name: String. "softmax" or "sigmoid".
        one_hot: Boolean. Whether labels are one-hot rather than integers.
            "sigmoid" requires one-hot labels.
        label_smoothing: Float in [0, 1). Fraction of the probability that is
            distributed evenly over all classes. It is used only by "softmax"
            with `one_hot`.

    Returns:
        A `keras.losses.Loss`.
    """
    if name == "sigmoid":
        return SigmoidCrossentropy()
    if one_hot:
        return keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=label_smoothing
        )
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
