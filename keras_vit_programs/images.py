"""Reading and resizing of image files for a report.

Pillow is used, which is a dependency of matplotlib.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from keras_vit.preprocessing import preprocess_input
from keras_vit.utils.array_files import open_array
from keras_vit.utils.images import EXTENSIONS, read_image, size_with_aspect
from keras_vit.utils.scaling import Mode
from keras_vit.utils.types import Array, StrPath


def image_paths(names: Sequence[StrPath]) -> list[pathlib.Path]:
    """Returns the paths of image files, given by name or by folder, without
    subfolders."""
    paths = []
    for name in names:
        path = pathlib.Path(name).expanduser()
        found = [path]
        if path.is_dir():
            found = sorted(
                p
                for p in path.iterdir()
                if p.suffix.lower() in EXTENSIONS
                and p.is_file()
                and not p.name.startswith(".")
            )
        if not found or not path.exists():
            raise FileNotFoundError(f"There is no image {str(path)!r}.")
        paths += found
    return paths


def read_images(paths: Sequence[pathlib.Path], channels: int = 3) -> list[Array]:
    """Reads image files as arrays `(height, width, channels)`, pictures of uint8
    and arrays of float32, with values in [0, 255], and raises a `ValueError` with
    all that cannot be read."""
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


def _read(path: pathlib.Path, channels: int) -> Array:
    array = open_array(path)
    if array is not None and array.shape[-1] == channels:
        return array.read()
    if array is not None and (array.shape[-1], channels) == (1, 3):
        return np.repeat(array.read(), 3, axis=-1)
    if array is None and channels in (1, 3):
        return read_image(path, channels)
    found = array.shape[-1] if array else "1 or 3"
    raise ValueError(
        f"it has {found} channels, and the model takes {channels}. NumPy and TIFF "
        "files have up to 16"
    )


def resize(image: Array, size: Sequence[int]) -> Array:
    """Resizes an image to `(height, width)`, bilinearly with antialiasing."""
    from PIL import Image

    if image.shape[:2] == tuple(size):
        return image
    planes = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(plane)).resize(
                (size[1], size[0]), Image.Resampling.BILINEAR
            )
        )
        for plane in np.moveaxis(image, -1, 0)
    ]
    return np.stack(planes, axis=-1)


def thumbnail(image: Array, max_side: int) -> Array:
    """Downsizes an image to at most `max_side` pixels in height and width."""
    scale = max_side / max(image.shape[:2])
    if scale >= 1:
        return image
    return resize(image, [max(1, round(n * scale)) for n in image.shape[:2]])


def make_batches(
    images: Sequence[Array],
    size: Sequence[int],
    patch_size: Sequence[int],
    mode: Mode,
    keep_aspect: bool,
) -> list[Array]:
    """Resizes and preprocesses images: one batch of all, or one per image if
    they keep their aspect ratios."""
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
