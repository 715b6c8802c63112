"""Datasets of TensorFlow Datasets, by name."""

import numpy as np

from keras_vit.training._data import Data
from keras_vit.training._data import not_found
from keras_vit.training._flags import require
from keras_vit.training._tf_images import tensorflow
from keras_vit.training._tfds_reading import tfds_source

TEST_SPLITS = ("test", "validation", "val")
# Builders of TFDS 4.9 whose split "test" has images without labels: each of
# its records has the label -1. imagenet2012 has it since version 5.1.0, if the
# archive of the test images was there when the data set was prepared.
UNLABELLED_TEST = frozenset(
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


def from_tfds(name, holdout=0.0, test_split=None):
    """Returns the `Data` of a TFDS name, which is downloaded if need be.

    Args:
        name: String, as `tfds.builder` takes it.
        holdout: Float. Fraction of the training images for validation.
        test_split: String. The split to evaluate on; None for the first of
            `TEST_SPLITS` that has labels.

    Raises:
        ValueError: if there is no such name, or it is no classification of
            images, has no labelled test set, or cannot be had.
    """
    try:
        tensorflow()
        tfds = require("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            f"There is no folder {name!r}, and to look it up in TFDS: {error}"
        ) from error
    builder = open_builder(tfds, name)
    features = builder.info.features
    label = _label_of(tfds, name, features)
    prepare(builder, name)
    return _data(builder, name, label, holdout, test_split)


def choose_test_split(name, builder_name, splits, wanted=None):
    """Returns the name of the split to evaluate on.

    Args:
        name: String. What the user asked for.
        builder_name: String. The builder's name, without configuration and
            version.
        splits: Names of the splits that there are.
        wanted: String. The split that the user asked for, or None.

    Raises:
        ValueError: if there is no such split, or none that has labels.
    """
    unlabelled = {"test"} if builder_name in UNLABELLED_TEST else set()
    found = ", ".join(map(repr, splits)) or "none"
    if wanted is not None and wanted not in splits:
        raise ValueError(
            f"{name!r} has no split {wanted!r}. --test-split takes one of its "
            f"splits: {found}."
        )
    known = TEST_SPLITS if wanted is None else (wanted,)
    test = next((s for s in known if s in splits and s not in unlabelled), None)
    if test is None and unlabelled & set(splits):
        raise ValueError(
            f"{name!r} cannot be evaluated on its split 'test', whose images "
            "have no labels: TFDS gives each of them the label -1. Choose a "
            f"split with labels by --test-split. Its splits are: {found}."
        )
    if test is None:
        raise ValueError(
            f"{name!r} must have a split 'train' and one of "
            f"{', '.join(map(repr, TEST_SPLITS))}, or another one to evaluate "
            f"on, named by --test-split. Its splits are: {found}."
        )
    return test


def _data(builder, name, label, holdout, test_split):
    splits, features = builder.info.splits, builder.info.features
    test = choose_test_split(name, builder.name, list(splits), test_split)
    # Some have none: ReaL, imagenet_v2.
    trains = label == "label" and "train" in splits
    count = splits["train"].num_examples if trains else 0
    num_dev = round(holdout * count)
    num_test = splits[test].num_examples
    height, width, channels = features["image"].shape
    classes = features[label]
    return Data(
        name=name.replace("/", "-").replace(":", "-"),
        class_names=tuple(getattr(classes, "feature", classes).names),
        channels=channels or 3,
        image_size=height if height == width else None,
        num_train=count - num_dev,
        num_test=num_test,
        num_dev=num_dev,
        source=tfds_source(
            builder,
            label,
            {
                # The last ones, as vit_jax trains on `train[:98%]`.
                "train": ("train", range(count - num_dev)),
                "dev": ("train", range(count - num_dev, count)),
                "test": (test, range(num_test)),
            },
        ),
    )


def prepare(builder, name):
    """Downloads what is not there yet.

    Raises:
        ValueError: if that fails; if there are files to be downloaded by hand,
            the message says which and where they belong.
    """
    try:
        builder.download_and_prepare()
    except Exception as error:  # whatever a server, proxy or disk comes up with
        by_hand = ""
        if text := builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            text = " ".join(text.split())
            folder = builder.data_dir_root / "downloads" / "manual"
            by_hand = f" It is downloaded by hand, into {folder}: {text}"
        raise ValueError(
            f"TFDS could not download or prepare {name!r}: "
            f"{_first_line(error)}{by_hand}"
        ) from error


def open_builder(tfds, name):
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


def _label_of(tfds, name, features):
    """The name of the feature to learn: 'label', or ReaL's 'real_label'."""
    kinds = {}
    if isinstance(features, tfds.features.FeaturesDict):
        kinds = dict(features.items())
    image, label = kinds.get("image"), kinds.get("label")
    real = getattr(kinds.get("real_label"), "feature", None)
    if not isinstance(image, tfds.features.Image) or not any(
        isinstance(kind, tfds.features.ClassLabel) for kind in (label, real)
    ):
        raise ValueError(
            f"{name!r} is not a classification of images: it needs the "
            "features 'image' and 'label'. It has: "
            f"{', '.join(map(repr, kinds)) or 'none by name'}."
        )
    if image.shape[-1] not in (1, 3, None) or image.np_dtype != np.uint8:
        raise ValueError(
            f"{name!r} has images of shape {image.shape} and dtype "
            f"{np.dtype(image.np_dtype).name}. Expected 1 or 3 channels, uint8."
        )
    return "label" if label else "real_label"


def _first_line(error):
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    if isinstance(error, ModuleNotFoundError):
        # TFDS imports more than it declares.
        line += f" (pip install {error.name})"
    return line
