"""Keras's batch norm, for several devices of TensorFlow and half precision."""

from typing import Any

import keras

from keras_vit.utils import replicas


@keras.saving.register_keras_serializable("keras_vit")
class BatchNormalization(keras.layers.BatchNormalization):
    """Keras's batch norm, with the statistics of the batch of all replicas.

    The moving statistics are float32 also with the dtype policies "bfloat16"
    and "float16", in which small changes would be rounded to none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # One replica needs no synchronization, with which the variance is less
        # exact.
        kwargs["synchronized"] = replicas.count_of_strategy() > 1
        super().__init__(*args, **kwargs)
        self.dtype_policy = float32_variables(self.dtype_policy)


def float32_variables(policy: keras.DTypePolicy) -> keras.DTypePolicy:
    """Returns the mixed policy of "bfloat16" or "float16", or else `policy`."""
    if policy.name in ("bfloat16", "float16"):
        return keras.DTypePolicy(f"mixed_{policy.name}")
    return policy
