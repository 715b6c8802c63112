"""Random crops of an image for self-supervised training: multi-crop."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from keras_vit.data.decoding import decode, sample_resized_crop_window, tf
from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.data.steps.crops import resize_like_pillow
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils import checks
from keras_vit.utils.scaling import Mode, ModeLike, as_mode
from keras_vit.utils.types import Tensor

# Weights of red, green and blue in Pillow's conversion to gray.
_LUMA = (0.299, 0.587, 0.114)


@dataclasses.dataclass(frozen=True)
class MultiCrop:
    """Two global and several local crops of an image, each augmented.

    The defaults are those of facebookresearch/dino, main_dino.py, and
    `CROPS["mocov3"]` those of facebookresearch/moco-v3, main_moco.py. Pass one
    as `crops` to `ImageDataset.train`.

    A crop of an image depends only on the seed and on the image's position in the run,
    so that a resumed run gets the same crops.

    Crops are resized within one gray level of Pillow. The published code
    rounds to 256 levels after each operation on colors, and approximates the Gaussian
    blur by box filters; this class does neither.

    Attributes:
        global_scale: `(smallest, largest)` area of the two global crops, as
            fractions of the image's area.
        num_local: Integer. Number of local crops; 0 for none.
        local_size: Integer or `(height, width)`. Size of the local crops.
        local_scale: Like `global_scale`, for the local crops.
        resizing: String. "bicubic" or "bilinear".
        jitter: Floats `(brightness, contrast, saturation, hue)`, as in
            torchvision's `ColorJitter`. For images of one channel, only the first two
            are used.
        jitter_probability: Float in [0, 1].
        gray_probability: Float in [0, 1]. Probability that a crop becomes gray.
        blur_probabilities: Floats in [0, 1], for the first and the second
            global crop and for local crops.
        blur_sigma: `(smallest, largest)` standard deviation of the Gaussian
            blur, in pixels.
        solarize_probability: Float in [0, 1]. Probability that the pixels of
            the second global crop of 128 or more are inverted.
    """

    global_scale: tuple = (0.4, 1.0)
    num_local: int = 8
    local_size: int | tuple = 96
    local_scale: tuple = (0.05, 0.4)
    resizing: str = "bicubic"
    jitter: tuple = (0.4, 0.4, 0.2, 0.1)
    jitter_probability: float = 0.8
    gray_probability: float = 0.2
    blur_probabilities: tuple = (1.0, 0.1, 0.5)
    blur_sigma: tuple = (0.1, 2.0)
    solarize_probability: float = 0.2

    def __post_init__(self) -> None:
        checks.positive_pair("local_size", self.local_size)

    def __call__(
        self,
        content: Tensor,
        seed: Tensor,
        size: int | tuple[int, int],
        channels: int,
        mode: Mode,
        flip: bool = True,
    ) -> dict[str, Tensor]:
        """Returns the crops of an image, in a function that `tf.data` maps."""
        size = checks.positive_pair("image_size", size)
        pixels = decode(content, channels)
        fold_in = tf.random.experimental.stateless_fold_in

        def crop(
            number: Any,
            size: tuple[int, int],
            scale: tuple[float, float],
            blur: float,
            solarize: float,
        ) -> Tensor:
            seeds = tf.random.experimental.stateless_split(fold_in(seed, number), 10)
            window = functools.partial(
                sample_resized_crop_window, seed=seeds[0], scale=scale
            )
            x = decode(pixels, channels, window)
            x = resize_like_pillow(x, size, self.resizing)
            x = tf.ensure_shape(tf.cast(x, tf.float32), (*size, channels))
            if flip:
                x = tf.image.stateless_random_flip_left_right(x, seeds[1])
            x = _sometimes(self.jitter_probability, self._jitter, x, seeds[2:4])
            if channels == 3:
                x = _sometimes(self.gray_probability, _gray, x, seeds[4:6])
            x = _sometimes(blur, self._blur, x, seeds[6:8])
            x = _sometimes(solarize, _solarized, x, seeds[8:10])
            x = tf.ensure_shape(x, (*size, channels))
            return preprocess_input(x, mode=mode)

        solarize = 0.0, self.solarize_probability
        views = [
            crop(i, size, self.global_scale, self.blur_probabilities[i], part)
            for i, part in enumerate(solarize)
        ]
        crops = {"global": tf.stack(views)}
        if self.num_local:
            # A loop in the graph, which is traced once for all local crops.
            local_size = checks.positive_pair("local_size", self.local_size)
            shape = (*local_size, channels)
            crops["local"] = tf.map_fn(
                lambda number: crop(
                    number,
                    local_size,
                    self.local_scale,
                    self.blur_probabilities[2],
                    0.0,
                ),
                tf.range(2, 2 + self.num_local, dtype=tf.int64),
                fn_output_signature=tf.TensorSpec(shape, tf.float32),
            )
        return crops

    def _jitter(self, x: Tensor, seed: Tensor) -> Tensor:
        """torchvision's `ColorJitter`: four operations in a random order."""
        seeds = tf.random.experimental.stateless_split(seed, 5)
        brightness, contrast, saturation, hue = self.jitter

        def factor(i: int, strength: float) -> Tensor:
            low, high = max(0.0, 1 - strength), 1 + strength
            return tf.random.stateless_uniform((), seeds[i], low, high)

        def blended(x: Tensor, other: Tensor | float, amount: Tensor) -> Tensor:
            return tf.clip_by_value(amount * x + (1 - amount) * other, 0, 255)

        operations = [
            lambda x: blended(x, 0.0, factor(0, brightness)),
            lambda x: blended(
                x, tf.round(tf.reduce_mean(_gray(x))), factor(1, contrast)
            ),
        ]
        if x.shape[-1] == 3:
            turn = tf.random.stateless_uniform((), seeds[3], -hue, hue)
            operations += [
                lambda x: blended(x, _gray(x), factor(2, saturation)),
                lambda x: tf.image.adjust_hue(x / 255, turn) * 255,
            ]
        order = tf.argsort(tf.random.stateless_uniform((len(operations),), seeds[4]))
        shape = x.shape
        for which in tf.unstack(order):
            branches = [lambda f=f, x=x: f(x) for f in operations]
            x = tf.ensure_shape(tf.switch_case(which, branches), shape)
        return x

    def _blur(self, x: Tensor, seed: Tensor) -> Tensor:
        sigma = tf.random.stateless_uniform((), seed, *self.blur_sigma)
        return gaussian_blur(x, sigma, self.blur_sigma[1])


