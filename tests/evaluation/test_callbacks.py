"""k-NN accuracy of encoders while they are pre-trained."""

import numpy as np
import pytest

import keras_vit
from keras_vit import evaluation, pretraining
from tests.small import tiny

pytestmark = pytest.mark.backends("torch")
CLASSES = 10


@pytest.mark.parametrize("order", ["by class", "in turn"])
def test_neighbors_are_of_all_classes(order):
    labels = np.arange(40 * CLASSES) % CLASSES
    if order == "by class":
        labels = np.sort(labels)
    rng = np.random.default_rng(0)
    colors = rng.integers(0, 256, (CLASSES, 4, 4, 1), "uint8")
    data = keras_vit.data.from_arrays(
        colors[labels], labels, (colors, np.arange(CLASSES))
    )
    encoder = tiny(
        input_shape=(4, 4, 1),
        patch_size=2,
        num_layers=1,
        include_top=False,
        classes=None,
        class_token=False,
    )
    model = pretraining.DINO(encoder, output_dim=8, hidden_dim=8, bottleneck_dim=4)
    callback = evaluation.NearestNeighbors(
        data, {"image_size": 4, "batch_size": 30}, k=1, limit=100
    )
    callback.set_model(model)
    assert callback.accuracy() == 1


@pytest.mark.parametrize("name", ["digits", "arrays"])
def test_a_sample_of_a_data_set_has_the_images_of_its_labels(name):
    data = keras_vit.data.load_dataset("digits")
    options = {"image_size": 8, "batch_size": 16}
    if name == "arrays":
        labels = np.repeat(np.arange(10), 20).astype("int32")
        images = np.tile(labels[:, None, None, None], (1, 8, 8, 1))
        images = images.astype("uint8") * 25
        data = keras_vit.data.from_arrays(images, labels, (images, labels))
    sample = data.sample("train", 50)
    assert sample.num_train == 50 and sample.num_test == data.num_test

    def images_of(data):
        found = []
        for images, labels, weights in data.batches("train", **options):
            for row in np.flatnonzero(np.asarray(weights)):
                pixels = np.asarray(images)[row].tobytes()
                found.append((pixels, int(labels[row])))
        return found

    chosen = images_of(sample)
    assert len(chosen) == 50 and set(chosen) <= set(images_of(data))
    counts = np.bincount([label for _, label in chosen], minlength=10)
    assert (counts > 0).all() and sample.class_counts().sum() == 50
    assert images_of(data.sample("train", 50)) == chosen
    assert data.sample("train", 10**6) is data
