"""tf.data batches of encoded images, for any backend."""

import dataclasses
import os
import re
from collections.abc import Callable

import numpy as np

from keras_vit.data import mixing
from keras_vit.data._decode import tensorflow
from keras_vit.data.dataset import own_part
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.randaugment import AUGREG
from keras_vit.data.randaugment import rand_augment
from keras_vit.distribution.sharding import without_autotune
from keras_vit.preprocessing import preprocess_input

FOREVER = np.iinfo(np.int64).max
UNREADABLE = (
    "This image cannot be read, remove it or convert it (a folder is searched "
    "for such files with --skip-bad-images):"
)
BAD_LABEL = "A label is out of range:"


@dataclasses.dataclass(frozen=True)
class Source:
    """Where encoded images come from.

    Its first two functions return a `tf.data.Dataset` of `(position, name,
    content, label)`: an int64, two strings and an int32.
    """

    # (rules) -> the training images of this host from batch `rules.start` on,
    # forever. `position` counts the images of all hosts since the first batch.
    endless: Callable
    # ("dev" or "test", range) -> images of this part, in order, once.
    once: Callable
    read: Callable  # content -> encoded image
    # label -> label, weight of 0 or 1
    label: Callable = lambda label: (label, 1.0)

    def train(self, data, rules):
        return train_batches(data, rules)

    def ordered(self, data, part, total, rules):
        return ordered_batches(data, part, total, rules)

    def names(self, part, total):
        images = self.once(part, range(total))
        return [os.fsdecode(name) for _, name, *_ in images.as_numpy_iterator()]


def train_batches(data, rules):
    """Returns endless batches `(images, labels)` of a `ImageDataset`.

    Args:
        data: `ImageDataset` whose `source` is a `Source`.
        rules: `Batches`.
    """
    tf = tensorflow()
    size, channels = rules.image_size, data.channels
    cut = PROTOCOLS[rules.protocol].for_training(data.image_size)(
        size, channels
    )
    augment = None
    if AUGREG[rules.augment][0]:
        if channels != 3:
            raise ValueError(
                f"--augment {rules.augment} is for images of 3 channels. "
                f"{data.name!r} has {channels}: use --augment none."
            )
        augment = rand_augment(rules.augment, size)

    def prepare(position, name, content, label):
        seed = tf.stack([tf.constant(rules.seed, tf.int64), position])
        seeds = tf.random.experimental.stateless_split(seed, 3)
        image = cut(data.source.read(content), seeds[0])
        if rules.flip:
            image = tf.image.stateless_random_flip_left_right(image, seeds[1])
        if augment:
            # big_vision's protocols give integers. Others, for which no
            # RandAugment is published, are rounded.
            image = tf.cast(tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8)
            image = tf.cast(augment(image, seeds[2]), tf.float32)
        return finish(image, label, data, rules)

    images = named_errors(data.source.endless(rules), prepare)
    if not rules.mixed:
        batches = images.batch(rules.micro_batch_size, drop_remainder=True)
    else:
        batches = images.batch(len(rules.own), drop_remainder=True)
        numbers = tf.data.Dataset.range(rules.start, FOREVER)
        batches = tf.data.Dataset.zip(numbers, batches).map(
            lambda number, batch: mixed(number, *batch, rules)
        )
        if rules.micro_batches > 1:
            batches = batches.map(
                lambda *batch: tuple(in_micro_batches(x, rules) for x in batch)
            ).unbatch()
    return without_autotune(batches.prefetch(2))


def in_micro_batches(x, rules):
    tf = tensorflow()
    shape = (rules.micro_batches, rules.micro_batch_size, *x.shape[1:])
    return tf.reshape(x, shape)


def ordered_batches(data, part, total, rules):
    """Returns batches `(images, labels, weights)`, every image once.

    All batches are full, with padding; see `own_part`.

    Args:
        data: `ImageDataset` whose `source` is a `Source`.
        part: "dev" or "test".
        total: Integer. Number of images in it.
        rules: `Batches`.
    """
    tf = tensorflow()
    cut = PROTOCOLS[rules.protocol].test(rules.image_size, data.channels)

    own, count, weight = own_part(total, rules)

    def prepare(position, name, content, label):
        label, counts = data.source.label(label)
        image = cut(data.source.read(content), tf.zeros(2, tf.int64))
        image, label = finish(image, label, data, rules)
        return image, label, weight * counts

    images = named_errors(data.source.once(part, own), prepare)
    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), images.element_spec
    )
    padding = tf.data.Dataset.from_tensors(nothing).repeat()
    images = images.concatenate(padding).take(count * len(rules.own))
    batches = images.batch(len(rules.own), drop_remainder=True)
    batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    return without_autotune(batches.prefetch(2))


def finish(image, label, data, rules):
    """Scales pixels in [0, 255], and makes the label what is asked for."""
    tf = tensorflow()
    size = rules.image_size
    image = tf.ensure_shape(image, (size, size, data.channels))
    image = preprocess_input(tf.clip_by_value(image, 0, 255), mode=rules.mode)
    if (rules.one_hot or rules.mixed) and label.shape.rank == 0:
        label = tf.one_hot(label, len(data.class_names))
    return image, label


