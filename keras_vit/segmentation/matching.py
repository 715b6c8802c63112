"""The loss of mask transformers, with its matching of queries and objects."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.models import Model
from keras_vit.utils import replicas
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, Tensor

# Annotations are often rounded to a pixel outside of the image.
_MOST_OF_BOXES = 1.1


class SetModel(Model):
    """A functional model with queries, which `fit` trains with the model's own loss,
    `set_loss`, for targets that are matched with the queries."""

    def __init__(
        self, inputs: Any, outputs: Any, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(inputs, outputs, name=name, **kwargs)
        # XLA cannot call the assignment on the host in TensorFlow's graph.
        self.supports_jit = keras.config.backend() != "tensorflow"

    def set_loss(self, y: Any, y_pred: Any) -> Tensor:
        raise NotImplementedError

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        given = getattr(self, "loss", None)  # of `compile`
        if given is not None or sample_weight is not None:
            raise ValueError(
                f"{self.name!r} trains with a loss of its own, and without "
                "sample weights: leave `loss` of `compile` out, and give "
                "`loss_options` when the model is built. Received: "
                + (f"loss={given!r}" if given else "`sample_weight`")
            )
        loss = self.set_loss(y, y_pred)
        for extra in self.losses:
            extra = ops.sum(ops.cast(extra, loss.dtype))
            loss = loss + extra / replicas.count()
        return loss


def mask_loss(
    outputs: dict[str, Tensor],
    targets: dict[str, Tensor],
    class_weight: float = 2.0,
    mask_weight: float = 5.0,
    dice_weight: float = 5.0,
    no_object_weight: float = 0.1,
    num_points: int = 12544,
    oversampling: float = 3.0,
    importance: float = 0.75,
    uniform: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Computes the loss of an EoMT's predictions.

    Each object is matched with one query, by the assignment with the lowest cost. The
    loss is the sum of the cross-entropy of the classes of all queries, with "no object"
    for those that are not matched, and of the binary cross-entropy and the dice loss of
    the matched masks. Masks are compared at random points, most of them where a mask is
    least certain. The losses of the predictions before each masked block are added. On
    a replica of `tf.distribute`, the result is the replica's part of the loss of the
    whole batch: the sum over the replicas is the loss.

    From "Masked-attention Mask Transformer for Universal Image Segmentation",
    Section 3.3 (https://arxiv.org/abs/2112.01527), as in transformers'
    `EomtLoss`.

    Args:
        outputs: Dict of the outputs of an `EoMT`.
        targets: Dict of "classes", integers of shape `(batch, objects)`, -1
            where an image has fewer objects; and "masks" of 0 and 1, of shape
            `(batch, objects, height, width)`.
        class_weight, mask_weight, dice_weight: Floats. Weights of the three losses, and
            of the costs.
        no_object_weight: Float. Weight of queries without an object.
        num_points: Integer. Number of points of a mask.
        oversampling: Float. The number of points from which the uncertain ones are
            chosen, divided by `num_points`.
        importance: Float. Fraction of points that are chosen for their uncertainty.
        uniform: Function of a shape that returns random numbers in [0, 1).

    Returns:
        Scalar tensor.

    Raises:
        ValueError: if `targets` have other shapes, or a class is out of range.
            In a compiled step, the backend raises an error of its own with the same
            message.
    """
    uniform = uniform or keras.random.uniform
    labels = ops.cast(targets["classes"], "int32")
    masks = ops.cast(targets["masks"], "float32")
    shapes = tuple(labels.shape), tuple(masks.shape)
    if [len(x) for x in shapes] != [2, 4] or 0 in shapes[0][1:]:
        raise ValueError(
            '`targets["classes"]` must be of shape (batch, objects), and '
            '`targets["masks"]` of shape (batch, objects, height, width), with '
            "one object or more. The class of an image without objects is -1. "
            f"Received: {shapes[0]} and {shapes[1]}"
        )
    labels = checked(labels, outputs["classes"].shape[-1] - 1)
    suffixes = [name.removeprefix("masks") for name in outputs if "masks_" in name]
    total = 0.0
    for suffix in (*suffixes, ""):
        logits = ops.cast(outputs[f"masks{suffix}"], "float32")
        logits = ops.transpose(logits, (0, 3, 1, 2))  # (B, Q, h, w)
        classes = ops.cast(outputs[f"classes{suffix}"], "float32")
        query, target, valid = match(
            logits,
            classes,
            labels,
            masks,
            (class_weight, mask_weight, dice_weight),
            num_points,
            uniform,
        )
        total = total + class_weight * class_loss(
            classes, labels, query, target, valid, no_object_weight
        )
        bce, dice = _mask_losses(
            ops.take_along_axis(logits, query[..., None, None], axis=1),
            ops.take_along_axis(masks, target[..., None, None], axis=1),
            valid,
            num_points,
            oversampling,
            importance,
            uniform,
        )
        total = total + mask_weight * bce + dice_weight * dice
    return total


