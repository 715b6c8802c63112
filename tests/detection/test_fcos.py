"""FCOS: its loss against loops in NumPy, its boxes, and how it is used."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.detection import FCOS, decode, fcos_loss
from tests.detection.test_detectors import small, task
from tests.detection.test_loss import gradients_of
from tests.harness import numpy
from tests.markers import on_all
from tests.small import tiny

ON_TORCH = pytest.mark.backends("torch")
# Pixels of a step of the levels P3, P4 and P5 with patches of 8 x 4 pixels.
STEPS = (4, 2), (8, 4), (16, 8)
SIZE = 64, 64


def points():
    """Each point and the steps of its level, as fractions."""
    found = []
    for height, width in STEPS:
        for y in np.arange(height / 2, SIZE[0], height):
            for x in np.arange(width / 2, SIZE[1], width):
                found.append((x, y, width, height))
    return np.array(found, "float32") / 64


def example(count=3):
    """Outputs, and targets of two images: of `count` objects, and of one."""
    rng = np.random.default_rng(count)
    place = points()
    shape = 2, len(place)
    targets = {
        "classes": rng.integers(0, 4, (2, count)),
        "boxes": rng.uniform(0.1, 0.7, (2, count, 4)).astype("float32"),
    }
    targets["classes"][1, 1:] = -1
    boxes = rng.uniform(0.05, 0.3, (*shape, 4))
    boxes[..., :2] += place[:, :2] - 0.15
    return {
        "classes": rng.normal(size=(*shape, 4)).astype("float32"),
        "boxes": boxes.astype("float32"),
        "points": np.broadcast_to(place, (*shape, 4)),
    }, targets


def assigned(place, labels, boxes):
    """The object of each point, or -1, as FCOS's paper has it."""
    widths = sorted(set(place[:, 2]))
    found = []
    for x, y, width, height in place.astype("float64"):
        best, smallest = -1, np.inf
        for i, (u, v, w, h) in enumerate(boxes.astype("float64")):
            sides = np.array([x - u + w / 2, u + w / 2 - x]) / width
            more = np.array([y - v + h / 2, v + h / 2 - y]) / height
            sides = np.concatenate([sides, more])
            near = abs(x - u) < 1.5 * width and abs(y - v) < 1.5 * height
            low = 0 if np.isclose(width, widths[0]) else 4
            high = np.inf if np.isclose(width, widths[-1]) else 8
            fits = near and sides.min() > 0 and low < sides.max() < high
            if labels[i] >= 0 and fits and w * h < smallest:
                best, smallest = i, w * h
        found.append(best)
    return np.array(found)


def ious(a, b):
    """IoU and generalized IoU of two boxes of center and size."""
    first = [x[:2] - x[2:] / 2 for x in (a, b)]
    last = [x[:2] + x[2:] / 2 for x in (a, b)]
    both = np.clip(np.minimum(*last) - np.maximum(*first), 0, None).prod()
    hull = (np.maximum(*last) - np.minimum(*first)).prod()
    union = a[2:].prod() + b[2:].prod() - both
    return both / union, both / union - (hull - union) / hull


def reference(outputs, targets):
    """The loss in float64, one point after the other."""
    total = number = 0
    for i, place in enumerate(outputs["points"]):
        labels, boxes = (targets[name][i] for name in ("classes", "boxes"))
        for point, index in enumerate(assigned(place, labels, boxes)):
            quality = np.zeros(4)
            if index >= 0:
                box = outputs["boxes"][i, point].astype("float64")
                iou, giou = ious(box, boxes[index].astype("float64"))
                quality[labels[index]] = iou
                total += 2 * (1 - giou)
                number += 1
            p = 1 / (1 + np.exp(-outputs["classes"][i, point].astype(float)))
            entropy = -(quality * np.log(p) + (1 - quality) * np.log(1 - p))
            total += (np.abs(quality - p) ** 2 * entropy).sum()
    return total / max(number, 1), number


@pytest.mark.parametrize("count", on_all([1, 3, 12], [3]))
def test_loss_is_that_of_the_papers(count, record_error):
    outputs, targets = example(count)
    expected, number = reference(outputs, targets)
    assert number > 3
    found = float(fcos_loss(outputs, targets))
    record_error("fcos_loss", f"{count}", abs(found / expected - 1), 1e-5)
    # The gradient along a direction is that of the reference, but for the IoU
    # in the targets of the classes, which is constant.
    gradients = gradients_of(lambda y: fcos_loss(y, targets), outputs)
    step = np.random.default_rng(0).normal(size=outputs["classes"].shape)
    ends = [
        reference({**outputs, "classes": outputs["classes"] + s * step}, targets)
        for s in (1e-3, -1e-3)
    ]
    slope = (ends[0][0] - ends[1][0]) / 2e-3
    ours = (numpy(gradients["classes"]) * step).sum()
    np.testing.assert_allclose(ours, slope, rtol=1e-3)


