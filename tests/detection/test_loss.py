"""`set_loss` against transformers' loss: terms, matching and gradients."""

import keras
import numpy as np
import pytest

from keras_vit.detection import set_loss, set_loss_terms
from keras_vit.segmentation import matching
from tests.harness import numpy
from tests.markers import on_all

TOLERANCE = 3e-5
CLASSES = 4
NAMES = {"class": "loss_ce", "box": "loss_bbox", "giou": "loss_giou"}
WEIGHTS = {
    "box_weight": 3,
    "giou_weight": 4,
    "no_object_weight": 0.3,
    "class_cost": 2,
    "box_cost": 1,
    "giou_cost": 3,
}


def example(counts, queries=6, kind=""):
    """Outputs, and targets of images with that many objects."""
    rng = np.random.default_rng(len(counts) * 10 + queries)
    most = max(max(counts), 1)

    def boxes(*shape):
        sizes = rng.uniform(0.05, 0.6, (*shape, 2))
        centers = rng.uniform(0.2, 0.8, (*shape, 2))
        return np.concatenate([centers, sizes], -1).astype("float32")

    outputs = {
        "classes": rng.normal(size=(len(counts), queries, CLASSES + 1)) * 2,
        "boxes": boxes(len(counts), queries),
    }
    targets = {
        "classes": rng.integers(0, CLASSES, (len(counts), most)),
        "boxes": boxes(len(counts), most),
    }
    if kind == "ties":
        for array in outputs.values():
            array[:] = array[:, :1]
        for array in targets.values():
            array[:] = array[:, :1]
    if kind == "no area":
        targets["boxes"][:, 0, 2:] = 0
    for i, count in enumerate(counts):
        targets["classes"][i, count:] = -1
        targets["boxes"][i, count:] = 0
    outputs = {k: v.astype("float32") for k, v in outputs.items()}
    return outputs, targets


CASES = {
    "objects": ([2, 3, 1], 6, "", {}),
    "other weights": ([2, 3, 1], 6, "", WEIGHTS),
    "images without objects": ([0, 2, 0], 6, "", {}),
    "no objects": ([0, 0], 5, "", {}),
    "more objects than queries": ([9, 1], 4, "", {}),
    "many objects": ([60, 37], 100, "", {}),
    "ties": ([3, 2], 5, "ties", {}),
    "no area": ([2, 2], 5, "no area", {}),
}


ON_EVERY_BACKEND = (
    "other weights",
    "images without objects",
    "more objects than queries",
)


def theirs(outputs, targets, options):
    """Their loss, its terms, gradients, and pairs of each image."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.loss import loss_for_object_detection as original

    names = {
        "box_weight": "bbox_loss_coefficient",
        "giou_weight": "giou_loss_coefficient",
        "no_object_weight": "eos_coefficient",
        "box_cost": "bbox_cost",
    }
    config = transformers.YolosConfig(
        num_labels=CLASSES,
        **{names.get(name, name): value for name, value in options.items()},
    )
    with torch.device("cpu"):
        logits = torch.from_numpy(outputs["classes"]).requires_grad_()
        boxes = torch.from_numpy(outputs["boxes"]).requires_grad_()
        valid = targets["classes"] >= 0
        labels = [
            {
                "class_labels": torch.from_numpy(c[v]),
                "boxes": torch.from_numpy(b[v]),
            }
            for c, b, v in zip(targets["classes"], targets["boxes"], valid, strict=True)
        ]
        loss, terms, _ = original.ForObjectDetectionLoss(
            logits, labels, "cpu", boxes, config
        )
        loss.backward()
        matcher = original.HungarianMatcher(
            config.class_cost, config.bbox_cost, config.giou_cost
        )
        pairs = matcher({"logits": logits, "pred_boxes": boxes}, labels)
    gradients = {"classes": logits.grad.numpy(), "boxes": boxes.grad.numpy()}
    return float(loss.detach()), terms, gradients, pairs


def gradients_of(function, outputs):
    """The gradients of a loss by the arrays of a dict."""
    backend = keras.config.backend()
    if backend == "jax":
        import jax

        return jax.jit(jax.grad(function))(outputs)
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function
        def run(outputs):
            with tf.GradientTape() as tape:
                tape.watch(outputs)
                loss = function(outputs)
            return tape.gradient(loss, outputs)

        return run({k: tf.constant(v) for k, v in outputs.items()})
    import torch

    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in outputs.items()}
    function(tensors).backward()
    return {k: v.grad for k, v in tensors.items()}


@pytest.mark.parametrize("case", on_all(CASES, ON_EVERY_BACKEND))
def test_loss_is_transformers(case, monkeypatch, record_error):
    counts, queries, kind, options = CASES[case]
    outputs, targets = example(counts, queries, kind)
    loss, terms, gradients, pairs = theirs(outputs, targets, options)
    found, assign = [], matching._assign

    def keep(*arguments, **options):
        found.append(assign(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(matching, "_assign", keep)
    ours = float(set_loss(outputs, targets, **options))
    record_error("set_loss", case, abs(ours - loss), TOLERANCE)
    query, target, valid = found[0]
    for i, (a, b) in enumerate(pairs):
        np.testing.assert_array_equal(query[i][valid[i]], a)
        np.testing.assert_array_equal(target[i][valid[i]], b)

    costs = {k: v for k, v in options.items() if "cost" in k or "no_" in k}
    for name, value in set_loss_terms(outputs, targets, **costs).items():
        error = abs(float(value) - terms[NAMES[name]].item())
        record_error("set_loss", f"{case} {name}", error, TOLERANCE)
    found = gradients_of(lambda y: set_loss(y, targets, **options), outputs)
    for name, expected in gradients.items():
        error = np.abs(numpy(found[name]) - expected).max()
        record_error("set_loss", f"{case} d{name}", error, TOLERANCE)


def test_targets_as_one_array_and_without_any_object():
    outputs, targets = example([2, 3, 1])
    array = np.concatenate([targets["classes"][..., None], targets["boxes"]], 2)
    found = set_loss(outputs, array.astype("float32"))
    assert float(found) == pytest.approx(float(set_loss(outputs, targets)))
    none = {"classes": np.full((3, 1), -1), "boxes": np.zeros((3, 1, 4))}
    empty = {name: x[:, :0] for name, x in none.items()}
    found = float(set_loss(outputs, empty))
    assert found == pytest.approx(float(set_loss(outputs, none)))


@pytest.mark.parametrize("factor", [8, -1, np.nan])
def test_boxes_are_fractions(factor):
    outputs, targets = example([1, 2])
    targets["boxes"][0, 1] = -9  # of no object
    set_loss(outputs, targets)
    targets["boxes"][1, 0] = 0.5 * factor
    # The type of the error is the backend's.
    with pytest.raises(Exception, match="fractions of the image's .*Received"):
        float(set_loss(outputs, targets))
