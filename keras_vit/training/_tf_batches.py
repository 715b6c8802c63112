"""tf.data batches of encoded images, for any backend."""

import keras

from keras_vit.training._flags import require

SHUFFLE_BUFFER = 50_000  # encoded images, as in the paper's code


def tensorflow():
    """Imports TensorFlow, which leaves the GPU to the backend."""
    tf = require("tensorflow")
    if keras.backend.backend() != "tensorflow":
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError:
            pass  # somebody used TensorFlow's devices before us
    return tf


def tf_batches(
    train, test, decode, *, image_size, batch_size, seed, flip, channels
):
    """Returns endless augmented training batches and the test batches.

    Args:
        train: `tf.data.Dataset` of `(encoded image, label)`.
        test: The same, for the test images.
        decode: Function of an encoded image that returns pixels in 0..255.
        image_size: Integer.
        batch_size: Integer.
        seed: Integer. Decides the order and every augmentation.
        flip: Boolean. Whether to mirror half of the training images.
        channels: Integer.
    """
    tf = tensorflow()
    most = image_size // 8

    def prepare(encoded, label):
        image = tf.image.resize(
            decode(encoded), (image_size, image_size), antialias=True
        )
        image = tf.clip_by_value(image / 127.5 - 1, -1, 1)
        return tf.ensure_shape(image, (image_size, image_size, channels)), label

    def augment(index, example):
        image, label = example
        seeds = tf.stack([tf.constant(seed, tf.int64), index])
        padding = ((most, most), (most, most), (0, 0))
        image = tf.pad(image, padding, mode="REFLECT")
        size = (image_size, image_size, channels)
        image = tf.image.stateless_random_crop(image, size, seeds)
        if flip:
            # Another seed, or the flip would follow from the crop.
            image = tf.image.stateless_random_flip_left_right(
                image, seeds + tf.constant([1, 0], tf.int64)
            )
        return image, label

    def mapped(dataset, function):
        return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)

    train = train.shuffle(SHUFFLE_BUFFER, seed=seed).repeat()
    train = mapped(mapped(train, prepare).enumerate(), augment)
    test = mapped(test, prepare).batch(batch_size)
    return (
        train.batch(batch_size, drop_remainder=True).prefetch(2),
        test.prefetch(2),
    )
