"""The loss of detectors that predict a set of boxes."""

from keras import ops

from keras_vit.segmentation import matching
from keras_vit.segmentation.matching import assign, checked, class_loss
from keras_vit.utils import replicas
from keras_vit.utils.types import Tensor

# Of FCOS: a point's largest distance from the center of its object, and the
# range of the largest distance to a side, in steps of its level.
_RADIUS, _RANGE = 1.5, (4.0, 8.0)


def set_loss(
    outputs: dict[str, Tensor],
    targets: dict[str, Tensor] | Tensor,
    box_weight: float = 5.0,
    giou_weight: float = 2.0,
    no_object_weight: float = 0.1,
    class_cost: float = 1.0,
    box_cost: float = 5.0,
    giou_cost: float = 2.0,
) -> Tensor:
    """Computes the loss of a detector's predictions.

    Each object is matched with one query, by the assignment with the lowest cost. The
    loss is the sum of the cross-entropy of the classes of all queries, with "no object"
    for those that are not matched, and of the L1 distance and the generalized IoU loss
    of the matched boxes. The sums over boxes are divided by the number of objects in
    the batch, so that losses depend on the batch size. On a replica of `tf.distribute`,
    the result is the replica's part of the loss of the whole batch: the sum over the
    replicas is the loss.

    From "End-to-End Object Detection with Transformers", Section 3.1
    (https://arxiv.org/abs/2005.12872), as in transformers'
    `ForObjectDetectionLoss`.

    Args:
        outputs: Dict of the outputs of a `YOLOS`.
        targets: Dict of "classes", integers of shape `(batch, objects)`, -1
            where an image has fewer objects; and "boxes" of shape `(batch,
            objects, 4)`: center x, center y, width and height as fractions of
            the image's width and height. Or one array of both, of shape `(batch,
            objects, 5)`, class first, as in datasets of `data.load_detection`.
        box_weight: Float. Weight of the L1 distance; the weight of the classes is 1.
        giou_weight: Float. Weight of the generalized IoU.
        no_object_weight: Float. Weight of queries without an object in the
            weighted mean of the cross-entropy.
        class_cost, box_cost, giou_cost: Floats. Weights of a pair's negative class
            probability, L1 distance and generalized IoU in the cost of an assignment.

    Returns:
        Scalar tensor.

    Raises:
        ValueError: if `targets` have other shapes, a class is out of range, or a number
            of an object's box is not a fraction. In a compiled step, the backend raises
            an error of its own with the same message.
    """
    terms = set_loss_terms(
        outputs, targets, no_object_weight, class_cost, box_cost, giou_cost
    )
    return terms["class"] + box_weight * terms["box"] + giou_weight * terms["giou"]


def set_loss_terms(
    outputs: dict[str, Tensor],
    targets: dict[str, Tensor] | Tensor,
    no_object_weight: float = 0.1,
    class_cost: float = 1.0,
    box_cost: float = 5.0,
    giou_cost: float = 2.0,
) -> dict[str, Tensor]:
    """Computes the terms of `set_loss`, with the same arguments.

    Returns:
        Dict of the scalar tensors "class", "box" and "giou", without weights.
    """
    classes, boxes = (
        ops.cast(outputs[name], "float32") for name in ("classes", "boxes")
    )
    labels, truth = _checked_shapes(targets)
    labels = checked(labels, classes.shape[-1] - 1, truth)
    pairs = boxes[:, :, None], truth[:, None]
    cost = (
        box_cost * ops.sum(ops.abs(pairs[0] - pairs[1]), -1)
        + class_cost * matching.class_cost(classes, labels)
        - giou_cost * generalized_iou(*pairs)[0]
    )
    query, target, valid = assign(cost, labels)
    boxes = ops.take_along_axis(boxes, query[..., None], axis=1)
    truth = ops.take_along_axis(truth, target[..., None], axis=1)
    # Pairs beyond the objects of an image are of no account, but their
    # gradients must be finite.
    truth = ops.where(valid[..., None], truth, 0.5)
    valid = ops.cast(valid, "float32")
    number = ops.sum(ops.cast(labels >= 0, "float32"))
    number = ops.maximum(replicas.sum_of_all(number), 1)
    giou = generalized_iou(boxes, truth)[0]
    return {
        "class": class_loss(
            classes, labels, query, target, valid > 0, no_object_weight
        ),
        "box": ops.sum(valid[..., None] * ops.abs(boxes - truth)) / number,
        "giou": ops.sum(valid * (1 - giou)) / number,
    }


