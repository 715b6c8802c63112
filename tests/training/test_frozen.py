"""The head of a classifier on features that are computed once."""

import itertools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import feature_dataset, split_at_head
from tests.small import randomize, vit

SIZE = 16


def dataset():
    images = np.random.default_rng(0).integers(0, 256, (20, SIZE, SIZE, 3), "uint8")
    labels = np.arange(20) % 3
    return keras_vit.data.from_arrays(images, labels, (images[:5], labels[:5]))


@pytest.mark.parametrize("options", [{}, {"distillation": True}, {"pooling": "gap"}])
def test_encoder_and_head_are_the_model(options):
    model = vit(input_shape=(SIZE, SIZE, 3), **options)
    randomize(model)
    encoder, head = split_at_head(model)
    images = np.random.default_rng(1).normal(size=(4, SIZE, SIZE, 3)).astype("float32")
    expected = model.predict_on_batch(images)
    found = head.predict_on_batch(np.array(encoder.predict_on_batch(images)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    shared = {id(x) for x in model.variables}
    assert {id(x) for x in head.variables} <= shared
    assert len(head.variables) == (4 if "distillation" in options else 2)


def test_features_are_those_of_the_first_epochs():
    model, data = vit(input_shape=(SIZE, SIZE, 3)), dataset()
    randomize(model)
    encoder, _ = split_at_head(model)
    reading = {"image_size": SIZE, "mode": "torch"}
    options = {**reading, "seed": 5, "flip": True}
    features = feature_dataset(encoder, data, batch_size=10, epochs=2, **options)
    assert features.num_train == 40
    epochs = itertools.islice(data.train(batch_size=10, **options), 4)
    wanted, labels = map(np.concatenate, zip(*map(arrays, epochs), strict=True))
    wanted = keras.ops.convert_to_numpy(encoder.predict_on_batch(wanted))
    batches = features.train(batch_size=20, seed=3, one_hot=True, **reading)
    seen = []
    for i in range(4):  # twice all features
        for row, label in zip(*batches[i], strict=True):
            differences = np.abs(wanted - row).max((1, 2))
            index = differences.argmin()
            assert differences[index] < 1e-5 and label.argmax() == labels[index]
            seen.append(index)
    assert (np.bincount(seen) == 2).all()
    test = next(iter(data.test(batch_size=5, **reading)))
    rows, found, weights = features.evaluation(batch_size=8, pad=True, **reading)[0]
    expected = encoder.predict_on_batch(np.asarray(test[0]))
    np.testing.assert_allclose(
        rows[:5], keras.ops.convert_to_numpy(expected), atol=1e-5
    )
    assert (found[:5] == np.asarray(test[1])).all() and (weights[5:] == 0).all()


def test_class_weights_go_with_one_hot_labels():
    model, data = vit(input_shape=(SIZE, SIZE, 3)), dataset()
    reading = {"image_size": SIZE, "mode": "torch", "one_hot": True}
    encoder, _ = split_at_head(model)
    features = feature_dataset(encoder, data, batch_size=10, epochs=2, **reading)
    assert (features.class_counts() == 2 * data.class_counts()).all()
    weights = np.array([1.0, 2.0, 3.0])
    batches = features.train(batch_size=40, class_weights=weights, **reading)
    _, labels, found = batches[0]
    assert labels.shape == (40, 3) and (labels.sum(1) == 1).all()
    np.testing.assert_allclose(found, labels @ weights)


def arrays(batch):
    return tuple(map(np.asarray, batch[:2]))
