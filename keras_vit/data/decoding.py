"""Decode image files with TensorFlow or without it, and sample crop windows."""

import contextlib
import functools
import io
import math
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.utils.images import FLIPPED, open_image, read_image, to_pixels
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, Tensor

# The published random crop: fractions of the image's area, and ratios of width
# to height (tf.image's default).
AREA = (0.05, 1.0)
ASPECT = (0.75, 1.33)

# What the beginning or the end of a file has if it tells an orientation: EXIF data,
# in one of three ways, or XMP's namespace, whose bytes are searched in.
_ORIENTED = r"\C*([Ee][Xx][Ii]f|adobe)\C*"
_SEARCHED = 2**17
# How files of TIFF begin, of both orders of bytes and sizes of offsets, and of WebP.
_BY_PILLOW = r"II[*+]\x00|MM\x00[*+]|RIFF"


@functools.cache
def import_tensorflow() -> Any:
    """Imports TensorFlow. Under another backend it does not use the GPU."""
    tensorflow = require("tensorflow")
    if keras.backend.backend() != "tensorflow":
        try:
            tensorflow.config.set_visible_devices([], "GPU")
        except RuntimeError:
            pass  # TensorFlow's devices have been used before
    return tensorflow


class _TensorFlow:
    """TensorFlow, which is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_tensorflow(), name)


tf: Any = _TensorFlow()


def decode(
    encoded: Tensor,
    channels: int,
    window: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Decodes a string tensor of an image file to uint8 `(height, width, channels)`; a
    tensor of pixels keeps its type.

    Images are rotated and flipped as Pillow's `exif_transpose` does. The upper 8 of 16
    bits are kept, and the first frame of an animation. Alpha is ignored, but
    transparent pixels of a GIF are black. CMYK becomes RGB, and images are converted to
    1 or 3 channels.

    `window` maps the image's shape to the top, left, height and width of a crop. For a
    JPEG, only this crop is decoded.
    """
    encoded = tf.convert_to_tensor(encoded)

    def of_jpeg() -> Tensor:
        read = functools.partial(tf.io.decode_jpeg, encoded)
        if window is not None:
            crop = window(tf.io.extract_jpeg_shape(encoded))
            read = functools.partial(
                tf.io.decode_and_crop_jpeg, encoded, crop_window=crop
            )
        if channels != 1:
            return read(channels=channels)
        # TensorFlow cannot convert CMYK to gray.
        found = tf.io.extract_jpeg_shape(encoded)[2]
        return tf.cond(
            (found == 1) | (found == 3),
            lambda: read(channels=1),
            lambda: tf.image.rgb_to_grayscale(read(channels=3)),
        )

    def of_pixels(pixels: Tensor) -> Tensor:
        pixels = _with_channels(pixels, channels)
        if window is None:
            return pixels
        top, left, height, width = tf.unstack(window(tf.shape(pixels)))
        return pixels[top : top + height, left : left + width]

    def by_tensorflow() -> Tensor:
        # TensorFlow refuses to convert some formats: a GIF, a BMP with alpha.
        read_other = functools.partial(tf.io.decode_image, expand_animations=False)
        pixels = tf.cond(
            tf.io.is_jpeg(encoded),
            of_jpeg,
            lambda: of_pixels(read_other(encoded)),
        )
        return _upright(pixels, encoded)

    def by_pillow() -> Tensor:
        def read(content: Any) -> Array:
            return read_image(_as_file(content), channels)

        pixels = tf.numpy_function(read, [encoded], tf.uint8)
        return of_pixels(tf.ensure_shape(pixels, (None, None, channels)))

    if encoded.dtype != tf.string:
        return of_pixels(encoded)
    start = tf.strings.substr(encoded, 0, 4)
    is_for_pillow = tf.strings.regex_full_match(start, _BY_PILLOW)
    return tf.cond(is_for_pillow, by_pillow, by_tensorflow)


def _as_file(content: bytes | Array) -> io.BytesIO:
    # TensorFlow gives an array of an object outside of a graph.
    return io.BytesIO(np.asarray(content, object).item())


def _read_orientation(encoded: bytes | Array) -> np.int32:
    try:
        with open_image(_as_file(encoded)) as image:
            found = image.getexif().get(0x112)
    except Exception:  # Pillow raises many types; TensorFlow may decode it
        found = 1
    return np.int32(found if found in range(1, 9) else 1)


def _upright(pixels: Tensor, encoded: Tensor) -> Tensor:
    """Rotates and flips decoded pixels as the file says."""
    # Most files tell no orientation, and are not opened for it a second time.
    size = tf.minimum(tf.strings.length(encoded), _SEARCHED)
    ends = [tf.strings.substr(encoded, at, size) for at in (0, -size)]
    found = tf.strings.regex_full_match(tf.strings.join(ends), _ORIENTED)

    def turned() -> Tensor:
        orientation = tf.numpy_function(_read_orientation, [encoded], tf.int32)
        x = tf.cond(
            orientation > 4,
            lambda: tf.transpose(pixels, (1, 0, 2)),
            lambda: pixels,
        )
        flip = [tf.reduce_any(orientation == each) for each in FLIPPED]
        axes = tf.where(flip)
        return tf.reverse(x, tf.cast(axes[:, 0], tf.int32))

    return tf.ensure_shape(
        tf.cond(found, turned, lambda: pixels), (None, None, pixels.shape[-1])
    )