def named_errors(examples, prepare):
    """Maps `prepare`, and names the image where it fails.

    An error in a tf.data graph does not say which element it met, and cannot
    be caught but as the end of a dataset. So every image is a dataset of one,
    and where that comes out empty the next one raises. It costs about a tenth
    of a millisecond an image.
    """
    tf = tensorflow()

    def one(*example):
        whole = tf.data.Dataset.from_tensors(example).map(prepare)

        def complain(name):
            # An error that is no text is lost on its way to Python.
            name = tf.strings.unicode_transcode(name, "UTF-8", "UTF-8")
            is_wrong = tf.debugging.Assert(
                tf.strings.length(name) < 0,
                [UNREADABLE, name],
            )
            with tf.control_dependencies([is_wrong]):
                return tf.nest.map_structure(
                    lambda spec: tf.zeros(spec.shape, spec.dtype),
                    whole.element_spec,
                )

        wrong = tf.data.Dataset.from_tensors(example[1]).map(complain)
        return whole.ignore_errors().concatenate(wrong).take(1)

    workers = max(4, os.cpu_count() or 1)
    return examples.interleave(
        one,
        cycle_length=workers,
        num_parallel_calls=workers,
        deterministic=True,
    )


def unreadable(error):
    """Returns the name of the image that an error is about, or None."""
    found = re.search(
        re.escape(UNREADABLE) + r"\] \[(.*)\]$", str(error), re.MULTILINE
    )
    # TensorFlow writes strings as C does.
    return found and re.sub(
        r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), found[1]
    )


def check_label(label, num_classes, dataset, split):
    """Casts labels to int32, in a function that `tf.data` maps; a label out
    of range is an error at its element.

    Some sets have images without labels, which are stored as -1. A metric of
    them would be meaningless: no class is the right one.

    Args:
        label: Integer tensor of any shape: one class, or several.
        num_classes: Integer.
        dataset: String. Name of the data set, for the message.
        split: String. Name of its split.
    """
    tf = tensorflow()
    message = (
        # TensorFlow would put backslashes before quotation marks.
        f"{BAD_LABEL} the split {split} of {dataset} must have labels from "
        f"0 to {num_classes - 1}. Images without a label, which are stored as "
        "-1, can be neither trained nor evaluated on: evaluate on another "
        "split with --test-split, such as --test-split validation. Received:"
    )
    in_range = tf.reduce_all((label >= 0) & (label < num_classes))
    assertion = tf.debugging.Assert(in_range, [message, label])
    with tf.control_dependencies([assertion]):
        return tf.cast(label, tf.int32)


def bad_label(error):
    """Returns the message of `check_label` in an error, or None."""
    found = re.search(
        rf"({re.escape(BAD_LABEL)}.*)\] \[(.*)\]$", str(error), re.MULTILINE
    )
    return found and f"{found[1]} {found[2]}"


def mixed(number, images, labels, rules):
    """Mixup or cutmix of batch `number`."""
    tf = tensorflow()
    names = ("mixup", "cutmix", "which", "top", "left")

    def draws(name, p):
        # Images have positions 0 and up as their seeds.
        seed = tf.stack([tf.constant(rules.seed, tf.int64), -1 - number])
        seeds = tf.random.experimental.stateless_split(seed, 2 * len(names))
        first = seeds[names.index(name)]
        second = seeds[names.index(name) + len(names)]
        if p is None:
            return tf.random.stateless_uniform((), first)
        # Beta(p, p) is the share of one of two Gammas. With a small p both
        # may be 0 in float32.
        one, other = (
            tf.random.stateless_gamma((), seed, p, dtype=tf.float64)
            for seed in (first, second)
        )
        return tf.cast(tf.math.divide_no_nan(one, one + other), tf.float32)

    return mixing.mix(tf, images, labels, rules, draws)


def shuffled(count, rules):
    """Endless permutations of `range(count)`, from batch `rules.start` on.

    Returns:
        A dataset of `(position, index)`, of this host's rows of each batch.
    """
    tf = tensorflow()
    first = rules.start * rules.batch_size
    epoch, done = divmod(first, count)

    def one_pass(number):
        seed = tf.stack([tf.constant(rules.seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), seed
        )
        rest = order[tf.where(number == epoch, np.int64(done), 0) :]
        return tf.data.Dataset.from_tensor_slices(rest)

    passes = tf.data.Dataset.range(epoch, FOREVER).flat_map(one_pass)
    return own_rows(passes.enumerate(first), rules)


def own_rows(images, rules):
    """Leaves out the rows of other hosts, before anything is decoded."""
    if rules.shard[1] == 1:
        return images

    def own(position, *example):
        row = position % rules.batch_size
        return (row >= rules.own.start) & (row < rules.own.stop)

    return images.filter(own)
