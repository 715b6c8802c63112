"""Losses of self-distillation and of contrastive pre-training."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_vit.utils.types import Tensor


def dino_losses(
    student: Tensor,
    teacher: Tensor,
    center: Tensor,
    teacher_temperature: float | Tensor,
    temperature: float = 0.1,
) -> Tensor:
    """Computes DINO's loss of each image, which is the mean over all pairs of different
    crops.

    The loss is the cross-entropy between the teacher's centered and sharpened
    outputs for each global crop, `(batch, global crops, dimensions)`, and the
    student's outputs for all other crops, `(batch, crops, dimensions)` with the
    global crops first. No gradient flows into `teacher`. From "Emerging
    Properties in Self-Supervised Vision Transformers", Section 3.1
    (https://arxiv.org/abs/2104.14294).
    """
    target = ops.stop_gradient(
        teacher_probabilities(teacher, center, teacher_temperature)
    )
    log_probabilities = ops.log_softmax(student / temperature, axis=-1)
    num_global, num_crops = teacher.shape[1], student.shape[1]
    # A teacher's crop is not compared with the same crop of the student.
    products = ops.einsum("btd,bsd->bts", target, log_probabilities)
    different = 1.0 - ops.eye(num_global, num_crops, dtype=products.dtype)
    pairs = num_global * num_crops - num_global
    return -ops.sum(products * different, axis=(1, 2)) / pairs


def teacher_probabilities(
    teacher: Tensor, center: Tensor, temperature: float | Tensor
) -> Tensor:
    """Returns the probabilities of the teacher: the softmax of centered and
    sharpened outputs `(..., dimensions)`."""
    return ops.softmax((teacher - center) / temperature, axis=-1)


def entropy_and_diversity(
    probabilities: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Measures how much information about the images a teacher's outputs, `(count,
    dimensions)`, contain.

    A collapsed teacher has the same output for all images, which is either
    uniform or one class. In both cases the mutual information of output and
    image, the entropy of the mean output minus the mean entropy, is 0. Returns
    the mean entropy in nats, and the mutual information as a fraction of its
    maximum, which is 0 for fewer than two rows; rows with a weight of 0 are ignored.
    """

    def entropy(p: Tensor) -> Tensor:
        return -ops.sum(p * ops.log(p + 1e-12), axis=-1)

    ones = ops.ones_like(probabilities[:, 0])
    counted = ones if weights is None else weights
    shares = counted / ops.maximum(ops.sum(counted), 1e-12)
    mean = ops.sum(shares * entropy(probabilities))
    marginal = entropy(ops.sum(shares[:, None] * probabilities, axis=0))
    count = ops.sum(ops.cast(counted > 0, probabilities.dtype))
    largest = ops.log(ops.minimum(count, float(probabilities.shape[1])))
    several = count > 1
    information = (marginal - mean) / ops.where(several, largest, 1.0)
    return mean, ops.where(several, information, 0.0)


def contrastive_losses(
    queries: Tensor,
    keys: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Computes MoCo v3's contrastive loss (InfoNCE) of each query.

    The positive key of a query, in the row given by `labels`, belongs to the other crop
    of its image. The negative keys belong to all other images of the batch, except keys
    with a weight of 0, which are padding. No gradient flows into `keys`. As in
    facebookresearch/moco-v3, moco/builder.py, the cross-entropy is multiplied by twice
    the temperature. From "An Empirical Study of Training Self-Supervised Vision
    Transformers", Algorithm 1 (https://arxiv.org/abs/2104.02057).
    """
    keys = ops.stop_gradient(ops.normalize(keys, axis=-1))
    queries = ops.normalize(queries, axis=-1)
    logits = ops.matmul(queries, ops.transpose(keys)) / temperature
    if weights is not None:
        # This is finite, because the loss of padding itself must be.
        logits = ops.where(weights > 0, logits, -1e4)
    losses = keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )
    return losses * (2 * temperature)


def koleo_loss(
    features: Tensor, epsilon: float = 1e-8, weights: Tensor | None = None
) -> Tensor:
    """Computes the KoLeo regularizer, which spreads features `(batch,
    dimensions)` evenly.

    It is the negative mean of the logarithm of each feature's distance to its
    nearest neighbor in the batch, on the unit sphere, so that it depends on the
    size of the batch. Each replica of TensorFlow compares its own part of the
    batch, as DINOv2 does on each GPU. If there is no other feature, the result is 0.
    The logarithms are multiplied by `weights`; features with a weight of 0, which are
    padding, are not neighbors. From "Spreading vectors for similarity search"
    (https://arxiv.org/abs/1806.03198), as used in DINOv2
    (https://arxiv.org/abs/2304.07193, Section 4).
    """
    features = ops.normalize(features, axis=-1, epsilon=epsilon)
    similarity = ops.matmul(features, ops.transpose(features))
    ones = ops.ones_like(features[:, 0])
    factors = ops.cast(ones if weights is None else weights, features.dtype)
    # The diagonal and padding become less than any cosine.
    similarity = ops.stop_gradient(similarity) - 4.0 * ops.eye(
        ops.shape(features)[0], dtype=features.dtype
    )
    similarity = ops.where(factors > 0, similarity, -4.0)
    nearest = ops.argmax(similarity, axis=1)
    has_other = ops.max(similarity, axis=1) >= -2.0
    factors = ops.where(has_other, factors, 0.0)
    difference = features - ops.take(features, nearest, axis=0) + epsilon
    distance = ops.sqrt(ops.sum(difference**2, axis=-1))
    return -ops.mean(factors * ops.log(distance + epsilon))


def ibot_losses(
    student: Tensor,
    teacher: Tensor,
    masked: Tensor,
    center: Tensor,
    teacher_temperature: float | Tensor,
    temperature: float = 0.1,
) -> Tensor:
    """Computes iBOT's loss of each image, which is the mean over masked patches, or 0
    without any.

    The loss is the cross-entropy between the teacher's output for a patch and
    the student's output for the same patch, both `(batch, patches,
    dimensions)`, which is masked in the student's input. No gradient flows into
    `teacher`. From "iBOT: Image BERT Pre-Training with Online Tokenizer",
    Section 3.1 (https://arxiv.org/abs/2111.07832).
    """
    target = ops.stop_gradient(
        teacher_probabilities(teacher, center, teacher_temperature)
    )
    log_probabilities = ops.log_softmax(student / temperature, axis=-1)
    losses = -ops.sum(target * log_probabilities, axis=-1)
    masked = ops.cast(masked, losses.dtype)
    count = ops.maximum(ops.sum(masked, axis=-1), 1.0)
    return ops.sum(losses * masked, axis=-1) / count


def updated_center(
    center: Tensor | keras.Variable,
    teacher: Tensor,
    momentum: float = 0.9,
    mean: Callable[..., Tensor] = ops.mean,
) -> Tensor:
    """Returns the moving average of the teacher's outputs, `(dimensions,)`,
    after a batch; `mean` averages over an axis of the whole batch, across all
    devices."""
    batch = mean(ops.reshape(teacher, (-1, teacher.shape[-1])), axis=0)
    center = ops.convert_to_tensor(center)
    return center * momentum + batch * (1 - momentum)


def update_momentum(
    targets: Sequence[keras.Variable],
    sources: Sequence[keras.Variable],
    momentum: float | Tensor,
) -> None:
    """Assigns `momentum * target + (1 - momentum) * source` to each of the
    targets."""
    for target, source in zip(targets, sources, strict=True):
        factor = ops.cast(momentum, target.dtype)
        value = ops.stop_gradient(ops.cast(source, target.dtype))
        target.assign(factor * target + (1 - factor) * value)