@ON_TORCH
def test_assignment_is_torchvisions():
    fcos = pytest.importorskip("torchvision.models.detection.fcos")
    import torch

    rng, place = np.random.default_rng(0), points()
    square = place * [1, 1, 2, 1]  # steps of one length
    outputs = {
        "classes": np.zeros((1, len(place), 4), "float32"),
        "boxes": np.full((1, len(place), 4), 0.5, "float32"),
        "points": square[None].astype("float32"),
    }
    targets = {
        "classes": np.arange(4)[None],
        "boxes": rng.uniform(0.2, 0.8, (1, 4, 4)).astype("float32"),
    }
    steps = square[:, 2:] * 64
    corners = [square[:, :2] * 64 + sign * steps / 2 for sign in (-1, 1)]
    anchors = torch.from_numpy(np.concatenate(corners, 1).astype("float32"))
    boxes = targets["boxes"][0] * 64
    box = [boxes[:, :2] + sign * boxes[:, 2:] / 2 for sign in (-1, 1)]

    class Model:
        center_sampling_radius = 1.5
        head = type("", (), {"compute_loss": lambda *a: a[-1]})()

    counts = [int((64 / h) * (64 / w)) for h, w in STEPS]
    with torch.device("cpu"):
        (theirs,) = fcos.FCOS.compute_loss(
            Model(),
            [{"boxes": torch.from_numpy(np.concatenate(box, 1))}],
            None,
            [anchors],
            counts,
        )
    ours = assigned(square, targets["classes"][0], targets["boxes"][0])
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert len(set(ours)) > 3
    # The loss is that of this assignment.
    expected, _ = reference(outputs, targets)
    assert float(fcos_loss(outputs, targets)) == pytest.approx(expected, 1e-5)


def test_targets_in_other_forms_and_wrong_ones():
    outputs, targets = example(3)
    array = np.concatenate([targets["classes"][..., None], targets["boxes"]], 2)
    expected = float(fcos_loss(outputs, targets))
    assert float(fcos_loss(outputs, array)) == pytest.approx(expected)
    none = {"classes": np.full((2, 1), -1), "boxes": np.zeros((2, 1, 4))}
    empty = {name: x[:, :0] for name, x in none.items()}
    found = float(fcos_loss(outputs, empty))
    assert found == pytest.approx(float(fcos_loss(outputs, none)))
    for name, value, message in (
        ("classes", 4, "from 0 to 3, .*: 4"),
        ("boxes", 30.0, "fractions of the image's .*30"),
    ):
        wrong = {k: x.copy() for k, x in targets.items()}
        wrong[name][0, 0] = value
        # The type of the error is the backend's.
        with pytest.raises(Exception, match=message):
            float(fcos_loss(outputs, wrong))


@ON_TORCH
def test_points_and_boxes():
    """Boxes of equal distances are centered at their points."""
    model = small("fcos", levels=("P3", "P4"))
    model.get_layer("box_output").kernel.assign(
        0 * model.get_layer("box_output").kernel
    )
    found = {k: numpy(x) for k, x in model(np.zeros((1, 16, 24, 3))).items()}
    patch = keras_vit.models.features.patch_pixels(model)
    expected = []
    for scale in (0.5, 1):
        height, width = (n * scale for n in patch)
        for y in np.arange(height / 2, 16, height):
            for x in np.arange(width / 2, 24, width):
                expected.append((x / 24, y / 16, width / 24, height / 16))
    np.testing.assert_allclose(found["points"][0], expected, atol=1e-6)
    boxes = np.array(expected) * [1, 1, 2, 2]
    np.testing.assert_allclose(found["boxes"][0], boxes, atol=1e-6)
    assert found["classes"].shape == (1, len(expected), 2)


@ON_TORCH
def test_boxes_of_a_photograph_are_in_its_pixels():
    model = small("fcos", levels=("P4",))
    for name, bias in (("class", [3, -9]), ("box", [-0.7] * 4)):
        layer = model.get_layer(f"{name}_output")
        layer.kernel.assign(0 * layer.kernel)
        layer.bias.assign(bias)
    photo = np.zeros((40, 100, 3), "uint8")
    (found,) = keras_vit.evaluation.find_boxes(model, [photo], (16, 24))
    height, width = keras_vit.models.features.patch_pixels(model)
    rows, columns = 16 // height, 24 // width
    centers = found["boxes"][:, :2] + found["boxes"][:, 2:]
    expected = [
        [(x + 0.5) * 100 / columns, (y + 0.5) * 40 / rows]
        for y in range(rows)
        for x in range(columns)
    ]
    np.testing.assert_allclose(centers / 2, expected, rtol=1e-4)


def test_duplicates_are_left_out():
    rows = [
        # center x and y, width, height; logits of two classes
        ((0.5, 0.5, 0.4, 0.4), (3, -9)),
        ((0.52, 0.5, 0.4, 0.4), (2, 1)),  # the same object, and another class
        ((0.9, 0.9, 0.4, 0.4), (-9, 2)),  # partly outside
        ((0.2, 0.2, 0.1, 0.1), (-3, -3)),  # a score below 0.05
        ((1.2, 0.5, 0.2, 0.2), (4, 4)),  # in the padding
    ]
    boxes, logits = (np.array([[row[i] for row in rows]]) for i in (0, 1))
    outputs = {"boxes": boxes, "classes": logits, "points": boxes}
    (found,) = decode({k: x.astype("float32") for k, x in outputs.items()}, 10, 20)
    np.testing.assert_array_equal(found["classes"], [0, 1, 1])
    scores = 1 / (1 + np.exp([-3, -2, -1]))
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-5)
    expected = [[6, 3, 14, 7], [14, 7, 20, 10], [6.4, 3, 14.4, 7]]
    np.testing.assert_allclose(found["boxes"], expected, rtol=1e-5)


@ON_TORCH
def test_a_frozen_encoder_stays():
    encoder = tiny(num_layers=2)
    encoder.trainable = False
    model, (x, y) = FCOS(encoder, 2, filters=8, depth=1), task()
    frozen = {w.path for w in encoder.weights}
    assert not frozen & {w.path for w in model.trainable_weights}
    before = {w.path: numpy(w) for w in model.weights}
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    model.fit(x, y, verbose=0)
    changed = {
        w.path for w in model.weights if np.abs(numpy(w) - before[w.path]).max() > 0
    }
    assert {"class_output/kernel", "pyramid/p3_up/kernel"} <= changed
    assert not changed & frozen
