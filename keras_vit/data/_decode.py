"""Encoded images to pixels, with TensorFlow, whatever their format."""

import functools
import math

import keras

from keras_vit._program import require

# The published random part of an image, in shares of its area and as width
# by height (the second is tf.image's default).
AREA = (0.05, 1.0)
ASPECT = (0.75, 1.33)

_EXIF, _ORIENTATION = b"Exif\0\0", 0x112
# In bytes: what is looked at, and how early it begins. In values: how many.
_EXIF_BYTES, _EXIF_START, _EXIF_ENTRIES = 4096, 64, 64
# Which orientations are mirrored upside down, and from left to right, after
# those above 4 have had rows and columns swapped.
_FLIPPED = (3, 4, 7, 8), (2, 3, 6, 7)


@functools.cache  # graphs call it too, and cannot import
def tensorflow():
    """Imports TensorFlow, which leaves the GPU to the backend."""
    tf = require("tensorflow")
    if keras.backend.backend() != "tensorflow":
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError:
            pass  # somebody used TensorFlow's devices before us
    return tf


def decode(encoded, channels):
    """Decodes a JPEG, PNG, BMP or GIF image, and returns pixels unchanged.

    A JPEG is turned as its EXIF data say. Of 16 bits the upper 8 are kept, of
    an animation the first picture. Alpha is left out, as if everything were
    opaque, but what is transparent in a GIF is black. CMYK becomes RGB, and
    images get the channels that are asked for.

    Args:
        encoded: String tensor; or pixels, a numeric tensor of shape
            `(height, width, channels)`.
        channels: 1 or 3.

    Returns:
        A uint8 tensor of shape `(height, width, channels)`, or the pixels.
    """
    tf = tensorflow()
    encoded = tf.convert_to_tensor(encoded)
    if encoded.dtype != tf.string:
        return encoded
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: upright(
            _of_jpeg(tf.io.decode_jpeg, encoded, channels), orientation(encoded)
        ),
        lambda: _decode_other(encoded, channels),
    )


def decode_random_area(encoded, channels, seed, window=None):
    """Decodes a random part, and of a JPEG nothing but this part.

    Args:
        encoded: String tensor, or pixels; see `decode`.
        channels: 1 or 3.
        seed: Two integers.
        window: Function of the image's shape and the seed that returns the
            part, such as `random_resized_window`; None for `random_window`.
    """
    tf = tensorflow()
    encoded = tf.convert_to_tensor(encoded)
    window_of = window or random_window

    def of_jpeg():
        window = window_of(tf.io.extract_jpeg_shape(encoded), seed)
        crop = functools.partial(tf.io.decode_and_crop_jpeg, crop_window=window)
        part = _of_jpeg(crop, encoded, channels)
        return upright(part, orientation(encoded))

    def crop_pixels(pixels):
        top, left, height, width = tf.unstack(window_of(tf.shape(pixels), seed))
        return pixels[top : top + height, left : left + width]

    if encoded.dtype != tf.string:
        return crop_pixels(encoded)
    return tf.cond(
        tf.io.is_jpeg(encoded),
        of_jpeg,
        lambda: crop_pixels(_decode_other(encoded, channels)),
    )


