"""Strategies for training on several devices."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.distribution import layout, sharding
from keras_vit.utils import checks
from keras_vit.utils.types import Dataset

# Strategies of each backend.
NAMES = {
    "tensorflow": ("none", "mirrored", "tpu"),
    "jax": ("none", "data-parallel", "model-parallel"),
    "torch": ("none",),
}
NO_MULTIWORKER = (
    "TF_CONFIG names several workers, and `model.fit` of Keras 3 fails under "
    "TensorFlow's strategy for them "
    "(https://github.com/keras-team/keras/issues/20585). Use 'data-parallel' "
    "with KERAS_BACKEND=jax for several machines or processes, and 'mirrored' "
    "without TF_CONFIG for the devices of one machine."
)


def _one_process(number: int) -> list[int]:
    return [number]


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A way of training a model on the available devices; see `get_strategy`.

    With JAX, several processes may train one model. Each process reads its own rows of
    a batch, called its shard, and the first process writes the files.

    Attributes:
        name: String. A name that `get_strategy` takes, never "auto".
        reason: String. The reason why this strategy was chosen.
        num_devices: Integer. Number of devices, over all processes.
        num_replicas: Integer. Number of replicas of the model, each of which
            computes an equal part of a batch.
        process: `(index, count)`. Index of this process's shard of the data,
            and number of shards.
        scope: Function that returns a context manager. Build, compile, fit
            and evaluate the model inside.
        distribute: Function that converts this process's batches to the argument of
            `model.fit` and `model.evaluate`. It takes batches of
            `process_batch_size(batch_size)` images, in a `tf.data.Dataset` or a
            `keras.utils.PyDataset`. With TensorFlow, evaluation data must have a known
            length (set it by `tf.data.experimental.assert_cardinality`), otherwise
            Keras's mean of the loss includes an empty batch. Batches with weights that
            devices cannot split evenly are padded with images of weight 0, which count
            in Keras's mean of the loss: `pad=True` of `ImageDataset.test` gives weights
            that compensate for this.
        gather: Function of an integer that returns the list of the integers
            of all processes. Every process has to call it.
    """

    name: str
    reason: str
    num_devices: int = 1
    num_replicas: int = 1
    process: tuple = (0, 1)
    scope: Callable = dataclasses.field(default=contextlib.nullcontext, repr=False)
    distribute: Callable = dataclasses.field(
        default=lambda batches: batches, repr=False
    )
    gather: Callable = dataclasses.field(default=_one_process, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and logs."""
        return self.process[0] == 0

    def describe(self) -> str:
        """Returns a summary in one line."""
        index, count = self.process
        devices = f"{self.num_devices} device{'s'[: self.num_devices > 1]}"
        per_model = self.num_devices // self.num_replicas
        split = f", each model over {per_model}" if per_model > 1 else ""
        process = f", process {index + 1} of {count}" if count > 1 else ""
        return f"{self.name} on {devices}{split}{process}: {self.reason}"

    def process_batch_size(self, batch_size: int) -> int:
        """Returns the number of images in this process's shard of a batch.

        Args:
            batch_size: Integer. Images in a batch, of all processes together.

        Raises:
            ValueError: if the replicas cannot split the batch evenly.
        """
        if batch_size % self.num_replicas:
            nearest = max(1, round(batch_size / self.num_replicas))
            raise ValueError(
                f"A batch of {batch_size} images cannot be split evenly over "
                f"{self.num_replicas} devices ({self.name}). Choose a multiple "
                f"of {self.num_replicas}, such as "
                f"{nearest * self.num_replicas}."
            )
        return batch_size // self.process[1]


def get_strategy(
    name: str = "auto",
    *,
    devices: Sequence[str] | None = None,
    model_devices: int | None = None,
) -> Strategy:
    """Chooses a strategy for training on the available devices.

    Call it first: before a model is built, before TensorFlow runs an operation
    and before JAX looks for its devices.

    Args:
        name: String.
            "auto": the strategy that fits the backend and the machine.
            "none": one device.
            "mirrored" or "tpu" (TensorFlow): `tf.distribute.MirroredStrategy`
            or `TPUStrategy`.
            "data-parallel" (JAX): every device has a replica of the model and
            computes a part of the batch.
            "model-parallel" (JAX): devices also split the model; see
            `keras_vit.distribution`.
            With JAX, several processes train together if the environment has
            `KERAS_DISTRIBUTION_JOB_ADDRESSES`,
            `KERAS_DISTRIBUTION_NUM_PROCESSES` and
            `KERAS_DISTRIBUTION_PROCESS_ID`; see
            `keras.distribution.initialize`.
        devices: List of names of devices, for "mirrored", "data-parallel" and
            "model-parallel"; None for all GPUs or TPUs, or, if there are none, all
            CPUs.
        model_devices: Integer. Number of devices that split one replica under
            "model-parallel"; None for all.

    Returns:
        A `Strategy`.

    Raises:
        ValueError: if there is no such strategy, or it is not available on
            this backend or machine; the message says what to use instead.
        RuntimeError: if it is too late to connect several processes.

    Example:

    >>> chosen = keras_vit.distribution.get_strategy("auto")
    >>> print(chosen.describe())
    >>> with chosen.scope():
    ...     model = keras_vit.ViTS16(classes=10)
    ...     model.compile("sgd", "sparse_categorical_crossentropy")
    ...     model.fit(chosen.distribute(train))
    """
    backend = keras.backend.backend()
    if name not in ("auto", *NAMES[backend]):
        raise ValueError(
            f"There is no strategy {name!r} for the backend {backend}. It has: "
            f"auto, {', '.join(NAMES[backend])}. Other values of KERAS_BACKEND have: "
            + "; ".join(
                f"{k}: {', '.join(v)}" for k, v in NAMES.items() if k != backend
            )
        )
    fits = model_devices is None or name == "model-parallel"
    checks.require(fits, "model_devices", model_devices, f"None for {name!r}")
    reason = "as asked"
    if backend == "jax":
        _connect_jax_processes()
    if name == "auto":
        name, reason = {
            "torch": _auto_torch,
            "jax": _auto_jax,
            "tensorflow": _auto_tensorflow,
        }[backend](devices)
    if name == "none":
        return Strategy("none", reason)
    if backend == "jax":
        return _jax(name, reason, devices, model_devices)
    return _tensorflow(name, reason, devices)


def _auto_torch(devices: Sequence[str] | None) -> tuple[str, str]:
    return "none", (
        "Keras 3.15 trains on one device with PyTorch; several need "
        "KERAS_BACKEND=jax or tensorflow"
    )


def _auto_jax(devices: Sequence[str] | None) -> tuple[str, str]:
    import jax

    count = len(devices or jax.devices())
    kind = jax.devices()[0].platform.upper()
    if count > 1:
        return "data-parallel", f"there are {count} {kind}s"
    return "none", f"there is one {kind}"


def _connect_jax_processes() -> None:
    """Connects the processes that the environment names, if any."""
    import jax

    count = int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", 1))
    if count < 2 or jax.distributed.is_initialized():
        return
    # JAX defines the names of its options at run time.
    config: Any = jax.config
    if not config.jax_cpu_collectives_implementation:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        keras.distribution.initialize()
    except ValueError as error:  # JAX's names of options are not those of the user
        raise ValueError(
            f"The {count} processes of KERAS_DISTRIBUTION_NUM_PROCESSES cannot be "
            "connected: set KERAS_DISTRIBUTION_JOB_ADDRESSES to the address of the "
            "first, and KERAS_DISTRIBUTION_PROCESS_ID, except on Cloud TPU. JAX "
            f"reports: {error}"
        ) from error


def _jax(
    name: str,
    reason: str,
    devices: Sequence[str] | None,
    model_devices: int | None,
) -> Strategy:
    import jax

    devices = devices or keras.distribution.list_devices()
    count = len(devices)
    # Number of devices that split one replica of the model.
    per_model = 1
    # `auto_shard_dataset=False`: each process reads only its own shard.
    if name == "model-parallel":
        per_model = count if model_devices is None else model_devices
        mesh = keras.distribution.DeviceMesh(
            (count // per_model, per_model),
            ("batch", layout.MODEL),
            devices,
        )
        parallel = layout.ModelParallel(mesh, auto_shard_dataset=False)
    else:
        parallel = keras.distribution.DataParallel(
            devices=devices, auto_shard_dataset=False
        )
    replicas = count // per_model
    # Processes that split one replica read the same images.
    shards = min(jax.process_count(), replicas)
    return Strategy(
        name,
        reason,
        num_devices=count,
        num_replicas=replicas,
        process=(parallel.data_shard_id, shards),
        scope=parallel.scope,
        distribute=lambda batches: sharding.pad_batches(batches, replicas // shards),
        gather=_gather_jax if jax.process_count() > 1 else _one_process,
    )


def _gather_jax(number: int) -> list[int]:
    from jax.experimental import multihost_utils

    numbers = multihost_utils.process_allgather(np.int32(number))
    return numbers.tolist()


def _auto_tensorflow(devices: Sequence[str] | None) -> tuple[str, str]:
    """Returns the name of the strategy that fits the machine, and why."""
    import tensorflow as tf

    if _tpu_name() is not None:
        return "tpu", "there is a TPU"
    # A run in each process would overwrite the files of the others.
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    if sum(len(cluster.get(job, ())) for job in ("chief", "worker")) > 1:
        raise ValueError(NO_MULTIWORKER)
    count = len(devices or tf.config.list_physical_devices("GPU"))
    if count > 1:
        return "mirrored", f"there are {count} devices"
    return "none", "there is one GPU" if count else "there is no GPU"


def _tensorflow(name: str, reason: str, devices: Sequence[str] | None) -> Strategy:
    import tensorflow as tf

    if name == "tpu":
        distribution = _tpu_strategy(tf)
    else:
        # All GPUs, or else all CPUs.
        found = tf.config.list_logical_devices("GPU")
        found = found or tf.config.list_logical_devices("CPU")
        devices = devices or [device.name for device in found]
        distribution = tf.distribute.MirroredStrategy(devices)
    replicas = distribution.num_replicas_in_sync

    def distribute(batches: Any) -> Dataset:
        # `model.fit` splits each batch of a `tf.data.Dataset` over the
        # replicas. If they are on several machines (a TPU slice), each machine
        # reads all images and keeps its rows of a batch: with the other
        # policies it could read other files, and batches would differ from
        # those on one device.
        dataset = sharding.to_tf_dataset(sharding.pad_batches(batches, replicas))
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options)

    return Strategy(
        name,
        reason,
        num_devices=replicas,
        num_replicas=replicas,
        scope=distribution.scope,
        distribute=distribute,
    )


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
