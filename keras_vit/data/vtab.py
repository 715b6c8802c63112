"""The tasks of VTAB-1k (https://arxiv.org/abs/1910.04867)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_vit.data.dataset import Batching, ImageDataset
from keras_vit.data.decoding import import_tensorflow, tf
from keras_vit.data.pipeline import ImageSource, shuffled_table
from keras_vit.data.tfds import download, evaluation_stream, open_builder, read_examples
from keras_vit.utils import checks
from keras_vit.utils.optional import require
from keras_vit.utils.types import Dataset, Tensor

VTAB_GROUPS = ("natural", "specialized", "structured")
NATURAL, SPECIALIZED, STRUCTURED = VTAB_GROUPS


def _interval(tf: Any, value: Tensor, edges: Sequence[float]) -> Tensor:
    """Returns the index of the last edge below the value."""
    below = tf.where(tf.constant(edges, tf.float32) < value)
    return tf.reduce_max(below)


def clevr_distance(tf: Any, example: Mapping[str, Any]) -> Tensor:
    """Returns the class of the distance of the closest object: one of six
    intervals."""
    closest = tf.reduce_min(example["objects"]["pixel_coords"][:, 2])
    return _interval(tf, closest, (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def kitti_distance(tf: Any, example: Mapping[str, Any]) -> Tensor:
    """Returns the class of the distance of the closest car, van or truck: one
    of four intervals, the last one if there is none."""
    objects = example["objects"]
    vehicles = tf.boolean_mask(objects["location"][:, 2], objects["type"] < 3)
    closest = tf.reduce_min(tf.concat([vehicles, [1000.0]], 0))
    return _interval(tf, closest, (-100.0, 8.0, 20.0, 999.0))


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of VTAB. Its splits are `(split, from, to)`, in percent."""

    group: str
    tfds: str
    classes: int
    train: tuple = ("train", 0, 100)
    val: tuple = ("validation", 0, 100)
    test: tuple = ("test", 0, 100)
    # The features that the class is made of, by default the class itself.
    features: tuple | dict = ("label",)
    label: Callable | None = None
    scale: int = 1  # factor of pixel values
    # Whether cropping, and flipping, keep the label right.
    crop: bool = True
    flip: bool = True


def _of_train(percent: int, end: int = 100) -> dict[str, Any]:
    """Returns the training and the validation split, both from "train"."""
    return {"train": ("train", 0, percent), "val": ("train", percent, end)}


_SPLIT_60_20_20: dict[str, Any] = {
    **_of_train(60, 80),
    "test": ("train", 80, 100),
}
_NO_CROP_NO_FLIP: dict[str, Any] = {"crop": False, "flip": False}
_OBJECTS = {"objects": {"pixel_coords"}}
_CLEVR: dict[str, Any] = {
    **_of_train(90),
    # The images of its test split have no labels.
    "test": ("validation", 0, 100),
    "features": _OBJECTS,
    **_NO_CROP_NO_FLIP,
}
_DSPRITES: dict[str, Any] = {
    **_of_train(80, 90),
    "test": ("train", 90, 100),
    "scale": 255,
    **_NO_CROP_NO_FLIP,
}
_SMALLNORB: dict[str, Any] = {
    "val": ("test", 0, 50),
    "test": ("test", 50, 100),
    **_NO_CROP_NO_FLIP,
}

