"""Losses of the published training code."""

from typing import Any

import keras
from keras import ops

from keras_vit import _checks
from keras_vit._types import Config
from keras_vit._types import Tensor

FEATURE_LOSSES = ("cosine", "smooth_l1", "mse")


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """Binary cross-entropy of logits, summed over classes.

    The paper uses it to pre-train on ImageNet-21k ("An Image is Worth 16x16
    Words", Appendix B.1, and the authors' code). The loss of an image is the
    sum over classes, and that of a batch the mean over images.
    `keras.losses.BinaryCrossentropy` is the mean over classes, so that its
    gradients are smaller by a factor of the number of classes.

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
            ops.relu(y_pred)
            - y_pred * y_true
            + ops.log1p(ops.exp(-ops.abs(y_pred))),
            axis=-1,
        )


@keras.saving.register_keras_serializable("keras_vit")
class SoftDistillation(keras.losses.Loss):
    """Divergence of a student's probabilities from those of a teacher.

    `temperature ** 2 * KL(softmax(teacher / temperature), softmax(student /
    temperature))`, summed over classes: "Distilling the Knowledge in a Neural
    Network" (https://arxiv.org/abs/1503.02531, Section 2), and Equation 2 of
    DeiT (https://arxiv.org/abs/2012.12877). It equals that of timm
    (`LogitDistillationTask`). The code of DeiT divides it by the number of
    classes too.

    Call arguments:
        y_true: Logits of the teacher, of shape `(batch, classes)`.
        y_pred: Logits of the student, of the same shape.

    Args:
        temperature: Float above 0. A higher one gives classes of low
            probability more weight.
        **kwargs: As for `keras.losses.Loss`.

    Raises:
        ValueError: if `temperature` is not above 0.

    Example:

    >>> loss = keras_vit.losses.SoftDistillation(temperature=3.0)
    >>> loss(teacher.predict(images), student.predict(images))
    """

    def __init__(
        self,
        temperature: float = 1.0,
        name: str = "soft_distillation",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.temperature = _checks.positive_float("temperature", temperature)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        teacher = ops.log_softmax(y_true / self.temperature, axis=-1)
        student = ops.log_softmax(y_pred / self.temperature, axis=-1)
        divergence = ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)
        return divergence * self.temperature**2

    def get_config(self) -> Config:
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable("keras_vit")
class HardDistillation(keras.losses.Loss):
    """Cross-entropy of a student with the class that its teacher predicts.

    Equation 3 of "Training data-efficient image transformers & distillation
    through attention" (DeiT, https://arxiv.org/abs/2012.12877). As there, the
    teacher's labels are not smoothed.

    Call arguments:
        y_true: Logits of the teacher, of shape `(batch, classes)`.
        y_pred: Logits of the student, of the same shape.

    Args:
        **kwargs: As for `keras.losses.Loss`.
    """

    def __init__(self, name: str = "hard_distillation", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return keras.losses.sparse_categorical_crossentropy(
            ops.argmax(y_true, axis=-1), y_pred, from_logits=True
        )


@keras.saving.register_keras_serializable("keras_vit")
class FeatureDistillation(keras.losses.Loss):
    """Difference of a student's features from those of a teacher.

    The loss of an image is computed from one vector each, and does not depend
    on the number of columns.

    Call arguments:
        y_true: Features of the teacher, of shape `(batch, columns)`.
        y_pred: Features of the student, of the same shape.

    Args:
        kind: "cosine" for 1 minus the cosine of the vectors' angle;
            "smooth_l1" for the mean of PyTorch's `smooth_l1_loss`, which is
            quadratic up to a difference of 1; or "mse" for the mean squared
            error, that of timm (`FeatureDistillationTask`).
        **kwargs: As for `keras.losses.Loss`.

    Raises:
        ValueError: if `kind` is unknown.
    """

    def __init__(
        self,
        kind: str = "cosine",
        name: str = "feature_distillation",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.kind = _checks.one_of("kind", kind, FEATURE_LOSSES)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if self.kind == "cosine":
            return 1 + keras.losses.cosine_similarity(y_true, y_pred)
        if self.kind == "smooth_l1":
            return keras.losses.huber(y_true, y_pred, delta=1.0)
        return keras.losses.mean_squared_error(y_true, y_pred)

    def get_config(self) -> Config:
        return {**super().get_config(), "kind": self.kind}


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
