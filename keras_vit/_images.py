"""Opening of image files by Pillow."""

from keras_vit._program import require

# Others, such as PSD, are rare, and their decoders had more vulnerabilities.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def open_image(file):
    """Opens an image of one of `FORMATS`, as `PIL.Image.open` does.

    Args:
        file: Path or file object.

    Raises:
        OSError: if it cannot be read, or is of another format.
    """
    return require("PIL.Image").open(file, formats=FORMATS)
