"""Data sets that are folders of image files, with a sub-folder per class."""

import collections
import concurrent.futures
import filecmp
import os
import pathlib
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._program import printable
from keras_vit._types import Array
from keras_vit._types import StrPath
from keras_vit._types import Tensor
from keras_vit._warnings import warn
from keras_vit.data._decode import decode
from keras_vit.data._decode import import_tensorflow
from keras_vit.data._image_headers import check_header_and_trailer
from keras_vit.data._image_headers import median_side
from keras_vit.data._pipeline import listed_source
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.labels import summarize
from keras_vit.data.labels import warn_similar_names
from keras_vit.data.splits import TEST_SPLITS
from keras_vit.data.splits import hold_out_by_path
from keras_vit.data.splits import split_by_path

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
# Beginnings of the names of files and folders that programs write.
_HIDDEN = (".", "__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
# Notes and annotations, of which there may be one beside each image.
_NOTES = (".txt", ".md", ".csv", ".json", ".xml", ".yaml", ".yml", ".html")
_THUMBNAIL_SIDE = 512


def image_files(
    root: pathlib.Path, extensions: tuple[str, ...] = EXTENSIONS
) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Finds the files of a folder and its sub-folders that are named as images.

    Returns their sorted paths, and those of what is left out: other files,
    broken links, and links to folders. Hidden files and folders, and notes, are
    in neither.
    """
    images, others = [], []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        suffix = path.suffix.lower()
        if any(part.startswith(_HIDDEN) for part in parts):
            continue
        if path.is_file() and suffix in extensions:
            images.append(path)
        elif path.is_symlink() or (path.is_file() and suffix not in _NOTES):
            others.append(path)
    return images, others


def warn_unsupported_files(
    paths: Sequence[pathlib.Path], extensions: tuple[str, ...] = EXTENSIONS
) -> None:
    """Warns of the files that `image_files` left out."""
    if paths:
        warn(
            f"{len(paths)} files are left out: "
            f"{summarize(list(map(str, paths)))}. Links must lead to a file, "
            "and images must have a name that ends in "
            f"{', '.join(extensions)}: convert them.",
        )


def load_thumbnail(path: pathlib.Path) -> Array:
    """Returns an image file as an array of values in [0, 1], for a plot.

    Of a large image, every n-th pixel is taken, to save memory.
    """
    pixels = decode(import_tensorflow().io.read_file(os.fsencode(path)), 3)
    step = -(-max(pixels.shape) // _THUMBNAIL_SIDE)
    return pixels[::step, ::step].numpy() / 255


def validate_images(
    paths: Sequence[pathlib.Path], skip: bool
) -> tuple[set[pathlib.Path], list[str]]:
    """Returns the set of the files that can be read as images, and a list of
    descriptions of the others.

    With `skip`, every image is decoded, and those that cannot be read are
    warned of. Otherwise the header and the trailer of every file are checked,
    files without a trailer are decoded, and the first defect is a `ValueError`.
    """
    if not skip:
        for path in paths:
            if defect := _find_defect(path, thorough=False):
                raise ValueError(
                    f"{str(path)!r} {defect} Remove it or convert it, or use "
                    "--skip-bad-images (skip_bad_images=True in Python), which "
                    "leaves out all such files."
                )
        return set(paths), []
    # Threads, because decoding releases Python's global interpreter lock.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        defects = list(pool.map(_find_defect, paths))
    bad = [
        f"{path} {defect}"
        for path, defect in zip(paths, defects, strict=True)
        if defect
    ]
    if bad:
        warn(
            f"{len(bad)} of {len(paths)} images cannot be used and are "
            f"skipped: {summarize(bad)}",
        )
    good = {p for p, defect in zip(paths, defects, strict=True) if not defect}
    return good, bad


def warn_duplicate_images(
    files: Sequence[tuple[pathlib.Path, int]], root: pathlib.Path, depth: int
) -> None:
    """Warns of identical files of the same name in two classes, or in train and
    test, which the first `depth` parts of their paths below `root` name.

    Only files of the same name and size are read, and only until they differ.
    """
    named = collections.defaultdict(list)
    for path, _ in files:
        named[path.name.lower()].append(path)
    found = []
    for paths in named.values():
        for group in _group_identical(paths) if len(paths) > 1 else ():
            shown = [path.relative_to(root) for path in group]
            if len({path.parts[:depth] for path in shown}) > 1:
                found.append(" and ".join(map(str, shown[:2])))
    if found:
        warn(
            "Identical files are in two classes, or in train and test: "
            f"{summarize(found)}. Remove one of each pair: the accuracy would "
            "be wrong.",
        )


def _group_identical(paths: Sequence[pathlib.Path]) -> list[list[pathlib.Path]]:
    """Returns groups of two or more files with the same content."""
    sizes = collections.defaultdict(list)
    for path in paths:
        sizes[path.stat().st_size].append(path)
    groups = []
    for same_size in sizes.values():
        same = []
        for path in same_size:
            for group in same:
                if filecmp.cmp(path, group[0], shallow=False):
                    group.append(path)
                    break
            else:
                same.append([path])
        groups += [group for group in same if len(group) > 1]
    filecmp.clear_cache()
    return groups


def _find_defect(path: pathlib.Path, thorough: bool = True) -> str | None:
    """Returns a description of a file's defect, or None.

    A file with a valid header and trailer is decoded only if `thorough`.
    """
    defect, has_end = check_header_and_trailer(path)
    if defect or (has_end and not thorough):
        return defect
    tf = import_tensorflow()
    try:
        decode(tf.io.read_file(os.fsencode(path)), 3)
    except tf.errors.OpError as error:
        reason = re.sub(r"^{{.*?}} | \[Op:.*", "", str(error.message))
        return f"cannot be decoded: {reason.splitlines()[0][:80].rstrip('. ')}."
    return None


_LAYOUTS = (
    "Expected FOLDER/train/CLASS/* with FOLDER/test/CLASS/* (or val), or "
    "FOLDER/CLASS/*."
)
_MAX_CLASSES = 5


def image_folder(
    name: str, holdout: float = 0.0, skip_bad_images: bool = False
) -> ImageDataset:
    """Returns the `ImageDataset` of a folder of images; raises a `ValueError`
    if it has another layout, a class without images or, unless they are
    skipped, a file that is no image."""
    root = pathlib.Path(name).expanduser()
    if not root.is_dir():
        raise ValueError(
            f"--dataset {name!r} is a file. {_LAYOUTS} "
            "A file must be a CSV file of paths and labels, with a name that "
            "ends in .csv."
        )
    train, test = _train_and_test(root)
    whole = train is None
    least = 2 if whole or holdout else 1
    folders = [(root, least)] if whole else [(train, least), (test, 1)]
    listed, skipped = [], []
    for folder, at_least in folders:
        files, classes, bad = _images(folder, at_least, skip_bad_images)
        listed.append((files, classes))
        skipped += bad
    _check_same_classes(folders, listed)
    warn_similar_names(listed[0][1])
    files = [file for group, _ in listed for file in group]
    warn_duplicate_images(files, root, depth=1 if whole else 2)
    labels = np.array([label for _, label in files], "int32")
    # Relative to the folder of the classes, so that it can be moved.
    top = root if whole else train
    if whole:
        names = [path.relative_to(top) for path, _ in files]
        train, test = split_by_path(names, labels)
        _warn_untested_classes(root, np.array(listed[0][1]), labels[test])
    else:
        train, test = np.split(np.arange(len(files)), [len(listed[0][0])])
    names = {i: files[i][0].relative_to(top) for i in train}
    train, validation = hold_out_by_path(names, labels, train, holdout)
    return ImageDataset(
        name=root.resolve().name,
        class_names=tuple(listed[0][1]),
        channels=3,
        image_size=None,
        median_side=median_side([files[i][0] for i in train]),
        num_train=len(train),
        num_test=len(test),
        num_validation=len(validation),
        num_skipped=len(skipped),
        num_unverified=0 if skip_bad_images else len(files),
        source=listed_source(
            [path for path, _ in files],
            labels,
            {"train": train, "validation": validation, "test": test},
            read_file,
        ),
    )


def read_file(path: Tensor) -> Tensor:
    """Returns the content of a file, whose path is a string tensor."""
    return import_tensorflow().io.read_file(path)


def load_files(
    paths: Iterable[StrPath], skip_bad_images: bool = False
) -> tuple[ImageDataset, list[pathlib.Path]]:
    """Returns an `ImageDataset` of image files without labels, and their paths.

    Args:
        paths: Paths of files, and of folders that are searched for images.
        skip_bad_images: As in `load_dataset`.

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
        warn_unsupported_files(others)
        files += found
    files = list(dict.fromkeys(files))
    good, bad = validate_images(files, skip_bad_images)
    files = [path for path in files if path in good]
    if not files:
        raise ValueError(
            f"There is no image in {', '.join(map(repr, map(str, paths)))}. "
            f"Images end in {', '.join(EXTENSIONS)}."
        )
    data = ImageDataset(
        name="files",
        class_names=(),
        channels=3,
        image_size=None,
        num_train=0,
        num_test=len(files),
        num_skipped=len(bad),
        source=listed_source(
            files,
            np.zeros(len(files), "int32"),
            {"test": np.arange(len(files))},
            read_file,
        ),
    )
    return data, files


def _train_and_test(
    root: pathlib.Path,
) -> tuple[pathlib.Path, pathlib.Path] | tuple[None, None]:
    """Returns the folders of the splits, or None twice if there are classes.

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
        return train, tests[0]
    if (train or tests) and not folders:
        missing = "test" if train else "train"
        raise ValueError(f"{str(root)!r} has no folder {missing!r}. {_LAYOUTS}")
    return None, None


def _warn_if_deeper(
    root: pathlib.Path, found: Mapping[str, Sequence[pathlib.Path]]
) -> None:
    """Warns if all images of all classes are in folders within the classes'."""
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


def _images(
    root: pathlib.Path, at_least: int, skip_bad_images: bool
) -> tuple[list[tuple[pathlib.Path, int]], list[str], list[str]]:
    """Returns sorted `(path, label)`, the names of classes, and bad files."""
    classes = sorted(path.name for path in _folders(root))
    if not classes:
        raise ValueError(f"{str(root)!r} has no class sub-folder. {_LAYOUTS}")
    for name in classes:
        if printable(name) != name:
            raise ValueError(
                f"The class folder {str(root / name)!r} has a name that is no "
                "text (UTF-8) or holds control characters: rename it."
            )
    if len(classes) == 1:
        raise ValueError(
            f"{str(root)!r} must have two classes or more, and has only one "
            f"class, {classes[0]!r}. {_LAYOUTS}"
        )
    found, others = {}, []
    for name in classes:
        found[name], more = image_files(root / name)
        others += more
    warn_unsupported_files(others)
    _warn_if_deeper(root, found)
    good, bad = validate_images(
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


def _warn_untested_classes(
    root: pathlib.Path, classes: Array, test_labels: Array
) -> None:
    """Warns of classes that are so small that none of their images are test
    images."""
    missing = np.setdiff1d(np.arange(len(classes)), test_labels)
    if len(missing):
        shown = ", ".join(classes[missing[:_MAX_CLASSES]])
        shown += ", ..." if len(missing) > _MAX_CLASSES else ""
        warn(
            f"{str(root)!r}: {len(missing)} of {len(classes)} classes have no "
            f"image in the test set, and so no accuracy of their own: {shown}. "
            "The test set is about a fifth of the images, chosen by their "
            "names. Add images, or make the folders train/ and test/ yourself.",
        )


def _check_same_classes(folders: Sequence[Any], listed: Sequence[Any]) -> None:
    first, last = listed[0][1], listed[-1][1]
    if first != last:
        differing = ", ".join(sorted(set(first) ^ set(last)))
        names = " and ".join(f"{str(root)!r}" for root, _ in folders)
        raise ValueError(
            f"{names} must have the same class folders. "
            f"Only in one of them: {differing}."
        )


def _folders(root: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith(_HIDDEN):
            yield path
