"""Writes coco.json: what pycocotools finds for random boxes of many seeds.

pip install pycocotools==2.0.11
python tests/detection/make_coco.py > tests/detection/coco.json
"""

import contextlib
import io
import json
import sys

import numpy as np

SEEDS = 300
NAMES = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large"),
)


def example(seed):
    """Predictions and targets of some images, as `coco_metrics` takes them."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(1, 4)
    whole = rng.random() < 0.5  # pixels, with many equal IoU
    predictions, targets = [], []
    for _ in range(rng.integers(1, 6)):
        objects = rng.integers(0, 7)
        first = rng.uniform(0, 300, (objects, 2))
        size = np.exp(rng.uniform(0.5, 5.5, (objects, 2)))
        boxes = np.concatenate([first, first + size], 1)
        target = {
            "boxes": np.round(boxes) if whole else boxes,
            "classes": rng.integers(0, classes, objects),
            "crowd": rng.random(objects) < 0.2,
            "areas": np.exp(rng.uniform(1, 11, objects)),
        }
        if rng.random() < 0.5:
            sizes = target["boxes"][:, 2:] - target["boxes"][:, :2]
            target["areas"] = sizes.prod(1)
        count = rng.integers(1, 130) if seed % 10 == 0 else rng.integers(0, 25)
        found = np.empty((count, 4))
        for i in range(count):
            if objects and rng.random() < 0.7:
                box = target["boxes"][rng.integers(objects)]
                noise = np.exp(rng.uniform(-6, 0))
                scale = np.tile(box[2:] - box[:2], 2)
                box = box + rng.normal(0, noise, 4) * scale
            else:
                box = rng.uniform(0, 400, 4)
            found[i] = np.concatenate(
                [np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])]
            )
        labels = rng.integers(0, classes + 1, count)  # one has no objects
        predictions.append(
            {
                "boxes": np.round(found) if whole else found,
                "classes": labels,
                "scores": np.round(rng.random(count), rng.integers(1, 4)),
            }
        )
        targets.append(target)
    return predictions, targets


def by_pycocotools(predictions, targets):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def boxes(box):
        return [*box[:2], *(box[2:] - box[:2])]

    annotations = [
        {
            "image_id": i,
            "bbox": boxes(box),
            "category_id": int(number),
            "iscrowd": int(crowd),
            "area": float(area),
        }
        for i, target in enumerate(targets)
        for box, number, crowd, area in zip(
            *(target[k] for k in ("boxes", "classes", "crowd", "areas")),
            strict=True,
        )
    ]
    for i, annotation in enumerate(annotations):
        annotation["id"] = i + 1
    found = [
        {
            "image_id": i,
            "bbox": boxes(box),
            "category_id": int(number),
            "score": float(score),
        }
        for i, prediction in enumerate(predictions)
        for box, number, score in zip(
            *(prediction[k] for k in ("boxes", "classes", "scores")),
            strict=True,
        )
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i} for i in range(len(targets))],
            "categories": [{"id": i} for i in range(10)],
            "annotations": annotations,
        }
        coco.createIndex()
        results = COCO()
        results.dataset = {**coco.dataset, "annotations": found}
        for i, result in enumerate(found):
            _, _, width, height = result["bbox"]
            result |= {"id": i + 1, "iscrowd": 0, "area": width * height}
        results.createIndex()
        evaluation = COCOeval(coco, results, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(x) for x in evaluation.stats]


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    rows = [by_pycocotools(*example(seed)) for seed in range(seeds)]
    text = ",\n".join(json.dumps([round(x, 12) for x in row]) for row in rows)
    print(f"[\n{text}\n]")
