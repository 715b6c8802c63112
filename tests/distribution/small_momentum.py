r"""A program for the tests: trains DINO and MoCo v3 on one and on two devices.

    KERAS_BACKEND=tensorflow python -m tests.distribution.small_momentum

It prints a line of JSON for each method, with the differences between one
device and two. `loss` and `center` are the largest differences of the losses of
all steps and of DINO's center. `weights` is the largest difference of a weight,
divided by the largest change of any weight by training: some gradients, such as
those of biases before a batch norm, are sums that cancel, so that their
rounding errors are relative to the terms. JAX's devices are made by
XLA_FLAGS=--xla_force_host_platform_device_count=2.
"""

import json

import keras
import numpy as np

import keras_vit
from keras_vit import pretraining

STEPS, BATCH = 2, 8
# Gradients of a head's first layers are large at first, and a large step
# multiplies the differences of the losses after it.
RATE = 1e-3


def dataset():
    """The batches as TensorFlow's strategies and JAX take them."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    crops = rng.normal(size=(STEPS, BATCH, 2, 8, 8, 3)).astype("float32")
    crops = crops.reshape(-1, *crops.shape[2:])
    labels = np.zeros(len(crops), "int32")
    data = tf.data.Dataset.from_tensor_slices(({"global": crops}, labels))
    return data.batch(BATCH, drop_remainder=True)


def train(make, strategy):
    """Returns the weights before training, the losses, and the weights after
    training."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        encoder = keras_vit.VisionTransformer(
            input_shape=(8, 8, 3),
            patch_size=4,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            include_top=False,
        )
        model = make(encoder)
        model.compile(keras.optimizers.SGD(RATE), jit_compile=False)
        before = arrays(model)
        history = model.fit(
            strategy.distribute(dataset()),
            steps_per_epoch=1,
            epochs=STEPS,
            verbose=0,
            shuffle=False,
        ).history
        return before, history["loss"], arrays(model)


def arrays(model):
    """Returns the weights by path, except for counters."""
    # The paths begin with the name of the model, which is numbered.
    return {
        f"{i} {variable.path.partition('/')[2]}": np.array(
            keras.ops.convert_to_numpy(variable)
        )
        for i, variable in enumerate(model.weights)
        if "int" not in str(variable.dtype)
    }


def compare(one, two):
    """Returns the differences of two runs."""
    (before, losses, after), (_, other_losses, other) = one, two
    changes = {k: np.abs(after[k] - before[k]).max() for k in after}
    errors = {k: np.abs(other[k] - after[k]).max() for k in after}
    return {
        "loss": float(np.abs(np.subtract(losses, other_losses)).max()),
        "center": float(
            max((errors[k] for k in errors if k.endswith("center")), default=0)
        ),
        "weights": float(max(errors.values()) / max(changes.values())),
    }


def main():
    from keras_vit.distribution import get_strategy

    backend = keras.config.backend()
    name, devices = {
        "tensorflow": ("mirrored", ["CPU:0", "CPU:1"]),
        "jax": ("data-parallel", None),
    }[backend]
    if backend == "tensorflow":
        import tensorflow as tf

        # Replicas wait for each other, which needs a thread for each of them.
        tf.config.threading.set_inter_op_parallelism_threads(4)
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * 2,
        )
    heads = {"output_dim": 6, "hidden_dim": 10}
    makers = {
        "dino": lambda e: pretraining.DINO(e, bottleneck_dim=5, **heads),
        "mocov3": lambda e: pretraining.MoCoV3(e, **heads),
    }
    alone, strategy = get_strategy("none"), get_strategy(name, devices=devices)
    for method, make in makers.items():
        found = {
            "method": method,
            "count": strategy.num_devices,
            "devices": compare(train(make, alone), train(make, strategy)),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
