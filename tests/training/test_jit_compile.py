"""XLA is on for TensorFlow on CPUs alone, and elsewhere as Keras has it."""

import keras
import numpy as np
import pytest

from keras_vit import training


def batches(count=2):
    images = np.ones((count, 3), "float32")
    return [(images, np.zeros(count, "int64"), np.ones(count, "float32"))]


def model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.backends("tensorflow")
def test_tensorflow():
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("a GPU")
    assert training.jit_compile() is True
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert training.jit_compile() == "auto"
    new = model()
    training.outputs(new, batches(), 2)
    assert new.jit_compile is True
    compiled = model()
    compiled.compile("sgd", jit_compile=False)  # what a user chose stays
    training.outputs(compiled, batches(), 2)
    assert compiled.jit_compile is False


@pytest.mark.backends("jax", "torch")
def test_other_backends():
    assert training.jit_compile() == "auto"
    new = model()
    training.outputs(new, batches(), 2)
    assert new.jit_compile == (keras.config.backend() == "jax")
