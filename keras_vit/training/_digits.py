"""Digits, in NumPy alone: no backend has to bring TensorFlow along."""

import keras
import numpy as np

from keras_vit.training._data import Data
from keras_vit.training._flags import require
from keras_vit.training._splits import split

BACKGROUND = -1.0


def digits():
    """Returns scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    images, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 8 - 1  # 0 .. 16
    labels = labels.astype("int32")
    train, test = split(labels)

    def batches(image_size, batch_size, seed, flip):
        # A mirrored digit is not a digit, so `flip` is not for them.
        resized = resize(images, image_size)
        return (
            train_batches(resized[train], labels[train], batch_size, seed),
            TestBatches(resized[test], labels[test], batch_size),
        )

    return Data(
        name="digits",
        class_names=tuple("0123456789"),
        channels=1,
        image_size=8,
        num_train=len(train),
        num_test=len(test),
        batches=batches,
    )


def train_batches(images, labels, batch_size, seed):
    """Gives shuffled batches, moved by up to an eighth of the image, forever.

    Batches are full: one goes on in the next pass over the images.
    """
    rng = np.random.default_rng(seed)
    size = images.shape[1]
    most = size // 8
    padding = ((0, 0), (most, most), (most, most), (0, 0))
    padded = np.pad(images, padding, constant_values=BACKGROUND)
    pixels = np.arange(size)
    order = np.empty(0, int)
    while True:
        while len(order) < batch_size:
            order = np.concatenate([order, rng.permutation(len(images))])
        chosen, order = np.split(order, [batch_size])
        top, left = rng.integers(0, 2 * most + 1, (2, batch_size, 1))
        rows = (top + pixels)[:, :, None]  # (batch, size, 1)
        columns = (left + pixels)[:, None, :]  # (batch, 1, size)
        yield padded[chosen[:, None, None], rows, columns], labels[chosen]


class TestBatches(keras.utils.PyDataset):
    """Every image once, in order; the last batch may be smaller."""

    def __init__(self, images, labels, batch_size):
        super().__init__()
        self.images, self.labels = images, labels
        self.batch_size = batch_size

    def __len__(self):
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, index):
        part = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.images[part], self.labels[part]


def resize(images, size):
    """Resizes square images bilinearly (pixel centres, no antialiasing)."""
    old = images.shape[1]
    if size == old:
        return images
    centres = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    distance = np.abs(centres[:, None] - np.arange(old))
    weights = np.maximum(0, 1 - distance).astype(images.dtype)  # (size, old)
    return np.einsum("yh,xw,bhwc->byxc", weights, weights, images)
