"""Find a dataset with masks by its name: digits, a folder, or TFDS.

Images and masks are read with Pillow, because TensorFlow's PNG reader replaces
the indices of a palette by its colors.
"""

import collections
import concurrent.futures
import functools
import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_vit.data.array_source import scaled_dataset
from keras_vit.data.canvases import IGNORE, digit_canvases
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.image_files import image_files
from keras_vit.data.labels import summarize
from keras_vit.data.splits import split_by_path
from keras_vit.data.tfds import download, open_builder
from keras_vit.utils import checks
from keras_vit.utils.images import PICTURES, open_image, read_image
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array
from keras_vit.utils.warnings import warn

_THREADS = min(8, os.cpu_count() or 1)

_CLASSES_FILE = "classes.txt"
_MOST_CLASSES = 256  # without this file
_Paths: TypeAlias = tuple[pathlib.Path, pathlib.Path]  # an image, its mask
# Datasets of TFDS with masks: feature of the mask, names of the classes (None
# for numbers), number of classes, and the value of the first class. Lower
# values are ignored.
TFDS_MASKS = {
    "oxford_iiit_pet": (
        "segmentation_mask",
        ("pet", "background", "border"),
        3,
        1,
    ),
    "scene_parse150": ("annotation", None, 150, 1),
}


def load_segmentation(name: str, ignore: int = 255) -> ImageDataset:
    """Finds a dataset of images with masks by its name.

    Args:
        name: "digits", handwritten digits on photographs of scikit-learn; a
            name in TFDS, "oxford_iiit_pet" or "scene_parse150"; or a folder
            with `train/images/*`, `train/masks/*`, `test/images/*` and
            `test/masks/*`, or with `images/*` and `masks/*`, of which 20%, chosen by a
            hash of the name, are the test set. An image and its mask, a PNG, have the
            same name except for the suffix, including sub-folders. Both are rotated
            according to their EXIF orientation. Classes, counted from 0, are the values
            of a gray mask or the indices of a mask with a palette. The optional file
            `classes.txt` has the name of a class on each line.
        ignore: Integer. Value of mask pixels without a class: one that `classes.txt`
            does not name, or 0, whose class is then not learned.

    Returns:
        An `ImageDataset` whose labels are masks: int32 arrays of the
        height and width of the images.

    Raises:
        ValueError: if there is no such dataset; if there are images without masks,
            masks without images or files that cannot be read; if a mask differs in size
            from its image, has colors, or has classes that `classes.txt` does not name;
            or if the training masks have fewer than two classes. All files are read for
            these checks.
        ImportError: if a package is missing.

    Example:

    >>> data = keras_vit.data.load_segmentation("photos")
    >>> batches = data.train(image_size=256, batch_size=8)
    """
    path = pathlib.Path(name).expanduser()
    if name == "digits":
        checks.require(ignore == IGNORE, "ignore", ignore, f"{IGNORE} for 'digits'")
        return digit_canvases()
    if path.is_dir():
        return _from_folder(path, ignore)
    if name.split(":")[0] in TFDS_MASKS:
        return _from_tfds(name, ignore)
    raise ValueError(
        f"There is no folder {name!r}. Datasets with masks are 'digits', a "
        "folder with images/ and masks/, or in TFDS: "
        f"{', '.join(TFDS_MASKS)}. Received: {name!r}"
    )


def read_mask(file: Any) -> Array:
    """Returns a file of a mask as an integer array of classes; raises a `ValueError` if
    its pixels are colors, or it is not a PNG."""
    with open_image(file) as image:
        if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B"):
            raise ValueError(
                f"its pixels are colors (mode {image.mode!r}). A mask is a "
                "gray image, or one with a palette, whose values are the "
                "numbers of classes"
            )
        if image.format != "PNG":
            raise ValueError(
                f"it is a file of {image.format}, whatever its name says. A mask must "
                "be a PNG, which preserves the numbers of classes"
            )
        turned = require("PIL.ImageOps").exif_transpose(image)
        mask = np.asarray(turned).astype("int32")
        if image.mode != "L":
            return mask
    # Pillow multiplies gray values of 2 and 4 bits by 85 and 17.
    with open(file, "rb") as content:
        bits = content.read(25)[24]
    return mask // (255 // (2**bits - 1))


