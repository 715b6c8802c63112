"""Batches of encoded images from tf.data, for any backend."""

import collections
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data import short_way
from keras_vit.data.dataset import Batching, ImageDataset
from keras_vit.data.decoding import decode, tf
from keras_vit.data.labels import warn_missing_classes, warn_similar_names
from keras_vit.data.steps.base import Example, StepFunction, call, run
from keras_vit.data.token_budget import TokenBudget
from keras_vit.distribution.sharding import without_autotune
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

    def of(self, options: dict[str, Any]) -> "ImageSource":
        return self

    def builder(self, options: dict[str, Any]) -> short_way.Builder:
        """Returns the function that makes the steps of these images."""
        if isinstance(options.get("image_size"), TokenBudget):
            return short_way.images_at_their_aspect
        return short_way.crops_of_images if "crops" in options else short_way.images

    def train(
        self,
        data: ImageDataset,
        steps: Sequence[StepFunction | None],
        batch_steps: Sequence[StepFunction | None],
        batching: Batching,
    ) -> Dataset:
        """Returns endless batches `(images, labels)`."""
        seed = tf.constant(batching.seed, tf.int64)

        def prepare(
            position: Tensor, name: Tensor, content: Tensor, label: Tensor
        ) -> tuple[Any, ...]:
            example = {
                "image": self.read(content),
                "label": label,
                "name": name,
                "channels": data.channels,
                "seed": tf.stack([seed, position]),
            }
            return _columns(run(steps, example, example["seed"]))

        def change(number: Tensor, batch: tuple[Any, ...]) -> tuple[Any, ...]:
            # Negative, because the seeds of images are their positions from 0 on.
            own = tf.stack([seed, -1 - number])
            example: Example = dict(zip(_COLUMNS, batch, strict=False))
            for place, function in enumerate(batch_steps):
                fold = tf.random.experimental.stateless_fold_in
                of_place = fold(own, place) if place else own
                example = call(function, place, example, of_place)
            return _columns(example)

        batches = map_with_names(self.train_stream(batching), prepare)
        size, count = batching.micro_batch_size, batching.micro_batches
        if not batch_steps:
            batches = batches.batch(size, drop_remainder=True)
        else:
            batches = batches.batch(size * count, drop_remainder=True)
            batches = batches.enumerate(batching.start)
            batches = batches.map(tf.autograph.experimental.do_not_convert(change))
            if count > 1:
                batches = batches.unbatch().batch(size, drop_remainder=True)
        return without_autotune(batches.prefetch(2))

    def evaluation_batches(
        self,
        data: ImageDataset,
        split: str,
        total: int,
        steps: Sequence[StepFunction | None],
        batching: Batching,
    ) -> Dataset:
        """Returns batches `(images, labels, weights)`, every image once.

        All batches are full, with padding, if `batching.pads`.
        """
        rows, count, weight = batching.evaluation_rows(total)

        def prepare(
            position: Tensor, name: Tensor, content: Tensor, label: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            label, label_weight = self.label(label)
            example = {
                "image": self.read(content),
                "label": label,
                "name": name,
                "channels": data.channels,
                "seed": tf.zeros(2, tf.int64),
            }
            image, label = _columns(run(steps, example, example["seed"]))[:2]
            return image, label, weight * label_weight

        images = map_with_names(self.evaluation_stream(split, rows), prepare)
        size = len(batching.local_rows)
        if batching.pads:
            zeros = tf.nest.map_structure(
                lambda spec: tf.zeros(spec.shape, spec.dtype),
                images.element_spec,
            )
            padding = tf.data.Dataset.from_tensors(zeros).repeat()
            images = images.concatenate(padding).take(count * size)
        batches = images.batch(size, drop_remainder=batching.pads)
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
        """Returns a source to evaluate on, with some of the images of a split."""
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

    def image_names(self, split: str, rows: range) -> list[str]:
        images = self.evaluation_stream(split, rows)
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

    It warns of test classes without training images, and of similar class names.
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
            lambda batching: shuffled_table(table(splits["train"]), batching),
            evaluation_stream,
            read,
        ),
        **fields,
    )


# What a batch is made of, of an example after its steps.
_COLUMNS = ("image", "label", "weight")


def _columns(example: Example) -> tuple[Any, ...]:
    return tuple(example[name] for name in _COLUMNS if name in example)


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
    can only be ignored, which leaves the element out. Therefore each image is a dataset
    of one element. Where this is empty after ignoring errors, the next element raises
    an error with the name, which is passed along with the content. This takes about 0.1
    ms per image.
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
    """Returns the cause of an error, if it is an unreadable image or a wrong label.

    Args:
        error: Exception that was raised while batches of an `ImageDataset` were read.

    Returns:
        A `ValueError` that names the image, or the dataset and its split; None if the
        error has another cause.
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


def shuffled_table(table: Sequence[Tensor], batching: Batching) -> Dataset:
    """Returns a `tf.data.Dataset` of `(position, *row)` of endless permutations
    of the rows of columns: this process's part of each batch from
    `batching.start` on."""
    count = len(table[0])
    first = batching.start * batching.batch_size
    epoch, done = divmod(first, count)

    def one_pass(number: Tensor) -> Dataset:
        seed = tf.stack([tf.constant(batching.seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), seed
        )
        rest = order[tf.where(number == epoch, np.int64(done), 0) :]
        return tf.data.Dataset.from_tensor_slices(rest)

    passes = tf.data.Dataset.range(epoch, FOREVER).flat_map(one_pass)
    return keep_local_rows(passes.enumerate(first), batching).map(
        lambda position, row: (position, *(column[row] for column in table))
    )


def keep_local_rows(images: Dataset, batching: Batching) -> Dataset:
    """Leaves out the rows of other processes, before anything is decoded."""
    if batching.shard[1] == 1:
        return images

    def is_local(position: Tensor, *example: Tensor) -> Tensor:
        row = position % batching.batch_size
        return (row >= batching.local_rows.start) & (row < batching.local_rows.stop)

    return images.filter(is_local)
