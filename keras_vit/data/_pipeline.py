"""Batches of encoded images by tf.data, for any backend."""

import dataclasses
import os
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit._types import Array
from keras_vit._types import Dataset
from keras_vit._types import StrPath
from keras_vit._types import Tensor
from keras_vit.data import mixing
from keras_vit.data._decode import import_tensorflow
from keras_vit.data.dataset import local_evaluation_rows
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.randaugment import AUGREG
from keras_vit.data.randaugment import rand_augment
from keras_vit.distribution.sharding import without_autotune
from keras_vit.preprocessing import preprocess_input

FOREVER = np.iinfo(np.int64).max
UNREADABLE = (
    "This image cannot be read, remove it or convert it (a folder is searched "
    "for such files with --skip-bad-images, skip_bad_images=True in Python):"
)
BAD_LABEL = "A label is out of range:"


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """Encoded images and their labels, as streams of single images.

    A stream is a `tf.data.Dataset` of `(position, name, content, label)`. The
    position is an int64, the name a string, the content any tensor that `read`
    takes, and the label an int32, or a row of float32 zeros and ones if the
    data set is multi-label.
    """

    train_stream: Callable
    evaluation_stream: Callable
    read: Callable
    label: Callable = lambda label: (label, 1.0)

    def train(self, data: Any, options: Any) -> Dataset:
        return train_batches(data, options)

    def evaluation_batches(
        self, data: Any, split: str, total: int, options: Any
    ) -> Dataset:
        return evaluation_batches(data, split, total, options)

    def class_counts(self, data: Any) -> Array:
        images = self.evaluation_stream("train", range(data.num_train))
        labels = images.map(lambda position, name, content, label: label)
        counts = np.zeros(len(data.class_names), np.int64)
        for batch in labels.batch(1024).as_numpy_iterator():
            if batch.ndim == 1:
                counts += np.bincount(batch, minlength=len(counts))
            else:
                counts += batch.sum(0, dtype=np.int64)
        return counts

    def sample(self, split: str, total: int, chosen: Array) -> "ImageSource":
        """Returns a source to evaluate on, of which a split has some images."""
        is_chosen = np.isin(np.arange(total), chosen)

        def stream(name: str, rows: range) -> Dataset:
            if name != split:
                return self.evaluation_stream(name, rows)
            tf = import_tensorflow()
            pairs = tf.data.Dataset.zip(
                tf.data.Dataset.from_tensor_slices(is_chosen),
                self.evaluation_stream(split, range(total)),
            )
            images = pairs.filter(lambda keep, image: keep)
            images = images.map(lambda keep, image: image)
            return images.skip(rows.start).take(len(rows))

        return dataclasses.replace(self, evaluation_stream=stream)

    def image_names(self, split: str, total: int) -> list[str]:
        images = self.evaluation_stream(split, range(total))
        return [os.fsdecode(name) for _, name, *_ in images.as_numpy_iterator()]


def listed_source(
    names: Iterable[StrPath],
    labels: Array,
    splits: Mapping[str, Array],
    read: Callable[[Tensor], Tensor],
    contents: Array | None = None,
) -> ImageSource:
    """Returns the `ImageSource` of images whose names, labels (classes, or rows
    of floats) and contents, by default the names, are in lists; `splits` has
    the indices of each split."""
    encoded = np.array([os.fsencode(name) for name in names], object)
    is_multi_label = labels.ndim == 2
    labels = labels.astype("float32" if is_multi_label else "int32")

    def columns(index: Array | slice) -> tuple[Tensor, Tensor, Tensor]:
        tf = import_tensorflow()
        # The type of an empty list cannot be inferred.
        column = tf.constant(encoded[index].tolist(), tf.string)
        content = column if contents is None else tf.constant(contents[index])
        return column, content, tf.constant(labels[index])

    def train_stream(options: Any) -> Dataset:
        table = columns(splits["train"])

        def look_up(position: Tensor, row: Tensor) -> tuple[Tensor, ...]:
            return position, *(column[row] for column in table)

        return shuffled_indices(len(splits["train"]), options).map(look_up)

    def evaluation_stream(split: str, rows: range) -> Dataset:
        tf = import_tensorflow()
        table = columns(splits[split][rows.start : rows.stop])
        positions = np.arange(len(rows))
        return tf.data.Dataset.from_tensor_slices((positions, *table))

    return ImageSource(train_stream, evaluation_stream, read)


