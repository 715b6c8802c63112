"""Datasets of TensorFlow Datasets."""

import difflib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data.dataset import Batching, ImageDataset
from keras_vit.data.decoding import import_tensorflow, tf
from keras_vit.data.pipeline import FOREVER, ImageSource, check_label, keep_local_rows
from keras_vit.data.splits import TEST_SPLITS
from keras_vit.utils.logging import logger
from keras_vit.utils.optional import require
from keras_vit.utils.types import Dataset, Tensor

SHUFFLE_BUFFER = 50_000  # encoded images, as in the paper's code
# Number of slices of a training split of many files that are read concurrently. Each
# gives its own rows of every batch, so that a process reads only its rows.
NUM_READERS = 16
MANY_FILES = 16


def _train_stream(
    builder: Any,
    read: Callable[..., Dataset],
    split: str,
    indices: range,
    batching: Batching,
) -> Dataset:
    """Shuffled images of a training split, whose files are read in order.

    Each reader yields some rows of every batch, from its slice of the split.
    Therefore a process reads only the slices of its rows, if the split has
    enough files.
    """
    files = builder.info.splits[split].num_shards
    many = files >= MANY_FILES and len(indices) >= max(batching.batch_size, NUM_READERS)
    num_readers = math.gcd(batching.batch_size, NUM_READERS) if many else 1
    width = batching.batch_size // num_readers
    datasets = []
    for reader in range(num_readers):
        row = reader * width
        if row + width <= batching.local_rows.start or row >= batching.local_rows.stop:
            continue
        first, last = (
            len(indices) * end // num_readers for end in (reader, reader + 1)
        )

        def with_position(
            index: Tensor, example: Any, row: int = row
        ) -> tuple[Any, ...]:
            position = index // width * batching.batch_size + row + index % width
            return position, *example

        images = _epochs(
            read(split, indices[first:last]),
            last - first,
            SHUFFLE_BUFFER // num_readers,
            (batching.seed, reader),
            batching.start * width,
        )
        datasets.append(images.map(with_position).prefetch(width))
    schedule = tf.data.Dataset.range(len(datasets)).flat_map(
        lambda reader: tf.data.Dataset.from_tensors(reader).repeat(width)
    )
    images = tf.data.Dataset.choose_from_datasets(datasets, schedule.repeat())
    return keep_local_rows(images, batching)


def _epochs(
    images: Dataset, count: int, buffer: int, key: tuple[int, int], first: int
) -> Dataset:
    """Endless shuffled passes, as `(index, example)` from index `first` on."""
    epoch, done = divmod(first, count)
    seed, reader = key
    uniform = tf.random.stateless_uniform
    fold = tf.random.experimental.stateless_fold_in

    def one_pass(number: Tensor) -> Dataset:
        # Only in the graph of this function: `shuffle` does not take a tensor
        # as seed if the program has set a global seed.
        tf.random.set_seed(None)
        key = fold(tf.stack([tf.constant(seed, tf.int64), number]), reader)
        # Images in the buffer are encoded, so that it takes little memory.
        order = images.shuffle(
            buffer,
            uniform((), key, 0, 2**31 - 1, tf.int64),
            reshuffle_each_iteration=False,
        )
        return order.skip(tf.where(number == epoch, np.int64(done), 0))

    passes = tf.data.Dataset.range(epoch, FOREVER).flat_map(one_pass)
    return passes.enumerate(first)


def evaluation_stream(
    read: Callable[..., Dataset],
    ranges: Mapping[str, Sequence[tuple[str, range]]],
    name: str,
    rows: range,
) -> Dataset:
    """Returns the stream of the images to evaluate on, in order; `ranges` has
    the splits of TFDS, and the indices of their images, of each split."""
    parts, first = [], 0
    for split, whole in ranges[name]:
        start, stop = (max(0, i - first) for i in (rows.start, rows.stop))
        parts.append(read(split, whole[start:stop]))
        first += len(whole)
    images = functools.reduce(lambda one, other: one.concatenate(other), parts)
    return images.enumerate().map(lambda number, image: (number, *image))