def _from_folder(folder: pathlib.Path, ignore: int) -> ImageDataset:
    parts = _find_parts(folder)
    path = folder / _CLASSES_FILE
    names: tuple[str, ...] = ()
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        names = tuple(x.strip() for x in lines if x.strip())
    if 0 < ignore < len(names):
        raise ValueError(
            f"{path} names the classes 0 to {len(names) - 1}: `ignore`, the value "
            "of pixels without a class, must be another number, such as -1 if there "
            f"are none. Received: ignore={ignore}, which is {names[ignore]!r}"
        )
    check = functools.partial(_count_classes, ignore=ignore, names=names)
    counts = {part: collections.Counter() for part in parts}
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        for part, pairs in parts.items():
            for found in threads.map(check, pairs):
                counts[part].update(found)
    return scaled_dataset(
        lambda part, index: _read_pair(parts[part][index]),
        "mask",
        channels=3,
        ignore=ignore,
        name=folder.resolve().name or "folder",
        class_names=_check_classes(folder, names, counts, ignore),
        image_size=None,
        num_train=len(parts["train"]),
        num_test=len(parts["test"]),
    )


def _find_parts(folder: pathlib.Path) -> dict[str, list[_Paths]]:
    """Returns the pairs of paths to train and to test on."""
    parts = {
        part: _find_pairs(folder / part)
        for part in ("train", "test")
        if (folder / part).is_dir()
    }
    if not parts and (pairs := _find_pairs(folder)):
        names = [
            image.relative_to(folder / "images").with_suffix("") for image, _ in pairs
        ]
        split = split_by_path(names, np.zeros(len(names), int))
        parts = {
            part: [pairs[i] for i in indices]
            for part, indices in zip(("train", "test"), split, strict=True)
        }
    if not (parts.get("train") and parts.get("test")):
        found = ", ".join(f"{len(x)} for {part}" for part, x in parts.items())
        raise ValueError(
            f"{str(folder)!r} must hold FOLDER/train/images/*, "
            "FOLDER/train/masks/*, FOLDER/test/images/* and "
            "FOLDER/test/masks/*, or two or more of FOLDER/images/* and "
            f"FOLDER/masks/*. Received: {found or 'no images'}"
        )
    return parts


def _find_pairs(folder: pathlib.Path) -> list[_Paths]:
    """Returns pairs of paths of images and masks."""
    images, masks = (
        _by_name(folder / kind, suffixes)
        for kind, suffixes in (("images", PICTURES), ("masks", (".png",)))
    )
    if single := sorted(images.keys() ^ masks.keys()):
        raise ValueError(
            f"Images and masks, PNG files, of {str(folder)!r} must have the "
            "same names. Received only an image or a mask of "
            f"{summarize(single)}"
        )
    return [(images[name], masks[name]) for name in sorted(images)]


def _by_name(place: pathlib.Path, suffixes: tuple[str, ...]) -> dict[str, pathlib.Path]:
    """Returns the image files of a folder by their names without a suffix."""
    found = {}
    for path in image_files([place], suffixes)[place]:
        name = path.relative_to(place).with_suffix("").as_posix()
        other = found.setdefault(name, path)
        if other is not path:
            raise ValueError(
                f"{path} has the same mask as {other.name}: rename it, and "
                "give it a mask"
            )
    return found


def _read_pair(pair: _Paths) -> tuple[Array, Array]:
    """Returns an image and its mask; an error names the file."""
    found = []
    for path, read in zip(pair, (read_image, read_mask), strict=True):
        try:
            found.append(read(path))
        except Exception as error:  # Pillow raises many types
            raise ValueError(f"{path}: {error}") from error
    return found[0], found[1]


