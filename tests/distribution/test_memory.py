"""The memory of a model on each device."""

from concurrent import futures

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import distribution
from tests.small import vit


def huge(**kwargs):
    """Builds the full-size model without memory: variables have only
    shapes."""

    def build():
        with keras.StatelessScope(initialize_variables=False):
            return keras_vit.ViTH14(input_shape=(224, 224, 3), **kwargs)

    # Keras would give its variables values in the next test of this thread.
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(build).result()


def eighths():
    return distribution.ModelParallel(
        keras.distribution.DeviceMesh(
            (1, 8), ("batch", "model"), [f"cpu:{i}" for i in range(8)]
        )
    )


@pytest.mark.backends("torch")
def test_model_parallel_divides_memory_of_vit_h14(record_property):
    model = huge()
    alone = distribution.bytes_per_device(model)
    assert alone == 4 * model.count_params() > 2.5e9
    shared = distribution.bytes_per_device(model, eighths())
    record_property("ViT-H/14, bytes a device: 1, 8", (alone, shared))
    print(f"ViT-H/14: {alone / 1e6:.0f} MB, {shared / 1e6:.0f} MB on each of 8")
    assert alone / shared >= 6


@pytest.mark.backends("jax")  # No other backend splits models.
def test_bytes_per_device_match_jax():
    import jax

    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
    parallel = distribution.ModelParallel(mesh)
    with parallel.scope():
        model = vit(dropout=0.1)
    held = sum(
        np.prod(v.value.sharding.shard_shape(v.value.shape)) * v.value.dtype.itemsize
        for v in model.variables
    )
    assert isinstance(model.variables[0].value, jax.Array)
    assert distribution.bytes_per_device(model, parallel) == held
