"""Batches of encoded images by tf.data, for any backend."""

import collections
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data import mixing
from keras_vit.data._decode import decode, tf
from keras_vit.data.dataset import ImageDataset, PipelineOptions, local_evaluation_rows
from keras_vit.data.labels import warn_missing_classes, warn_similar_names
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.randaugment import AUGREG, rand_augment
from keras_vit.data.token_budget import pack
from keras_vit.distribution.sharding import without_autotune
from keras_vit.preprocessing import preprocess_input
from keras_vit.utils.types import Array, Dataset, StrPath, Tensor

FOREVER = np.iinfo(np.int64).max
# tf.data hands on the text of an error, and no object: what was raised. Each
# of the workers, at least as many as CPUs, raises errors ahead of the first.
_raised: collections.deque[ValueError] = collections.deque(maxlen=4096)


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """Encoded images and their labels, as streams of single images.

    A stream is a `tf.data.Dataset` of `(position, name, content, label)`. The
    position is an int64, the name a string, the content any tensor that `read`
    takes, and the label an int32, or a row of float32 zeros and ones if the
    dataset is multi-label.
    """

    train_stream: Callable
    evaluation_stream: Callable
    read: Callable
    label: Callable = lambda label: (label, 1.0)
    refuses = ("scale",)

    def train(self, data: ImageDataset, options: PipelineOptions) -> Dataset:
        """Returns endless batches `(images, labels)`."""
        batches = map_with_names(
            self.train_stream(options), self._preparation(data, options)
        )
        size = options.micro_batch_size
        whole = options.uses_mixing or options.transform is not None
        if whole:
            size *= options.micro_batches
        batches = batches.batch(size, drop_remainder=True)
        if options.uses_mixing:
            batches = batches.enumerate(options.start).map(
                lambda number, batch: apply_mixing(number, batch[0], batch[1], options)
            )
        if (transform := options.transform) is not None:
            batches = batches.enumerate(options.start).map(
                lambda number, batch: (transform(number, batch[0]), *batch[1:])
            )
        if whole and options.micro_batches > 1:
            size = options.micro_batch_size
            batches = batches.unbatch().batch(size, drop_remainder=True)
        return without_autotune(batches.prefetch(2))

    def _preparation(
        self, data: ImageDataset, options: PipelineOptions
    ) -> Callable[..., Any]:
        """Returns the function that reads and augments an image."""
        options.refuse(self.refuses, repr(data.name))
        form = options.image_size, data.channels
        cut = PROTOCOLS[options.protocol].for_training(data.image_size)
        if options.budget is not None:
            cut = options.budget.cutter(options.protocol, training=True)
        augment = None
        if options.crops is not None and data.channels not in (1, 3):
            raise ValueError(
                "`crops` change colors, and are for images of 1 or 3 channels. "
                f"{data.name!r} has {data.channels}: train a masked model, such as MAE."
            )
        if AUGREG[options.augment][0]:
            if data.channels != 3:
                raise ValueError(
                    f"`augment={options.augment}` is for images of 3 channels. "
                    f"{data.name!r} has {data.channels}: use `augment=none`."
                )
            augment = rand_augment(options.augment, options.image_size)

        def prepare(
            position: Tensor, name: Tensor, content: Tensor, label: Tensor
        ) -> tuple[Any, ...]:
            seed = tf.stack([tf.constant(options.seed, tf.int64), position])
            content = self.read(content)
            if options.crops is not None:
                how = options.mode, options.flip
                return options.crops(content, seed, *form, *how), label
            seeds = tf.random.experimental.stateless_split(seed, 3)
            x = cut(content, seeds[0], *form)
            if options.flip:
                x = tf.image.stateless_random_flip_left_right(x, seeds[1])
            if augment:
                # big_vision's protocols return integers. The results of others,
                # for which no RandAugment is published, are rounded.
                x = tf.cast(tf.round(tf.clip_by_value(x, 0, 255)), tf.uint8)
                x = tf.cast(augment(x, seeds[2]), tf.float32)
            index = label
            x, label = normalize_and_encode(x, label, data, options)
            if options.erase.probability:
                fold_in = tf.random.experimental.stateless_fold_in
                x = options.erase(x, fold_in(seed, 3))
            if options.class_weights is None:
                return x, label
            weights = tf.constant(options.class_weights, tf.float32)
            return x, label, weights[index]

        return prepare

    def evaluation_batches(
        self,
        data: ImageDataset,
        split: str,
        total: int,
        options: PipelineOptions,
    ) -> Dataset:
        """Returns batches `(images, labels, weights)`, every image once.

        All batches are full, with padding, if `options.pads`; see
        `local_evaluation_rows`.
        """
        cut = PROTOCOLS[options.protocol].test
        if options.budget is not None:
            cut = options.budget.cutter(options.protocol, training=False)
        form = options.image_size, data.channels
        rows, count, weight = local_evaluation_rows(total, options)

        def prepare(
            position: Tensor, name: Tensor, content: Tensor, label: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            label, label_weight = self.label(label)
            image = cut(self.read(content), tf.zeros(2, tf.int64), *form)
            image, label = normalize_and_encode(image, label, data, options)
            return image, label, weight * label_weight

        images = map_with_names(self.evaluation_stream(split, rows), prepare)
        size = len(options.local_rows)
        if options.pads:
            zeros = tf.nest.map_structure(
                lambda spec: tf.zeros(spec.shape, spec.dtype),
                images.element_spec,
            )
            padding = tf.data.Dataset.from_tensors(zeros).repeat()
            images = images.concatenate(padding).take(count * size)
        batches = images.batch(size, drop_remainder=options.pads)
        batches = batches.apply(tf.data.experimental.assert_cardinality(count))
        return without_autotune(batches.prefetch(2))

    def example(self, split: str, index: int) -> tuple[Array, Array]:
        """Returns the pixels and the label of an image."""
        images = self.evaluation_stream(split, range(index, index + 1))
        _, _, content, label = next(iter(images))
        pixels = self.read(content)
        if pixels.dtype == tf.string:
            pixels = decode(pixels, 3)
        return pixels.numpy(), label.numpy()

    def class_counts(self, data: ImageDataset) -> Array:
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


def listed_dataset(
    name: str,
    class_names: tuple[str, ...],
    names: Sequence[StrPath],
    labels: Array,
    splits: Mapping[str, Array],
    read: Callable[[Tensor], Tensor],
    contents: Array | None = None,
    channels: int = 3,
    image_size: int | None = None,
    **fields: Any,
) -> ImageDataset:
    """Returns the dataset of images whose names, labels (classes, or rows of
    floats) and contents, by default the names, are in lists; `splits` has the
    indices of the images of "train", "validation" and "test".

    Classes to evaluate on that no training image has are warned of, and similar
    names of classes.
    """
    warn_similar_names(class_names)
    warn_missing_classes(name, class_names, labels, splits)
    encoded = np.array([os.fsencode(each) for each in names], object)
    is_multi_label = labels.ndim == 2
    labels = labels.astype("float32" if is_multi_label else "int32")

    def table(index: Array) -> tuple[Tensor, Tensor, Tensor]:
        # The type of an empty list cannot be inferred.
        column = tf.constant(encoded[index].tolist(), tf.string)
        content = column if contents is None else tf.constant(contents[index])
        return column, content, tf.constant(labels[index])

    def evaluation_stream(split: str, rows: range) -> Dataset:
        columns = table(splits[split][rows.start : rows.stop])
        positions = np.arange(len(rows))
        return tf.data.Dataset.from_tensor_slices((positions, *columns))

    return ImageDataset(
        name=name,
        class_names=class_names,
        channels=channels,
        image_size=image_size,
        num_train=len(splits["train"]),
        num_test=len(splits["test"]),
        num_validation=len(splits["validation"]),
        multi_label=is_multi_label,
        source=ImageSource(
            lambda options: shuffled_table(table(splits["train"]), options),
            evaluation_stream,
            read,
        ),
        **fields,
    )


def normalize_and_encode(
    image: Tensor, label: Tensor, data: ImageDataset, options: PipelineOptions
) -> tuple[Any, Tensor]:
    """Normalizes pixels in [0, 255], and makes the label one-hot if needed; of
    images that keep their aspect, returns the patches."""
    size = (None, None) if options.budget else options.image_size
    image = tf.ensure_shape(image, (*size, data.channels))
    image = preprocess_input(tf.clip_by_value(image, 0, 255), mode=options.mode)
    if (budget := options.budget) is not None:
        image = pack(tf, image, budget.patch_size, budget.max_tokens)
    if (options.one_hot or options.uses_mixing) and label.shape.rank == 0:
        label = tf.one_hot(label, len(data.class_names))
    return image, label


def _fail(message: str) -> None:
    """Raises an error that `find_data_error` finds."""
    error = ValueError(message)
    _raised.append(error)
    raise error


def unreadable(name: bytes) -> None:
    """Raises the error of an image that cannot be read."""
    # TensorFlow hands on no text that is not UTF-8.
    shown = name.decode("utf-8", "replace")
    _fail(
        f"This image cannot be read: {shown!r}. Remove it or convert it, or leave "
        "such files out with `skip_bad_images=True`."
    )


def map_with_names(examples: Dataset, prepare: Callable[..., Any]) -> Dataset:
    """Maps `prepare` over images; an error names the image.

    An error in a tf.data graph does not name the element that caused it, and
    can only be ignored, which leaves the element out. Therefore each image is a
    dataset of one element, and where this is empty after ignoring errors, the
    next element raises an error with the name, which travels with the content.
    This costs about 0.1 ms an image.
    """

    def one(*example: Tensor) -> Dataset:
        whole = tf.data.Dataset.from_tensors(example).map(prepare)
        spec = whole.element_spec

        def fail(name: Tensor) -> Any:
            return tf.nest.map_structure(
                lambda part: tf.ensure_shape(
                    tf.numpy_function(unreadable, [name], part.dtype),
                    part.shape,
                ),
                spec,
            )

        wrong = tf.data.Dataset.from_tensors(example[1]).map(fail)
        return whole.ignore_errors().concatenate(wrong).take(1)

    workers = max(4, os.cpu_count() or 1)
    return examples.interleave(
        # AutoGraph would translate each statement of `prepare`, which is written
        # for a graph, and warns of those that it does not know.
        tf.autograph.experimental.do_not_convert(one),
        cycle_length=workers,
        num_parallel_calls=workers,
        deterministic=True,
    )


def find_data_error(error: Exception) -> ValueError | None:
    """Returns the error of an image that cannot be read, or of a wrong label,
    that caused an error, or None.

    Args:
        error: Exception, raised when batches of an `ImageDataset` are read.

    Returns:
        A `ValueError` that names the image, or the dataset and its split; None
        for an error of another cause.
    """
    text = str(error)
    return next((each for each in _raised if str(each) in text), None)


def check_label(label: Tensor, num_classes: int, dataset: str, split: str) -> Tensor:
    """Casts labels of any shape to int32, in a function that `tf.data` maps.

    A label out of range is an error when its image is read. Some datasets have
    images without labels, which are stored as -1: their metrics would be
    meaningless.
    """

    def fail(label: Array) -> None:
        _fail(
            f"The split {split} of {dataset} must have labels from 0 to "
            f"{num_classes - 1}, and images without a label have -1: evaluate "
            "on another split, such as `test_split=validation`. Received: "
            f"{label}"
        )

    checked = tf.cond(
        tf.reduce_all((label >= 0) & (label < num_classes)),
        lambda: tf.cast(label, tf.int32),
        lambda: tf.numpy_function(fail, [label], tf.int32),
    )
    return tf.ensure_shape(checked, label.shape)


def apply_mixing(
    number: Tensor, images: Tensor, labels: Tensor, options: PipelineOptions
) -> tuple[Tensor, Tensor]:
    """Applies mixup or cutmix to batch `number`."""
    names = ("mixup", "cutmix", "which", "top", "left")
    # Negative, because the seeds of images are their positions from 0 on.
    seed = tf.stack([tf.constant(options.seed, tf.int64), -1 - number])
    seeds = tf.random.experimental.stateless_split(seed, 2 * len(names))

    def sample(name: str, p: float | None) -> Tensor:
        pair = seeds[names.index(name) :: len(names)]
        if p is None:
            return tf.random.stateless_uniform((), pair[0])
        # A Gamma variable divided by the sum of two has distribution
        # Beta(p, p). With a small p both may be 0 in float32.
        one, other = (
            tf.random.stateless_gamma((), pair[i], p, dtype=tf.float64) for i in (0, 1)
        )
        return tf.cast(tf.math.divide_no_nan(one, one + other), tf.float32)

    return mixing.mix(tf, images, labels, options, sample)


def shuffled_table(table: Sequence[Tensor], options: PipelineOptions) -> Dataset:
    """Returns a `tf.data.Dataset` of `(position, *row)` of endless permutations
    of the rows of columns: this process's part of each batch from
    `options.start` on."""
    count = len(table[0])
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
    return keep_local_rows(passes.enumerate(first), options).map(
        lambda position, row: (position, *(column[row] for column in table))
    )


def keep_local_rows(images: Dataset, options: PipelineOptions) -> Dataset:
    """Leaves out the rows of other processes, before anything is decoded."""
    if options.shard[1] == 1:
        return images

    def is_local(position: Tensor, *example: Tensor) -> Tensor:
        row = position % options.batch_size
        return (row >= options.local_rows.start) & (row < options.local_rows.stop)

    return images.filter(is_local)
