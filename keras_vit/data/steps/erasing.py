"""Random erasing (https://arxiv.org/abs/1708.04896) as timm and DeiT use it."""

import dataclasses
import math
from typing import Any

from keras_vit.data.decoding import tf
from keras_vit.utils import checks
from keras_vit.utils.types import Tensor

ATTEMPTS = 10  # to find a rectangle that fits the image, as in timm


@dataclasses.dataclass(frozen=True)
class RandomErasing:
    """Replaces a random rectangle of an image by noise or by zeros.

    The rectangle is sampled like that of `timm.data.random_erasing`: ten
    attempts sample its area uniformly and its aspect ratio log-uniformly, and
    the first rectangle that is smaller than the image is used.

    Example:

    ```python
    import numpy as np
    import tensorflow as tf
    import keras_vit

    erase = keras_vit.data.RandomErasing(probability=1.0, mode="constant")
    image = tf.ones((32, 32, 3))
    image = erase(image, seed=(0, 7))
    assert 0 < np.mean(image == 0) < 0.5
    ```

    Args:
        probability: Float in [0, 1]. Probability that a rectangle of an image is
            erased.
        area: `(smallest, largest)` fraction of the image's area.
        aspect: `(smallest, largest)` ratio of height to width.
        mode: "pixel" for a normally distributed number of mean 0 and standard
            deviation 1 in each pixel and channel, as in DeiT; "constant" for
            0. Images are already normalized, so that 0 is a medium gray.
    """

    probability: float = 0.25
    area: tuple = (0.02, 1 / 3)
    aspect: tuple = (0.3, 1 / 0.3)
    mode: str = "pixel"

    def __post_init__(self) -> None:
        low, high = self.area
        if not 0 <= self.probability <= 1 or not 0 < low <= high <= 1:
            raise ValueError(
                "The probability of erasing must be from 0 to 1, and `area` "
                "(smallest, largest) fractions above 0 and at most 1. "
                f"Received: {self.probability}, {self.area}"
            )
        checks.one_of("mode", self.mode, ("pixel", "constant"))

    def __call__(self, image: Tensor, seed: Any) -> Tensor:
        """Returns the image with or without a rectangle erased."""
        height, width, _ = image.shape
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3), num=3)
        is_erased = tf.random.stateless_uniform((), seeds[0])
        is_erased = is_erased < self.probability
        numbers = tf.random.stateless_uniform((ATTEMPTS, 4), seeds[1])
        low, high = self.area
        area = (low + (high - low) * numbers[:, 0]) * (height * width)
        low, high = map(math.log, self.aspect)
        aspect = tf.exp(low + (high - low) * numbers[:, 1])
        sides = tf.stack([tf.sqrt(area * aspect), tf.sqrt(area / aspect)], 1)
        sides = tf.round(sides)
        fits = tf.reduce_all(sides < (height, width), axis=1)
        # The first one that fits, or none.
        chosen = tf.argmax(tf.cast(fits, tf.int32))
        sides = sides[chosen]
        free = (height, width) - sides
        start = tf.floor(numbers[chosen, 2:] * (free + 1))
        start = tf.minimum(start, free)  # the product may be rounded up
        rows, columns = tf.range(height * 1.0), tf.range(width * 1.0)
        rows = (rows >= start[0]) & (rows < start[0] + sides[0])
        columns = (columns >= start[1]) & (columns < start[1] + sides[1])
        mask = rows[:, None] & columns & is_erased & tf.reduce_any(fits)
        if self.mode == "pixel":
            value = tf.random.stateless_normal(image.shape, seeds[2])
        else:
            value = tf.zeros_like(image)
        return tf.where(mask[..., None], value, image)
