"""Outputs of a model for a dataset."""

import keras
import numpy as np
import pytest

import keras_vit


@pytest.mark.backends("torch")
@pytest.mark.parametrize("limit, expected", [(None, 5), (3, 3), (9, 5)])
def test_a_limit_is_the_most_images(limit, expected):
    images = np.arange(6, dtype="float32").reshape(2, 3, 1, 1, 1)
    batches = [(images[0], [0, 1, 2], [1, 1, 1])]
    batches += [(images[1], [3, 4, 5], [1, 1, 0])]
    model = keras.Sequential([keras.Input((1, 1, 1)), keras.layers.Flatten()])
    outputs, labels = keras_vit.evaluation.predict_dataset(
        model, batches, 5, limit=limit
    )
    np.testing.assert_array_equal(outputs[:, 0], np.arange(expected))
    np.testing.assert_array_equal(labels, np.arange(expected))
