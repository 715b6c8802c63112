"""Datasets that are folders: one sub-folder a class."""

import functools
import os
import pathlib

import numpy as np

from keras_vit._program import printable
from keras_vit._warnings import warn
from keras_vit.training._data import Data
from keras_vit.training._files import ENDINGS
from keras_vit.training._files import good_images
from keras_vit.training._files import image_files
from keras_vit.training._files import warn_of_duplicates
from keras_vit.training._files import warn_of_others
from keras_vit.training._splits import split_by_path
from keras_vit.training._tf_batches import Source
from keras_vit.training._tf_batches import shuffled
from keras_vit.training._tf_images import tensorflow

_LAYOUTS = (
    "Expected FOLDER/train/CLASS/* with FOLDER/test/CLASS/* (or val), or "
    "FOLDER/CLASS/*."
)
_SHOWN = 5
_TESTS = ("test", "val", "valid", "validation")  # the first that is there


def folder(name, holdout=0.0, skip_bad_images=False):
    """Returns the `Data` of a folder of images.

    Raises:
        ValueError: if the folder has another layout, a class without images
            or, unless they are skipped, a file that is no image.
    """
    root = pathlib.Path(name).expanduser()
    if not root.is_dir():
        raise ValueError(f"--dataset {name!r} is a file. {_LAYOUTS}")
    train, test = _train_and_test(root)
    whole = train is None
    least = 2 if whole or holdout else 1
    roots = [(root, least)] if whole else [(train, least), (test, 1)]
    parts, skipped = [], []
    for place, at_least in roots:
        files, classes, bad = _images(place, at_least, skip_bad_images)
        parts.append((files, classes))
        skipped += bad
    _raise_unless_same(roots, parts)
    files = [file for part, _ in parts for file in part]
    warn_of_duplicates(files, root, depth=1 if whole else 2)
    labels = np.array([label for _, label in files], "int32")
    # Relative to the folder of the classes, so that it can be moved.
    top = root if whole else train
    if whole:
        names = [path.relative_to(top) for path, _ in files]
        train, test = split_by_path(names, labels)
        _warn_of_untested(root, np.array(parts[0][1]), labels[test])
    else:
        train, test = np.split(np.arange(len(files)), [len(parts[0][0])])
    names = [files[i][0].relative_to(top) for i in train]
    kept, dev = split_by_path(names, labels[train], holdout, "validation")
    train, dev = train[kept], train[dev]
    paths = np.array([os.fsencode(path) for path, _ in files])
    index = {"train": train, "dev": dev, "test": test}
    lists = {part: (paths[i], labels[i]) for part, i in index.items()}
    return Data(
        name=root.resolve().name,
        class_names=tuple(parts[0][1]),
        channels=3,
        image_size=None,
        num_train=len(train),
        num_test=len(test),
        num_dev=len(dev),
        num_skipped=len(skipped),
        num_unread=0 if skip_bad_images else len(files),
        source=Source(
            endless=functools.partial(_endless, *lists["train"]),
            once=functools.partial(_once, lists),
            read=lambda path: tensorflow().io.read_file(path),
        ),
    )


def loose_files(paths, skip_bad_images=False):
    """Returns a `Data` of image files without labels, and their paths.

    Args:
        paths: Paths of files, and of folders that are searched for images.
        skip_bad_images: As in `find_data`.

    Raises:
        ValueError: if there is none, or one is no image.
        FileNotFoundError: if there is no such file.
    """
    files = []
    for path in (pathlib.Path(p).expanduser() for p in paths):
        if not path.exists():
            raise FileNotFoundError(
                f"There is no file or folder {str(path)!r}."
            )
        found, others = image_files(path) if path.is_dir() else ([path], [])
        warn_of_others(others)
        files += found
    files = list(dict.fromkeys(files))
    good, bad = good_images(files, skip_bad_images)
    files = [path for path in files if path in good]
    if not files:
        raise ValueError(
            f"There is no image in {', '.join(map(repr, map(str, paths)))}. "
            f"Images end in {', '.join(ENDINGS)}."
        )
    columns = (
        np.array([os.fsencode(path) for path in files]),
        np.zeros(len(files), "int32"),
    )
    data = Data(
        name="files",
        class_names=(),
        channels=3,
        image_size=None,
        num_train=0,
        num_test=len(files),
        num_skipped=len(bad),
        source=Source(
            endless=None,
            once=functools.partial(_once, {"test": columns}),
            read=lambda path: tensorflow().io.read_file(path),
        ),
    )
    return data, files


