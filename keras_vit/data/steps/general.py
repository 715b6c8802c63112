"""Steps that keep the size of an image, and steps that make the inputs of a model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.data.decoding import decode as decode_image
from keras_vit.data.decoding import tf
from keras_vit.data.steps.base import Example, Seed, check_alone, step
from keras_vit.data.steps.erasing import RandomErasing
from keras_vit.data.steps.randaugment import rand_augment
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.types import Tensor


@step
def decode(example: Example, seed: Seed) -> Example:
    """Decodes an image to uint8 pixels of shape `(height, width, channels)`. The steps
    that crop decode images themselves, and only the needed part of a JPEG."""
    return example | {"image": decode_image(example["image"], example["channels"])}


@step
def flip(example: Example, seed: Seed) -> Example:
    """Mirrors half of the images."""
    check_alone(example)
    image = example["image"]
    if isinstance(image, np.ndarray):
        image = image[:, ::-1] if seed.random() < 0.5 else image
    else:
        image = tf.image.stateless_random_flip_left_right(image, seed)
    return example | {"image": image}


@step
def augment(example: Example, seed: Seed, level: str) -> Example:
    """Applies RandAugment at a level of `AUGREG` to pixels in [0, 255] with 3
    channels."""
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
    """Scales pixels in [0, 255] like `preprocess_input`."""
    image = example["image"]
    if not isinstance(image, np.ndarray):
        image = tf.clip_by_value(image, 0, 255)
    elif image.min() < 0 and image.max() <= 1:
        raise ValueError(
            "`normalize` takes pixels in [0, 255]: leave it out for digits, which are "
            f"in [-1, 1]. Received: pixels from {image.min()} to {image.max()}"
        )
    else:
        image = np.clip(image, 0, 255)
    return example | {"image": preprocess_input(image, mode)}


@step
def erase(
    example: Example, seed: Seed, erasing: RandomErasing | float = 0.25
) -> Example:
    """Erases a random rectangle of a normalized image, with a given probability or by a
    given `RandomErasing`."""
    if not isinstance(erasing, RandomErasing):
        erasing = RandomErasing(erasing)
    return example | {"image": erasing(example["image"], seed)}


@step
def one_hot(example: Example, seed: Seed, classes: int) -> Example:
    """Encodes the label as a row of zeros and a one; rows of several classes are
    unchanged."""
    label = example["label"]
    if isinstance(label, np.ndarray | np.integer):
        if label.dtype.kind == "i":
            label = np.eye(classes, dtype="float32")[label]
    elif label.dtype.is_integer:
        label = tf.one_hot(label, classes)
    return example | {"label": label}


@step
def weigh(example: Example, seed: Seed, class_weights: Sequence[float]) -> Example:
    """Sets the weight of the image in the loss to that of its class, an integer."""
    weights, label = np.asarray(class_weights, "float32"), example["label"]
    is_array = isinstance(label, np.ndarray | np.integer)
    return example | {"weight": (np.take if is_array else tf.gather)(weights, label)}


class _Seeds(keras.random.SeedGenerator):
    """The seed generator of a Keras layer, with the numbers of a step's seed."""

    def __init__(self, seed: Tensor) -> None:  # without a variable for its state
        self.own, self.count = seed, 0

    def next(self, ordered: bool = True) -> Tensor:
        self.count += 1
        return tf.random.experimental.stateless_fold_in(self.own, self.count)


@step
def layer(example: Example, seed: Seed, layer: Any) -> Example:
    """Applies a layer of `keras.layers`, whose random numbers then depend on the seed,
    or any function of an image. Keras's `RandAugment` and `AugMix`, which consist of
    other layers, and the layers of keras-cv draw numbers of their own, which a resumed
    run does not repeat."""
    image = example["image"]
    if not hasattr(layer, "get_random_transformation"):
        return example | {"image": layer(image)}
    layer.backend.set_backend("tensorflow")
    try:
        image = tf.cast(image, layer.compute_dtype)
        how = layer.get_random_transformation(image, True, _Seeds(seed))
        image = layer.transform_single_image(image, how, training=True)
    finally:
        layer.backend.reset()
    return example | {"image": tf.ensure_shape(image, example["image"].shape)}
