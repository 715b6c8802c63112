"""VTAB-1k: the 19 tasks as a table.

"A Large-scale Study of Representation Learning with the Visual Task Adaptation
Benchmark" (https://arxiv.org/abs/1910.04867), Section 3 and Table 2; splits and
labels as in google-research/task_adaptation, `data/*.py`.
"""

import dataclasses
from collections.abc import Callable

NATURAL, SPECIALIZED, STRUCTURED = VTAB_GROUPS = (
    "natural",
    "specialized",
    "structured",
)


def label(tf, example):
    return example["label"]


def _interval(tf, value, edges):
    """The number of the last edge that lies below the value."""
    below = tf.where(tf.constant(edges, tf.float32) < value)
    return tf.reduce_max(below)


def clevr_count(tf, example):
    """There are 3 to 10 objects."""
    return tf.shape(example["objects"]["pixel_coords"])[0] - 3


def clevr_distance(tf, example):
    """How far the closest object is, in six intervals."""
    closest = tf.reduce_min(example["objects"]["pixel_coords"][:, 2])
    return _interval(tf, closest, (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def kitti_distance(tf, example):
    """How far the closest car, van or truck is; without any, the last of four
    intervals."""
    objects = example["objects"]
    vehicles = tf.boolean_mask(objects["location"][:, 2], objects["type"] < 3)
    closest = tf.reduce_min(tf.concat([vehicles, [1000.0]], 0))
    return _interval(tf, closest, (-100.0, 8.0, 20.0, 999.0))


def dsprites_x(tf, example):
    """32 places in 16 classes."""
    return example["label_x_position"] * 16 // 32


def dsprites_orientation(tf, example):
    """40 turns in 16 classes."""
    return example["label_orientation"] * 16 // 40


def smallnorb_azimuth(tf, example):
    return example["label_azimuth"]


def smallnorb_elevation(tf, example):
    return example["label_elevation"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A row. Parts of splits are `(split, from, to)`, in percent."""

    group: str
    tfds: str
    classes: int
    train: tuple = ("train", 0, 100)
    val: tuple = ("validation", 0, 100)
    test: tuple = ("test", 0, 100)
    label: Callable = label
    # What of an example the label is made of.
    features: tuple | dict = ("label",)
    scale: int = 1  # of pixels
    # Whether the label outlives cropping, and mirroring.
    crop: bool = True
    flip: bool = True


def _of_train(percent, end=100):
    """Train and val from one split."""
    return {"train": ("train", 0, percent), "val": ("train", percent, end)}


_SIXTY = {**_of_train(60, 80), "test": ("train", 80, 100)}
_WHOLE = {"crop": False, "flip": False}
_OBJECTS = {"objects": {"pixel_coords"}}
_CLEVR = {
    **_of_train(90),
    # Those of its test split have no labels.
    "test": ("validation", 0, 100),
    "features": _OBJECTS,
    **_WHOLE,
}
_DSPRITES = {
    **_of_train(80, 90),
    "test": ("train", 90, 100),
    "scale": 255,
    **_WHOLE,
}
_NORB = {"val": ("test", 0, 50), "test": ("test", 50, 100), **_WHOLE}

VTAB_TASKS = {
    "caltech101": Task(NATURAL, "caltech101", 102, **_of_train(90)),
    "cifar100": Task(NATURAL, "cifar100", 100, **_of_train(90)),
    "dtd": Task(NATURAL, "dtd", 47),
    "flowers102": Task(NATURAL, "oxford_flowers102", 102),
    "pets": Task(NATURAL, "oxford_iiit_pet", 37, **_of_train(80)),
    "sun397": Task(NATURAL, "sun397/tfds", 397),
    # A mirrored 2 is none.
    "svhn": Task(NATURAL, "svhn_cropped", 10, flip=False, **_of_train(90)),
    "camelyon": Task(SPECIALIZED, "patch_camelyon", 2),
    "eurosat": Task(SPECIALIZED, "eurosat/rgb", 10, **_SIXTY),
    "resisc45": Task(SPECIALIZED, "resisc45", 45, **_SIXTY),
    "retinopathy": Task(
        SPECIALIZED, "diabetic_retinopathy_detection/btgraham-300", 5
    ),
    "clevr-count": Task(STRUCTURED, "clevr", 8, label=clevr_count, **_CLEVR),
    "clevr-distance": Task(
        STRUCTURED, "clevr", 6, label=clevr_distance, **_CLEVR
    ),
    "dmlab": Task(STRUCTURED, "dmlab", 6, **_WHOLE),
    "kitti-distance": Task(
        STRUCTURED,
        "kitti:3.1.0",
        4,
        label=kitti_distance,
        features={"objects": {"location", "type"}},
        **_WHOLE,
    ),
    "dsprites-location": Task(
        STRUCTURED,
        "dsprites",
        16,
        label=dsprites_x,
        features=("label_x_position",),
        **_DSPRITES,
    ),
    "dsprites-orientation": Task(
        STRUCTURED,
        "dsprites",
        16,
        label=dsprites_orientation,
        features=("label_orientation",),
        **_DSPRITES,
    ),
    "smallnorb-azimuth": Task(
        STRUCTURED,
        "smallnorb",
        18,
        label=smallnorb_azimuth,
        features=("label_azimuth",),
        **_NORB,
    ),
    "smallnorb-elevation": Task(
        STRUCTURED,
        "smallnorb",
        9,
        label=smallnorb_elevation,
        features=("label_elevation",),
        **_NORB,
    ),
}