def fcos_loss(
    outputs: dict[str, Tensor], targets: dict[str, Tensor] | Tensor
) -> Tensor:
    """Computes the loss of an `FCOS`.

    A point learns an object if it is in the object's box, at most 1.5 steps of its
    level from the box's center along each axis, and if the largest distance to the
    sides is 4 to 8 steps, or less at the finest level and more at the coarsest. If
    there are several such objects, it learns the smallest. This is the assignment of
    torchvision's FCOS. The loss is the quality focal loss of the classes of all points,
    whose target is the IoU of the predicted box, plus twice the generalized IoU loss of
    these boxes. The sums are divided by the number of points with an object, over all
    replicas of `tf.distribute`.

    From "FCOS: Fully Convolutional One-Stage Object Detection"
    (https://arxiv.org/abs/1904.01355) and "Generalized Focal Loss"
    (https://arxiv.org/abs/2006.04388), Equation 2.

    Args:
        outputs: Dict of the outputs of an `FCOS`.
        targets: As in `set_loss`.

    Returns:
        Scalar tensor.

    Raises:
        ValueError: as in `set_loss`.
    """
    logits, boxes, points = (
        ops.cast(outputs[name], "float32") for name in ("classes", "boxes", "points")
    )
    labels, truth = _checked_shapes(targets)
    labels = checked(labels, logits.shape[-1], truth)
    # Nothing is inside of a box without a size, which is that of no object; a
    # batch without any object has one, too.
    truth = ops.where(labels[..., None] >= 0, truth, 0.0)
    truth = ops.pad(truth, ((0, 0), (0, 1), (0, 0)))
    labels = ops.pad(labels, ((0, 0), (0, 1)), constant_values=-1)
    step = points[:, :, None, 2:]  # (B, P, 1, 2)
    offset = (points[:, :, None, :2] - truth[:, None, :, :2]) / step
    half = truth[:, None, :, 2:] / 2 / step
    largest = ops.max(half + ops.abs(offset), -1)  # (B, P, N)
    width = step[..., 0]
    finest = width < 1.01 * ops.min(width, axis=1, keepdims=True)
    coarsest = width > 0.99 * ops.max(width, axis=1, keepdims=True)
    fits = (
        ops.all((ops.abs(offset) < half) & (ops.abs(offset) < _RADIUS), -1)
        & (finest | (largest > _RANGE[0]))
        & (coarsest | (largest < _RANGE[1]))
    )
    # The area of objects that do not fit is larger than that of any image.
    area = ops.where(fits, ops.prod(truth[:, None, :, 2:], -1), 9.0)
    index = ops.argmin(area, axis=-1)  # (B, P)
    positive = ops.cast(ops.any(fits, -1), "float32")
    truth = ops.take_along_axis(truth, index[..., None], axis=1)
    truth = ops.where(positive[..., None] > 0, truth, 0.5)
    labels = ops.take_along_axis(labels, index, axis=1)
    giou, iou = generalized_iou(boxes, truth)
    quality = ops.stop_gradient(iou) * positive
    quality = quality[..., None] * ops.one_hot(labels, logits.shape[-1])
    entropy = ops.softplus(logits) - quality * logits
    distance = ops.abs(quality - ops.sigmoid(logits))
    number = ops.maximum(replicas.sum_of_all(ops.sum(positive)), 1)
    loss = ops.sum(distance**2 * entropy) + 2 * ops.sum(positive * (1 - giou))
    return loss / number


def _checked_shapes(
    targets: dict[str, Tensor] | Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns the classes and the boxes of targets."""
    targets = as_dict(targets)
    labels = ops.cast(targets["classes"], "int32")
    truth = ops.cast(targets["boxes"], "float32")
    shapes = tuple(labels.shape), tuple(truth.shape)
    if len(shapes[0]) != 2 or shapes[1][1:] != (*shapes[0][1:], 4):
        raise ValueError(
            '`targets["classes"]` must be of shape (batch, objects), and '
            '`targets["boxes"]` of shape (batch, objects, 4). The class of an '
            f"image without objects is -1. Received: {shapes[0]}, {shapes[1]}"
        )
    return labels, truth


def as_dict(targets: dict[str, Tensor] | Tensor) -> dict[str, Tensor]:
    """Returns targets as a dict; see `set_loss`."""
    if isinstance(targets, dict):
        return targets
    return {"classes": targets[..., 0], "boxes": targets[..., 1:]}


def generalized_iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the generalized IoU of boxes `(..., 4)` of center x, center y,
    width and height (https://arxiv.org/abs/1902.09630), and their IoU."""
    size_a, size_b = a[..., 2:], b[..., 2:]
    first_a, first_b = a[..., :2] - size_a / 2, b[..., :2] - size_b / 2
    last_a, last_b = a[..., :2] + size_a / 2, b[..., :2] + size_b / 2
    both = ops.minimum(last_a, last_b) - ops.maximum(first_a, first_b)
    both = ops.prod(ops.relu(both), -1)
    hull = ops.maximum(last_a, last_b) - ops.minimum(first_a, first_b)
    hull = ops.prod(hull, -1)
    # The corners' areas, rounded as in the original.
    area_a, area_b = (
        ops.prod(last_a - first_a, -1),
        ops.prod(last_b - first_b, -1),
    )
    union = area_a + area_b - both
    tiny = 1e-30  # of boxes without an area
    iou = both / ops.maximum(union, tiny)
    return iou - (hull - union) / ops.maximum(hull, tiny), iou
