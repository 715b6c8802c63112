"""How devices and hosts share a batch, or a model."""

import contextlib
import dataclasses
import os
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.distribution import _tensorflow
from keras_vit.distribution import layout
from keras_vit.distribution import sharding

# What each backend has, and what stands in for the others' there.
NAMES = {
    "tensorflow": ("none", "mirrored", "multiworker", "tpu"),
    "jax": ("none", "data-parallel", "model-parallel"),
    "torch": ("none",),
}
INSTEAD = {
    ("tensorflow", "data-parallel"): "use 'mirrored', 'multiworker' or 'tpu'",
    ("tensorflow", "model-parallel"): "it needs KERAS_BACKEND=jax",
    ("jax", "mirrored"): "use 'data-parallel'",
    ("jax", "multiworker"): "use 'data-parallel', which spans hosts too",
    ("jax", "tpu"): "use 'data-parallel', which finds the TPU",
}
TORCH = (
    "Keras 3.15 trains on one device with PyTorch: use 'none', or "
    "KERAS_BACKEND=jax or tensorflow for several"
)


def _same(batches):
    return batches


def _alone(number):
    return [number]


@dataclasses.dataclass(frozen=True)
class Strategy:
    """What `get_strategy` chose.

    Attributes:
        name: String. One of `get_strategy`'s names, never "auto".
        reason: String. Why.
        num_devices: Integer. Devices of all hosts together.
        num_replicas: Integer. Into how many parts a batch is split.
        host: `(index, count)`. This host's share of the data, and of how
            many.
        scope: Function that returns a context manager. Build, compile, fit
            and evaluate the model inside.
        distribute: Function of batches, of this host's images alone, that
            returns what `model.fit` and `model.evaluate` take for them. Give
            `host_batch_size(batch_size)` images a batch.
        gather: Function of an integer that returns the list of all hosts'. It
            waits for them: every host has to call it.
    """

    name: str
    reason: str
    num_devices: int = 1
    num_replicas: int = 1
    host: tuple = (0, 1)
    scope: Callable = dataclasses.field(
        default=contextlib.nullcontext, repr=False
    )
    distribute: Callable = dataclasses.field(default=_same, repr=False)
    gather: Callable = dataclasses.field(default=_alone, repr=False)

    @property
    def first(self):
        """Whether this host writes files and says what happens."""
        return self.host[0] == 0

    def describe(self):
        """Returns a line for people."""
        index, count = self.host
        devices = f"{self.num_devices} device{'s'[: self.num_devices > 1]}"
        parts = self.num_devices // self.num_replicas
        split = f", each model over {parts}" if parts > 1 else ""
        hosts = f", host {index + 1} of {count}" if count > 1 else ""
        return f"{self.name} on {devices}{split}{hosts}: {self.reason}"

    def host_batch_size(self, batch_size):
        """Returns how many images of a batch this host gives.

        Raises:
            ValueError: if the batch cannot be split evenly.
        """
        if batch_size % self.num_replicas:
            nearest = max(1, round(batch_size / self.num_replicas))
            raise ValueError(
                f"A batch of {batch_size} images cannot be split evenly over "
                f"{self.num_replicas} devices ({self.name}). Choose a multiple "
                f"of {self.num_replicas}, such as "
                f"{nearest * self.num_replicas}."
            )
        return batch_size // self.host[1]


