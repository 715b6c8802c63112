"""Digits, in NumPy alone: no backend has to bring TensorFlow along."""

import dataclasses
import itertools

import keras
import numpy as np

from keras_vit._program import require
from keras_vit.data import mixing
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.dataset import own_part
from keras_vit.data.protocols import height_and_width
from keras_vit.data.splits import hold_out
from keras_vit.data.splits import split

BACKGROUND = -1.0
# How far `distort` goes, to either side. Less leaves a small model to
# memorise 1,438 images; more makes other digits of them.
TURN = np.deg2rad(15)
STRETCH = 0.15  # in logarithm
MOVE = 1 / 10  # of the image


def digits(holdout=0.0):
    """Returns scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    images, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 8 - 1  # 0 .. 16
    labels = labels.astype("int32")
    train, test = split(labels)
    train, dev = hold_out(train, labels, holdout)
    return ImageDataset(
        name="digits",
        class_names=tuple("0123456789"),
        channels=1,
        image_size=8,
        num_train=len(train),
        num_test=len(test),
        num_dev=len(dev),
        source=Digits(
            images, labels, {"train": train, "dev": dev, "test": test}
        ),
    )


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images of digits, and the indices of the images of each split."""

    images: np.ndarray
    labels: np.ndarray
    parts: dict

    def train(self, data, rules):
        if rules.augment != "none":
            raise ValueError(
                "Digits are turned, stretched and moved in a way of their own: "
                f"use --augment none. Received: {rules.augment!r}"
            )
        if rules.erase.probability:
            raise ValueError(
                "Digits have no random erasing: use erase=0. Received: "
                f"{rules.erase}"
            )
        images, labels = self._part("train", rules)
        return train_batches(images, labels, rules)

    def ordered(self, data, part, total, rules):
        return OrderedBatches(*self._part(part, rules), rules)

    def _part(self, part, rules):
        if rules.protocol != "simple" or rules.mode != "tf":
            raise ValueError(
                "Digits are drawn in grey and used whole: use --protocol "
                f"simple and mode 'tf'. Received: {rules.protocol!r} and "
                f"{rules.mode!r}"
            )
        index = self.parts[part]
        images = resize(self.images[index], rules.image_size)
        return images, labels_for(self.labels[index], rules)


def labels_for(labels, rules):
    one_hot = rules.one_hot or rules.mixed
    return np.eye(10, dtype="float32")[labels] if one_hot else labels


def train_batches(images, labels, rules):
    """Gives shuffled batches of slightly distorted images, forever.

    Batches are full: one goes on in the next pass over the images. A mirrored
    digit is not a digit, so `flip` is not for them.
    """
    for number in itertools.count(rules.start):
        chosen = order(len(images), number * rules.batch_size, rules)
        # Of the whole batch, so that it does not depend on who asks.
        rng = np.random.default_rng((rules.seed, 1, number))
        batch = distort(images[chosen], rng)
        own = slice(rules.own.start, rules.own.stop)
        batch = batch[own], labels[chosen][own]
        if rules.mixed:

            def draws(name, p, rng=rng):
                drawn = rng.beta(p, p) if p else rng.uniform()
                return np.float32(drawn)

            batch = mixing.mix(np, *batch, rules, draws)
        size = rules.micro_batch_size
        for first in range(0, len(batch[0]), size):
            yield tuple(x[first : first + size] for x in batch)


def order(count, first, rules):
    """The images of one batch, whose first is number `first` of the run."""
    positions = np.arange(first, first + rules.batch_size)
    epochs = positions // count
    orders = {
        epoch: np.random.default_rng((rules.seed, 0, epoch)).permutation(count)
        for epoch in np.unique(epochs)
    }
    return np.array(
        [orders[e][p % count] for e, p in zip(epochs, positions, strict=True)]
    )


def distort(images, rng):
    """Turns, stretches and moves every image a little, as hands do."""
    count, height, width = images.shape[:3]
    angle = rng.uniform(-TURN, TURN, count)
    stretch = np.exp(rng.uniform(-STRETCH, STRETCH, (2, count)))
    move = rng.uniform(-MOVE, MOVE, (2, count)) * [[height], [width]]
    y, x = np.indices((height, width))
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    # Where each pixel comes from: (count, height, width), in a frame of
    # background that is as wide as the longer side of the image.
    longer = max(height, width)
    frame = ((0, 0), (longer, longer), (longer, longer), (0, 0))
    padded = np.pad(images, frame, constant_values=BACKGROUND)
    middle_y, middle_x = (longer + (side - 1) / 2 for side in (height, width))
    stretch, move = stretch[..., None, None], move[..., None, None]
    from_y = (cos * y - sin * x) * stretch[0] + move[0] + middle_y
    from_x = (sin * y + cos * x) * stretch[1] + move[1] + middle_x
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
    """This host's images once, in order; padding has weight 0."""

    def __init__(self, images, labels, rules):
        super().__init__()
        part, self.count, self.weight = own_part(len(images), rules)
        part = slice(part.start, part.stop)
        self.images, self.labels = images[part], labels[part]
        self.batch_size = len(rules.own)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        part = slice(index * self.batch_size, (index + 1) * self.batch_size)
        images, labels = self.images[part], self.labels[part]
        weights = np.full(len(images), self.weight, "float32")
        missing = self.batch_size - len(images)
        return tuple(
            np.pad(x, ((0, missing), *((0, 0),) * (x.ndim - 1)))
            for x in (images, labels, weights)
        )


def resize(images, size):
    """Resizes images bilinearly (pixel centres, no antialiasing).

    Args:
        images: Float array of shape `(count, height, width, channels)`.
        size: Integer, or `(height, width)`.
    """
    size = height_and_width(size)
    if size == images.shape[1:3]:
        return images
    down, right = (
        _bilinear_weights(old, new).astype(images.dtype)
        for old, new in zip(images.shape[1:3], size, strict=True)
    )
    return np.einsum("yh,xw,bhwc->byxc", down, right, images)


def _bilinear_weights(old, new):
    """Returns an array of shape `(new, old)`."""
    centres = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(old)))
