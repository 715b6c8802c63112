"""Average precision against pycocotools, whose numbers are stored."""

import json
import pathlib

import numpy as np
import pytest

from keras_vit.detection import decode
from keras_vit.evaluation import coco_metrics, plot_boxes
from tests.detection import make_coco

ON_TORCH = pytest.mark.backends("torch")
STORED = pathlib.Path(__file__).with_name("coco.json")


@ON_TORCH
def test_all_numbers_are_those_of_pycocotools(record_error):
    stored = np.array(json.loads(STORED.read_text()))
    assert stored.shape == (make_coco.SEEDS, 12)
    # Each number is often neither 0 nor missing.
    assert ((stored > 0) & (stored < 1)).mean(0).min() > 0.1
    for seed, expected in enumerate(stored):
        found = coco_metrics(*make_coco.example(seed))
        assert tuple(found) == make_coco.NAMES
        error = np.abs(np.array(list(found.values())) - expected).max()
        record_error("coco_metrics", f"seed {seed}", error, 1e-9)


@ON_TORCH
def test_images_without_boxes_or_objects():
    none = {"boxes": [], "classes": [], "scores": []}
    box = {"boxes": [[0, 0, 50, 50]], "classes": [1], "scores": [0.5]}
    assert set(coco_metrics([none], [none]).values()) == {-1}
    assert set(coco_metrics([box], [none]).values()) == {-1}
    assert coco_metrics([none], [box])["AP"] == 0
    found = coco_metrics([box, none, box], [box, none, none])
    assert found["AP"] == pytest.approx(1) and found["AP_small"] == -1
    # The first of equal scores is the one that is wrong.
    found = coco_metrics([box, box], [none, box])
    assert found["AP50"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="shorter"):
        coco_metrics([box], [])
    with pytest.raises(KeyError, match="scores"):
        coco_metrics([{"boxes": [[0, 0, 9, 9]], "classes": [1]}], [box])


@pytest.mark.parametrize("name", ["classes", "boxes"])
def test_outputs_that_are_nan_are_an_error(name):
    """They would be no boxes: an AP of 0."""
    outputs = {
        "classes": np.zeros((3, 5, 2), "float32"),
        "boxes": np.full((3, 5, 4), 0.5, "float32"),
    }
    for more in ({}, {"points": outputs["boxes"]}):  # a YOLOS, an FCOS
        assert len(decode({**outputs, **more})) == 3
        wrong = outputs[name].copy()
        wrong[1, 2, 0] = np.nan
        with pytest.raises(ValueError, match="NaN for 1 of 3 .* index 1"):
            decode({**outputs, **more, name: wrong})


@ON_TORCH
def test_boxes_are_drawn():
    image = np.zeros((20, 30, 1))
    box = {"boxes": np.array([[2, 3, 12, 8]]), "classes": np.array([1])}
    found = {**box, "scores": np.array([0.75])}
    figure = plot_boxes([image], [box], [found], ["cat", "dog"])
    for axes, text in zip(figure.axes, ("dog", "dog 0.75"), strict=True):
        (rectangle,) = axes.patches
        assert rectangle.get_bbox().bounds == (1.5, 2.5, 10, 5)
        assert [x.get_text() for x in axes.texts] == [text]
