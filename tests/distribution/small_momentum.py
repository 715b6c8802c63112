r"""A program for the tests: trains DINO and MoCo v3 on one and on two devices.

    KERAS_BACKEND=tensorflow python -m tests.distribution.small_momentum

For each method, it prints the number of devices and the largest difference of
a weight, divided by the largest weight of its variable. JAX's devices are made
by XLA_FLAGS=--xla_force_host_platform_device_count=2.
"""

import keras
import numpy as np

import keras_vit
from keras_vit import pretraining

STEPS, BATCH = 2, 8


class Crops(keras.utils.PyDataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        crops = rng.normal(size=(BATCH, 2, 8, 8, 3)).astype("float32")
        return {"global": crops}, np.zeros(BATCH, "int32")


def dataset():
    """The batches as TensorFlow's strategies and JAX take them."""
    import tensorflow as tf

    batches = Crops()
    crops = np.concatenate([batches[i][0]["global"] for i in range(STEPS)])
    labels = np.zeros(len(crops), "int32")
    data = tf.data.Dataset.from_tensor_slices(({"global": crops}, labels))
    return data.batch(BATCH, drop_remainder=True)


def train(make, strategy):
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
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
        batches = strategy.distribute(dataset())
        model.fit(batches, steps_per_epoch=STEPS, verbose=0, shuffle=False)
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        return {
            f"{i} {variable.path}": keras.ops.convert_to_numpy(variable)
            for i, variable in enumerate(model.weights)
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

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * 2,
        )
    heads = {"output_dim": 6, "hidden_dim": 10}
    makers = {
        "dino": lambda e: pretraining.DINO(e, bottleneck_dim=5, **heads),
        "mocov3": lambda e: pretraining.MoCoV3(e, **heads),
    }
    one = {m: train(make, get_strategy("none")) for m, make in makers.items()}
    strategy = get_strategy(name, devices=devices)
    for method, make in makers.items():
        two = train(make, strategy)
        differences = {
            key.partition(" ")[2]: np.abs(x - y).max()
            / max(np.abs(x).max(), 1e-3)
            for (key, x), y in zip(
                one[method].items(), two.values(), strict=True
            )
        }
        worst = max(differences, key=differences.get)
        print(
            method,
            strategy.num_devices,
            differences[worst],
            worst,
            flush=True,
        )


if __name__ == "__main__":
    main()
