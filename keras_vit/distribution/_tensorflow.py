"""The strategies of `tf.distribute`."""

import json
import os
from collections.abc import Sequence
from typing import Any

from keras_vit._types import Dataset
from keras_vit.distribution import sharding

NO_MULTIWORKER = (
    "The strategy 'multiworker' is not available: `model.fit` of Keras 3 fails "
    "under TensorFlow's MultiWorkerMirroredStrategy, which trains in several "
    "processes (https://github.com/keras-team/keras/issues/20585). For several "
    "machines or processes, use 'data-parallel' with KERAS_BACKEND=jax. For "
    "the devices of one machine, use 'mirrored'."
)


def auto(devices: Sequence[str] | None) -> tuple[str, str]:
    """Returns the name of the strategy that fits the machine, and why."""
    import tensorflow as tf

    if _tpu_name() is not None:
        return "tpu", "there is a TPU"
    if _num_workers() > 1:
        return "multiworker", "TF_CONFIG names several workers"
    count = len(devices or tf.config.list_physical_devices("GPU"))
    if count > 1:
        return "mirrored", f"there are {count} devices"
    return "none", "there is one GPU" if count else "there is no GPU"


def settings(name: str, devices: Sequence[str] | None) -> dict[str, Any]:
    """Returns attributes of a `Strategy` named "mirrored" or "tpu", as a dict;
    raises a `ValueError` if it is not available, as "multiworker" never is."""
    import tensorflow as tf

    if name == "multiworker":
        config = os.environ.get("TF_CONFIG")
        received = f" Received: TF_CONFIG={config}" if config else ""
        raise ValueError(NO_MULTIWORKER + received)
    if name == "tpu":
        distribution = _tpu_strategy(tf)
    else:
        distribution = tf.distribute.MirroredStrategy(devices or _devices(tf))
    replicas = distribution.num_replicas_in_sync

    def distribute(batches: Any) -> Dataset:
        # `model.fit` splits each batch of a `tf.data.Dataset` over the
        # replicas. If they are on several machines (a TPU slice), each machine
        # reads all images and keeps its rows of a batch: with the other
        # policies it could read other files, and batches would differ from
        # those on one device.
        dataset = sharding.to_tf_dataset(
            sharding.pad_batches(batches, replicas)
        )
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options)

    return {
        "num_devices": replicas,
        "num_replicas": replicas,
        "scope": distribution.scope,
        "distribute": distribute,
    }


def _devices(tf: Any) -> list[str]:
    """Returns the names of all GPUs, or else of all CPUs."""
    gpus = tf.config.list_logical_devices("GPU")
    devices = gpus or tf.config.list_logical_devices("CPU")
    return [device.name for device in devices]


def _num_workers() -> int:
    """Returns how many workers TF_CONFIG names."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster = config.get("cluster", {})
    return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))


def _tpu_name() -> str | None:
    """Returns the address of a TPU for TensorFlow, or None."""
    for variable in ("TPU_NAME", "COLAB_TPU_ADDR"):
        if os.environ.get(variable):
            return os.environ[variable]
    # A virtual machine whose devices are TPU chips.
    return "local" if os.path.exists("/dev/accel0") else None


def _tpu_strategy(tf: Any) -> Any:
    address = _tpu_name()
    if address is None:
        raise ValueError(
            "The strategy 'tpu' finds no TPU: there is neither TPU_NAME in "
            "the environment nor /dev/accel0. Use 'mirrored' for GPUs."
        )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(address)
    if address != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
