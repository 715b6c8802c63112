"""Averages of weights before the batch norm of a linear segmenter."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.segmentation import LinearSegmenter
from tests.small import tiny

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("frozen", [False, True])
def test_averages_before_a_batch_norm_are_refused(frozen):
    encoder = tiny(num_layers=1, pooling=None, include_top=False, classes=None)
    encoder.trainable = not frozen
    model = LinearSegmenter(encoder, 3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), loss)
    data = np.zeros((2, 8, 12, 3)), np.zeros((2, 8, 12), "int32")
    if frozen:
        model.fit(*data, verbose=0)
        return
    with pytest.raises(ValueError, match="batch norm 'head_norm'"):
        model.fit(*data, verbose=0)


@pytest.mark.parametrize("assign", ["averaged", "assign_averages"])
def test_averages_of_other_models_are_refused_before_a_batch_norm(assign):
    layers = [keras.layers.Dense(3), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
    model.fit(np.zeros((2, 4)), np.zeros((2, 3)), verbose=0)
    with pytest.raises(ValueError, match="statistics of the batch norm"):
        next(getattr(keras_vit.optimizers, assign)(model).gen)