def train_batches(data: Any, options: Any) -> Dataset:
    """Returns endless batches `(images, labels)` of an `ImageDataset` whose
    `source` is an `ImageSource`."""
    tf = import_tensorflow()
    size, channels = options.image_size, data.channels
    cut = PROTOCOLS[options.protocol].for_training(data.image_size)(
        size, channels
    )
    augment = None
    if AUGREG[options.augment][0]:
        if channels != 3:
            raise ValueError(
                f"--augment {options.augment} is for images of 3 channels. "
                f"{data.name!r} has {channels}: use --augment none."
            )
        augment = rand_augment(options.augment, size)

    def prepare(
        position: Tensor, name: Tensor, content: Tensor, label: Tensor
    ) -> tuple[Any, ...]:
        seed = tf.stack([tf.constant(options.seed, tf.int64), position])
        if options.crops is not None:
            crops = options.crops(
                data.source.read(content),
                seed,
                size,
                channels,
                options.mode,
                options.flip,
            )
            return crops, label
        seeds = tf.random.experimental.stateless_split(seed, 3)
        image = cut(data.source.read(content), seeds[0])
        if options.flip:
            image = tf.image.stateless_random_flip_left_right(image, seeds[1])
        if augment:
            # big_vision's protocols return integers. The results of others, for
            # which no RandAugment is published, are rounded.
            image = tf.cast(tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8)
            image = tf.cast(augment(image, seeds[2]), tf.float32)
        image, label = normalise_and_encode(image, label, data, options)
        if options.erase.probability:
            fold_in = tf.random.experimental.stateless_fold_in
            image = options.erase(image, fold_in(seed, 3))
        if options.class_weights is None:
            return image, label
        index = tf.argmax(label) if label.shape.rank else label
        weights = tf.constant(options.class_weights, tf.float32)
        return image, label, weights[index]

    images = map_with_named_errors(data.source.train_stream(options), prepare)
    if not options.uses_mixing:
        batches = images.batch(options.micro_batch_size, drop_remainder=True)
    else:
        batches = images.batch(len(options.local_rows), drop_remainder=True)
        numbers = tf.data.Dataset.range(options.start, FOREVER)
        batches = tf.data.Dataset.zip(numbers, batches).map(
            lambda number, batch: apply_mixing(number, *batch, options=options)
        )
        if options.micro_batches > 1:
            batches = batches.map(
                lambda *batch: tuple(
                    in_micro_batches(x, options) for x in batch
                )
            ).unbatch()
    if options.patch_sizes is not None:
        batches = options.patch_sizes.map(batches, options)
    return without_autotune(batches.prefetch(2))


def in_micro_batches(x: Tensor, options: Any) -> Tensor:
    tf = import_tensorflow()
    shape = (options.micro_batches, options.micro_batch_size, *x.shape[1:])
    return tf.reshape(x, shape)


def evaluation_batches(
    data: Any, split: str, total: int, options: Any
) -> Dataset:
    """Returns batches `(images, labels, weights)` of an `ImageDataset` whose
    `source` is an `ImageSource`, every image once.

    All batches are full, with padding, if `options.pads`; see
    `local_evaluation_rows`.
    """
    tf = import_tensorflow()
    cut = PROTOCOLS[options.protocol].test(options.image_size, data.channels)

    rows, count, weight = local_evaluation_rows(total, options)

    def prepare(
        position: Tensor, name: Tensor, content: Tensor, label: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        label, label_weight = data.source.label(label)
        image = cut(data.source.read(content), tf.zeros(2, tf.int64))
        image, label = normalise_and_encode(image, label, data, options)
        return image, label, weight * label_weight

    images = map_with_named_errors(
        data.source.evaluation_stream(split, rows), prepare
    )
    size = len(options.local_rows)
    if options.pads:
        zeros = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), images.element_spec
        )
        padding = tf.data.Dataset.from_tensors(zeros).repeat()
        images = images.concatenate(padding).take(count * size)
    batches = images.batch(size, drop_remainder=options.pads)
    batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    return without_autotune(batches.prefetch(2))


def normalise_and_encode(
    image: Tensor, label: Tensor, data: Any, options: Any
) -> tuple[Tensor, Tensor]:
    """Normalises pixels in [0, 255], and makes the label one-hot if needed."""
    tf = import_tensorflow()
    image = tf.ensure_shape(image, (*options.image_size, data.channels))
    image = preprocess_input(tf.clip_by_value(image, 0, 255), mode=options.mode)
    if (options.one_hot or options.uses_mixing) and label.shape.rank == 0:
        label = tf.one_hot(label, len(data.class_names))
    return image, label