def _count_classes(pair: _Paths, ignore: int, names: Sequence[str]) -> dict[int, int]:
    """Returns the number of pixels of each value of a mask; raises an error if
    it or its image cannot be used."""
    image, mask = _read_pair(pair)
    if mask.shape != image.shape[:2]:
        raise ValueError(
            f"{pair[1]} is of {mask.shape[0]} x {mask.shape[1]} pixels, and "
            f"its image {pair[0].name} of {image.shape[0]} x "
            f"{image.shape[1]}: resize one of them, a mask to the nearest pixel"
        )
    values, pixels = np.unique(mask, return_counts=True)
    found = dict(zip(values.tolist(), pixels.tolist(), strict=True))
    highest = max(found.keys() - {ignore}, default=-1)
    if names and highest >= len(names):
        raise ValueError(
            f"{pair[1]} has the class {highest}, and classes.txt names "
            f"{len(names)}: 0 to {len(names) - 1}. Pixels without a class "
            f"have the value {ignore}"
        )
    return found


def _check_classes(
    folder: pathlib.Path,
    names: tuple[str, ...],
    counts: Mapping[str, collections.Counter[int]],
    ignore: int,
) -> tuple[str, ...]:
    """Returns the names of the classes, or their numbers; raises an error if
    there are too few in the masks, and warns of those that are not learned."""
    ignored = counts["train"][ignore] / counts["train"].total()
    for part, least in (("train", 2), ("test", 1)):
        classes = sorted(counts[part].keys() - {ignore})
        if len(classes) < least:
            raise ValueError(
                f"The masks of {str(folder)!r} to {part} on must have {least} "
                f"or more classes. Received: {classes}, and {ignored:.1%} of "
                f"the training pixels have the value {ignore}, and so no "
                "class: write numbers of classes from 0 into the masks, or "
                "give the value without a class as `ignore`"
            )
    missing = [
        name for i, name in enumerate(names) if i == ignore or not counts["train"][i]
    ]
    if missing:
        warn(
            f"{len(missing)} of the {len(names)} classes of "
            f"{folder / _CLASSES_FILE} are in no training mask, so that a "
            f"model cannot learn them: {summarize(missing, ', ')}. "
            f"{ignored:.1%} of the pixels have the value {ignore}, and so no "
            "class."
        )
    highest = max(set().union(*counts.values()) - {ignore})
    if not names and highest >= _MOST_CLASSES:
        raise ValueError(
            f"The masks of {str(folder)!r} must have classes below {_MOST_CLASSES}, "
            f"not numbers of objects or colors, or {_CLASSES_FILE} must name all "
            f"classes, one on each line. Received: values up to {highest}"
        )
    return names or tuple(str(i) for i in range(highest + 1))


def _from_tfds(name: str, ignore: int) -> ImageDataset:
    """The encoded files of a dataset of TFDS, which are kept in memory."""
    tfds = require("tensorflow_datasets")
    feature, names, classes, first = TFDS_MASKS[name.split(":")[0]]
    if 0 <= ignore < classes:
        raise ValueError(
            f"The classes of {name!r} are 0 to {classes - 1}: `ignore`, the "
            "value of pixels without a class, must be another number. "
            f"Received: ignore={ignore}"
        )
    builder = open_builder(tfds, name)
    download(builder, name)
    splits = builder.info.splits
    test = next(x for x in ("test", "validation") if x in splits)
    skip = tfds.decode.SkipDecoding()
    decoders = {"image": skip, feature: skip}
    files = {}
    for part, split in (("train", "train"), ("test", test)):
        examples = builder.as_dataset(split=split, decoders=decoders)
        files[part] = [
            (bytes(x["image"]), bytes(x[feature])) for x in tfds.as_numpy(examples)
        ]

    def read(part: str, index: int) -> tuple[Array, Array]:
        image, mask = (io.BytesIO(x) for x in files[part][index])
        with open_image(mask) as opened:
            # The classes are the values of the first channel.
            found = np.asarray(opened).astype("int32")
        found = found[..., 0] if found.ndim == 3 else found
        labels = np.where(found < first, ignore, found - first)
        return read_image(image), labels.astype("int32")

    return scaled_dataset(
        read,
        "mask",
        channels=3,
        ignore=ignore,
        name=name.split(":")[0],
        class_names=names or tuple(str(i) for i in range(classes)),
        image_size=None,
        num_train=len(files["train"]),
        num_test=len(files["test"]),
    )
