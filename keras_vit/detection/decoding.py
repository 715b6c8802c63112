"""Conversion of a detector's outputs to boxes."""

import keras
import numpy as np
from keras import ops

from keras_vit.utils.types import Array, Tensor

# Constants of GFL for COCO, in mmdetection.
_LEAST_SCORE = 0.05
_MOST_OVERLAP = 0.6  # of two boxes of a class
_MOST_CANDIDATES, _MOST_BOXES = 1000, 100


def decode(
    outputs: dict[str, Tensor], height: float = 1, width: float = 1
) -> list[dict[str, Array]]:
    """Returns the boxes that a detector finds.

    Args:
        outputs: Dict of the outputs of a `YOLOS` or an `FCOS`.
        height: Number. Height of the images; 1 returns fractions of the height.
        width: Number. Width of the images, likewise.

    Returns:
        For each image, a dict of NumPy arrays: "boxes", with the first x, first y, last
        x and last y; "classes"; and "scores". For a YOLOS, there is one row per query,
        with the most probable class other than "no object" and its probability; a box
        may extend beyond the image. For an FCOS, there are at most 100 boxes, inside
        the image, with scores above 0.05, the highest first. Boxes that overlap a box
        of the same class and a higher score by an IoU above 0.6 are left out.

    Raises:
        ValueError: if an output is NaN.

    Example:

    ```python
    found = decode(model.predict(images), height=512, width=640)
    sure = found[0]["scores"] > 0.9
    ```
    """
    of_points = "points" in outputs
    logits, boxes = (ops.convert_to_numpy(outputs[x]) for x in ("classes", "boxes"))
    bad = np.isnan(logits).any((1, 2)) | np.isnan(boxes).any((1, 2))
    if bad.any():
        raise ValueError(
            f"The outputs must be numbers. Received: NaN for {bad.sum()} of "
            f"{len(bad)} images, the first at index {bad.argmax()}. Look for "
            "it in the images and the model's weights."
        )
    boxes = keras.utils.bounding_boxes.convert_format(
        boxes, "rel_center_xywh", "xyxy", height, width
    )
    scores = ops.sigmoid(logits) if of_points else ops.softmax(logits)[..., :-1]
    boxes, scores = (ops.convert_to_numpy(x) for x in (boxes, scores))
    if of_points:
        boxes = np.clip(boxes, 0, [width, height, width, height])
        return [_suppressed(*x) for x in zip(boxes, scores, strict=True)]
    return [
        {"boxes": box, "classes": p.argmax(-1), "scores": p.max(-1)}
        for p, box in zip(scores, boxes, strict=True)
    ]


def _suppressed(boxes: Array, scores: Array) -> dict[str, Array]:
    """Returns the best boxes `(N, 4)` of scores `(N, classes)`."""
    # Nothing remains of a box outside of the image, such as that of a point
    # in its padding.
    remains = box_areas(boxes)[:, None] > 0
    points, classes = np.nonzero((scores > _LEAST_SCORE) & remains)
    found = scores[points, classes]
    best = np.argsort(-found, kind="stable")[:_MOST_CANDIDATES]
    boxes, classes, found = boxes[points[best]], classes[best], found[best]
    similar = box_overlaps(boxes, boxes) > _MOST_OVERLAP
    similar &= classes[:, None] == classes
    free = np.ones(len(boxes), bool)
    for i in range(len(boxes)):
        if free[i]:
            free[i + 1 :] &= ~similar[i, i + 1 :]
    kept = np.flatnonzero(free)[:_MOST_BOXES]
    found = {"boxes": boxes, "classes": classes, "scores": found}
    return {name: x[kept] for name, x in found.items()}


def box_areas(boxes: Array) -> Array:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_overlaps(boxes: Array, targets: Array, crowd: Array | bool = False) -> Array:
    """Returns the IoU of boxes and objects; for a crowd, the fraction of the box that
    is inside it."""
    both = np.minimum(boxes[:, None, 2:], targets[:, 2:])
    both = both - np.maximum(boxes[:, None, :2], targets[:, :2])
    both = np.where((both > 0).all(-1), both.prod(-1), 0.0)
    area = box_areas(boxes)[:, None]
    union = np.where(crowd, area, area + box_areas(targets) - both)
    return np.divide(both, union, out=np.zeros_like(both), where=both > 0)
