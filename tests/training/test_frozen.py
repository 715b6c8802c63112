"""The head of a classifier on features that are computed once."""

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


def test_features_are_those_of_images_and_mirrored_ones():
    model, data = vit(input_shape=(SIZE, SIZE, 3)), dataset()
    randomize(model)
    encoder, _ = split_at_head(model)
    reading = {"image_size": SIZE, "mode": "torch"}
    features = feature_dataset(encoder, data, batch_size=6, **reading)
    batch = next(iter(data.batches("train", batch_size=20, **reading)))
    images, labels = np.asarray(batch[0]), np.asarray(batch[1])
    ways = [encoder.predict_on_batch(x) for x in (images, images[:, :, ::-1])]
    ways = np.stack([keras.ops.convert_to_numpy(x) for x in ways])
    batches = features.train(batch_size=10, seed=3, flip=True, one_hot=True, **reading)
    seen, mirrored = [], 0
    for i in range(2 * 4):  # four passes over the images
        for row, label in zip(*batches[i], strict=True):
            differences = np.abs(ways - row).max((2, 3))
            way, index = np.unravel_index(differences.argmin(), differences.shape)
            assert differences.min() < 1e-5 and label.argmax() == labels[index]
            mirrored += way
            seen.append(index)
    assert (np.bincount(seen) == 4).all() and 20 < mirrored < 60
    test = next(iter(data.test(batch_size=5, **reading)))
    rows, found, weights = features.evaluation(batch_size=8, pad=True, **reading)[0]
    expected = encoder.predict_on_batch(np.asarray(test[0]))
    np.testing.assert_allclose(
        rows[:5], keras.ops.convert_to_numpy(expected), atol=1e-5
    )
    assert (found[:5] == np.asarray(test[1])).all() and (weights[5:] == 0).all()
    plain = feature_dataset(encoder, data, batch_size=6, flip=False, **reading)
    rows, _ = plain.train(batch_size=20, **reading)[0]
    order = np.abs(ways[0][:, None] - rows[None]).max((2, 3)).argmin(1)
    np.testing.assert_allclose(rows[order], ways[0], atol=1e-5)