def read_examples(
    builder: Any,
    features: Mapping[str, Any],
    label: Callable[[Mapping[str, Any]], Tensor],
    num_classes: int,
    split: str,
    indices: range,
) -> Dataset:
    """Returns a slice of a split, in order: name, encoded image, and label, which is
    derived from the features."""
    tfds = require("tensorflow_datasets")
    # A process without images reads one, and takes none.
    examples = builder.as_dataset(
        split=tfds.core.ReadInstruction(
            split,
            from_=indices.start if indices else 0,
            to=indices.stop if indices else 1,
            unit="abs",
        ),
        # Other features, such as the masks of Pets, are not decoded.
        decoders=tfds.decode.PartialDecoding(
            {"image": True, **features},
            decoders={"image": tfds.decode.SkipDecoding()},
        ),
        read_config=tfds.ReadConfig(
            interleave_cycle_length=1,  # in order
            try_autocache=False,
            add_tfds_id=True,
        ),
    )

    def columns(example: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        checked = check_label(
            label(example), num_classes, builder.info.full_name, split
        )
        return example["tfds_id"], example["image"], checked

    return examples.map(columns).take(len(indices))


def _multi_label_row(classes: int, members: Tensor) -> tuple[Tensor, Tensor]:
    """Returns classes as a row of zeros and ones, and weight 0 if there are
    none."""
    # -1 becomes a row of zeros, so that the maximum is defined without classes.
    rows = tf.one_hot(tf.concat([members, [-1]], 0), classes)
    weight = tf.cast(tf.size(members) > 0, tf.float32)
    return tf.ensure_shape(tf.reduce_max(rows, 0), (classes,)), weight


# Builders of TFDS 4.9 whose split "test" has images without labels: each of
# its records has the label -1. imagenet2012 has it since version 5.1.0, if the
# archive of the test images was there when the dataset was prepared.
UNLABELED_TEST = frozenset(
    {
        "i_naturalist2017",
        "i_naturalist2018",
        "i_naturalist2021",
        "imagenet2012",
        "pet_finder",
        "places365_small",
        "visual_domain_decathlon",
    }
)


def from_tfds(
    name: str, holdout: float = 0.0, test_split: str | None = None
) -> ImageDataset:
    """Returns the `ImageDataset` of a name of `tfds.builder`, which is
    downloaded if necessary; raises a `ValueError` if there is no such dataset, or it is
    not for image classification, has no labeled test set, or cannot be downloaded.
    """
    try:
        import_tensorflow()
        tfds = require("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            f"There is no folder {name!r}, and it cannot be looked up in TFDS: {error}"
        ) from error
    builder = open_builder(tfds, name)
    label_name = _label_of(tfds, name, builder.info.features)
    download(builder, name)
    splits, features = builder.info.splits, builder.info.features
    test = choose_test_split(name, builder.name, list(splits), test_split)
    # Some have none: ReaL, imagenet_v2.
    trains = label_name == "label" and "train" in splits
    count = splits["train"].num_examples if trains else 0
    num_train = count - round(holdout * count)
    height, width, channels = features["image"].shape
    label = features[label_name]
    classes = getattr(label, "feature", label)
    ranges = {
        # The last ones, as vit_jax trains on `train[:98%]`.
        "train": [("train", range(num_train))],
        "validation": [("train", range(num_train, count))],
        "test": [(test, range(splits[test].num_examples))],
    }
    read = functools.partial(
        read_examples,
        builder,
        {label_name: True},
        lambda example: example[label_name],
        classes.num_classes,
    )
    options = {}
    if label is not classes:
        options["label"] = functools.partial(_multi_label_row, classes.num_classes)
    return ImageDataset(
        name=name.replace("/", "-").replace(":", "-"),
        class_names=tuple(classes.names),
        channels=channels or 3,
        image_size=height if height == width else None,
        num_train=num_train,
        num_test=splits[test].num_examples,
        num_validation=count - num_train,
        source=ImageSource(
            functools.partial(_train_stream, builder, read, "train", range(num_train)),
            functools.partial(evaluation_stream, read, ranges),
            lambda encoded: encoded,
            **options,
        ),
    )


def choose_test_split(
    name: str, builder_name: str, splits: Sequence[str], wanted: str | None
) -> str:
    """Returns the split to evaluate on: the `wanted` one, or the first one with
    labels."""
    known = TEST_SPLITS if wanted is None else (wanted,)
    unlabeled = "test" if builder_name in UNLABELED_TEST else None
    for split in known:
        if split in splits and split != unlabeled:
            return split
    note = "" if unlabeled is None else ", whose images in 'test' have no label"
    raise ValueError(
        f"{name!r} must have a split {' or '.join(map(repr, known))} with "
        "labels to evaluate on, or another one, named by `test_split`. Its "
        f"splits are: {', '.join(map(repr, splits)) or 'none'}{note}."
    )


def download(builder: Any, name: str) -> None:
    """Downloads and prepares a dataset; the `ValueError` of a failure says
    which files must be downloaded by hand, if any."""
    if not builder.is_prepared():
        # At level WARNING, so that it is shown by default.
        logger.warning(
            f"TFDS: downloading {name!r} into {str(builder.data_dir)!r}; if the server "
            "cannot be reached, TFDS tries for several minutes before it fails"
        )
    try:
        builder.download_and_prepare()
    except Exception as error:  # of a server, a proxy or a disk
        by_hand = ""
        if text := builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            text = " ".join(text.split())
            folder = builder.data_dir_root / "downloads" / "manual"
            by_hand = f" It is downloaded by hand, into {folder}: {text}"
        raise ValueError(
            f"TFDS could not download or prepare {name!r}: {_first_line(error)}. A "
            "dataset that is already prepared is read from "
            f"{str(builder.data_dir_root)!r}, or the folder that TFDS_DATA_DIR names."
            f"{by_hand}"
        ) from error


def open_builder(tfds: Any, name: str) -> Any:
    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError as error:
        raise unknown_dataset_error(name, tfds.list_builders()) from error
    except Exception as error:
        # A wrong configuration or version, or an invalid name.
        raise ValueError(
            f"There is no folder {name!r}, and TFDS cannot open a dataset of "
            f"that name: {_first_line(error)}"
        ) from error


def unknown_dataset_error(name: str, known: Sequence[str] = ()) -> ValueError:
    """Returns the error for a name that is neither a folder or file, nor in TFDS."""
    if name.split(":")[0] == "imagenet21k":
        return ValueError(
            "ImageNet-21k is not in TFDS: give a folder of it, or prepare a "
            f"TFDS set named {name!r} with splits 'train' and 'test' in the "
            "folder that TFDS_DATA_DIR names."
        )
    close = difflib.get_close_matches(name, ["digits", *known])
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return ValueError(
        f"There is no folder or file {name!r}, and TFDS has no dataset of "
        f"that name.{hint} A data set is 'digits', a name in TFDS such as "
        "'cifar10', a folder, or a CSV file of paths and labels."
    )


def _label_of(tfds: Any, name: str, features: Any) -> str:
    """Returns the name of the label: 'label', or 'real_label' of ReaL."""
    kinds = {}
    if isinstance(features, tfds.features.FeaturesDict):
        kinds = dict(features.items())
    image, label = kinds.get("image"), kinds.get("label")
    real = getattr(kinds.get("real_label"), "feature", None)
    classes = tfds.features.ClassLabel
    is_labeled = isinstance(label, classes) or isinstance(real, classes)
    is_image = isinstance(image, tfds.features.Image)
    if image is None or not is_image or not is_labeled:
        raise ValueError(
            f"{name!r} is not a dataset for image classification: it needs the "
            "features 'image' and 'label'. It has: "
            f"{', '.join(map(repr, kinds)) or 'none by name'}."
        )
    if image.shape[-1] not in (1, 3, None) or image.np_dtype != np.uint8:
        raise ValueError(
            f"{name!r} has images of shape {image.shape} and dtype "
            f"{np.dtype(image.np_dtype).name}. Expected 1 or 3 channels, uint8."
        )
    return "label" if label else "real_label"


def _first_line(error: Exception) -> str:
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:400]
    if isinstance(error, ModuleNotFoundError):
        # TFDS imports more than it declares.
        line += f" (pip install {error.name})"
    return line
