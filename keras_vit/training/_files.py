"""Image files of a folder: which there are, and which are good."""

import collections
import concurrent.futures
import filecmp
import os
import re

from keras_vit._warnings import warn
from keras_vit.training._image_headers import fault_of_ends
from keras_vit.training._tf_images import decode
from keras_vit.training._tf_images import tensorflow

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
# Formats that are left out, and said to be.
_OTHERS = (
    *(".jpe", ".jfif", ".webp", ".tif", ".tiff", ".heic", ".heif", ".avif"),
    *(".jp2", ".jxl", ".ppm", ".pgm", ".tga"),
)
_SHOWN = 3
_DRAWN_SIDE = 512


def image_files(root):
    """Finds what is named like an image in a folder and those in it.

    Returns:
        Sorted paths, and those of what is left out: images of other formats,
        and links that lead nowhere.
    """
    images, others = [], []
    for path in sorted(root.rglob("*")):
        ending = path.suffix.lower()
        if path.name.startswith(".") or ending not in (*ENDINGS, *_OTHERS):
            continue
        if path.is_file():
            (images if ending in ENDINGS else others).append(path)
        elif path.is_symlink() and not path.exists():
            others.append(path)
    return images, others


def warn_of_others(paths):
    """Warns of what `image_files` left out."""
    if paths:
        warn(
            f"{len(paths)} files are left out: {_some(list(map(str, paths)))}. "
            "Links must lead to a file, and images be JPEG, PNG, BMP or GIF, "
            f"with a name that ends in {', '.join(ENDINGS)}: convert them.",
        )


def picture(path):
    """Returns an image file as an array of values in [0, 1], to be drawn.

    Of a photo, which would be hundreds of megabytes, not every pixel.
    """
    pixels = decode(tensorflow().io.read_file(os.fsencode(path)), 3)
    step = -(-max(pixels.shape) // _DRAWN_SIDE)
    return pixels[::step, ::step].numpy() / 255


def good_images(paths, skip):
    """Separates what can be read from what cannot.

    Args:
        paths: List of paths.
        skip: Boolean. Whether to decode every image, and to warn of the bad
            ones. Otherwise both ends of every file are looked at, those whose
            end is missing are decoded, and the first bad file is an error.

    Returns:
        A set of good paths and a list of bad ones.
    """
    if not skip:
        for path in paths:
            if fault := _fault(path, thorough=False):
                raise ValueError(
                    f"{str(path)!r} {fault} Remove it or convert it, or use "
                    "--skip-bad-images, which leaves out all such files."
                )
        return set(paths), []
    # Decoding leaves Python's lock alone.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = list(pool.map(_fault, paths))
    bad = [
        f"{path} {fault}"
        for path, fault in zip(paths, faults, strict=True)
        if fault
    ]
    if bad:
        warn(
            f"{len(bad)} of {len(paths)} images cannot be used and are "
            f"skipped: {_some(bad)}",
        )
    good = {p for p, fault in zip(paths, faults, strict=True) if not fault}
    return good, bad


def warn_of_duplicates(files, root, depth):
    """Warns of equal files of one name in two classes, or in train and test.

    Only files of the same name and size are read, and only until they differ.

    Args:
        files: List of `(path, label)`.
        root: Path that their names are shown from.
        depth: Integer. How many folders below it tell part and class.
    """
    named = collections.defaultdict(list)
    for path, _ in files:
        named[path.name.lower()].append(path)
    found = []
    for paths in named.values():
        for group in _equal(paths) if len(paths) > 1 else ():
            shown = [path.relative_to(root) for path in group]
            if len({path.parts[:depth] for path in shown}) > 1:
                found.append(" and ".join(map(str, shown[:2])))
    if found:
        warn(
            "Equal files are in two classes, or in train and test: "
            f"{_some(found)}. Remove one of each pair: the accuracy would be "
            "wrong.",
        )


def _equal(paths):
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


def _some(names):
    more = len(names) - _SHOWN
    return "; ".join(names[:_SHOWN]) + (
        f"; and {more} more" if more > 0 else ""
    )


def _fault(path, thorough=True):
    """What is wrong with a file, or None; one that seems whole is decoded
    only to be thorough."""
    fault, has_end = fault_of_ends(path)
    if fault or (has_end and not thorough):
        return fault
    tf = tensorflow()
    try:
        decode(tf.io.read_file(os.fsencode(path)), 3)
    except tf.errors.OpError as error:
        reason = re.sub(r"^{{.*?}} | \[Op:.*", "", str(error.message))
        return f"cannot be decoded: {reason.splitlines()[0][:80].rstrip('. ')}."
    return None
