"""The loss of detectors that predict a set of boxes."""

from keras import ops

from keras_vit import _replicas
from keras_vit._types import Tensor
from keras_vit.segmentation.matching import assign
from keras_vit.segmentation.matching import class_loss


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

    Each object is matched with one query, by the assignment of least cost. The
    loss is the cross-entropy of the classes of all queries, "no object" for
    those that are not matched, and the L1 distance and the generalized IoU of
    the matched boxes. The sums over boxes are divided by the number of objects
    of the batch, so that losses depend on the batch size. On a replica of
    `tf.distribute`, this is its part of the loss of the whole batch: the sum
    over the replicas is the loss.

    From "End-to-End Object Detection with Transformers", Section 3.1
    (https://arxiv.org/abs/2005.12872), as in transformers'
    `ForObjectDetectionLoss`.

    Args:
        outputs: Dict of the outputs of a `YOLOS`.
        targets: Dict of "classes", integers of shape `(batch, objects)`, -1
            where an image has fewer objects; and "boxes" of shape `(batch,
            objects, 4)`: center x, center y, width and height as fractions of
            the image's width and height. Or one array of both, of shape
            `(batch, objects, 5)`, class first, as `data.load_detection` has.
        box_weight: Float. Weight of the L1 distance; that of the classes is 1.
        giou_weight: Float. Weight of the generalized IoU.
        no_object_weight: Float. Weight of queries without an object in the
            weighted mean of the cross-entropy.
        class_cost, box_cost, giou_cost: Floats. Weights of a pair's negative
            probability of the class, L1 distance and generalized IoU in the
            cost of an assignment.

    Returns:
        Scalar tensor.

    Raises:
        ValueError: if `targets` have other shapes, a class is out of range, or
            a number of an object's box is no fraction. In a compiled step, it
            is an error of the backend with the same message.
    """
    terms = set_loss_terms(
        outputs, targets, no_object_weight, class_cost, box_cost, giou_cost
    )
    return (
        terms["class"] + box_weight * terms["box"] + giou_weight * terms["giou"]
    )


def set_loss_terms(
    outputs: dict[str, Tensor],
    targets: dict[str, Tensor] | Tensor,
    no_object_weight: float = 0.1,
    class_cost: float = 1.0,
    box_cost: float = 5.0,
    giou_cost: float = 2.0,
) -> dict[str, Tensor]:
    """Computes the terms of `set_loss`, which has the same arguments.

    Returns:
        Dict of the scalar tensors "class", "box" and "giou", not weighted.
    """
    classes, boxes = (
        ops.cast(outputs[name], "float32") for name in ("classes", "boxes")
    )
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
    count = classes.shape[-1] - 1
    index = ops.clip(labels, 0, count - 1)[:, None]
    index = ops.repeat(index, classes.shape[1], axis=1)  # (B, Q, N)
    probabilities = ops.softmax(classes)
    pairs = boxes[:, :, None], truth[:, None]
    cost = (
        box_cost * ops.sum(ops.abs(pairs[0] - pairs[1]), -1)
        - class_cost * ops.take_along_axis(probabilities, index, axis=2)
        - giou_cost * generalized_iou(*pairs)
    )
    query, target, valid = assign(cost, labels, count, truth)
    boxes = ops.take_along_axis(boxes, query[..., None], axis=1)
    truth = ops.take_along_axis(truth, target[..., None], axis=1)
    # Pairs beyond the objects of an image are of no account, but their
    # gradients must be finite.
    truth = ops.where(valid[..., None], truth, 0.5)
    valid = ops.cast(valid, "float32")
    number = ops.sum(ops.cast(labels >= 0, "float32"))
    number = ops.maximum(_replicas.sum_of_all(number), 1)
    return {
        "class": class_loss(
            classes, labels, query, target, valid > 0, no_object_weight
        ),
        "box": ops.sum(valid[..., None] * ops.abs(boxes - truth)) / number,
        "giou": ops.sum(valid * (1 - generalized_iou(boxes, truth))) / number,
    }


def as_dict(targets: dict[str, Tensor] | Tensor) -> dict[str, Tensor]:
    """Returns targets as a dict; see `set_loss`."""
    if isinstance(targets, dict):
        return targets
    return {"classes": targets[..., 0], "boxes": targets[..., 1:]}


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Returns the generalized IoU of boxes `(..., 4)` of center x, center y,
    width and height (https://arxiv.org/abs/1902.09630)."""
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
    return both / ops.maximum(union, tiny) - (hull - union) / ops.maximum(
        hull, tiny
    )
