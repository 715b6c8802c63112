"""Image files for a report, with Pillow, which matplotlib brings along."""

import math
import pathlib

import numpy as np

from keras_vit.preprocessing import preprocess_input

_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_MODES = {1: "L", 3: "RGB"}


def image_paths(names):
    """Lists image files: those named, and all in the folders named.

    Raises:
        FileNotFoundError: if there is no such file, or a folder has none.
    """
    paths = []
    for name in names:
        path = pathlib.Path(name).expanduser()
        found = [path]
        if path.is_dir():
            found = sorted(
                p
                for p in path.iterdir()
                if p.suffix.lower() in _ENDINGS
                and p.is_file()
                and not p.name.startswith(".")
            )
        if not found or not path.exists():
            what, more = "no file", ""
            if path.exists():
                what, more = "no image in the folder", _inner(path)
            raise FileNotFoundError(f"There is {what} {str(path)!r}.{more}")
        paths += found
    return paths


def _inner(folder):
    """Folders of a set of images are not searched: a report shows a few."""
    inner = [str(p) for p in sorted(folder.iterdir()) if p.is_dir()]
    return f" Name one of those in it, such as {inner[0]!r}." if inner else ""


def read_images(paths, channels=3):
    """Reads image files as uint8 arrays `(height, width, channels)`.

    Raises:
        ValueError: if any cannot be read; one error names them all.
    """
    if paths and channels not in _MODES:
        raise ValueError(
            f"The model takes images of {channels} channels, and image files "
            "have 1 or 3: leave out IMAGES to look at the weights alone."
        )
    images, bad = [], []
    for path in paths:
        try:
            images.append(_read(path, channels))
        except Exception as error:  # Pillow raises all kinds for broken files
            reason = str(error).splitlines() or [type(error).__name__]
            bad.append(f"  {path}: {reason[0]}")
    if bad:
        raise ValueError(
            "These images cannot be read; leave them out:\n" + "\n".join(bad)
        )
    return images


def _read(path, channels):
    from PIL import Image
    from PIL import ImageOps

    with Image.open(path) as image:
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):  # 16 bits, of which Pillow keeps none
            pixels = np.asarray(image).astype("float64") / 256
            image = Image.fromarray(np.clip(pixels, 0, 255).astype("uint8"))
        pixels = np.asarray(image.convert(_MODES[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


def resized(image, size):
    """Returns an image of `(height, width)`, bilinear and antialiased."""
    from PIL import Image

    if image.shape[:2] == tuple(size):
        return image
    grey = image.shape[-1] == 1
    picture = Image.fromarray(image[..., 0] if grey else image)
    picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(*size, image.shape[-1])


def thumbnail(image, longest):
    """Returns an image that is no larger than is worth looking at."""
    scale = longest / max(image.shape[:2])
    if scale >= 1:
        return image
    return resized(image, [max(1, round(n * scale)) for n in image.shape[:2]])


def with_aspect(image_size, area, patch_size):
    """Returns the size of about an area, in whole patches, that keeps an
    image's aspect best."""
    scale = math.sqrt(area / (image_size[0] * image_size[1]))
    return tuple(
        max(1, round(side * scale / patch)) * patch
        for side, patch in zip(image_size, patch_size, strict=True)
    )


def batches(images, size, patch_size, mode, keep_aspect):
    """Lists batches of preprocessed images: one, or one an image where each
    keeps its aspect."""
    area = size[0] * size[1]
    scaled = [
        resized(
            image,
            with_aspect(image.shape[:2], area, patch_size)
            if keep_aspect
            else size,
        )
        for image in images
    ]
    groups = [[image] for image in scaled] if keep_aspect else [scaled]
    return [preprocess_input(np.stack(x), mode=mode) for x in groups if x]
