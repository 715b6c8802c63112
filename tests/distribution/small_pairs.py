"""Trains a small dual encoder for one step on one device and on two.

Prints a row for each loss: the loss on one device, and the differences of the loss and
of the gradients, divided by the largest gradient.
"""

import json

import keras
import numpy as np

import keras_vit
from keras_vit.config import TextConfig
from tests.harness import numpy
from tests.small import vit


def step(strategy, bias):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        text = {"vocabulary_size": 9, "hidden_size": 16, "num_layers": 1}
        model = keras_vit.DualEncoder(
            vit(input_shape=(16, 16, 3), classes=8),
            keras_vit.text.TextEncoder(
                TextConfig(**text, num_heads=2, projection_size=8)
            ),
            logit_bias=bias,
        )
        model.compile(keras.optimizers.SGD(1.0), jit_compile=False)
        rng = np.random.default_rng(0)
        images = rng.uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
        ids = rng.integers(0, 9, (4, 5)).astype("int32")
        before = [numpy(x) for x in model.trainable_variables]
        batches = strategy.distribute(Pairs({"images": images, "texts": ids}))
        loss = model.fit(batches, verbose=0).history["loss"][0]
        after = [numpy(x) for x in model.trainable_variables]
    return loss, [x - y for x, y in zip(before, after, strict=True)]


class Pairs(keras.utils.PyDataset):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return (self.batch,)


def main():
    name = "data-parallel"
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        name, cpu = "mirrored", tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
    # JAX would split what is computed after a strategy of several devices.
    one = [step(keras_vit.distribution.get_strategy("none"), x) for x in (None, -2.0)]
    strategy = keras_vit.distribution.get_strategy(name)
    rows = []
    for (loss, moved), bias in zip(one, (None, -2.0), strict=True):
        other, also = step(strategy, bias)
        wrong = [abs(x - y).max() for x, y in zip(moved, also, strict=True)]
        largest = max(abs(x).max() for x in moved)
        rows.append([loss, abs(loss - other), float(max(wrong) / largest)])
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
