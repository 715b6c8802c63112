"""Datasets that are folders of image files, with a sub-folder per class."""

import collections
import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data import short_way
from keras_vit.data.array_source import ArraySource
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.decoding import read_pixels, tf
from keras_vit.data.image_files import (
    HIDDEN,
    image_files,
    median_side,
    validate_images,
)
from keras_vit.data.labels import summarize
from keras_vit.data.pipeline import listed_dataset
from keras_vit.data.protocols import PLAIN, is_of_timm
from keras_vit.data.splits import TEST_SPLITS, make_splits
from keras_vit.utils.array_files import open_array
from keras_vit.utils.images import EXTENSIONS
from keras_vit.utils.types import Array, StrPath, Tensor
from keras_vit.utils.warnings import warn

_THUMBNAIL_SIDE = 512


def load_thumbnail(path: pathlib.Path) -> Array:
    """Reads an image file as an array of values in [0, 1], for a plot.

    For a large image, only every n-th pixel is used, to save memory.
    """
    if array := open_array(path):
        pixels = array.read().mean(-1)  # in gray
    else:
        pixels = read_pixels(path, 3)
    step = -(-max(pixels.shape) // _THUMBNAIL_SIDE)
    return pixels[::step, ::step] / 255


def warn_duplicate_images(
    files: Sequence[pathlib.Path], root: pathlib.Path, depth: int
) -> None:
    """Warns of identical files in two classes, or in train and test, as named by the
    first `depth` parts of their paths below `root`."""

    def digest(path: pathlib.Path, size: int) -> bytes:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(size)).digest()

    # Most files differ in their size or their first bytes, and are not read.
    groups = _groups(files, lambda path: path.stat().st_size)
    for size in (4096, -1):
        key = functools.partial(digest, size=size)
        groups = [same for group in groups for same in _groups(group, key)]
    found = []
    for group in groups:
        shown = (path.relative_to(root) for path in group)
        one_of_each = {path.parts[:depth]: str(path) for path in shown}
        if len(one_of_each) > 1:
            found.append(" and ".join(list(one_of_each.values())[:2]))
    if found:
        warn(
            f"Identical files are in two classes, or in train and test, {len(found)} "
            f"in all: {summarize(found)}. Remove one of each pair: the accuracy would "
            "be wrong.",
        )


def _groups(
    files: Iterable[pathlib.Path], key: Callable[[pathlib.Path], Any]
) -> list[list[pathlib.Path]]:
    """Returns the files with the same key as another one, by the key."""
    found = collections.defaultdict(list)
    for path in files:
        found[key(path)].append(path)
    return [group for group in found.values() if len(group) > 1]


_LAYOUTS = (
    "Expected FOLDER/train/CLASS/* with FOLDER/test/CLASS/* (or val), or "
    "FOLDER/CLASS/*."
)


def image_folder(
    name: str, holdout: float = 0.0, skip_bad_images: bool = False
) -> ImageDataset:
    """Returns the `ImageDataset` of a folder of images; raises a `ValueError`
    if it has another layout, a class without images or, unless they are skipped, a file
    that is not an image."""
    root = pathlib.Path(name).expanduser()
    if not root.is_dir():
        raise ValueError(
            f"{name!r} is a file, but not a CSV file by its name. {_LAYOUTS}"
        )
    parts = _parts(root)
    whole = len(parts) == 1
    # A split leaves one image to train on if there are two or more.
    least = [2 if whole or holdout else 1, 1]
    found, bad = {}, 0
    for part, at_least in zip(parts, least, strict=False):
        found[part], unread = _images(part, at_least, skip_bad_images)
        bad += unread
    classes = list(found[parts[0]])
    if differing := set(classes) ^ set(found[parts[-1]]):
        raise ValueError(
            f"{' and '.join(repr(str(part)) for part in parts)} must have the "
            "same class folders. Only in one of them: "
            f"{', '.join(sorted(differing))}."
        )
    listed = [
        (part, path, label)
        for part, images in found.items()
        for label, paths in enumerate(images.values())
        for path in paths
    ]
    files = [path for _, path, _ in listed]
    warn_duplicate_images(files, root, depth=1 if whole else 2)
    labels = np.array([label for *_, label in listed], "int32")
    # Paths relative to the folder of the classes, so that it can be moved.
    names = [path.relative_to(part) for part, path, _ in listed]
    is_train = np.array([part == parts[0] for part, *_ in listed])
    splits = make_splits(
        names,
        labels,
        np.flatnonzero(is_train),
        np.flatnonzero(~is_train),
        holdout,
    )
    if untested := set(range(len(classes))) - set(labels[splits["test"]]):
        warn(
            f"{str(root)!r}: {len(untested)} of {len(classes)} classes have no "
            "image in the test set, a fifth of the images: "
            f"{summarize([classes[i] for i in untested], ', ')}. Add images, "
            "or make the folders train/ and test/ yourself.",
        )
    return files_dataset(
        root.resolve().name,
        tuple(classes),
        files,
        labels,
        splits,
        num_skipped=bad,
        verified=skip_bad_images,
    )


def files_dataset(
    name: str,
    class_names: tuple[str, ...],
    files: Sequence[pathlib.Path],
    labels: Array,
    splits: Mapping[str, Array],
    num_skipped: int,
    verified: bool,
) -> ImageDataset:
    """Returns the `ImageDataset` of image files; `splits` has the indices of
    the images of each split, and `verified` is whether all were decoded."""
    channels = _channels(files)

    def read(path: Tensor) -> Tensor:
        if channels is None:
            return tf.io.read_file(path)
        values = tf.numpy_function(_read_values, [path], tf.float32)
        return tf.ensure_shape(values, (None, None, channels))

    return listed_dataset(
        name,
        class_names,
        files,
        labels,
        splits,
        read,
        channels=channels or 3,
        median_side=median_side([files[i] for i in splits["train"]]),
        num_skipped=num_skipped,
        num_unverified=0 if verified else len(files),
    )


