"""VTAB-1k's tasks as `Data`: 800 and 200 images to train on."""

import functools

import numpy as np

from keras_vit.training._data import Data
from keras_vit.training._flags import require
from keras_vit.training._tf_batches import Source
from keras_vit.training._tf_batches import check_label
from keras_vit.training._tf_batches import shuffled
from keras_vit.training._tf_images import tensorflow
from keras_vit.training._tfds import open_builder
from keras_vit.training._tfds import prepare
from keras_vit.training._tfds_reading import read_config
from keras_vit.training._vtab_tasks import VTAB_TASKS

TRAIN, VAL = 800, 200


def vtab_data(name, validate=False):
    """Returns the `Data` of a task, which is downloaded if need be.

    Args:
        name: One of `VTAB_TASKS`.
        validate: Boolean. Whether to train on 800 images and to have the 200
            of VTAB's validation as test images, to choose settings by.
            Otherwise all 1000 train, and the test set is the task's.

    Raises:
        ValueError: if there is no such task, or the data cannot be had; if
            files must be downloaded by hand, the message says how.
        ImportError: if a package is missing.
    """
    if name not in VTAB_TASKS:
        raise ValueError(
            f"There is no VTAB task {name!r}. There are: "
            f"{', '.join(VTAB_TASKS)}."
        )
    task = VTAB_TASKS[name]
    tensorflow()
    tfds = require("tensorflow_datasets")
    builder = open_builder(tfds, task.tfds)
    prepare(builder, task.tfds)
    parts = parts_of(task, builder.info.splits)
    train = [parts["train"]] if validate else [parts["train"], parts["val"]]
    test = parts["val"] if validate else parts["test"]
    read = functools.partial(_read, builder, task)
    return Data(
        name=f"vtab-{name}",
        class_names=tuple(map(str, range(task.classes))),
        channels=3,
        image_size=None,
        num_train=sum(len(part) for _, part in train),
        num_test=len(test[1]),
        source=Source(
            endless=functools.partial(_endless, read, train),
            once=functools.partial(_once, read, test),
            read=functools.partial(_scaled, task.scale),
        ),
    )


def parts_of(task, splits):
    """Returns the parts of a task's splits, as `{name: (split, range)}`:
    "train" and "val", of which VTAB-1k takes 800 and 200, and "test".

    Args:
        task: A row of `VTAB_TASKS`.
        splits: Of a builder's info.

    Raises:
        ValueError: if a split is missing.
    """
    found = {}
    for part in ("train", "val", "test"):
        split, start, end = getattr(task, part)
        if split not in splits:
            raise ValueError(
                f"{task.tfds!r} must have a split {split!r}. It has: "
                f"{', '.join(splits) or 'none'}."
            )
        count = splits[split].num_examples
        found[part] = split, range(start * count // 100, end * count // 100)
    for part, most in (("train", TRAIN), ("val", VAL)):
        split, images = found[part]
        found[part] = split, images[:most]
    return found


def _read(builder, task, split, part):
    """A part of a split, in order: name, encoded image, label."""
    tf, tfds = tensorflow(), require("tensorflow_datasets")
    wanted = task.features
    if not isinstance(wanted, dict):
        wanted = dict.fromkeys(wanted, True)
    examples = builder.as_dataset(
        split=tfds.core.ReadInstruction(
            split, from_=part.start, to=part.stop, unit="abs"
        ),
        decoders=tfds.decode.PartialDecoding(
            {"image": True, **wanted},
            decoders={"image": tfds.decode.SkipDecoding()},
        ),
        read_config=read_config(tfds),
    )

    def columns(example):
        label = check_label(
            task.label(tf, example),
            task.classes,
            builder.info.full_name,
            split,
        )
        return example["tfds_id"], example["image"], label

    return examples.map(columns)


def _endless(read, parts, rules):
    """The thousand images are kept in memory, encoded."""
    tf = tensorflow()
    examples = [
        example for part in parts for example in read(*part).as_numpy_iterator()
    ]
    names, images, labels = (
        tf.constant(np.array(column)) for column in zip(*examples, strict=True)
    )

    def look_up(position, index):
        return position, names[index], images[index], labels[index]

    return shuffled(len(examples), rules).map(look_up)


def _once(read, test, part, own):
    split, whole = test
    images = read(split, whole[own.start : own.stop])
    return images.enumerate().map(lambda number, image: (number, *image))


def _scaled(scale, encoded):
    """dSprites has pixels of 0 and 1."""
    if scale == 1:
        return encoded
    tf = tensorflow()
    return tf.io.encode_png(tf.io.decode_png(encoded) * scale)