def orientation(encoded):
    """Returns EXIF's orientation of a JPEG: 1 to 8, where 1 is upright.

    Cameras write it among the first values of the first segments.
    """
    tf = tensorflow()
    content = tf.strings.substr(encoded, 0, _EXIF_BYTES)
    data = tf.cast(tf.io.decode_raw(content, tf.uint8), tf.int32)
    # So that what the file says of places is never outside.
    data = tf.pad(data, [[0, 2 * _EXIF_BYTES - tf.size(data)]])
    starts = tf.reduce_all(
        [data[i : _EXIF_START + i] == byte for i, byte in enumerate(_EXIF)], 0
    )

    def read():
        tiff = data[tf.argmax(starts) + len(_EXIF) :]
        # The order of bytes: "MM" or "II".
        is_big = tiff[0] == ord("M")
        order = tf.where(is_big, (256, 1), (1, 256))
        place = tf.where(is_big, tiff[6:8], tiff[4:6]) * order
        table = tiff[tf.minimum(tf.reduce_sum(place), _EXIF_BYTES // 2) :]
        count = tf.minimum(tf.reduce_sum(table[:2] * order), _EXIF_ENTRIES)
        rows = tf.reshape(table[2 : 2 + 12 * count], (-1, 12))
        tags, values = (
            tf.reduce_sum(rows[:, i : i + 2] * order, 1) for i in (0, 8)
        )
        found = tf.reduce_max(tf.where(tags == _ORIENTATION, values, 0))
        return tf.where((found >= 1) & (found <= 8), found, 1)

    return tf.cond(tf.reduce_any(starts), read, lambda: 1)


def upright(pixels, how):
    """Turns an image as its orientation says."""
    tf = tensorflow()

    def turned():
        x = tf.cond(
            how > 4, lambda: tf.transpose(pixels, (1, 0, 2)), lambda: pixels
        )
        flip = [tf.reduce_any(how == each) for each in _FLIPPED]
        axes = tf.where(flip)
        return tf.reverse(x, tf.cast(axes[:, 0], tf.int32))

    shape = pixels.shape
    return tf.ensure_shape(
        tf.cond(how == 1, lambda: pixels, turned), (None, None, shape[-1])
    )


def random_window(shape, seed):
    """Returns the top, left, height and width of a random part."""
    tf = tensorflow()
    # The channels are no part of the question, and may be none for CMYK.
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


def random_resized_window(shape, seed, scale):
    """Samples a part as torchvision's `RandomResizedCrop` does.

    Ten tries sample the area uniformly and the aspect ratio log-uniformly
    from 3/4 to 4/3. If no part fits the image, it is the largest one in its
    centre whose aspect ratio is in this range.

    Args:
        shape: Integers `(height, width, ...)`.
        seed: Two integers.
        scale: `(smallest, largest)` fraction of the area.

    Returns:
        Integers: the top, left, height and width.
    """
    tf = tensorflow()
    sides = tf.cast(shape[:2], tf.float32)
    low, high = 3 / 4, 4 / 3
    first, second = tf.unstack(
        tf.random.experimental.stateless_split(seed, 2), num=2
    )
    numbers = tf.random.stateless_uniform((10, 2), first)
    area = scale[0] + (scale[1] - scale[0]) * numbers[:, 0]
    area *= sides[0] * sides[1]
    aspect = tf.exp(
        math.log(low) + (math.log(high) - math.log(low)) * numbers[:, 1]
    )
    parts = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=1)
    parts = tf.round(parts)
    fits = tf.reduce_all((parts > 0) & (parts <= sides), axis=1)
    found = tf.reduce_any(fits)
    centre = tf.stack(
        [
            tf.minimum(sides[0], tf.round(sides[1] / low)),
            tf.minimum(sides[1], tf.round(sides[0] * high)),
        ]
    )
    part = tf.where(found, parts[tf.argmax(tf.cast(fits, tf.int32))], centre)
    room = sides - part
    at = tf.random.stateless_uniform((2,), second) * (room + 1)
    at = tf.where(found, tf.minimum(tf.floor(at), room), room // 2)
    return tf.cast(tf.concat([at, part], 0), tf.int32)


def _of_jpeg(read, encoded, channels):
    tf = tensorflow()
    if channels != 1:
        return read(encoded, channels=channels)
    # TensorFlow makes no grey of CMYK.
    found = tf.io.extract_jpeg_shape(encoded)[2]
    return tf.cond(
        (found == 1) | (found == 3),
        lambda: read(encoded, channels=1),
        lambda: tf.image.rgb_to_grayscale(read(encoded, channels=3)),
    )


def _decode_other(encoded, channels):
    tf = tensorflow()
    # TensorFlow refuses to convert some formats: a GIF, a BMP with alpha.
    pixels = tf.io.decode_image(encoded, expand_animations=False)
    colours = tf.shape(pixels)[-1] >= 3
    if channels == 1:
        pixels = tf.cond(
            colours,
            lambda: tf.image.rgb_to_grayscale(pixels[..., :3]),
            lambda: pixels[..., :1],
        )
    else:
        pixels = tf.cond(
            colours,
            lambda: pixels[..., :3],
            lambda: tf.repeat(pixels[..., :1], 3, axis=-1),
        )
    return tf.ensure_shape(pixels, (None, None, channels))