def gaussian_blur(x: Tensor, sigma: Tensor, largest: float) -> Tensor:
    """Blurs an image `(height, width, channels)` by a Gaussian of standard
    deviation `sigma`, in pixels, with a filter whose radius is four times the
    `largest` one; pixels at the edges are repeated outwards."""
    radius = max(1, round(4 * largest))
    for axis in (0, 1):
        length = x.shape[axis]
        inputs = tf.range(-radius, length + radius)
        distances = tf.range(length)[:, None] - inputs
        weights = tf.exp(-0.5 * (tf.cast(distances, tf.float32) / sigma) ** 2)
        weights = tf.where(tf.abs(distances) <= radius, weights, 0.0)
        weights = weights / tf.reduce_sum(weights, axis=1, keepdims=True)
        padded = tf.gather(x, tf.clip_by_value(inputs, 0, length - 1), axis=axis)
        equation = "ij,jwc->iwc" if axis == 0 else "ij,hjc->hic"
        x = tf.einsum(equation, weights, padded)
    return x


def _sometimes(
    probability: float,
    function: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    seeds: Tensor,
) -> Tensor:
    """Applies a function of an image and a seed with a probability."""
    if not probability:
        return x
    chosen = tf.random.stateless_uniform((), seeds[0]) < probability
    return tf.cond(chosen, lambda: function(x, seeds[1]), lambda: x)


def _gray(x: Tensor, seed: Tensor | None = None) -> Tensor:
    """Returns the image in gray, with the same number of channels."""
    if x.shape[-1] == 1:
        return x
    luma = tf.reduce_sum(x * tf.constant(_LUMA), axis=-1, keepdims=True)
    return tf.repeat(luma, 3, axis=-1)


def _solarized(x: Tensor, seed: Tensor) -> Tensor:
    return tf.where(x < 128, x, 255 - x)


@step
def multi_crop(
    example: Example,
    seed: Seed,
    crops: MultiCrop,
    size: int | tuple[int, int],
    *,
    mode: ModeLike = "tf",
    flip: bool = True,
) -> Example:
    """Replaces an image by a dict of two global and several local crops of it,
    normalized. The seeds of the crops are derived from the seed of the example."""
    channels = example["channels"]
    if channels not in (1, 3):
        raise ValueError(
            "`crops` change colors, and are for images of 1 or 3 channels. Received: "
            f"images of {channels} channels. Train a masked model, such as MAE."
        )
    form = example["image"], example["seed"], size, channels
    return example | {"image": crops(*form, as_mode(mode), flip)}


CROPS = {
    # facebookresearch/dino, main_dino.py
    "dino": MultiCrop(),
    # facebookresearch/moco-v3, main_moco.py, with --crop-min .08
    "mocov3": MultiCrop(global_scale=(0.08, 1.0), num_local=0, resizing="bilinear"),
}
