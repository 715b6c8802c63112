"""Find the image files of a folder, and those that cannot be read."""

import concurrent.futures
import os
import pathlib
import statistics
from collections.abc import Sequence

from keras_vit.data.decoding import decode, tf
from keras_vit.data.labels import summarize
from keras_vit.utils.array_files import open_array
from keras_vit.utils.images import EXTENSIONS, check_image_mode, open_image
from keras_vit.utils.optional import require
from keras_vit.utils.types import StrPath
from keras_vit.utils.warnings import warn

# Beginnings of the names of files and folders that programs write.
HIDDEN = (".", "__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
# Notes and annotations, of which there may be one for each image.
_NOTES = (".txt", ".md", ".csv", ".json", ".xml", ".yaml", ".yml", ".html")
# How files end. A file with something behind its end may be valid: cameras append
# data. A TIFF has no end, and is decoded.
_TRAILERS = {"PNG": b"IEND\xaeB`\x82", "GIF": b";", "JPEG": b"\xff\xd9"}
_FORMATS = (*_TRAILERS, "BMP", "WEBP", "TIFF")
# A PNG of 200 kB can hold 20000 x 20000 pixels. An image of this number of
# pixels and a copy of it take 800 MB.
_MAX_PIXELS = 2**27
# Resized so that its shorter side is 256, a longer image would take gigabytes.
_MAX_ASPECT_RATIO = 100
_BMP_MASKS = b"\0\0\xff\0\0\xff\0\0\xff\0\0\0"  # blue is the first byte


def image_files(
    roots: Sequence[pathlib.Path], extensions: tuple[str, ...] = EXTENSIONS
) -> dict[pathlib.Path, list[pathlib.Path]]:
    """Returns the sorted image files, by their names, of each folder and its
    sub-folders. It warns of other files, except hidden files and notes.

    Links to folders are not followed, as they may form a circle, and pipes are not
    opened, as reading one may never end.
    """
    images, others = {}, []
    for root in roots:
        images[root] = []
        for path in sorted(root.rglob("*")):
            parts, suffix = path.relative_to(root).parts, path.suffix.lower()
            if any(part.startswith(HIDDEN) for part in parts):
                continue
            is_file = path.is_file()
            if is_file and suffix in extensions:
                images[root].append(path)
            elif path.is_symlink() or not (path.is_dir() or suffix in _NOTES):
                others.append(str(path))
    if others:
        warn(
            f"{len(others)} {'files are' if len(others) > 1 else 'file is'} left out: "
            f"{summarize(others)}. Images must have a name that ends in "
            f"{', '.join(extensions)}: convert others, such as HEIC."
            + " Links must lead to a file."
            * any(map(os.path.islink, others)),
        )
    return images


def validate_images(
    paths: Sequence[pathlib.Path], skip: bool, decode_all: bool = True
) -> tuple[set[pathlib.Path], int]:
    """Returns the set of the files that can be read as images, and the number
    of the others.

    The header and the trailer of every file are checked, and files without a trailer
    are decoded; a `ValueError` names those that cannot be read. With `skip`, every
    image is decoded, or without `decode_all` the checksums of PNG files are checked in
    addition, and a warning names those that cannot be read.
    """

    def find(path: pathlib.Path) -> str | None:
        return find_defect(path, skip and decode_all, skip and not decode_all)

    # Threads, because decoding releases Python's global interpreter lock.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        defects = dict(zip(paths, pool.map(find, paths), strict=True))
    bad = [f"{str(path)!r} {x.rstrip('.')}" for path, x in defects.items() if x]
    found = f"{len(bad)} of {len(paths)} images cannot be used"
    if bad and not skip:
        raise ValueError(
            f"{found}: {summarize(bad)}. Remove or convert such files, or use "
            "`skip_bad_images=True`, which leaves them out."
        )
    if bad and len(bad) == len(paths):
        raise ValueError(f"No image can be used: {summarize(bad)}")
    if bad:
        warn(f"{found} (skipped): {summarize(bad)}")
    return {path for path, defect in defects.items() if not defect}, len(bad)


def find_defect(
    path: StrPath, thorough: bool = True, verify: bool = False
) -> str | None:
    """Returns the defect of an image file as text, or None; a file with a valid
    header and trailer is decoded only if `thorough`. With `verify`, the checksums of
    a PNG file are checked, which takes less time than to decode it."""
    pillow = require("PIL.Image")
    try:
        with open(path, "rb") as file:
            start = file.read(66)
            if not start:
                return "is empty."
            if start[:2] == b"BM" and (defect := _bmp_defect(start)):
                return defect
            if array := open_array(path):
                kind, size = "array", array.shape[:2]
            else:
                with open_image(file, _FORMATS) as image:
                    check_image_mode(image)
                    kind, size = image.format, image.size[::-1]
                    if verify and kind == "PNG":
                        image.verify()
            file.seek(-min(8, file.seek(0, os.SEEK_END)), os.SEEK_END)
            end, length = file.read(), file.tell()
    except pillow.UnidentifiedImageError:
        if start[4:8] == b"ftyp":
            return "is a HEIC, AVIF or video file: convert it to JPEG."
        return (
            "is not a JPEG, PNG, BMP, GIF, WebP or TIFF image or a NumPy array, "
            "whatever its name says, or it is damaged."
        )
    except pillow.DecompressionBombError:
        return f"has more than {_MAX_PIXELS // 10**6} million pixels."
    except Exception as error:  # Pillow raises many types
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        return f"cannot be read: {reason}."
    if size[0] * size[1] >= _MAX_PIXELS or max(size) > _MAX_ASPECT_RATIO * min(size):
        return (
            f"is {size[0]} x {size[1]} pixels: it must have less than "
            f"{_MAX_PIXELS // 10**6} million pixels, and sides of which one is "
            f"at most {_MAX_ASPECT_RATIO} times the other."
        )
    # Pillow calls a JPEG of several images an MPO.
    ends = end.endswith(_TRAILERS.get(kind, _TRAILERS["JPEG"]))
    if kind == "BMP":
        ends = length >= int.from_bytes(start[2:6], "little")
    elif kind == "WEBP":
        ends = length >= int.from_bytes(start[4:8], "little") + 8
    elif kind == "TIFF":
        ends = False
    elif array:
        ends = array.is_verified
    if ends and not thorough:
        return None
    try:
        if array:
            array.read()
        else:
            decode(tf.io.read_file(os.fsencode(path)), 3)
    except ValueError as error:
        return f"cannot be used: {error}."
    except (tf.errors.OpError, OSError):  # of TensorFlow, of Pillow
        return "cannot be decoded: its content is damaged or incomplete."
    return None


def _bmp_defect(start: bytes) -> str | None:
    """Returns what TensorFlow would misread in a BMP: it would, for example,
    take the numbers of the colors of a palette for gray."""
    if int.from_bytes(start[14:18], "little") < 40:
        return "is a BMP of OS/2, which cannot be read."
    bits = int.from_bytes(start[28:30], "little")
    if bits not in (24, 32):
        return f"is a BMP of {bits} bits, and only 24 and 32 can be read."
    compression, masks = int.from_bytes(start[30:34], "little"), start[54:66]
    if compression and (compression, masks) != (3, _BMP_MASKS):
        return "is a BMP whose colors are in an order that cannot be read."
    return None


def median_side(paths: Sequence[StrPath], sample: int = 200) -> int | None:
    """Returns the median of the heights and widths, in pixels, of at most
    `sample` image files, which are opened but not decoded."""
    sides = []
    for path in paths[:: -(-len(paths) // sample) or 1]:
        if array := open_array(path):
            sides += array.shape[:2]
        else:
            with open_image(path, _FORMATS) as image:
                sides += image.size
    return round(statistics.median(sides)) if sides else None
