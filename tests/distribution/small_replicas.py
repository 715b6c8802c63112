"""Trains small models on one device of TensorFlow and on two, in one process.

Prints a JSON dict of what they give, a pair of each. The devices are logical
ones of the CPU, which must be set up before TensorFlow begins.
"""

import json

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit import pretraining
from keras_vit.optimizers import PublishedSGD
from keras_vit.segmentation import EoMT, LinearSegmenter

CPU = tf.config.list_physical_devices("CPU")[0]
PARTS = [tf.config.LogicalDeviceConfiguration()] * 2
RNG = np.random.default_rng(0)


def main() -> None:
    tf.config.set_logical_device_configuration(CPU, PARTS)
    # TensorFlow numbers the sums of a strategy anew: there may be only one.
    strategies = (
        tf.distribute.OneDeviceStrategy("CPU:0"),
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    )
    found = {
        name: [function(strategy, *arguments) for strategy in strategies]
        for name, function, arguments in (
            ("clipnorm", clipped_step, [{"clipnorm": 1.0}]),
            ("clipvalue", clipped_step, [{"clipvalue": 1.0}]),
            ("global_clipnorm", clipped_step, [{"global_clipnorm": 1.0}]),
            ("batch_norm", moving_variance, [images(8)]),
            ("eomt", eomt_step, [images(1).repeat(4, 0)]),
            ("ignored", ignored_step, [images(8)]),
            ("masks", different_masks, []),
        )
    }
    print(json.dumps(found))


def images(count: int) -> np.ndarray:
    x = RNG.uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
    x[count // 2 :] = x[count // 2 :] * 0.2 + 0.7  # unlike the first half
    return x


def encoder(channels: int = 3) -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras_vit.VisionTransformer(
        input_shape=(16, 16, channels),
        patch_size=4,
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        include_top=False,
        pooling=None,
    )


def clipped_step(strategy, options: dict) -> list[float]:
    """Gradients of the replicas that point in different directions."""
    x = np.array([[3.0, 1.0]] * 4 + [[1.0, 3.0]] * 4, "float32")
    y = np.array([[10.0]] * 4 + [[-10.0]] * 4, "float32")
    with strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((2,)), dense])
        model.compile(PublishedSGD(0.1, **options), "mse", jit_compile=False)
        model.fit(batches(x, y), verbose=0)
        return model.get_weights()[0].ravel().tolist()


def batches(x: np.ndarray, y: np.ndarray | dict) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x))


def moving_variance(strategy, x: np.ndarray) -> list[float]:
    y = RNG.integers(0, 3, (8, 16, 16)).astype("int32")
    with strategy.scope():
        frozen = encoder()
        frozen.trainable = False
        model = LinearSegmenter(frozen, 3, dropout=0.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.0), loss, jit_compile=False)
        model.fit(batches(x, y), verbose=0)
        return np.array(model.get_layer("head_norm").moving_variance).tolist()


def ignored_step(strategy, x: np.ndarray) -> list[float]:
    """Returns the losses of training and of an evaluation, and how far a step
    of SGD moves the head; the second half of the batch has most pixels."""
    y = np.arange(8 * 16 * 16).reshape(8, 16, 16).astype("int32") % 3
    y[:4, 1:] = 255
    with strategy.scope():
        frozen = encoder()
        frozen.trainable = False
        model = LinearSegmenter(frozen, 3, dropout=0.0)
        head = model.get_layer("head")
        head.kernel_regularizer = keras.regularizers.L2(0.1)
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, ignore_class=255
            ),
            jit_compile=False,
        )
        before = np.array(head.kernel)
        test = model.evaluate(batches(x, y), verbose=0)
        loss = model.fit(batches(x, y), verbose=0).history["loss"][0]
        moved = (np.array(head.kernel) - before).ravel().tolist()
        return [test, loss, *moved]


def eomt_step(strategy, x: np.ndarray) -> list[float]:
    """Returns the loss, and how far a step of SGD moves the class head.

    The images are equal, and so are the halves of the batch."""
    masks = np.zeros((4, 1, 16, 16), "float32")
    masks[:, :, :8] = 1
    y = {"classes": np.zeros((4, 1), "int32"), "masks": masks}
    with strategy.scope():
        options = {"num_points": 4096, "importance": 0.0}
        model = EoMT(
            *(encoder(), 2),
            queries=3,
            blocks=1,
            masked=False,
            loss_options=options,
        )
        model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
        kernel = model.get_layer("eomt_head").class_head.kernel
        before = np.array(kernel)
        loss = model.fit(batches(x, y), verbose=0).history["loss"][0]
        return [float(loss), float(np.abs(np.array(kernel) - before).sum())]


def different_masks(strategy) -> int:
    """Returns how many masks of the images of all replicas are different."""
    with strategy.scope():
        model = pretraining.MaskedAutoencoder(
            encoder(1),
            decoder_hidden_size=16,
            decoder_num_layers=1,
            decoder_num_heads=2,
        )
        replicas = strategy.num_replicas_in_sync
        x = tf.zeros((4 // replicas, 16, 16, 1))
        step = tf.function(
            lambda: strategy.run(lambda: model(x, training=True)["masked"])
        )
        masks = strategy.experimental_local_results(step())
        rows = np.concatenate([mask.numpy() for mask in masks])
        return len({row.tobytes() for row in rows})


if __name__ == "__main__":
    main()
