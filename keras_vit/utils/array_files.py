"""Images of any number of channels in files of NumPy and TIFF."""

import dataclasses
import io
import pathlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeAlias

import numpy as np

from keras_vit.utils.images import FLIPPED, open_image
from keras_vit.utils.optional import require
from keras_vit.utils.scaling import MAX_CHANNELS
from keras_vit.utils.types import Array, StrPath

# Compressions of TIFF that do not depend on what a pixel is: none, LZW, deflate,
# PackBits, deflate's older number, and Zstandard.
_COMPRESSIONS = (1, 5, 8, 32773, 32946, 50000)
_Tags: TypeAlias = Mapping[int, Any]


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """An array in a file, which is not read yet.

    Attributes:
        shape: Height, width and number of channels.
        is_verified: Boolean. Whether it is known without reading that all values
            are there and in range.
        read: Function that returns the values as float32 in [0, 255], or raises a
            `ValueError`.
    """

    shape: tuple[int, int, int]
    is_verified: bool
    read: Callable[[], Array]


def open_array(path: StrPath) -> ArrayFile | None:
    """Returns the array of an image file, or None of a picture: a file of another
    kind, or a TIFF of 8 or 16 bits with one or three channels, and alpha.

    The pages of a TIFF are its channels if they are gray and of one size. A channel
    that a TIFF names as alpha is left out. Raises a `ValueError` if the array
    cannot be used.
    """
    path = pathlib.Path(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        array = np.lib.format.open_memmap(path, mode="r")
        shape = array.shape if array.ndim != 2 else (*array.shape, 1)
        is_verified = are_pixels(array.dtype, np.nan, np.nan)  # integers
        return _checked(shape, array.dtype, is_verified, lambda: array.reshape(shape))
    if suffix not in (".tif", ".tiff"):
        return None
    with path.open("rb") as file:
        order, pages = _tiff_pages(file)
    first = pages[0] if pages else {}
    if not {256, 257, 262} <= first.keys():
        return None
    shape = first[257][0], first[256][0]
    is_stack = all(
        page[277][0] == 1 and (page[257][0], page[256][0]) == shape for page in pages
    )
    pages = pages if is_stack else pages[:1]
    samples = first[277][0] * len(pages)
    alpha = [samples - len(first[338]) + i for i, x in enumerate(first[338]) if x]
    channels = [i for i in range(samples) if i not in alpha]
    is_color = first[262][0] > 2 or (len(pages) == 1 and len(channels) in (1, 3))
    if is_color and first[339][0] == 1 and first[258][0] <= 16:
        return None
    kind, bits = {1: "u", 3: "f"}.get(first[339][0], "i"), first[258][0]
    if first[259][0] not in _COMPRESSIONS or bits % 8 or len(set(first[258])) > 1:
        raise ValueError(
            f"its compression has the number {first[259][0]}, and its values have "
            f"{bits} bits. Save it with LZW, deflate or no compression, and 8, 16 "
            "or 32 bits"
        )
    turn = first[274][0]
    swapped = shape[::-1] if turn > 4 else shape

    def read() -> Array:
        with path.open("rb") as file:
            parts = [
                _samples(file, page, plane, f"{kind}{bits // 8}", order)
                for page in pages
                for plane in range(page[277][0] if page[284][0] == 2 else 1)
            ]
        x = np.concatenate(parts, axis=-1)[..., channels]
        x = x.swapaxes(0, 1) if turn > 4 else x
        return np.flip(x, tuple(axis for axis in (0, 1) if turn in FLIPPED[axis]))

    dtype = np.dtype(f"{kind}{bits // 8}")
    return _checked((*swapped, len(channels)), dtype, False, read)


def scaled(array: Array) -> Array:
    """Returns the values of an image in [0, 255]: integers of 16 bits divided by
    257, and others as they are."""
    is_long = array.dtype.newbyteorder("=") == np.uint16
    return array / np.float32(257) if is_long else array


def are_pixels(dtype: np.dtype, low: float, high: float) -> bool:
    """Returns whether values are those of an image: integers of 8 or 16 bits, or
    floats from 0 to 255, and not from 0 to 1."""
    if dtype.newbyteorder("=") in (np.uint8, np.uint16):
        return True
    is_black = low == high == 0
    return dtype.kind == "f" and low >= 0 and (1 < high <= 255 or is_black)


def _checked(
    shape: tuple[int, ...],
    dtype: np.dtype,
    is_verified: bool,
    read: Callable[[], Array],
) -> ArrayFile:
    if len(shape) != 3 or 0 in shape or shape[-1] > MAX_CHANNELS:
        raise ValueError(
            f"its shape is {shape}, and images have (height, width, channels), of up "
            f"to {MAX_CHANNELS} channels. `np.moveaxis(x, 0, -1)` makes the first "
            "axis the last one"
        )

    def values() -> Array:
        array = read()
        low, high = float(array.min()), float(array.max())
        if not are_pixels(dtype, low, high):
            raise ValueError(
                f"its values are of type {dtype}, from {low:g} to {high:g}, and those "
                "of images are uint8, uint16, or floats from 0 to 255. Scale all "
                "images alike, as in `255 * x`"
            )
        return scaled(array).astype("float32")

    return ArrayFile(shape, is_verified, values)


def _tiff_pages(file: IO[bytes]) -> tuple[str, list[dict[int, tuple]]]:
    """Returns the order of bytes of a TIFF file, and the tags of its pages, by
    their numbers, of which there is a tuple of values; no pages of another file."""
    plugin = require("PIL.TiffImagePlugin")
    header = file.read(16)
    if header[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "", []
    is_big = header[2:4] in (b"+\0", b"\0+")
    tags = plugin.ImageFileDirectory_v2(header[: 16 if is_big else 8])
    # Those that a page needs not have: bits, compression, orientation, samples,
    # planes, predictor, alpha, and kind of numbers.
    usual = {258: 1, 259: 1, 274: 1, 277: 1, 284: 1, 317: 1, 338: (), 339: 1}
    pages = []
    while tags.next and len(pages) < 1000:
        file.seek(tags.next)
        tags.load(file)
        found = {**usual, **tags}
        pages.append({k: x if isinstance(x, tuple) else (x,) for k, x in found.items()})
    return "<" if header[:2] == b"II" else ">", pages


def _samples(file: IO[bytes], tags: _Tags, plane: int, dtype: str, order: str) -> Array:
    """Returns an array `(height, width, samples)` of the strips or tiles of a plane.

    Pillow decompresses them, as the bytes of a gray image of 8 bits.
    """
    (width,), (height,), (samples,) = tags[256], tags[257], tags[277]
    is_tiled, size = 324 in tags, int(dtype[1])
    samples = 1 if tags[284][0] == 2 else samples
    (columns,), (rows,) = (tags[322], tags[323]) if is_tiled else ((width,), (height,))
    names = (324, 325) if is_tiled else (273, 279)
    count = len(tags[names[0]]) // (tags[277][0] if tags[284][0] == 2 else 1)
    part = slice(plane * count, (plane + 1) * count)
    strips = []
    for offset, length in zip(*(tags[name][part] for name in names), strict=True):
        file.seek(offset)
        strips.append(file.read(length))
    across = -(-width // columns)  # tiles
    line = columns * samples * size
    gray = {256: [across * line], 257: [height], 258: [8], 259: tags[259], 262: [1]}
    if is_tiled:
        gray |= {322: [line], 323: [rows]}
    else:
        gray |= {278: tags.get(278, [height])}
    with open_image(_tiff(gray, names, strips), ("TIFF",)) as image:
        x = np.asarray(image)
    predictor = tags[317][0]
    x = x.reshape(height, across, columns * size, samples)
    if predictor == 3:  # differences of the first bytes of a line, of the second ...
        x = x.cumsum(2, dtype="uint8").reshape(height, across, size, -1)
        x, order = np.ascontiguousarray(x.swapaxes(2, 3)), ">"
    x = x.reshape(height, -1).view(f"{order}u{size}").astype(f"u{size}")
    x = x.reshape(height, across, columns, samples)
    if predictor == 2:  # differences of pixels
        x = x.cumsum(2, dtype=x.dtype)
    return x.view(dtype).reshape(height, -1, samples)[:, :width]


def _tiff(
    tags: Mapping[int, Sequence[int]], names: tuple[int, int], strips: list[bytes]
) -> IO[bytes]:
    """Returns a TIFF file of strips or tiles; `names` are the numbers of the tags of
    their offsets and their lengths."""
    lengths = [len(strip) for strip in strips]
    offsets = np.cumsum([8, *lengths]).tolist()
    tags = {**tags, names[0]: offsets[:-1], names[1]: lengths}
    values, entries = b"".join(strips), b""
    for tag, numbers in sorted(tags.items()):
        packed = struct.pack(f"<{len(numbers)}I", *numbers)
        if len(numbers) > 1:  # is not in the entry, which has its place
            place = struct.pack("<I", 8 + len(values))
            values, packed = values + packed, place
        entries += struct.pack("<HHI", tag, 4, len(numbers)) + packed
    header = struct.pack("<2sHI", b"II", 42, 8 + len(values))
    count = struct.pack("<H", len(tags))
    return io.BytesIO(header + values + count + entries + b"\0" * 4)
