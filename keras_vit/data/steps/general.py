"""Steps that keep the size of an image, and those that make what a model takes."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.data.decoding import decode as decode_image
from keras_vit.data.decoding import tf
from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.data.steps.erasing import RandomErasing
from keras_vit.data.steps.randaugment import rand_augment
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.types import Tensor


@step
def decode(example: Example, seed: Seed) -> Example:
    """The pixels of an image as they are, uint8 of shape `(height, width,
    channels)`. The crops decode by themselves, of a JPEG only what they need."""
    return example | {"image": decode_image(example["image"], example["channels"])}


@step
def flip(example: Example, seed: Seed) -> Example:
    """Half of the images mirrored."""
    image = tf.image.stateless_random_flip_left_right(example["image"], seed)
    return example | {"image": image}


@step
def augment(example: Example, seed: Seed, level: str) -> Example:
    """RandAugment at a level of `AUGREG`, of pixels in [0, 255] and 3 channels."""
    if example["channels"] != 3:
        raise ValueError(
            f"`augment={level}` is for images of 3 channels. Received: images of "
            f"{example['channels']} channels: use `augment=none`."
        )
    image = example["image"]
    # big_vision's protocols return integers. The results of others, for which no
    # RandAugment is published, are rounded.
    image = tf.cast(tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8)
    image = rand_augment(level, tuple(image.shape[:2]))(image, seed)
    return example | {"image": tf.cast(image, tf.float32)}


@step
def normalize(example: Example, seed: Seed, mode: ModeLike = "tf") -> Example:
    """Pixels in [0, 255] as `preprocess_input` scales them."""
    image = example["image"]
    if not isinstance(image, np.ndarray):
        image = tf.clip_by_value(image, 0, 255)
    return example | {"image": preprocess_input(image, mode)}


@step
def erase(
    example: Example, seed: Seed, erasing: RandomErasing | float = 0.25
) -> Example:
    """A random rectangle of a normalized image erased, with a probability or by a
    `RandomErasing`."""
    if not isinstance(erasing, RandomErasing):
        erasing = RandomErasing(erasing)
    return example | {"image": erasing(example["image"], seed)}


@step
def one_hot(example: Example, seed: Seed, classes: int) -> Example:
    """The label as a row of zeros and a one; rows of several classes stay."""
    label = example["label"]
    if isinstance(label, np.ndarray | np.integer):
        row = np.eye(classes, dtype="float32")[label] if label.ndim == 0 else label
    else:
        row = tf.one_hot(label, classes) if label.shape.rank == 0 else label
    return example | {"label": row}


@step
def weigh(example: Example, seed: Seed, class_weights: Sequence[float]) -> Example:
    """The weight of the image in the loss, that of its class, an integer."""
    weights: Any = np.asarray(class_weights, "float32")
    if not isinstance(example["label"], np.ndarray | np.integer):
        weights = tf.constant(weights)
    return example | {"weight": weights[example["label"]]}


class _Seeds(keras.random.SeedGenerator):
    """What a layer of Keras draws its numbers with: those of a seed."""

    def __init__(self, seed: Tensor, backend: Any) -> None:
        super().__init__(0, backend=backend)
        self.own, self.count = seed, 0

    def next(self, ordered: bool = True) -> Tensor:
        self.count += 1
        return tf.random.experimental.stateless_fold_in(self.own, self.count)


@step
def layer(example: Example, seed: Seed, layer: Any) -> Example:
    """The image as a layer returns it: one of `keras.layers`, whose random numbers
    are then those of the seed, or any function of an image, such as a layer of
    keras-cv, whose random numbers are its own."""
    image = example["image"]
    if not hasattr(layer, "get_random_transformation"):
        return example | {"image": layer(image)}
    layer.backend.set_backend("tensorflow")
    try:
        image = tf.cast(image, layer.compute_dtype)
        seeds = _Seeds(seed, layer.backend)
        how = layer.get_random_transformation(image, training=True, seed=seeds)
        image = layer.transform_single_image(image, how, training=True)
    finally:
        layer.backend.reset()
    return example | {"image": tf.ensure_shape(image, example["image"].shape)}
