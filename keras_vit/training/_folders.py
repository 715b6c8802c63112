"""Datasets that are folders: one sub-folder a class."""

import functools
import pathlib

import numpy as np

from keras_vit.training._data import Data
from keras_vit.training._splits import split
from keras_vit.training._tf_batches import tensorflow
from keras_vit.training._tf_batches import tf_batches

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
_STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"GIF8")
_LAYOUTS = (
    "Expected FOLDER/train/CLASS/* with FOLDER/test/CLASS/*, or FOLDER/CLASS/*."
)


def folder(name):
    """Returns the `Data` of a folder of images.

    Raises:
        ValueError: if the folder has another layout, a class without images
            or a file that is no image.
    """
    root = pathlib.Path(name).expanduser()
    if not root.is_dir():
        raise ValueError(f"--dataset {name!r} is a file. {_LAYOUTS}")
    names = {path.name for path in _folders(root)}
    if "train" in names and "test" in names:
        train, classes = _images(root / "train")
        test, test_classes = _images(root / "test")
        if classes != test_classes:
            differing = sorted(set(classes) ^ set(test_classes))
            raise ValueError(
                f"{name!r}: train/ and test/ must have the same class "
                f"folders. Only in one of them: {', '.join(differing)}."
            )
    elif names and names <= {"train", "test"}:
        (missing,) = {"train", "test"} - names
        raise ValueError(f"{name!r} has no folder {missing!r}. {_LAYOUTS}")
    else:
        files, classes = _images(root, at_least=2)
        parts = split([label for _, label in files])
        train, test = ([files[i] for i in part] for part in parts)
    return Data(
        name=root.resolve().name,
        class_names=tuple(classes),
        channels=3,
        image_size=None,
        num_train=len(train),
        num_test=len(test),
        batches=functools.partial(_batches, train, test),
    )


def _batches(train, test, image_size, batch_size, seed, flip):
    tf = tensorflow()

    def decode(encoded):
        # Of an animation, the first picture.
        return tf.io.decode_image(encoded, channels=3, expand_animations=False)

    def dataset(files):
        paths, labels = zip(*files, strict=True)
        return tf.data.Dataset.from_tensor_slices(
            ([str(path) for path in paths], np.array(labels, "int32"))
        )

    return tf_batches(
        # Shuffled as paths: the buffer holds a whole folder.
        dataset(train),
        dataset(test),
        lambda path: decode(tf.io.read_file(path)),
        image_size=image_size,
        batch_size=batch_size,
        seed=seed,
        flip=flip,
        channels=3,
    )


def _images(root, at_least=1):
    """Returns sorted `(path, label)` and the names of the classes."""
    classes = sorted(path.name for path in _folders(root))
    if not classes:
        raise ValueError(f"{str(root)!r} has no class sub-folder. {_LAYOUTS}")
    if len(classes) == 1:
        raise ValueError(
            f"{str(root)!r} has only one class, {classes[0]!r}: there is "
            f"nothing to tell apart. {_LAYOUTS}"
        )
    files = []
    for label, name in enumerate(classes):
        members = sorted(
            path
            for path in (root / name).rglob("*")
            if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
        )
        if len(members) < at_least:
            raise ValueError(
                f"The class folder {str(root / name)!r} has {len(members)} "
                f"images ({', '.join(ENDINGS)}), and needs {at_least} or more."
            )
        for path in members:
            _raise_unless_image(path)
        files += [(path, label) for path in members]
    return files, classes


def _raise_unless_image(path):
    # One wrong file would otherwise end a run hours later.
    with open(path, "rb") as file:
        start = file.read(4)
    if not start.startswith(_STARTS):
        raise ValueError(
            f"{str(path)!r} is not a JPEG, PNG, BMP or GIF image, whatever "
            "its name says. Remove it or convert it."
        )


def _folders(root):
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith((".", "__MACOSX")):
            yield path
