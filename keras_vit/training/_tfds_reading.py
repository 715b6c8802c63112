"""Reading the records of a TFDS builder, still encoded."""

import functools
import math

import numpy as np

from keras_vit.training._flags import require
from keras_vit.training._tf_batches import FOREVER
from keras_vit.training._tf_batches import Source
from keras_vit.training._tf_batches import check_label
from keras_vit.training._tf_batches import own_rows
from keras_vit.training._tf_images import tensorflow

SHUFFLE_BUFFER = 50_000  # encoded images, as in the paper's code
# Parts of a training set of many files that are read side by side.
LANES = 16
MANY_FILES = 16


def tfds_source(builder, label_name, parts):
    """Returns the `Source` of a builder.

    Args:
        builder: A prepared `tfds.core.DatasetBuilder`.
        label_name: Feature to use as label: one class, or a sequence of them.
        parts: Dict of "train", "dev" and "test" to `(split, range)`.
    """
    label = builder.info.features[label_name]
    num_classes = getattr(label, "feature", label).num_classes
    read = functools.partial(_read, builder, label_name, num_classes)
    options = {}
    if hasattr(label, "feature"):
        options["label"] = functools.partial(_set, num_classes)
    return Source(
        endless=functools.partial(_endless, builder, read, *parts["train"]),
        once=functools.partial(_once, read, parts),
        read=lambda encoded: encoded,
        **options,
    )


def _endless(builder, read, split, part, rules):
    """Shuffled images of a training split, whose files are read in order.

    Each lane gives some rows of every batch, from a part of its own of the
    split. So a host reads the parts of its own rows and no others, where the
    split has files enough.
    """
    tf = tensorflow()
    files = builder.info.splits[split].num_shards
    many = files >= MANY_FILES and len(part) >= max(rules.batch_size, LANES)
    lanes = math.gcd(rules.batch_size, LANES) if many else 1
    width = rules.batch_size // lanes
    datasets = []
    for lane in range(lanes):
        row = lane * width
        if row + width <= rules.own.start or row >= rules.own.stop:
            continue
        first, last = (len(part) * end // lanes for end in (lane, lane + 1))

        def place(turn, example, row=row):
            position = turn // width * rules.batch_size + row + turn % width
            return position, *example

        images = _passes(
            read(split, part[first:last]),
            last - first,
            SHUFFLE_BUFFER // lanes,
            (rules.seed, lane),
            rules.start * width,
        )
        datasets.append(images.map(place).prefetch(width))
    turns = tf.data.Dataset.range(len(datasets)).flat_map(
        lambda lane: tf.data.Dataset.from_tensors(lane).repeat(width)
    )
    images = tf.data.Dataset.choose_from_datasets(datasets, turns.repeat())
    return own_rows(images, rules)


def _passes(images, count, buffer, key, first):
    """Endless shuffled passes, as `(turn, example)` from turn `first` on."""
    tf = tensorflow()
    epoch, done = divmod(first, count)
    seed, lane = key
    draw = tf.random.stateless_uniform
    fold = tf.random.experimental.stateless_fold_in

    def one_pass(number):
        # Of this small graph alone: shuffling takes no tensor beside a seed
        # that the program has set.
        tf.random.set_seed(None)
        key = fold(tf.stack([tf.constant(seed, tf.int64), number]), lane)
        # Encoded, a full buffer is small.
        order = images.shuffle(
            buffer,
            draw((), key, 0, 2**31 - 1, tf.int64),
            reshuffle_each_iteration=False,
        )
        return order.skip(tf.where(number == epoch, np.int64(done), 0))

    passes = tf.data.Dataset.range(epoch, FOREVER).flat_map(one_pass)
    return passes.enumerate(first)


def _once(read, parts, part, own):
    split, whole = parts[part]
    images = read(split, whole[own.start : own.stop])
    return images.enumerate().map(lambda number, image: (number, *image))


def _read(builder, label_name, num_classes, split, part):
    """A part of a split, in order: name, encoded image, label."""
    tfds = require("tensorflow_datasets")
    if not part:  # a host that has no image of its own
        return _read(builder, label_name, num_classes, split, range(1)).take(0)
    examples = builder.as_dataset(
        split=tfds.core.ReadInstruction(
            split, from_=part.start, to=part.stop, unit="abs"
        ),
        # Nothing else is decoded: Pets have masks and boxes.
        decoders=tfds.decode.PartialDecoding(
            {"image": True, label_name: True},
            decoders={"image": tfds.decode.SkipDecoding()},
        ),
        read_config=read_config(tfds),
    )

    def columns(example):
        label = check_label(
            example[label_name], num_classes, builder.info.full_name, split
        )
        return example["tfds_id"], example["image"], label

    return examples.map(columns)


def read_config(tfds):
    return tfds.ReadConfig(
        interleave_cycle_length=1,  # in order
        try_autocache=False,
        add_tfds_id=True,
    )


def _set(classes, members):
    """A set of right classes as a row of ones, and weight 0 if it is empty."""
    tf = tensorflow()
    # A class that is none keeps the maximum from being one of nothing.
    rows = tf.one_hot(tf.concat([members, [-1]], 0), classes)
    weight = tf.cast(tf.size(members) > 0, tf.float32)
    return tf.ensure_shape(tf.reduce_max(rows, 0), (classes,)), weight