def _read_values(path: bytes | Array) -> Array:
    # TensorFlow gives an array of an object outside of a graph.
    array = open_array(os.fsdecode(np.asarray(path, object).item()))
    if array is None:
        raise ValueError("the file has been replaced by a picture")
    return array.read()


def _channels(files: Sequence[pathlib.Path]) -> int | None:
    """Returns the number of channels of files of arrays, or None for pictures;
    raises a `ValueError` if files differ in it."""
    found = {}
    for path in files:
        array = open_array(path)
        found.setdefault(array and array.shape[-1], path)
    if len(found) > 1:
        kinds = [f"{str(x)!r} ({n or 'a picture'})" for n, x in found.items()]
        raise ValueError(
            "All images must be pictures, or arrays with the same number of "
            f"channels, one per file. Received: {' and '.join(kinds)}. Save them as "
            "NumPy arrays, or leave files out."
        )
    return next(iter(found), None)


def load_files(
    paths: Iterable[StrPath], skip_bad_images: bool = False, decode_all: bool = True
) -> tuple[ImageDataset, list[pathlib.Path]]:
    """Returns an `ImageDataset` of image files without labels, and their paths.

    They are read without TensorFlow, except with a `TokenBudget`, a list of `steps` or
    a protocol that crops.

    Args:
        paths: Paths of files, and of folders that are searched for images.
        skip_bad_images: As in `load_dataset`.
        decode_all: Boolean. Whether `skip_bad_images` decodes every image. If False, it
            leaves out the files that are not images, that are incomplete or that have
            a wrong checksum, which is found without decoding most files.

    Raises:
        ValueError: if there are no image files, if none can be read, or if one is not
            an image and `skip_bad_images` is False.
        FileNotFoundError: if there is no such file.
    """
    files = []
    for path in (pathlib.Path(p).expanduser() for p in paths):
        # A pipe is neither: it would be waited for.
        if not path.is_file() and not path.is_dir():
            raise FileNotFoundError(f"There is no file or folder {str(path)!r}.")
        files += image_files([path])[path] if path.is_dir() else [path]
    files = list(dict.fromkeys(files))
    good, bad = validate_images(files, skip_bad_images, decode_all)
    files = [path for path in files if path in good]
    if not files:
        raise ValueError(
            f"There is no image in {', '.join(map(repr, map(str, paths)))}. "
            f"Images end in {', '.join(EXTENSIONS)}."
        )
    none, every = np.empty(0, int), np.arange(len(files))
    splits = {"train": none, "validation": none, "test": every}
    labels = np.zeros(len(files), "int32")
    data = files_dataset("files", (), files, labels, splits, bad, True)
    is_array = open_array(files[0]) is not None

    def example(split: str, index: int) -> tuple[Any, Array]:
        path = files[index]
        return _read_values(os.fsencode(path)) if is_array else path, labels[index]

    def by_tensorflow(options: dict[str, Any]) -> Any:
        plain = isinstance(options.get("image_size"), int | tuple | list)
        name = options.get("protocol", "simple")
        plain = plain and (name in PLAIN or (is_of_timm(name) and not is_array))
        return None if plain else data.source

    source = ArraySource(example, short_way.images, by_tensorflow=by_tensorflow)
    return dataclasses.replace(data, source=source), files


def _parts(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders to train and to test on, or that of all classes.

    timm and torchvision call the second one "val".
    """
    folders = {path.name.lower(): path for path in sorted(_folders(root))}
    train = folders.pop("train", None)
    tests = [folders.pop(name) for name in TEST_SPLITS if name in folders]
    if train and tests:
        unused = [path.name for path in (*tests[1:], *folders.values())]
        if unused:
            warn(
                f"{str(root)!r}: {train.name}/ is trained on, and "
                f"{tests[0].name}/ is evaluated on. Not used: "
                f"{', '.join(sorted(unused))}.",
            )
        return [train, tests[0]]
    if (train or tests) and not folders:
        missing, alone = ("test", train) if train else ("train", tests[0])
        raise ValueError(
            f"{str(root)!r} has no folder {missing!r}. {_LAYOUTS} Name "
            f"{str(alone)!r} to split its images, or, to evaluate on all of them, with "
            "`split='all'`."
        )
    return [root]


def _images(
    root: pathlib.Path, at_least: int, skip_bad_images: bool
) -> tuple[dict[str, list[pathlib.Path]], int]:
    """Returns the sorted images of each class, and the number of bad files."""
    folders = sorted(_folders(root))
    if len(folders) < 2:
        names = ", ".join(repr(folder.name) for folder in folders) or "none"
        raise ValueError(
            f"{str(root)!r} must have a folder for each of two classes or "
            f"more. Received: {names}. {_LAYOUTS}"
        )
    found = image_files(folders)
    every = [path for paths in found.values() for path in paths]
    good, bad = validate_images(every, skip_bad_images)
    images = {}
    for folder, paths in found.items():
        images[folder.name] = [path for path in paths if path in good]
        count = len(images[folder.name])
        if count < at_least:
            raise ValueError(
                f"The class folder {str(folder)!r} needs {at_least} images or "
                f"more ({', '.join(EXTENSIONS)}). Received: {count}, and "
                f"{len(paths) - count} that cannot be read"
            )
    return images, bad


def _folders(root: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith(HIDDEN):
            yield path