def map_with_named_errors(
    examples: Dataset, prepare: Callable[..., Any]
) -> Dataset:
    """Maps `prepare` over images. An error contains the image's name.

    An error in a tf.data graph does not name the element that caused it, and
    can only be ignored, which leaves the element out. Therefore each image is a
    data set of one element, and if this is empty after ignoring errors, another
    data set raises an error with the name. This costs about 0.1 ms an image.
    """
    tf = import_tensorflow()

    def one(*example: Tensor) -> Dataset:
        whole = tf.data.Dataset.from_tensors(example).map(prepare)

        def fail(name: Tensor) -> Any:
            # An error message that is not UTF-8 does not reach Python.
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

        wrong = tf.data.Dataset.from_tensors(example[1]).map(fail)
        return whole.ignore_errors().concatenate(wrong).take(1)

    workers = max(4, os.cpu_count() or 1)
    return examples.interleave(
        one,
        cycle_length=workers,
        num_parallel_calls=workers,
        deterministic=True,
    )


def parse_image_error(error: Exception) -> str | None:
    """Returns the name of the image that caused an error, or None.

    Args:
        error: Exception, raised when batches of an `ImageDataset` are read.
    """
    found = re.search(
        re.escape(UNREADABLE) + r"\] \[(.*)\]$", str(error), re.MULTILINE
    )
    # TensorFlow writes strings as C does.
    return found and re.sub(
        r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), found[1]
    )


def check_label(
    label: Tensor, num_classes: int, dataset: str, split: str
) -> Tensor:
    """Casts labels of any shape to int32, in a function that `tf.data` maps.

    A label out of range is an error when its image is read. Some data sets have
    images without labels, which are stored as -1: their metrics would be
    meaningless.
    """
    tf = import_tensorflow()
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


def parse_label_error(error: Exception) -> str | None:
    """Returns the message of `check_label` in an error, or None.

    Args:
        error: Exception, raised when batches of an `ImageDataset` are read.
    """
    found = re.search(
        rf"({re.escape(BAD_LABEL)}.*)\] \[(.*)\]$", str(error), re.MULTILINE
    )
    return found and f"{found[1]} {found[2]}"


def apply_mixing(
    number: Tensor, images: Tensor, labels: Tensor, options: Any
) -> tuple[Tensor, Tensor]:
    """Applies mixup or cutmix to batch `number`."""
    tf = import_tensorflow()
    names = ("mixup", "cutmix", "which", "top", "left")

    def sample(name: str, p: float | None) -> Tensor:
        # Negative, because the seeds of images are their positions from 0 on.
        seed = tf.stack([tf.constant(options.seed, tf.int64), -1 - number])
        seeds = tf.random.experimental.stateless_split(seed, 2 * len(names))
        first = seeds[names.index(name)]
        second = seeds[names.index(name) + len(names)]
        if p is None:
            return tf.random.stateless_uniform((), first)
        # A Gamma variable divided by the sum of two has distribution
        # Beta(p, p). With a small p both may be 0 in float32.
        one, other = (
            tf.random.stateless_gamma((), seed, p, dtype=tf.float64)
            for seed in (first, second)
        )
        return tf.cast(tf.math.divide_no_nan(one, one + other), tf.float32)

    return mixing.mix(tf, images, labels, options, sample)


def shuffled_indices(count: int, options: Any) -> Dataset:
    """Returns a `tf.data.Dataset` of `(position, index)` of endless
    permutations of `range(count)`: this process's rows of each batch from
    `options.start` on."""
    tf = import_tensorflow()
    first = options.start * options.batch_size
    epoch, done = divmod(first, count)

    def one_pass(number: Tensor) -> Dataset:
        seed = tf.stack([tf.constant(options.seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), seed
        )
        rest = order[tf.where(number == epoch, np.int64(done), 0) :]
        return tf.data.Dataset.from_tensor_slices(rest)

    passes = tf.data.Dataset.range(epoch, FOREVER).flat_map(one_pass)
    return keep_local_rows(passes.enumerate(first), options)


def keep_local_rows(images: Dataset, options: Any) -> Dataset:
    """Leaves out the rows of other processes, before anything is decoded."""
    if options.shard[1] == 1:
        return images

    def is_local(position: Tensor, *example: Tensor) -> Tensor:
        row = position % options.batch_size
        return (row >= options.local_rows.start) & (
            row < options.local_rows.stop
        )

    return images.filter(is_local)
