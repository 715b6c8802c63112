"""Datasets of TensorFlow Datasets, by name."""

import functools

from keras_vit.training._data import Data
from keras_vit.training._data import not_found
from keras_vit.training._flags import require
from keras_vit.training._tf_batches import tensorflow
from keras_vit.training._tf_batches import tf_batches

TEST_SPLITS = ("test", "validation")


def from_tfds(name):
    """Returns the `Data` of a TFDS name, which is downloaded if need be.

    Raises:
        ValueError: if there is no such name, or it is no classification of
            images, has no test set, or cannot be had.
    """
    try:
        tensorflow()
        tfds = require("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            f"There is no folder {name!r}, and to look it up in TFDS: {error}"
        ) from error
    builder = _builder(tfds, name)
    features = builder.info.features
    _raise_unless_labelled_images(tfds, name, features)
    try:
        builder.download_and_prepare()
    except Exception as error:  # whatever a server, proxy or disk comes up with
        raise ValueError(
            f"TFDS could not download or prepare {name!r}: {_first_line(error)}"
        ) from error
    splits = builder.info.splits
    test = next((part for part in TEST_SPLITS if part in splits), None)
    if "train" not in splits or test is None:
        raise ValueError(
            f"{name!r} must have a split 'train' and one of "
            f"{', '.join(map(repr, TEST_SPLITS))}. It has: "
            f"{', '.join(splits) or 'none'}."
        )
    height, width, channels = features["image"].shape
    return Data(
        name=name.replace("/", "-").replace(":", "-"),
        class_names=tuple(features["label"].names),
        channels=channels or 3,
        image_size=height if height == width else None,
        num_train=splits["train"].num_examples,
        num_test=splits[test].num_examples,
        batches=functools.partial(_batches, builder, test),
    )


def _batches(builder, test, image_size, batch_size, seed, flip):
    tfds = require("tensorflow_datasets")
    image = builder.info.features["image"]
    # Encoded, a full shuffle buffer is small.
    decoders = {"image": tfds.decode.SkipDecoding()}

    def dataset(part):
        examples = builder.as_dataset(split=part, decoders=decoders)
        return examples.map(lambda x: (x["image"], x["label"]))

    return tf_batches(
        dataset("train"),
        dataset(test),
        image.decode_example,
        image_size=image_size,
        batch_size=batch_size,
        seed=seed,
        flip=flip,
        channels=image.shape[-1] or 3,
    )


def _builder(tfds, name):
    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError as error:
        raise not_found(name, tfds.list_builders()) from error
    except Exception as error:
        # A wrong configuration or version, or a name that is no name at all.
        raise ValueError(
            f"There is no folder {name!r}, and TFDS cannot open a dataset of "
            f"that name: {_first_line(error)}"
        ) from error


def _raise_unless_labelled_images(tfds, name, features):
    kinds = {}
    if isinstance(features, tfds.features.FeaturesDict):
        kinds = dict(features.items())
    if not isinstance(
        kinds.get("image"), tfds.features.Image
    ) or not isinstance(kinds.get("label"), tfds.features.ClassLabel):
        raise ValueError(
            f"{name!r} is not a classification of images: it needs the "
            "features 'image' and 'label'. It has: "
            f"{', '.join(map(repr, kinds)) or 'none by name'}."
        )


def _first_line(error):
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    if isinstance(error, ModuleNotFoundError):
        # TFDS imports more than it declares.
        line += f" (pip install {error.name})"
    return line