def get_strategy(name="auto", *, devices=None, model_devices=None):
    """Chooses how to train on what there is.

    To be called first of all: before a model is built, before TensorFlow runs
    an operation and before JAX looks for its devices.

    Args:
        name: String.
            "auto": what fits the backend and the machine.
            "none": one device.
            "mirrored", "multiworker" or "tpu" (TensorFlow): as
            `tf.distribute`'s `MirroredStrategy`, `MultiWorkerMirroredStrategy`
            (the environment's `TF_CONFIG` tells the hosts) and `TPUStrategy`.
            "data-parallel" (JAX): every device has the model and a part of
            the batch. "model-parallel" (JAX): devices share the model too; see
            `keras_vit.distribution`. With `KERAS_DISTRIBUTION_JOB_ADDRESSES`,
            `_NUM_PROCESSES` and `_PROCESS_ID` in the environment, over several
            hosts (`keras.distribution.initialize`).
        devices: List of the devices' names, for "mirrored" and the two of
            JAX; None for all, and CPUs only where there is nothing else.
        model_devices: Integer. How many devices share one model under
            "model-parallel"; None for all.

    Returns:
        A `Strategy`.

    Raises:
        ValueError: if there is no such strategy, or not on this backend; the
            message says what to use.
        RuntimeError: if it is too late to set it up.

    Example:

    >>> chosen = keras_vit.distribution.get_strategy("auto")
    >>> print(chosen.describe())
    >>> with chosen.scope():
    ...     model = keras_vit.ViTS16(classes=10)
    ...     model.compile("sgd", "sparse_categorical_crossentropy")
    ...     model.fit(chosen.distribute(train))
    """
    backend = keras.backend.backend()
    _check(name, backend, model_devices)
    reason = "as asked"
    if backend == "torch":
        return Strategy("none", TORCH if name == "auto" else reason)
    if backend == "jax":
        _join_jax_hosts()
    if name == "auto":
        name, reason = (_auto_jax if backend == "jax" else _tensorflow.auto)(
            devices
        )
    if name == "none":
        return Strategy("none", reason)
    if name in ("data-parallel", "model-parallel"):
        return _jax(name, reason, devices, model_devices)
    return Strategy(name, reason, **_tensorflow.settings(name, devices))


def _check(name, backend, model_devices):
    known = dict.fromkeys(["auto", *sum(NAMES.values(), ())])
    if name not in known:
        raise ValueError(
            f"There is no strategy {name!r}. There are: {', '.join(known)}."
        )
    if name != "auto" and name not in NAMES[backend]:
        other = next(b for b, names in NAMES.items() if name in names)
        instead = INSTEAD.get((backend, name), TORCH)
        raise ValueError(
            f"The strategy {name!r} is for the {other} backend, and this is "
            f"{backend}: {instead}."
        )
    if model_devices is not None and name != "model-parallel":
        raise ValueError(
            "`model_devices` is for the strategy 'model-parallel'. Received: "
            f"name={name!r}, model_devices={model_devices}"
        )


def _auto_jax(devices):
    import jax

    count = len(devices or jax.devices())
    kind = jax.devices()[0].platform.upper()
    if count > 1:
        return "data-parallel", f"there are {count} {kind}s"
    return "none", f"there is one {kind}"


def _join_jax_hosts():
    """Makes the hosts' processes one JAX, where the environment names them."""
    import jax

    asked = int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", 1)) > 1
    if not asked or jax.distributed.is_initialized():
        return
    if not jax.config.jax_cpu_collectives_implementation:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        keras.distribution.initialize()
    except RuntimeError as error:
        raise RuntimeError(
            "The hosts cannot be joined any more: JAX has looked for its "
            "devices already. Call `keras_vit.distribution.strategy` before "
            "anything is computed."
        ) from error


def _jax(name, reason, devices, model_devices):
    import jax

    devices = devices or keras.distribution.list_devices()
    count = len(devices)
    share = 1
    if name == "model-parallel":
        share = count if model_devices is None else model_devices
        if share < 1 or count % share:
            raise ValueError(
                "`model_devices` must divide the number of devices. Received: "
                f"model_devices={model_devices} with {count} devices"
            )
        mesh = keras.distribution.DeviceMesh(
            (count // share, share), ("batch", layout.MODEL), devices
        )
        keras_own = layout.ModelParallel(mesh, auto_shard_dataset=False)
    else:
        # Each host reads its own share.
        keras_own = keras.distribution.DataParallel(
            devices=devices, auto_shard_dataset=False
        )
    replicas = count // share
    # Hosts that share a replica read the same images.
    hosts = min(jax.process_count(), replicas)
    here = replicas // hosts
    return Strategy(
        name,
        reason,
        num_devices=count,
        num_replicas=replicas,
        host=(keras_own.data_shard_id, hosts),
        scope=keras_own.scope,
        distribute=lambda batches: sharding.divisible(batches, here),
        gather=_gather_jax if jax.process_count() > 1 else _alone,
    )


def _gather_jax(number):
    from jax.experimental import multihost_utils

    numbers = multihost_utils.process_allgather(np.int32(number))
    return numbers.tolist()
