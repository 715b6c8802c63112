"""Mixup and cutmix of a whole batch, in NumPy or in TensorFlow.

Each image is mixed with the one before it in the batch. Lambda, the fraction
of Beta(p, p), is sampled once for each batch. `xp` is `numpy` or `tensorflow`:
the few functions used have the same name in both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.data.decoding import tf
from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.utils import checks
from keras_vit.utils.types import Tensor


def mix_images(
    xp: Any, images: Tensor, labels: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor]:
    """Mixes every image and its label with the one before it; the image's own
    weight is the larger of `lam` and `1 - lam`.

    As in big_vision's code for "How to train your ViT?"
    (https://arxiv.org/abs/2106.10270).
    """
    lam = xp.maximum(lam, 1 - lam)

    def mix_with_previous(x: Tensor) -> Tensor:
        return lam * x + (1 - lam) * xp.roll(x, 1, 0)

    return mix_with_previous(images), mix_with_previous(labels)


def cut_images(
    xp: Any,
    images: Tensor,
    labels: Tensor,
    lam: Tensor,
    center: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Copies a rectangle of the image before it into every image.

    "CutMix" (https://arxiv.org/abs/1905.04899), with the same rectangle for all
    images of a batch. Labels are weighted by the areas of both images. `lam` is
    the fraction of the image to keep, before the rectangle is clipped at the
    image's edge, and `center` is in fractions of the height and the width.
    """
    half_side = xp.sqrt(1 - lam) / 2
    inside = [
        # The centers of pixels, as fractions of the image.
        xp.abs(((np.arange(n) + 0.5) / n).astype("float32") - middle) < half_side
        for n, middle in zip(images.shape[1:3], center, strict=True)
    ]
    mask = inside[0][:, None] & inside[1]
    images = xp.where(mask[..., None], xp.roll(images, 1, 0), images)
    mask_area = (
        np.float32(mask.mean())
        if xp is np
        else xp.reduce_mean(xp.cast(mask, "float32"))
    )
    kept_area = 1 - mask_area
    labels = kept_area * labels + (1 - kept_area) * xp.roll(labels, 1, 0)
    return images, labels


@step
def mix(
    example: Example, seed: Seed, mixup: float = 0.0, cutmix: float = 0.0
) -> Example:
    """Applies mixup or cutmix with Beta(p, p) to a batch; if both are given, one of the
    two at random. Labels must be rows of floats, as `one_hot` makes them."""
    for name, p in (("mixup", mixup), ("cutmix", cutmix)):
        checks.require(0 <= p <= 1, name, p, "a number from 0 to 1")
    images, labels = example["image"], example["label"]
    xp, sample = _sampler(seed)

    def mixed() -> tuple[Tensor, Tensor]:
        return mix_images(xp, images, labels, sample("mixup", mixup))

    def cut() -> tuple[Tensor, Tensor]:
        center = sample("top", None), sample("left", None)
        return cut_images(xp, images, labels, sample("cutmix", cutmix), center)

    if mixup and cutmix:
        is_mixup = sample("which", None) < 0.5
        if xp is np:
            images, labels = mixed() if is_mixup else cut()
        else:
            images, labels = xp.cond(is_mixup, mixed, cut)
    elif mixup or cutmix:
        images, labels = mixed() if mixup else cut()
    return example | {"image": images, "label": labels}


def _sampler(seed: Seed) -> tuple[Any, Callable[[str, float | None], Tensor]]:
    """Returns `numpy` or `tensorflow`, and a function that returns a scalar of
    Beta(p, p), or a uniform one for None, by its name."""
    if isinstance(seed, np.random.Generator):
        return np, lambda _, p: np.float32(seed.beta(p, p) if p else seed.uniform())
    names = ("mixup", "cutmix", "which", "top", "left")
    seeds = tf.random.experimental.stateless_split(seed, 2 * len(names))

    def sample(name: str, p: float | None) -> Tensor:
        pair = seeds[names.index(name) :: len(names)]
        if p is None:
            return tf.random.stateless_uniform((), pair[0])
        # A Gamma variable divided by the sum of two has distribution
        # Beta(p, p). With a small p both may be 0 in float32.
        one, other = (
            tf.random.stateless_gamma((), pair[i], p, dtype=tf.float64) for i in (0, 1)
        )
        return tf.cast(tf.math.divide_no_nan(one, one + other), tf.float32)

    return tf, sample
