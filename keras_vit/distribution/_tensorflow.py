"""The strategies of `tf.distribute`."""

import contextlib
import functools
import os

from keras_vit.distribution import sharding


def auto(devices):
    import tensorflow as tf

    if _tpu_name() is not None:
        return "tpu", "there is a TPU"
    if _tf_hosts() > 1:
        return "multiworker", "TF_CONFIG tells of several hosts"
    count = len(devices or tf.config.list_physical_devices("GPU"))
    if count > 1:
        return "mirrored", f"there are {count} devices"
    return "none", "there is one GPU" if count else "there is no GPU"


def settings(name, devices):
    """Returns `Strategy`'s attributes for one of `tf.distribute`'s."""
    import tensorflow as tf

    if name == "tpu":
        tf_own = _tpu_strategy(tf)
    elif name == "multiworker":
        if _tf_hosts() < 2:
            raise ValueError(
                "The strategy 'multiworker' needs the environment's TF_CONFIG "
                "to tell two or more workers and which of them this is; on one "
                f"host use 'mirrored'. Received: {os.environ.get('TF_CONFIG')}"
            )
        try:
            tf_own = tf.distribute.MultiWorkerMirroredStrategy()
        except RuntimeError as error:
            raise RuntimeError(
                "The hosts cannot be joined any more: TensorFlow has run "
                "operations already. Call "
                "`keras_vit.distribution.get_strategy` first."
            ) from error
    else:
        devices = devices or [
            device.name
            for kind in ("GPU", "CPU")
            for device in tf.config.list_logical_devices(kind)
            if kind == "GPU" or not tf.config.list_logical_devices("GPU")
        ]
        tf_own = tf.distribute.MirroredStrategy(devices)
    count = tf_own.num_replicas_in_sync
    host = (0, 1)
    if name == "multiworker":
        host = (_tf_host(tf_own.cluster_resolver), _tf_hosts())

    def distribute(batches):
        return sharding.per_replica(batches, tf_own, count // host[1])

    more = {"scope": tf_own.scope}
    if name == "multiworker":
        more = {
            "scope": functools.partial(_multiworker_scope, tf_own),
            "gather": functools.partial(_gather, tf_own),
        }
    return {
        "num_devices": count,
        "num_replicas": count,
        "host": host,
        "distribute": distribute,
        **more,
    }


def _gather(tf_own, number):
    import tensorflow as tf

    def own():
        context = tf.distribute.get_replica_context()
        return context.all_gather(tf.constant([number]), axis=0)

    (numbers, *_) = tf_own.experimental_local_results(tf_own.run(own))
    # One of each host's devices speaks for it.
    here = tf_own.num_replicas_in_sync // _tf_hosts()
    return numbers.numpy()[::here].tolist()


@contextlib.contextmanager
def _multiworker_scope(tf_own):
    """As `tf_own.scope`, where `model.fit` works.

    Keras 3.15 takes the mean of a step's logs over hosts along axis 0, which
    they, being scalars, do not have: with several hosts it cannot take a step.
    As on one host, each then takes its own devices' mean.
    """
    from keras.src.backend.tensorflow import trainer

    name = "_collective_all_reduce_multi_worker"
    keras_own = getattr(trainer, name, None)
    setattr(trainer, name, lambda strategy: False)
    try:
        with tf_own.scope():
            yield
    finally:
        setattr(trainer, name, keras_own)


def _tf_hosts():
    if "TF_CONFIG" not in os.environ:
        return 1
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))


def _tf_host(resolver):
    """This host's number; a chief, where there is one, comes first."""
    cluster = resolver.cluster_spec().as_dict()
    before = len(cluster.get("chief", ()))
    return resolver.task_id + before * (resolver.task_type == "worker")


def _tpu_name():
    """The address of a TPU for TensorFlow, or None."""
    for variable in ("TPU_NAME", "COLAB_TPU_ADDR"):
        if os.environ.get(variable):
            return os.environ[variable]
    # A virtual machine with the chips in it.
    return "local" if os.path.exists("/dev/accel0") else None


def _tpu_strategy(tf):
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
