"""Checks of the header and the trailer of image files, in plain Python."""

import os
import statistics
from collections.abc import Sequence
from typing import BinaryIO
from typing import Literal

from keras_vit._types import StrPath

_MAGIC_BYTES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG": "PNG",
    b"BM": "BMP",
    b"GIF8": "GIF",
}
# A PNG of 200 kB can hold 20000 x 20000 pixels. An image of this number of
# pixels and a copy of it take 800 MB.
_MAX_PIXELS = 2**27
# Resized so that its shorter side is 256, a longer image would take gigabytes.
_MAX_ASPECT_RATIO = 100
_BMP_MASKS = (0xFF0000, 0xFF00, 0xFF)
# Start of frame: the markers of a JPEG that are followed by its size.
_SOF_MARKERS = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def check_header_and_trailer(path: StrPath) -> tuple[str | None, bool]:
    """Returns the defect of an image file as text, or None, and whether the
    file ends with the trailer of its format, without decoding it.

    A file without a trailer may be valid, as cameras append data: only decoding
    shows it.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(66)
            if not start:
                return "is empty.", False
            kind = _kind(start)
            if kind is None:
                return (
                    "is not a JPEG, PNG, BMP or GIF image, whatever its name "
                    "says."
                ), False
            if kind == "BMP" and (defect := _bmp_defect(start)):
                return defect, False
            size = _size(file, kind, start)
            return _size_defect(size), bool(size) and _has_trailer(file, kind)
    except OSError as error:
        return f"cannot be read: {error.strerror}.", False


def median_side(paths: Sequence[StrPath], sample: int = 200) -> int | None:
    """Returns the median of the heights and widths, in pixels, that the headers
    of at most `sample` image files state."""
    sides = []
    for path in paths[:: -(-len(paths) // sample) or 1]:
        with open(path, "rb") as file:
            start = file.read(66)
            kind = _kind(start)
            sides += (kind and _size(file, kind, start)) or ()
    return round(statistics.median(sides)) if sides else None


def _kind(start: bytes) -> str | None:
    """Returns the format of a file that begins with these bytes, or None."""
    kinds = (k for s, k in _MAGIC_BYTES.items() if start[: len(s)] == s)
    return next(kinds, None)


def _bmp_defect(start: bytes) -> str | None:
    if _number(start, 14, 4) < 40:
        return "is a BMP of OS/2, which cannot be read."
    bits, compression = _number(start, 28, 2), _number(start, 30, 4)
    if bits not in (24, 32):
        # TensorFlow would take the numbers of colours for grey.
        return f"is a BMP of {bits} bits, and only 24 and 32 can be read."
    masks = tuple(_number(start, at, 4) for at in (54, 58, 62))
    if compression and (compression, masks) != (3, _BMP_MASKS):
        return "is a BMP whose colours are in an order that cannot be read."
    return None


def _size_defect(size: tuple[int, ...] | None) -> str | None:
    if size is None:
        return None
    height, width = size
    if height * width >= _MAX_PIXELS:
        return (
            f"is {height} x {width} pixels, and below "
            f"{_MAX_PIXELS // 10**6} million can be read."
        )
    if max(size) > _MAX_ASPECT_RATIO * min(size):
        return (
            f"is {height} x {width} pixels: one side may be "
            f"{_MAX_ASPECT_RATIO} times "
            "the other."
        )
    return None


def _size(file: BinaryIO, kind: str, start: bytes) -> tuple[int, ...] | None:
    """Returns `(height, width)`, or None if the file does not contain it."""
    if kind == "JPEG":
        return _size_of_jpeg(file)
    width, height, length = {
        "PNG": (16, 20, 4),
        "GIF": (6, 8, 2),
        "BMP": (18, 22, 4),
    }[kind]
    order = "big" if kind == "PNG" else "little"
    if len(start) < height + length:
        return None
    # A BMP from top to bottom has a height below zero.
    size = [
        abs(_number(start, at, length, order, signed=kind == "BMP"))
        for at in (height, width)
    ]
    return tuple(size) if min(size) else None


def _size_of_jpeg(file: BinaryIO) -> tuple[int, ...] | None:
    file.seek(2)
    while len(head := file.read(4)) == 4 and head[0] == 0xFF:
        if head[1] == 0xFF:  # padding
            file.seek(-3, os.SEEK_CUR)
        elif head[1] in _SOF_MARKERS:
            frame = file.read(5)
            size = int.from_bytes(frame[1:3]), int.from_bytes(frame[3:5])
            return size if min(size) else None
        else:
            file.seek(int.from_bytes(head[2:]) - 2, os.SEEK_CUR)
    return None


def _has_trailer(file: BinaryIO, kind: str) -> bool:
    size = file.seek(0, os.SEEK_END)
    if kind == "BMP":
        file.seek(2)
        return size >= _number(file.read(4), 0, 4)
    end = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82", "GIF": b";"}[kind]
    file.seek(-min(size, len(end)), os.SEEK_END)
    return file.read() == end


def _number(
    content: bytes,
    at: int,
    length: int,
    order: Literal["little", "big"] = "little",
    signed: bool = False,
) -> int:
    return int.from_bytes(content[at : at + length], order, signed=signed)
