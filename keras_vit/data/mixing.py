"""Mixup and cutmix of a whole batch, in NumPy or in TensorFlow.

Both take as each image's partner the one before it in the batch, and one
number for the whole batch. `xp` is `numpy` or `tensorflow`: the few functions
used have the same name in both.
"""

import numpy as np


def mixup(xp, images, labels, share):
    """Mixes every image and its label with the one before it.

    As big_vision does it for "How to train your ViT?"
    (https://arxiv.org/abs/2106.10270).

    Args:
        xp: Module `numpy` or `tensorflow`.
        images: Float array of shape `(batch, height, width, channels)`.
        labels: Float array of shape `(batch, classes)`.
        share: Float scalar in [0, 1], drawn from Beta(p, p). The image's own
            share is the larger of it and `1 - share`.
    """
    share = xp.maximum(share, 1 - share)

    def mix(x):
        return share * x + (1 - share) * xp.roll(x, 1, 0)

    return mix(images), mix(labels)


def cutmix(xp, images, labels, share, centre):
    """Puts a part of the image before it into every image.

    "CutMix" (https://arxiv.org/abs/1905.04899), with one rectangle a batch.
    Labels have the shares of the pixels that are really there.

    Args:
        xp: Module `numpy` or `tensorflow`.
        images: Float array of shape `(batch, height, width, channels)`.
        labels: Float array of shape `(batch, classes)`.
        share: Float scalar in [0, 1]: the part to keep, before the rectangle
            is cut off at the image's edge.
        centre: Two floats in [0, 1]: the middle of the rectangle.
    """
    cut = xp.sqrt(1 - share) / 2
    inside = [
        # The middles of pixels, in shares of the image.
        xp.abs(((np.arange(n) + 0.5) / n).astype("float32") - middle) < cut
        for n, middle in zip(images.shape[1:3], centre, strict=True)
    ]
    mask = inside[0][:, None] & inside[1]
    images = xp.where(mask[..., None], xp.roll(images, 1, 0), images)
    own = 1 - _mean(xp, mask)
    return images, own * labels + (1 - own) * xp.roll(labels, 1, 0)


def mix(xp, images, labels, rules, draws):
    """Applies mixup, cutmix or, drawn a batch, one of the two.

    Args:
        xp: Module `numpy` or `tensorflow`.
        images, labels: A batch, labels one-hot.
        rules: `Batches`.
        draws: Function of a name and of the `p` of Beta(p, p), or None for a
            uniform draw, that returns a float32 scalar in [0, 1].
    """

    def mixed_up():
        return mixup(xp, images, labels, draws("mixup", rules.mixup))

    def cut():
        centre = draws("top", None), draws("left", None)
        share = draws("cutmix", rules.cutmix)
        return cutmix(xp, images, labels, share, centre)

    if not rules.cutmix:
        return mixed_up()
    if not rules.mixup:
        return cut()
    return cond(xp, draws("which", None) < 0.5, mixed_up, cut)


def cond(xp, condition, yes, no):
    if xp is np:
        return yes() if condition else no()
    return xp.cond(condition, yes, no)


def _mean(xp, mask):
    if xp is np:
        return np.float32(mask.mean())
    return xp.reduce_mean(xp.cast(mask, "float32"))
