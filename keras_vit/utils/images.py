"""Reading of image files by Pillow, and sizes of images."""

import io
import math
import pathlib
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, StrPath

# Others, such as PSD, are rare, and their decoders had more vulnerabilities.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
EXTENSIONS = (*PICTURES, ".npy")
# The EXIF orientations that need a vertical, and a horizontal, flip. For those
# above 4, rows and columns are swapped before.
FLIPPED = (3, 4, 7, 8), (2, 3, 6, 7)


def open_image(file: StrPath | IO[bytes], formats: tuple[str, ...] = FORMATS) -> Any:
    """Opens an image of one of the formats, as `PIL.Image.open` does."""
    return require("PIL.Image").open(file, formats=formats)


def read_image(file: StrPath | IO[bytes], channels: int = 3) -> Array:
    """Returns an image file as a uint8 array of 1 or 3 channels, turned as its
    EXIF orientation says; raises a `ValueError` if its pixels are floats or of 32
    bits."""
    if isinstance(file, str | pathlib.Path):
        # Pillow 13 misreads rotated TIFF files without compression by path.
        content = io.BytesIO(pathlib.Path(file).read_bytes())
        try:
            return read_image(content, channels)
        except require("PIL").UnidentifiedImageError as error:
            formats = ", ".join(FORMATS)
            raise OSError(
                f"{str(file)!r} is not an image in one of the formats {formats}."
            ) from error
    with open_image(file) as image:
        return to_pixels(image, channels)


def to_pixels(image: Any, channels: int) -> Array:
    """Returns an image as a uint8 array `(height, width, channels)`: one of
    Pillow, a uint8 array, or a dict with the encoded "bytes" or the "path" of a
    file, as `datasets.Image(decode=False)` gives it; raises a `ValueError` for
    others."""
    if isinstance(image, dict):
        content = image.get("bytes")
        return read_image(io.BytesIO(content) if content else image["path"], channels)
    if hasattr(image, "convert"):
        check_image_mode(image)
        if image.format == "GIF" and "transparency" in image.info:
            # As TensorFlow, which reads GIF files of datasets, does.
            image = image.convert("RGBA")
            black = require("PIL.Image").new("RGBA", image.size, "black")
            image = require("PIL.Image").composite(image, black, image)
        image = require("PIL.ImageOps").exif_transpose(image)
        if image.mode.startswith("I"):  # of 16 bits, the upper 8 are kept
            image = (np.asarray(image) >> 8).astype("uint8")
        else:
            image = image.convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, channels, axis=-1)
    fits = pixels.ndim == 3 and pixels.shape[-1] == channels
    if pixels.dtype != np.uint8 or not fits or 0 in pixels.shape:
        raise ValueError(
            "It must be a Pillow image, or a uint8 array of shape (height, width, "
            f"{channels}). Received: {type(image).__name__}, dtype {pixels.dtype}, "
            f"shape {pixels.shape}"
        )
    return pixels


def check_image_mode(image: Any) -> None:
    """Raises a `ValueError` if Pillow would clip the pixels of its image."""
    # Before version 11.3, Pillow gave PNG images of 16 bits the mode "I".
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        kind = "floats" if image.mode == "F" else "integers of 32 bits"
        raise ValueError(
            f"its pixels are {kind} (mode {image.mode!r}), whose range is "
            "unknown. Scale them to 0 to 255 and save them as 8 bits"
        )


def size_with_aspect(
    image_size: Sequence[int], area: float, patch_size: Sequence[int]
) -> tuple[int, ...]:
    """Returns the size of an image of about `area` pixels: multiples of the
    patch size, as close as possible to the aspect ratio of `image_size`."""
    scale = math.sqrt(area / (image_size[0] * image_size[1]))
    return tuple(
        max(1, round(side * scale / patch)) * patch
        for side, patch in zip(image_size, patch_size, strict=True)
    )
