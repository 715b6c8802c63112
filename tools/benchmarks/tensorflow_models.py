"""A Vision Transformer's matrix products alone, in TensorFlow."""

import numpy as np
import tensorflow as tf
from benchmarks import limits


def products(size, batch, what, dtype):
    shape = (batch, size.image_size, size.image_size, 3)
    images = np.random.default_rng(0).uniform(-1, 1, shape)
    images = tf.constant(images, dtype)
    weights = limits.weights(size, lambda x: tf.Variable(tf.cast(x, dtype)))

    def forward():
        return limits.forward(
            weights, images, size, tf.reshape, tf.transpose, fused=False
        )

    def gradients():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(forward())
        return tape.gradient(total, tf.nest.flatten(weights))

    # Without XLA, whose products were measured to be slower on a CPU.
    jit = bool(tf.config.list_physical_devices("GPU"))
    once = forward if what == "inference" else gradients
    once = tf.function(once, jit_compile=jit)

    def run(times):
        for _ in range(times):
            last = once()
        tf.nest.map_structure(lambda x: x.numpy(), last)

    return run
