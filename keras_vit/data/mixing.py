"""Mixup and cutmix of a whole batch, in NumPy or in TensorFlow.

Each image is mixed with the one before it in the batch. Lambda, the fraction
of Beta(p, p), is sampled once for each batch. `xp` is `numpy` or `tensorflow`:
the few functions used have the same name in both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.utils.types import Tensor


def mixup(
    xp: Any, images: Tensor, labels: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor]:
    """Mixes every image and its label with the one before it; the image's own
    weight is the larger of `lam` and `1 - lam`.

    As big_vision does it for "How to train your ViT?"
    (https://arxiv.org/abs/2106.10270).
    """
    lam = xp.maximum(lam, 1 - lam)

    def mix_with_previous(x: Tensor) -> Tensor:
        return lam * x + (1 - lam) * xp.roll(x, 1, 0)

    return mix_with_previous(images), mix_with_previous(labels)


def cutmix(
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


def mix(
    xp: Any,
    images: Tensor,
    labels: Tensor,
    options: Any,
    sample: Callable[[str, float | None], Tensor],
) -> tuple[Tensor, Tensor]:
    """Applies mixup, cutmix, or one of the two at random; `sample` returns a
    scalar of Beta(p, p), or a uniform one for None, by its name."""

    def apply_mixup() -> tuple[Tensor, Tensor]:
        return mixup(xp, images, labels, sample("mixup", options.mixup))

    def apply_cutmix() -> tuple[Tensor, Tensor]:
        center = sample("top", None), sample("left", None)
        lam = sample("cutmix", options.cutmix)
        return cutmix(xp, images, labels, lam, center)

    if not options.cutmix:
        return apply_mixup()
    if not options.mixup:
        return apply_cutmix()
    is_mixup = sample("which", None) < 0.5
    if xp is np:
        return apply_mixup() if is_mixup else apply_cutmix()
    return xp.cond(is_mixup, apply_mixup, apply_cutmix)
