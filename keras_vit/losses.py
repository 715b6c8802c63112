"""Losses of the published training code."""

import keras


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """Every class a yes-or-no question; summed over them, not averaged.

    Of logits, with which the paper pre-trains on ImageNet-21k ("An Image is
    Worth 16x16 Words", Appendix B.1, and the authors' code): the loss of an
    image is the sum over classes, and that of a batch the mean over images.
    Keras's `BinaryCrossentropy` takes the mean over classes, which makes
    gradients as many times smaller as there are classes.
    """

    def __init__(
        self,
        reduction="sum_over_batch_size",
        name="sigmoid_crossentropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true, y_pred):
        ops = keras.ops
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        # log(1 + exp(-|x|)) does not overflow.
        return ops.sum(
            ops.relu(y_pred)
            - y_pred * y_true
            + ops.log1p(ops.exp(-ops.abs(y_pred))),
            axis=-1,
        )


LOSSES = ("softmax", "sigmoid")


def get_loss(name, one_hot, label_smoothing=0.0):
    """Returns the loss of logits.

    Args:
        name: One of `LOSSES`.
        one_hot: Boolean. Whether labels are rows of floats; integers are for
            "softmax" alone.
        label_smoothing: Float in [0, 1). Part of the probability that is
            spread evenly over all classes; for "softmax" with `one_hot`.
    """
    if name == "sigmoid":
        return SigmoidCrossentropy()
    if one_hot:
        return keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=label_smoothing
        )
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