def read_pixels(path: pathlib.Path, channels: int) -> Array:
    """Returns what `decode` returns for a file, without TensorFlow; raises a
    `ValueError` if it cannot be read.

    A JPEG is decoded with libjpeg's fast cosine transform, as in TensorFlow. Pillow has
    only the exact transform, and its pixels differ by up to 16.
    """
    content = path.read_bytes()
    try:
        if content.startswith(b"\xff\xd8\xff"):
            # simplejpeg refuses some damaged files that TensorFlow and Pillow read.
            with contextlib.suppress(ValueError):
                turned = int(_read_orientation(content))
                return _turned(_of_jpeg(content, channels), turned)
        with open_image(io.BytesIO(content)) as image:
            # `decode` reads files of TIFF and WebP by the same function.
            if image.format in ("TIFF", "WEBP", "JPEG", "MPO"):
                return to_pixels(image, channels)
            is_gray = image.mode[0] in "1LI" and image.format != "GIF"
            pixels = to_pixels(image, 3)
        if channels == 1:
            pixels = pixels[..., :1] if is_gray else _gray(pixels)
        return pixels
    except Exception as error:  # Pillow raises many types
        raise ValueError(
            f"This image cannot be read: {str(path)!r} ({error}). Remove it or convert "
            "it, or leave such files out with `skip_bad_images=True`."
        ) from error


def _of_jpeg(content: bytes, channels: int) -> Array:
    jpeg = require("simplejpeg")
    read = functools.partial(jpeg.decode_jpeg, content, fastdct=True, strict=False)
    found = jpeg.decode_jpeg_header(content)[2]
    if found in ("CMYK", "YCCK"):  # stored as 255 minus the ink
        inks = read("CMYK").astype("uint16")
        pixels = (inks[..., :3] * inks[..., 3:] // 255).astype("uint8")
        return _gray(pixels) if channels == 1 else pixels
    return read("GRAY" if channels == 1 else "RGB")


def _gray(pixels: Array) -> Array:
    """Returns what `tf.image.rgb_to_grayscale` does."""
    weights = np.array([[0.2989], [0.587], [0.114]], "float32")
    values = pixels.astype("float32") * np.float32(1 / 255) @ weights
    return (values * np.float32(255.5)).astype("uint8")


def _turned(pixels: Array, orientation: int) -> Array:
    if orientation > 4:
        pixels = pixels.transpose(1, 0, 2)
    axes = (axis for axis, those in enumerate(FLIPPED) if orientation in those)
    return np.flip(pixels, tuple(axes))


def sample_crop_window(shape: Tensor, seed: Tensor) -> Tensor:
    """Returns the top, left, height and width of a random crop."""
    # The number of channels has no influence, and may be missing for CMYK.
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([shape[:2], [3]], 0),
        tf.zeros((1, 0, 4)),
        seed=seed,
        min_object_covered=0.0,
        area_range=AREA,
        aspect_ratio_range=ASPECT,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], 0)


def sample_resized_crop_window(
    shape: Tensor, seed: Tensor, scale: tuple[float, float]
) -> Tensor:
    """Samples the top, left, height and width of a crop as torchvision's
    `RandomResizedCrop` does, for a `(smallest, largest)` fraction of the area.

    Ten attempts sample the area uniformly and the aspect ratio log-uniformly
    from 3/4 to 4/3. If no crop fits the image, it is the largest one at its
    center whose aspect ratio is in this range.
    """
    sides = tf.cast(shape[:2], tf.float32)
    low, high = 3 / 4, 4 / 3
    first, second = tf.unstack(tf.random.experimental.stateless_split(seed, 2), num=2)
    numbers = tf.random.stateless_uniform((10, 2), first)
    area = scale[0] + (scale[1] - scale[0]) * numbers[:, 0]
    area *= sides[0] * sides[1]
    aspect = tf.exp(math.log(low) + (math.log(high) - math.log(low)) * numbers[:, 1])
    parts = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=1)
    parts = tf.round(parts)
    fits = tf.reduce_all((parts > 0) & (parts <= sides), axis=1)
    found = tf.reduce_any(fits)
    center = tf.stack(
        [
            tf.minimum(sides[0], tf.round(sides[1] / low)),
            tf.minimum(sides[1], tf.round(sides[0] * high)),
        ]
    )
    part = tf.where(found, parts[tf.argmax(tf.cast(fits, tf.int32))], center)
    free = sides - part
    at = tf.random.stateless_uniform((2,), second) * (free + 1)
    at = tf.where(found, tf.minimum(tf.floor(at), free), free // 2)
    return tf.cast(tf.concat([at, part], 0), tf.int32)


def _with_channels(pixels: Tensor, channels: int) -> Tensor:
    if pixels.shape.rank == 3 and pixels.shape[-1] == channels:
        return pixels
    has_colors = tf.shape(pixels)[-1] >= 3
    if channels == 1:
        pixels = tf.cond(
            has_colors,
            lambda: tf.image.rgb_to_grayscale(pixels[..., :3]),
            lambda: pixels[..., :1],
        )
    else:
        pixels = tf.cond(
            has_colors,
            lambda: pixels[..., :3],
            lambda: tf.repeat(pixels[..., :1], 3, axis=-1),
        )
    return tf.ensure_shape(pixels, (None, None, channels))
