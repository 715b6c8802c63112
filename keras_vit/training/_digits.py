"""Digits, in NumPy alone: no backend has to bring TensorFlow along."""

import keras
import numpy as np

from keras_vit.training._data import Data
from keras_vit.training._flags import require
from keras_vit.training._splits import split

BACKGROUND = -1.0
# How far `distort` goes, to either side. Less leaves a small model to
# memorise 1,438 images; more makes other digits of them.
TURN = np.deg2rad(15)
STRETCH = 0.15  # in logarithm
MOVE = 1 / 10  # of the image


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
            OrderedBatches(resized[test], labels[test], batch_size),
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
    """Gives shuffled batches of slightly distorted images, forever.

    Batches are full: one goes on in the next pass over the images.
    """
    rng = np.random.default_rng(seed)
    order = np.empty(0, int)
    while True:
        while len(order) < batch_size:
            order = np.concatenate([order, rng.permutation(len(images))])
        chosen, order = np.split(order, [batch_size])
        yield distort(images[chosen], rng), labels[chosen]


def distort(images, rng):
    """Turns, stretches and moves every image a little, as hands do."""
    count, size = images.shape[:2]
    angle = rng.uniform(-TURN, TURN, count)
    stretch = np.exp(rng.uniform(-STRETCH, STRETCH, (2, count)))
    move = rng.uniform(-MOVE, MOVE, (2, count)) * size
    y, x = np.indices((size, size)) - (size - 1) / 2
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    # Where each pixel comes from: (count, size, size), in a frame of
    # background that is as wide as the image.
    frame = ((0, 0), (size, size), (size, size), (0, 0))
    padded = np.pad(images, frame, constant_values=BACKGROUND)
    middle = size + (size - 1) / 2
    stretch, move = stretch[..., None, None], move[..., None, None]
    from_y = (cos * y - sin * x) * stretch[0] + move[0] + middle
    from_x = (sin * y + cos * x) * stretch[1] + move[1] + middle
    top, left = from_y.astype(int), from_x.astype(int)
    down, right = from_y - top, from_x - left  # in [0, 1)
    index = np.arange(count)[:, None, None]

    def corner(dy, dx, weight):
        return padded[index, top + dy, left + dx] * weight[..., None]

    return (
        corner(0, 0, (1 - down) * (1 - right))
        + corner(0, 1, (1 - down) * right)
        + corner(1, 0, down * (1 - right))
        + corner(1, 1, down * right)
    ).astype(images.dtype)


class OrderedBatches(keras.utils.PyDataset):
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
