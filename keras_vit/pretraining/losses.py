"""Losses of self-distillation and of contrastive pre-training."""

import keras
from keras import ops


def dino_losses(student, teacher, center, teacher_temperature, temperature=0.1):
    """Computes DINO's loss of each image.

    The loss is the cross-entropy between the teacher's centred and sharpened
    outputs for each global crop and the student's outputs for all other crops.
    From "Emerging Properties in Self-Supervised Vision Transformers", Section
    3.1 (https://arxiv.org/abs/2104.14294).

    Args:
        student: Tensor of shape `(batch, crops, dimensions)`. The outputs of
            the student; the global crops come first.
        teacher: Tensor of shape `(batch, global crops, dimensions)`. The
            outputs of the teacher for the global crops, in the same order.
        center: Tensor of shape `(dimensions,)`, subtracted from `teacher`.
        teacher_temperature: Float or scalar tensor.
        temperature: Float. The temperature of the student.

    Returns:
        Tensor of shape `(batch,)`: the mean over all pairs of different crops.
        No gradient flows into `teacher`.
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


def teacher_probabilities(teacher, center, temperature):
    """Returns the probabilities of the teacher: centred and sharpened outputs.

    Args:
        teacher: Tensor of shape `(..., dimensions)`.
        center: Tensor of shape `(dimensions,)`.
        temperature: Float or scalar tensor.

    Returns:
        Tensor of the shape of `teacher`, of which the last axis sums to 1.
    """
    return ops.softmax((teacher - center) / temperature, axis=-1)


def entropy_and_diversity(probabilities, weights=None):
    """Measures how much the outputs of a teacher tell about the images.

    A collapsed teacher has the same output for all images, which is either
    uniform or one class. In both cases the mutual information of output and
    image, the entropy of the mean output minus the mean entropy, is 0.

    Args:
        probabilities: Tensor of shape `(count, dimensions)`.
        weights: Tensor of shape `(count,)`. Rows of weight 0 do not count.
            None for 1.

    Returns:
        Two scalars: the mean entropy of the rows in nats, and the mutual
        information as a fraction of its maximum, in [0, 1], which is 0 for
        fewer than two rows.
    """

    def entropy(p):
        return -ops.sum(p * ops.log(p + 1e-12), axis=-1)

    if weights is None:
        weights = ops.ones_like(probabilities[:, 0])
    shares = weights / ops.maximum(ops.sum(weights), 1e-12)
    mean = ops.sum(shares * entropy(probabilities))
    marginal = entropy(ops.sum(shares[:, None] * probabilities, axis=0))
    count = ops.sum(ops.cast(weights > 0, probabilities.dtype))
    largest = ops.log(ops.minimum(count, float(probabilities.shape[1])))
    several = count > 1
    information = (marginal - mean) / ops.where(several, largest, 1.0)
    return mean, ops.where(several, information, 0.0)


def contrastive_losses(queries, keys, labels, temperature=1.0, weights=None):
    """Computes MoCo v3's contrastive loss (InfoNCE) of each query.

    The positive key of a query is that of the other crop of its image, and the
    negative ones are those of all other images of the batch. As in
    facebookresearch/moco-v3, moco/builder.py, the cross-entropy is multiplied
    by twice the temperature. From "An Empirical Study of Training
    Self-Supervised Vision Transformers", Algorithm 1
    (https://arxiv.org/abs/2104.02057).

    Args:
        queries: Tensor of shape `(batch, dimensions)`.
        keys: Tensor of shape `(all images, dimensions)`.
        labels: Integers of shape `(batch,)`. The row of each query's positive
            key.
        temperature: Float.
        weights: Tensor of shape `(all images,)`. Keys of weight 0, which are
            padding, are no negatives. None if all count.

    Returns:
        Tensor of shape `(batch,)`. No gradient flows into `keys`.
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


def koleo_loss(features, epsilon=1e-8, weights=None):
    """Computes the KoLeo regularizer, which spreads features evenly.

    It is the negative mean of the logarithm of each feature's distance to its
    nearest neighbor in the batch, on the unit sphere, so that it depends on
    the size of the batch. Each replica of TensorFlow compares its own part of
    the batch, as DINOv2 does on each GPU. A feature without another one counts
    0. From
    "Spreading vectors for similarity search"
    (https://arxiv.org/abs/1806.03198), as DINOv2 uses it
    (https://arxiv.org/abs/2304.07193, Section 4).

    Args:
        features: Tensor of shape `(batch, dimensions)`.
        epsilon: Float, added to differences and to distances.
        weights: Tensor of shape `(batch,)`, by which the logarithms are
            multiplied. Features of weight 0, which are padding, are no
            neighbors. None for 1.

    Returns:
        Scalar tensor.
    """
    features = ops.normalize(features, axis=-1, epsilon=epsilon)
    similarity = ops.matmul(features, ops.transpose(features))
    if weights is None:
        weights = ops.ones_like(features[:, 0])
    weights = ops.cast(weights, features.dtype)
    # The diagonal and padding become less than any cosine.
    similarity = ops.stop_gradient(similarity) - 4.0 * ops.eye(
        ops.shape(features)[0], dtype=features.dtype
    )
    similarity = ops.where(weights > 0, similarity, -4.0)
    nearest = ops.argmax(similarity, axis=1)
    has_other = ops.max(similarity, axis=1) >= -2.0
    weights = ops.where(has_other, weights, 0.0)
    difference = features - ops.take(features, nearest, axis=0) + epsilon
    distance = ops.sqrt(ops.sum(difference**2, axis=-1))
    return -ops.mean(weights * ops.log(distance + epsilon))


def ibot_losses(
    student, teacher, masked, center, teacher_temperature, temperature=0.1
):
    """Computes iBOT's loss of the masked patches of each image.

    The loss is the cross-entropy between the teacher's output for a patch and
    the student's output for the same patch, which is masked in the student's
    input. From "iBOT: Image BERT Pre-Training with Online Tokenizer", Section
    3.1 (https://arxiv.org/abs/2111.07832).

    Args:
        student: Tensor of shape `(batch, patches, dimensions)`.
        teacher: Tensor of the same shape.
        masked: Tensor of shape `(batch, patches)`, 1 where a patch is masked.
        center: Tensor of shape `(dimensions,)`.
        teacher_temperature: Float or scalar tensor.
        temperature: Float. The temperature of the student.

    Returns:
        Tensor of shape `(batch,)`: the mean over masked patches, and 0 for
        images without any. No gradient flows into `teacher`.
    """
    target = ops.stop_gradient(
        teacher_probabilities(teacher, center, teacher_temperature)
    )
    log_probabilities = ops.log_softmax(student / temperature, axis=-1)
    losses = -ops.sum(target * log_probabilities, axis=-1)
    masked = ops.cast(masked, losses.dtype)
    count = ops.maximum(ops.sum(masked, axis=-1), 1.0)
    return ops.sum(losses * masked, axis=-1) / count


def updated_center(center, teacher, momentum=0.9, mean=ops.mean):
    """Returns the moving average of the teacher's outputs after a batch.

    Args:
        center: Tensor of shape `(dimensions,)`.
        teacher: Tensor of shape `(..., dimensions)`. The outputs for a batch.
        momentum: Float in [0, 1).
        mean: Function of a tensor and `axis` that returns the mean over the
            whole batch; another one averages over several devices.

    Returns:
        Tensor of shape `(dimensions,)`.
    """
    batch = mean(ops.reshape(teacher, (-1, teacher.shape[-1])), axis=0)
    center = ops.convert_to_tensor(center)
    return center * momentum + batch * (1 - momentum)


def update_momentum(targets, sources, momentum):
    """Moves variables towards others by an exponential moving average.

    Args:
        targets: List of variables, which are assigned
            `momentum * target + (1 - momentum) * source`.
        sources: List of variables of the same shapes.
        momentum: Float in [0, 1], or a scalar tensor.
    """
    for target, source in zip(targets, sources, strict=True):
        factor = ops.cast(momentum, target.dtype)
        value = ops.stop_gradient(ops.cast(source, target.dtype))
        target.assign(factor * target + (1 - factor) * value)
