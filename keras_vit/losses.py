"""Losses of the published training code."""

import keras

from keras_vit._types import Tensor


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
        ops = keras.ops
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