def _endless(paths, labels, rules):
    tf = tensorflow()
    paths, labels = tf.constant(paths), tf.constant(labels)

    def look_up(position, index):
        path = paths[index]
        return position, path, path, labels[index]

    return shuffled(len(paths), rules).map(look_up)


def _once(lists, part, own):
    tf = tensorflow()
    paths, labels = (column[own.start : own.stop] for column in lists[part])
    # A host may have none: then the dtype is not to be guessed.
    paths = tf.constant(paths.tolist(), tf.string)
    columns = (np.arange(len(own)), paths, paths, labels)
    return tf.data.Dataset.from_tensor_slices(columns)


def _train_and_test(root):
    """Returns the folders of the parts, or None twice if there are classes.

    timm and torchvision call the second "val".
    """
    folders = {path.name.lower(): path for path in sorted(_folders(root))}
    train = folders.pop("train", None)
    tests = [folders.pop(name) for name in _TESTS if name in folders]
    if train and tests:
        unused = [path.name for path in (*tests[1:], *folders.values())]
        if unused:
            warn(
                f"{str(root)!r}: {train.name}/ is trained on and measured on "
                f"{tests[0].name}/; not used: {', '.join(sorted(unused))}.",
            )
        return train, tests[0]
    if (train or tests) and not folders:
        missing = "test" if train else "train"
        raise ValueError(f"{str(root)!r} has no folder {missing!r}. {_LAYOUTS}")
    return None, None


def _warn_if_deeper(root, found):
    """Says it if no class has an image of its own, but in folders in it."""
    if any(
        path.parent == root / name
        for name, paths in found.items()
        for path in paths
    ):
        return
    inner = {
        path.relative_to(root / name).parts[0]
        for name, paths in found.items()
        for path in paths
    }
    if len(inner) > 1:
        warn(
            f"{str(root)!r}: the classes are {', '.join(sorted(found))}, and "
            "all their images lie in folders within them: "
            f"{', '.join(sorted(inner)[:6])}. If these are the classes, give "
            f"{str(root / min(found))!r} or such.",
        )


def _images(root, at_least, skip_bad_images):
    """Returns sorted `(path, label)`, the names of classes, and bad files."""
    classes = sorted(path.name for path in _folders(root))
    if not classes:
        raise ValueError(f"{str(root)!r} has no class sub-folder. {_LAYOUTS}")
    for name in classes:
        if printable(name) != name:
            raise ValueError(
                f"The class folder {str(root / name)!r} has a name that is no "
                "text (UTF-8): rename it."
            )
    if len(classes) == 1:
        raise ValueError(
            f"{str(root)!r} has only one class, {classes[0]!r}: there is "
            f"nothing to tell apart. {_LAYOUTS}"
        )
    found, others = {}, []
    for name in classes:
        found[name], more = image_files(root / name)
        others += more
    warn_of_others(others)
    _warn_if_deeper(root, found)
    good, bad = good_images(
        [path for paths in found.values() for path in paths], skip_bad_images
    )
    files = []
    for label, (name, paths) in enumerate(found.items()):
        members = [path for path in paths if path in good]
        if len(members) < at_least:
            unread = len(paths) - len(members)
            raise ValueError(
                f"The class folder {str(root / name)!r} has {len(members)} "
                "images (.jpg, .jpeg, .png, .bmp, .gif), and needs "
                f"{at_least} or more."
                + (f" {unread} more cannot be read." if unread else "")
            )
        files += [(path, label) for path in members]
    return files, classes, bad


def _warn_of_untested(root, classes, test_labels):
    """Warns of classes that are so small that none of their images are test
    images."""
    missing = np.setdiff1d(np.arange(len(classes)), test_labels)
    if len(missing):
        shown = ", ".join(classes[missing[:_SHOWN]])
        shown += ", ..." if len(missing) > _SHOWN else ""
        warn(
            f"{str(root)!r}: {len(missing)} of {len(classes)} classes have no "
            f"image in the test set, and so no accuracy of their own: {shown}. "
            "The test set is about a fifth of the images, chosen by their "
            "names. Add images, or make the folders train/ and test/ yourself.",
        )


def _raise_unless_same(roots, parts):
    first, last = parts[0][1], parts[-1][1]
    if first != last:
        differing = ", ".join(sorted(set(first) ^ set(last)))
        names = " and ".join(f"{str(root)!r}" for root, _ in roots)
        raise ValueError(
            f"{names} must have the same class folders. "
            f"Only in one of them: {differing}."
        )


def _folders(root):
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith((".", "__MACOSX")):
            yield path
