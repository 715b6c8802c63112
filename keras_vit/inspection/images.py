"""Reading and resizing of image files for a report.

Pillow is used, which is a dependency of matplotlib.
"""

import math
import pathlib

import numpy as np

from keras_vit._checks import check_image_mode
from keras_vit._images import open_image
from keras_vit.preprocessing import preprocess_input

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_PILLOW_MODES = {1: "L", 3: "RGB"}


def image_paths(names):
    """Returns the paths of image files, given by name or by folder.

    Args:
        names: Strings or paths of image files and of folders. Subfolders are
            not searched.

    Returns:
        List of paths, sorted within each folder.

    Raises:
        FileNotFoundError: if a path does not exist, or a folder contains no
            image.
    """
    paths = []
    for name in names:
        path = pathlib.Path(name).expanduser()
        found = [path]
        if path.is_dir():
            found = sorted(
                p
                for p in path.iterdir()
                if p.suffix.lower() in _SUFFIXES
                and p.is_file()
                and not p.name.startswith(".")
            )
        if not found or not path.exists():
            if not path.exists():
                raise FileNotFoundError(f"There is no file {str(path)!r}.")
            raise FileNotFoundError(
                f"There is no image in the folder {str(path)!r}."
                + _suggest_subfolder(path)
            )
        paths += found
    return paths


def _suggest_subfolder(folder):
    # Subfolders are not searched, since a report shows few images.
    inner = [str(p) for p in sorted(folder.iterdir()) if p.is_dir()]
    return (
        f" Give one of its subfolders, such as {inner[0]!r}." if inner else ""
    )


def read_images(paths, channels=3):
    """Reads image files as uint8 arrays `(height, width, channels)`.

    Args:
        paths: List of paths.
        channels: Integer, 1 or 3. Images are converted to grey or RGB.

    Returns:
        List of arrays.

    Raises:
        ValueError: if files cannot be read, all of which are listed, or if
            `channels` is another number.
    """
    if paths and channels not in _PILLOW_MODES:
        raise ValueError(
            f"The model takes images of {channels} channels, and image files "
            "have 1 or 3: leave out IMAGES to inspect the weights only."
        )
    images, bad = [], []
    for path in paths:
        try:
            images.append(_read(path, channels))
        except Exception as error:  # Pillow raises many types
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

    with open_image(path) as image:
        check_image_mode(image)
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):  # 16 bits, which Pillow cannot convert
            pixels = np.asarray(image).astype("float64") / 256
            image = Image.fromarray(np.clip(pixels, 0, 255).astype("uint8"))
        pixels = np.asarray(image.convert(_PILLOW_MODES[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


def resize(image, size):
    """Resizes an image to `(height, width)`, bilinearly with antialiasing."""
    from PIL import Image

    if image.shape[:2] == tuple(size):
        return image
    grey = image.shape[-1] == 1
    picture = Image.fromarray(image[..., 0] if grey else image)
    picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(*size, image.shape[-1])


def thumbnail(image, max_side):
    """Downsizes an image to at most `max_side` pixels in height and width."""
    scale = max_side / max(image.shape[:2])
    if scale >= 1:
        return image
    return resize(image, [max(1, round(n * scale)) for n in image.shape[:2]])


def size_with_aspect(image_size, area, patch_size):
    """Returns the size of an image resized to about `area` pixels.

    Height and width are multiples of the patch size that keep the aspect ratio
    of `image_size` as closely as possible.
    """
    scale = math.sqrt(area / (image_size[0] * image_size[1]))
    return tuple(
        max(1, round(side * scale / patch)) * patch
        for side, patch in zip(image_size, patch_size, strict=True)
    )


def make_batches(images, size, patch_size, mode, keep_aspect):
    """Resizes and preprocesses images, and groups them into batches.

    Args:
        images: List of uint8 arrays `(height, width, channels)`.
        size: `(height, width)` of the model's inputs.
        patch_size: `(rows, columns)` of a patch, in pixels.
        mode: As in `preprocess_input`.
        keep_aspect: Boolean. Whether images keep their aspect ratio.

    Returns:
        List of batches: one of all images or, with `keep_aspect`, one per
        image.
    """
    area = size[0] * size[1]
    scaled = [
        resize(
            image,
            size_with_aspect(image.shape[:2], area, patch_size)
            if keep_aspect
            else size,
        )
        for image in images
    ]
    groups = [[image] for image in scaled] if keep_aspect else [scaled]
    return [preprocess_input(np.stack(x), mode=mode) for x in groups if x]
