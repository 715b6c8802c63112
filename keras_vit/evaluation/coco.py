"""COCO's metrics for detected boxes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.data.protocols import height_and_width
from keras_vit.data.steps.places import resize_image
from keras_vit.detection import decode
from keras_vit.detection.decoding import box_areas, box_overlaps
from keras_vit.detection.loss import as_dict
from keras_vit.inspection.plots import new_figure
from keras_vit.models import preprocessing_of
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils import checks
from keras_vit.utils.optional import require
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.text import plot_label
from keras_vit.utils.types import Array, ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0, 1, 101)
# These are the bounds, in square pixels, of all, small, medium and large areas.
_SMALLEST = np.array([[0], [0], [32**2], [96**2]])
_LARGEST = np.array([[1e5**2], [32**2], [96**2], [1e5**2]])
_MOST = 100  # boxes of an image, those of the highest scores
# There is a precision and a recall for each pair of a range of areas and a
# number of boxes of an image.
_RANGES = ((0, _MOST), (1, _MOST), (2, _MOST), (3, _MOST), (0, 1), (0, 10))


def coco_metrics(
    predictions: Sequence[Mapping[str, ArrayLike]],
    targets: Sequence[Mapping[str, ArrayLike]],
) -> dict[str, float]:
    """Computes average precision and recall of boxes as COCO does.

    A box is correct if its IoU with an object of its class is above a threshold and no
    box with a higher score has been matched with this object. Crowds, and objects
    outside the size range of a metric, are not counted, and boxes that match them do
    not count as errors.

    From "Microsoft COCO: Common Objects in Context"
    (https://arxiv.org/abs/1405.0312); the results equal those of pycocotools'
    `COCOeval` for boxes.

    Args:
        predictions: For each image, a dict of "boxes" of shape `(n, 4)`, the
            first x, first y, last x and last y in pixels; "classes", integers
            of shape `(n,)`; and "scores" of shape `(n,)`.
        targets: For each image, a dict of "boxes" and "classes"; and optionally of
            "crowd", booleans, and "areas" in square pixels (in COCO, the areas of the
            masks), by default the areas of the boxes.

    Returns:
        Dict of numbers in [0, 1], or -1 if there are no objects: "AP", the mean
        over the classes, and over the thresholds 0.5, 0.55, ..., 0.95, of the
        mean precision at 101 recalls; "AP50" and "AP75" for one threshold; "AP_small",
        "AP_medium" and "AP_large" for objects of less than 32 x 32 pixels, of up to 96
        x 96 pixels, and larger ones; the maximum recalls "AR_1", "AR_10" and "AR_100"
        with so many boxes per image; "AR_small", "AR_medium" and "AR_large".

    Raises:
        ValueError: if the numbers of predictions and targets differ.

    Example:

    >>> boxes = {"boxes": [[0, 0, 9, 9]], "classes": [1]}
    >>> coco_metrics([{**boxes, "scores": [0.9]}], [boxes])["AP"]
    1.0
    """
    pairs = [
        (_arrays(found), _arrays({"scores": (), **truth}))
        for found, truth in zip(predictions, targets, strict=True)
    ]
    classes = np.unique(np.concatenate([[], *(truth["classes"] for _, truth in pairs)]))
    # Both have axes of class, range and threshold, and are NaN without objects.
    precision, recall = np.full((2, len(classes), 6, 10), np.nan)
    for k, number in enumerate(classes):
        parts = zip(*(_match(*pair, number) for pair in pairs), strict=True)
        counts, *parts = parts
        counts = np.sum(counts, axis=0)
        scores, ranks, *parts = (np.concatenate(x, axis=-1) for x in parts)
        for i, (area, most) in enumerate(_RANGES):
            if counts[area]:
                kept = ranks < most
                matched, ignored = (x[area][:, kept] for x in parts)
                curves = _curves(scores[kept], matched, ignored, counts[area])
                precision[k, i], recall[k, i] = curves
    found = {
        "AP": precision[:, 0],
        "AP50": precision[:, 0, 0],
        "AP75": precision[:, 0, 5],
        "AP_small": precision[:, 1],
        "AP_medium": precision[:, 2],
        "AP_large": precision[:, 3],
        "AR_1": recall[:, 4],
        "AR_10": recall[:, 5],
        "AR_100": recall[:, 0],
        "AR_small": recall[:, 1],
        "AR_medium": recall[:, 2],
        "AR_large": recall[:, 3],
    }
    return {
        name: -1.0 if np.isnan(x).all() else float(np.nanmean(x))
        for name, x in found.items()
    }


class CocoMetrics(keras.callbacks.Callback):
    """Measures the boxes of a detector by `coco_metrics` while it trains.

    After each epoch, callbacks after this one see the metrics as `val_AP` and so on.
    Sizes and areas are measured in the images that the model is given.

    Args:
        batches: Iterable of pairs of images and targets, as `fit` takes them
            for a detector, such as a list or a `keras.utils.PyDataset`.
        names: Names of metrics of `coco_metrics`; None for all.

    Raises:
        ValueError: if there is no such metric, or the batches are endless.

    Example:

    >>> measure = keras_vit.evaluation.CocoMetrics([(images, targets)])
    >>> model.fit(train_images, train_targets, callbacks=[measure])
    """

    def __init__(self, batches: Any, names: Sequence[str] | None = None) -> None:
        super().__init__()
        known = coco_metrics([], [])
        for name in names or ():
            checks.one_of("names", name, tuple(known))
        _check_finite(batches)
        self._batches, self._names = batches, names

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        found = evaluate_boxes(self.model, self._batches)
        if logs is not None:
            for name in self._names or found:
                logs[f"val_{name}"] = found[name]


def evaluate_boxes(model: keras.Model, batches: Any) -> dict[str, float]:
    """Computes the `coco_metrics` of a detector.

    Args:
        model: A `keras.Model` of `keras_vit.detection`.
        batches: As in `CocoMetrics`.

    Returns:
        Dict of numbers, as from `coco_metrics`.
    """
    _check_finite(batches)
    predictions, targets = [], []
    for images, truth in batches:
        size = images.shape[1:3]
        predictions += decode(model.predict_on_batch(images), *size)
        targets += targets_by_image(truth, *size)
    return coco_metrics(predictions, targets)


def _check_finite(batches: Any) -> None:
    """Raises a `ValueError` if batches have no end."""
    if isinstance(batches, keras.utils.PyDataset) and (batches.num_batches is None):
        raise ValueError(
            "`batches` must be finite, like those of `data.evaluation(...)`. "
            f"Received: {type(batches).__name__} with num_batches=None"
        )


def find_boxes(
    model: keras.Model,
    images: Sequence[Array],
    image_size: int | tuple[int, int],
    mode: ModeLike = "tf",
    least_score: float = 0.0,
) -> list[dict[str, Array]]:
    """Finds objects in images of any sizes.

    Args:
        model: A `keras.Model` of `keras_vit.detection`.
        images: uint8 arrays of shape `(height, width, channels)`.
        image_size: Integer, or `(height, width)`. The size to which images are scaled,
            as in training.
        mode: String. The `mode` of `preprocess_input`, for a model that does not scale
            images itself.
        least_score: Float. The minimum score of a box.

    Returns:
        For each image, a dict as returned by `detection.decode`.
    """
    found = []
    for image in images:
        pixels = resize_image(image, height_and_width(image_size))
        batch = pixels[None].astype("float32")
        if preprocessing_of(model) is None:
            batch = preprocess_input(batch, mode)
        outputs = model.predict_on_batch(np.asarray(batch))
        (boxes,) = decode(outputs, *image.shape[:2])
        sure = boxes["scores"] >= least_score
        found.append({name: x[sure] for name, x in boxes.items()})
    return found


def targets_by_image(
    targets: Any, height: float, width: float
) -> list[dict[str, Array]]:
    """Returns the targets of a batch as `coco_metrics` takes them.

    Args:
        targets: As in `detection.set_loss`. A dict may also have "crowd" and "areas",
            of shape `(batch, objects)`. A class of `-2 - class` also marks a crowd.
        height: Number. Height of the images, in pixels.
        width: Number. Width of the images, in pixels.
    """
    arrays = {k: np.asarray(x) for k, x in as_dict(targets).items()}
    boxes = keras.utils.bounding_boxes.convert_format(
        arrays["boxes"], "rel_center_xywh", "xyxy", height, width
    )
    arrays["boxes"] = keras.ops.convert_to_numpy(boxes)
    labels = arrays["classes"]
    arrays["crowd"] = (labels < -1) | np.asarray(arrays.get("crowd", False))
    arrays["classes"] = np.where(labels < -1, -2 - labels, labels)
    return [
        {name: x[i][exists] for name, x in arrays.items()}
        for i, exists in enumerate(labels != -1)
    ]


def plot_boxes(
    images: Sequence[Array],
    targets: Sequence[Mapping[str, Array]] | None,
    predictions: Sequence[Mapping[str, Array]],
    class_names: Sequence[str],
    title: str = "",
) -> "Figure":
    """Plots images with their true and predicted boxes.

    Args:
        images: Arrays of shape `(height, width, channels)` with values in
            [0, 1].
        targets: For each image, a dict of "boxes" and "classes", as
            `coco_metrics` takes them; None if they are not known.
        predictions: For each image, a dict of "boxes", "classes" and "scores".
        class_names: List of strings, one per class.
        title: String.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    rectangle = require("matplotlib.patches").Rectangle
    rows = {"predicted": predictions}
    if targets is not None:
        rows = {"true": targets, **rows}
    figure = new_figure(2.2 * len(images), 2.4 * len(rows) + 0.4, title)
    grid = figure.subplots(len(rows), len(images), squeeze=False)
    for line, (label, found) in zip(grid, rows.items(), strict=True):
        for axes, image, boxes in zip(line, images, found, strict=True):
            axes.imshow(image, cmap="gray", vmin=0, vmax=1)
            axes.set(title=label, xticks=[], yticks=[])
            scores = boxes.get("scores", [None] * len(boxes["boxes"]))
            for (left, top, right, bottom), number, score in zip(
                boxes["boxes"], boxes["classes"], scores, strict=True
            ):
                color = f"C{int(number) % 10}"
                corner, size = (
                    (left - 0.5, top - 0.5),
                    (right - left, bottom - top),
                )
                box = rectangle(corner, *size, fill=False, edgecolor=color)
                axes.add_patch(box)
                name = plot_label(class_names[int(number)], 18)
                text = name if score is None else f"{name} {score:.2f}"
                style = {"color": "white", "backgroundcolor": color}
                axes.text(left, top, text, fontsize=7, **style)
    return figure


def _arrays(image: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Returns the boxes or objects of an image as arrays."""
    boxes = np.asarray(image["boxes"], float).reshape(-1, 4)
    image = {"crowd": np.zeros(len(boxes)), "areas": box_areas(boxes), **image}
    return {
        "boxes": boxes,
        "classes": np.asarray(image["classes"], int).reshape(-1),
        "scores": np.asarray(image["scores"], float).reshape(-1),
        "crowd": np.asarray(image["crowd"], bool).reshape(-1),
        "areas": np.asarray(image["areas"], float).reshape(-1),
    }


def _match(
    found: dict[str, Array], truth: dict[str, Array], number: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Matches the boxes of a class with its objects.

    Returns the numbers of objects that count, by area; the scores of the boxes,
    and their ranks by score; and, of shape `(areas, thresholds, boxes)`,
    whether they have an object, and whether they do not count.
    """
    here = np.flatnonzero(found["classes"] == number)
    order = np.argsort(-found["scores"][here], kind="stable")
    here = here[order][:_MOST]
    boxes, scores = found["boxes"][here], found["scores"][here]
    there = truth["classes"] == number
    crowd, areas = truth["crowd"][there], truth["areas"][there]
    ignored = crowd | (areas < _SMALLEST) | (areas > _LARGEST)  # (A, G)
    overlaps = box_overlaps(boxes, truth["boxes"][there], crowd)
    enough = np.minimum(_THRESHOLDS, 1 - 1e-10)[:, None]
    free = np.ones((4, len(_THRESHOLDS), len(crowd)), bool)
    matched = np.zeros((4, len(_THRESHOLDS), len(boxes)), bool)
    no_account = np.zeros_like(matched)
    for i, overlap in enumerate(overlaps if len(crowd) else ()):
        fits = (free | crowd) & (overlap >= enough)  # (A, T, G)
        counted = fits & ~ignored[:, None]
        # Objects that count come before others.
        is_counted = counted.any(-1, keepdims=True)
        fits = np.where(is_counted, counted, fits)
        is_matched = fits.any(-1)
        # COCO's code takes the last of several objects of the largest IoU.
        best = np.where(fits, overlap, -1)[..., ::-1].argmax(-1)
        best = len(crowd) - 1 - best[..., None]
        left = np.take_along_axis(free, best, -1) & ~is_matched[..., None]
        np.put_along_axis(free, best, left, -1)
        matched[..., i] = is_matched
        no_account[..., i] = is_matched & ~is_counted[..., 0]
    areas = box_areas(boxes)
    outside = (areas < _SMALLEST) | (areas > _LARGEST)
    no_account |= ~matched & outside[:, None]
    return (~ignored).sum(1), scores, np.arange(len(boxes)), matched, no_account


def _curves(
    scores: Array, matched: Array, no_account: Array, count: int
) -> tuple[Array, Array]:
    """Returns the average precision and the largest recall by threshold."""
    order = np.argsort(-scores, kind="stable")
    right = (matched & ~no_account)[:, order].cumsum(1)
    wrong = (~matched & ~no_account)[:, order].cumsum(1)
    recall = right / count
    precision = right / (right + wrong + np.spacing(1))
    # The best precision at this recall or a higher one.
    precision = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
    precision = np.pad(precision, ((0, 0), (0, 1)))
    found = [
        p[np.searchsorted(r, _RECALLS)].mean()
        for p, r in zip(precision, recall, strict=True)
    ]
    return np.array(found), recall.max(1, initial=0)
