"""Encoded images to pixels, with TensorFlow, whatever their format."""

import functools

import keras

from keras_vit.training._flags import require

# The published random part of an image, in shares of its area and as width
# by height (the second is tf.image's default).
AREA = (0.05, 1.0)
ASPECT = (0.75, 1.33)


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
    """Decodes a JPEG, PNG, BMP or GIF image.

    Of 16 bits the upper 8 are kept, of an animation the first picture. Alpha
    is left out, as if everything were opaque. CMYK becomes RGB, and grey
    images get the channels that are asked for.

    Args:
        encoded: String tensor.
        channels: 1 or 3.

    Returns:
        A uint8 tensor of shape `(height, width, channels)`.
    """
    tf = tensorflow()
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_jpeg(encoded, channels=channels),
        lambda: _decode_other(encoded, channels),
    )


def decode_random_area(encoded, channels, seed):
    """Decodes a random part, and of a JPEG nothing but this part."""
    tf = tensorflow()

    def of_jpeg():
        window = random_window(tf.io.extract_jpeg_shape(encoded), seed)
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=channels)

    def of_other():
        pixels = _decode_other(encoded, channels)
        top, left, height, width = tf.unstack(
            random_window(tf.shape(pixels), seed)
        )
        return pixels[top : top + height, left : left + width]

    return tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_other)


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


def _decode_other(encoded, channels):
    tf = tensorflow()
    if channels != 3:
        return _decode(encoded, channels)
    # TensorFlow refuses to convert some formats: a BMP with alpha.
    pixels = _decode(encoded, 0)
    pixels = tf.cond(
        tf.shape(pixels)[-1] >= 3,
        lambda: pixels[..., :3],
        lambda: tf.repeat(pixels[..., :1], 3, axis=-1),
    )
    return tf.ensure_shape(pixels, (None, None, 3))


def _decode(encoded, channels):
    return tensorflow().io.decode_image(
        encoded, channels=channels, expand_animations=False
    )
