"""Opening of image files by Pillow."""

from typing import IO, Any

from keras_vit.utils.optional import require
from keras_vit.utils.types import StrPath

# Others, such as PSD, are rare, and their decoders had more vulnerabilities.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def open_image(file: StrPath | IO[bytes], formats: tuple[str, ...] = FORMATS) -> Any:
    """Opens an image of one of the formats, as `PIL.Image.open` does."""
    return require("PIL.Image").open(file, formats=formats)