def match(
    logits: Tensor,
    classes: Tensor,
    labels: Tensor,
    masks: Tensor,
    weights: tuple[float, float, float],
    num_points: int,
    uniform: Callable[..., Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Assigns each object a query, so that the sum of the costs of class,
    cross-entropy and dice is the least.

    Masks, `(B, Q, h, w)` and `(B, N, H, W)`, are compared at random points,
    which are the same for all masks of an image. Returns indices of queries and
    of objects, both `(B, N)`, by increasing query, and booleans `(B, N)`: the
    first pairs of an image are valid, as many as it has objects.
    """
    points = uniform((ops.shape(labels)[0], num_points, 2))
    predicted, truth = (
        sample_points(
            ops.reshape(x, (-1, *x.shape[2:])),
            ops.repeat(points, x.shape[1], axis=0),
        )
        for x in (logits, masks)
    )
    num_queries, count = classes.shape[1], labels.shape[1]
    predicted = ops.reshape(predicted, (-1, num_queries, num_points))
    truth = ops.reshape(truth, (-1, count, num_points))
    positive = ops.softplus(-predicted) / num_points
    negative = ops.softplus(predicted) / num_points
    mask_cost = ops.einsum("bqp,bnp->bqn", positive, truth)
    mask_cost = mask_cost + ops.einsum("bqp,bnp->bqn", negative, 1 - truth)
    inside = ops.sigmoid(predicted)
    both = 2 * ops.einsum("bqp,bnp->bqn", inside, truth)
    either = ops.sum(inside, -1)[:, :, None] + ops.sum(truth, -1)[:, None]
    dice_cost = 1 - (both + 1) / (either + 1)
    class_weight, mask_weight, dice_weight = weights
    cost = (
        mask_weight * mask_cost
        + class_weight * class_cost(classes, labels)
        + dice_weight * dice_cost
    )
    return assign(cost, labels)


def class_cost(classes: Tensor, labels: Tensor) -> Tensor:
    """Returns the negative probability that each query, of logits `(B, Q, C +
    1)`, has for the class of each object: `(B, Q, N)`."""
    index = ops.maximum(labels, 0)[:, None]
    return -ops.take_along_axis(ops.softmax(classes), index, axis=2)


def assign(cost: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Assigns queries to objects, given costs `(B, Q, N)` and classes `(B, N)`,
    -1 for no object, so that the sum of the costs of an image is the least;
    returns what `match` does. It is computed on the host, also in a compiled
    step."""
    return _on_host(_assign, ("int32", "int32", "bool"), labels, cost)


def _assign(labels: Array, cost: Array) -> tuple[Array, Array, Array]:
    optimize = require("scipy.optimize")
    cost, labels = np.asarray(cost), np.asarray(labels)
    most = np.finfo(cost.dtype).max
    cost = np.nan_to_num(cost, nan=most, posinf=most, neginf=most)
    query, target = np.zeros((2, *labels.shape), "int32")
    valid = np.zeros(labels.shape, bool)
    for i, one in enumerate(cost):
        objects = np.flatnonzero(labels[i] >= 0)
        rows, columns = optimize.linear_sum_assignment(one[:, objects])
        pairs = slice(len(rows))
        query[i, pairs], target[i, pairs] = rows, objects[columns]
        valid[i, pairs] = True
    return query, target, valid


def checked(labels: Tensor, num_classes: int, *boxes: Tensor) -> Tensor:
    """Returns the classes `(B, N)` of objects; raises a `ValueError` if a class
    or a number of a box `(B, N, 4)` of an object is out of range."""
    check = functools.partial(_check, num_classes=num_classes)
    return _on_host(check, ("int32",), labels, *boxes)[0]


def _check(labels: Array, *boxes: Array, num_classes: int) -> tuple[Array]:
    labels = np.asarray(labels)
    if labels.size and labels.max() >= num_classes:
        raise ValueError(
            f"The model has {num_classes} classes. Give "
            f'`targets["classes"]` from 0 to {num_classes - 1}, or -1 for no '
            f"object. Received: {labels.max()}"
        )
    for array in boxes:
        given = np.asarray(array)[labels >= 0]
        wrong = ~((given >= 0) & (given <= _MOST_OF_BOXES)).all(-1)
        if wrong.any():
            raise ValueError(
                'Give `targets["boxes"]` as center x, center y, width and '
                "height, fractions of the image's width and height from 0 to "
                f"1. Received: {given[wrong][0].tolist()}"
            )
    return (labels,)


def _on_host(
    function: Callable,
    dtypes: tuple[str, ...],
    labels: Tensor,
    *arrays: Tensor,
) -> tuple[Tensor, ...]:
    """Calls a NumPy function on tensors without gradients; its arrays have the
    shape of `labels`."""
    arrays = (labels, *map(ops.stop_gradient, arrays))
    backend = keras.config.backend()
    if backend == "jax":
        import jax

        shapes = [jax.ShapeDtypeStruct(labels.shape, x) for x in dtypes]
        return tuple(jax.pure_callback(function, tuple(shapes), *arrays))
    if backend == "tensorflow":
        import tensorflow as tf

        # It returns a tensor for one type, and a list for several.
        found = tf.nest.flatten(tf.numpy_function(function, arrays, dtypes))
        return tuple(tf.ensure_shape(x, labels.shape) for x in found)
    found = function(*map(ops.convert_to_numpy, arrays))
    return tuple(map(ops.convert_to_tensor, found))


def class_loss(
    classes: Tensor,
    labels: Tensor,
    query: Tensor,
    target: Tensor,
    valid: Tensor,
    no_object_weight: float,
) -> Tensor:
    """Returns the weighted mean of the cross-entropy of all queries."""
    num_queries, none = classes.shape[1], classes.shape[2] - 1
    found = ops.take_along_axis(labels, target, axis=1)
    found = ops.where(valid, found + 1, 0)
    matched = ops.one_hot(query, num_queries, dtype="int32")  # (B, N, Q)
    found = ops.sum(matched * found[..., None], axis=1)  # (B, Q)
    found = ops.where(found > 0, found - 1, none)
    weights = ops.where(found == none, no_object_weight, 1.0)
    losses = ops.take_along_axis(-ops.log_softmax(classes), found[..., None], axis=2)[
        ..., 0
    ]
    # 0 if no query has a weight: no objects, and `no_object_weight=0`.
    total = replicas.sum_of_all(ops.sum(weights))
    return ops.sum(weights * losses) / ops.where(total > 0, total, 1.0)


def _mask_losses(
    logits: Tensor,
    masks: Tensor,
    valid: Tensor,
    num_points: int,
    oversampling: float,
    importance: float,
    uniform: Callable[..., Tensor],
) -> tuple[Tensor, Tensor]:
    """Returns cross-entropy and dice loss of pairs of masks (B, N, h, w)."""
    logits, masks = (ops.reshape(x, (-1, *x.shape[2:])) for x in (logits, masks))
    valid = ops.cast(ops.reshape(valid, (-1,)), "float32")
    fixed = ops.stop_gradient(logits)
    count = ops.shape(logits)[0]
    uncertain = int(importance * num_points)
    points = uniform((count, int(num_points * oversampling), 2))
    certainty = ops.abs(sample_points(fixed, points))
    _, chosen = ops.top_k(-certainty, uncertain, sorted=True)
    chosen = ops.repeat(chosen[..., None], 2, axis=2)
    points = ops.take_along_axis(points, ops.cast(chosen, "int32"), axis=1)
    if num_points > uncertain:
        more = uniform((count, num_points - uncertain, 2))
        points = ops.concatenate([points, more], axis=1)
    truth = ops.stop_gradient(sample_points(masks, points))  # (B N, P)
    x = sample_points(logits, points)
    entropy = truth * ops.softplus(-x) + (1 - truth) * ops.softplus(x)
    inside = ops.sigmoid(x)
    both = 2 * ops.sum(inside * truth, -1)
    either = ops.sum(inside, -1) + ops.sum(truth, -1)
    dice = 1 - (both + 1) / (either + 1)
    num_masks = ops.maximum(replicas.sum_of_all(ops.sum(valid)), 1)
    return (
        ops.sum(valid * ops.mean(entropy, -1)) / num_masks,
        ops.sum(valid * dice) / num_masks,
    )


def sample_points(maps: Tensor, points: Tensor) -> Tensor:
    """Interpolates maps `(R, h, w)`, zero outside, bilinearly at points `(R, P,
    2)` of `(x, y)` from 0 at the left and the top border to 1 at the right and
    the bottom border."""
    height, width = maps.shape[1:]
    flat = ops.reshape(maps, (-1, height * width))
    x, y = points[..., 0] * width - 0.5, points[..., 1] * height - 0.5
    left, top = ops.floor(x), ops.floor(y)
    result = 0.0
    for column, row in ((0, 0), (1, 0), (0, 1), (1, 1)):
        i, j = left + column, top + row
        weight = (1 - ops.abs(x - i)) * (1 - ops.abs(y - j))
        inside = (i >= 0) & (i < width) & (j >= 0) & (j < height)
        index = ops.clip(j, 0, height - 1) * width + ops.clip(i, 0, width - 1)
        values = ops.take_along_axis(flat, ops.cast(index, "int32"), axis=1)
        result = result + ops.where(inside, weight * values, 0.0)
    return result
