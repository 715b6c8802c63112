"""The replicas of a TensorFlow strategy, each of which has a part of a batch.

With JAX, a batch that is split over devices is one array, and there is one
replica.
"""

from typing import Any

import keras
from keras import ops

# The difference of the seeds of successive replicas, so large that seeds which
# users choose do not meet.
_SEED_STEP = 715_827_881


def context() -> Any:
    """Returns TensorFlow's context of this replica, or None if it is alone."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    found = tf.distribute.get_replica_context()
    if found is None or found.num_replicas_in_sync == 1:
        return None
    return found


def count_of_strategy() -> int:
    """Returns the number of replicas of the strategy in whose scope this is."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def count() -> int:
    """Returns the number of replicas that share the current step."""
    found = context()
    return 1 if found is None else found.num_replicas_in_sync


def is_replicated() -> bool:
    """Returns whether this is a replica of a TensorFlow strategy, also the only one."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    alone = isinstance(tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy)
    return tf.distribute.has_strategy() and not alone


def gather(x: Any) -> tuple[Any, Any]:
    """Returns the rows of all TensorFlow replicas, each with as many, and the
    index of the first of this one."""
    found = context()
    if found is None:
        return x, 0
    index = found.replica_id_in_sync_group
    return found.all_gather(x, axis=0), index * ops.shape(x)[0]


def sum_of_all(x: Any) -> Any:
    """Returns the sum of a tensor, or of each of a list, over the replicas."""
    found = context()
    if found is None:
        return x
    import tensorflow as tf

    return found.all_reduce(tf.distribute.ReduceOp.SUM, x)


class SeedGenerator(keras.random.SeedGenerator):
    """A `SeedGenerator` of other numbers in each replica of a strategy.

    Keras gives all replicas the same state, with which they would draw equal
    numbers for different images. Those of the first one are of one device.
    """

    def next(self, ordered: bool = True) -> Any:
        seed, found = super().next(ordered), context()
        if found is None:
            return seed
        replica = ops.cast(found.replica_id_in_sync_group, seed.dtype)
        return seed + replica * ops.convert_to_tensor([_SEED_STEP, 0], seed.dtype)