VTAB_TASKS = {
    "caltech101": Task(NATURAL, "caltech101", 102, **_of_train(90)),
    "cifar100": Task(NATURAL, "cifar100", 100, **_of_train(90)),
    "dtd": Task(NATURAL, "dtd", 47),
    "flowers102": Task(NATURAL, "oxford_flowers102", 102),
    "pets": Task(NATURAL, "oxford_iiit_pet", 37, **_of_train(80)),
    "sun397": Task(NATURAL, "sun397/tfds", 397),
    # A flipped 2 is no 2.
    "svhn": Task(NATURAL, "svhn_cropped", 10, flip=False, **_of_train(90)),
    "camelyon": Task(SPECIALIZED, "patch_camelyon", 2),
    "eurosat": Task(SPECIALIZED, "eurosat/rgb", 10, **_SPLIT_60_20_20),
    "resisc45": Task(SPECIALIZED, "resisc45", 45, **_SPLIT_60_20_20),
    "retinopathy": Task(SPECIALIZED, "diabetic_retinopathy_detection/btgraham-300", 5),
    # Images have 3 to 10 objects.
    "clevr-count": Task(
        STRUCTURED,
        "clevr",
        8,
        label=lambda tf, x: tf.shape(x["objects"]["pixel_coords"])[0] - 3,
        **_CLEVR,
    ),
    "clevr-distance": Task(STRUCTURED, "clevr", 6, label=clevr_distance, **_CLEVR),
    "dmlab": Task(STRUCTURED, "dmlab", 6, **_NO_CROP_NO_FLIP),
    "kitti-distance": Task(
        STRUCTURED,
        "kitti:3.1.0",
        4,
        label=kitti_distance,
        features={"objects": {"location", "type"}},
        **_NO_CROP_NO_FLIP,
    ),
    "dsprites-location": Task(
        STRUCTURED,
        "dsprites",
        16,
        label=lambda tf, x: x["label_x_position"] * 16 // 32,
        features=("label_x_position",),
        **_DSPRITES,
    ),
    "dsprites-orientation": Task(
        STRUCTURED,
        "dsprites",
        16,
        label=lambda tf, x: x["label_orientation"] * 16 // 40,
        features=("label_orientation",),
        **_DSPRITES,
    ),
    "smallnorb-azimuth": Task(
        STRUCTURED,
        "smallnorb",
        18,
        features=("label_azimuth",),
        **_SMALLNORB,
    ),
    "smallnorb-elevation": Task(
        STRUCTURED,
        "smallnorb",
        9,
        features=("label_elevation",),
        **_SMALLNORB,
    ),
}


def load_vtab(name: str, validate: bool = False) -> ImageDataset:
    """Returns the `ImageDataset` of a VTAB task, which is downloaded if necessary.

    Args:
        name: One of `VTAB_TASKS`.
        validate: Boolean. Whether to train on 800 images and to evaluate on
            VTAB's 200 validation images, to choose settings. Otherwise all
            1000 images are trained on, and the task's test set is evaluated on.

    Raises:
        ValueError: if there is no such task, or the data cannot be
            downloaded. If files must be downloaded by hand, the message says
            how.
        ImportError: if a package is missing.
    """
    task = VTAB_TASKS[checks.one_of("name", name, tuple(VTAB_TASKS))]
    import_tensorflow()  # without its GPU, before TFDS uses it
    tfds = require("tensorflow_datasets")
    builder = open_builder(tfds, task.tfds)
    download(builder, task.tfds)
    ranges = split_ranges(task, builder.info.splits)
    parts = {
        "train": [ranges["train"]] + ([] if validate else [ranges["val"]]),
        "test": [ranges["val" if validate else "test"]],
    }
    features = task.features
    if not isinstance(features, dict):
        features = dict.fromkeys(features, True)
    read = functools.partial(
        read_examples,
        builder,
        features,
        functools.partial(task.label, tf)
        if task.label
        else lambda example: example[task.features[0]],
        task.classes,
    )
    stream = functools.partial(evaluation_stream, read, parts)

    def train_stream(batching: Batching) -> Dataset:
        # All thousand images are kept in memory, encoded.
        images = stream("train", range(num_train)).as_numpy_iterator()
        columns = list(zip(*images, strict=True))[1:]
        return shuffled_table([tf.constant(x) for x in columns], batching)

    num_train, num_test = (
        sum(len(images) for _, images in part) for part in parts.values()
    )
    return ImageDataset(
        name=f"vtab-{name}",
        class_names=tuple(map(str, range(task.classes))),
        channels=3,
        image_size=None,
        num_train=num_train,
        num_test=num_test,
        source=ImageSource(
            train_stream=train_stream,
            evaluation_stream=stream,
            read=functools.partial(_rescale_png, task.scale),
        ),
    )


def split_ranges(task: Task, splits: Any) -> dict[str, tuple[str, range]]:
    """Returns the images of a task's splits, as `{name: (split, range)}`:
    "train" and "val", from which VTAB-1k takes 800 and 200 images, and "test"."""
    found = {}
    for name in ("train", "val", "test"):
        split, start, end = getattr(task, name)
        count = splits[split].num_examples
        found[name] = split, range(start * count // 100, end * count // 100)
    for name, most in (("train", 800), ("val", 200)):
        split, images = found[name]
        found[name] = split, images[:most]
    return found


def _rescale_png(scale: int, encoded: Tensor) -> Tensor:
    """Multiplies pixels: those of dSprites are 0 and 1."""
    if scale == 1:
        return encoded
    return tf.io.encode_png(tf.io.decode_png(encoded) * scale)
