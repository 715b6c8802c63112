"""Losses on the logits of images and their texts."""

from keras import ops

from keras_vit.utils.types import Tensor


def contrastive_loss(logits: Tensor) -> Tensor:
    """Computes the softmax loss of CLIP.

    It is the mean of two cross-entropies, of finding the text of each image and the
    image of each text, like `ClipLoss` of open_clip on one device. From "Learning
    Transferable Visual Models From Natural Language Supervision", Figure 3
    (https://arxiv.org/abs/2103.00020).

    Args:
        logits: Tensor of shape `(batch, batch)`, of images and texts in the same order.

    Returns:
        A scalar tensor.
    """
    own = ops.diagonal(logits)
    of_images = ops.logsumexp(logits, axis=1) - own
    of_texts = ops.logsumexp(logits, axis=0) - own
    return (ops.mean(of_images) + ops.mean(of_texts)) / 2


def sigmoid_loss(logits: Tensor) -> Tensor:
    """Computes the sigmoid loss of SigLIP.

    It is the sum of the binary cross-entropies of all pairs, divided by the number of
    images, as in big_vision and in `SigLipLoss` of open_clip. From "Sigmoid Loss for
    Language Image Pre-Training" (https://arxiv.org/abs/2303.15343).

    Args:
        logits: Tensor of shape `(batch, batch)`, of images and texts in the same order.

    Returns:
        A scalar tensor.
    """
    signs = 1 - 2 * ops.eye(ops.shape(logits)[0], dtype=logits.dtype)
    return ops.mean(ops.sum(ops.softplus(signs * logits), axis=1))
