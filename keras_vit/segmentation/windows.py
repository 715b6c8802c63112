"""Segmentation of large images window by window."""

import keras
import numpy as np

from keras_vit.utils import checks
from keras_vit.utils.types import Array, ArrayLike


def sliding_window(
    model: keras.Model,
    image: ArrayLike,
    window: int | tuple[int, int],
    stride: int | tuple[int, int],
    batch_size: int = 4,
    argmax: bool = False,
) -> Array:
    """Segments an image of any size by overlapping windows.

    The model is applied to windows of the size that it was trained on, and the
    logits of pixels in several windows are averaged. The last window of a row
    or column of windows ends at the border of the image. Memory does not grow
    with the number of windows; with `argmax=True`, logits are kept for one row
    of windows only.

    Args:
        model: `keras.Model` that maps images `(batch, height, width,
            channels)` to logits `(batch, height, width, classes)`, such as
            `LinearSegmenter`.
        image: Array of shape `(height, width, channels)`.
        window: Integer or `(height, width)`. Size of a window in pixels. Along an axis
            on which the image is smaller, a window has the image's size, which the
            model must then accept.
        stride: Integer or `(down, right)`. Distance between two windows in pixels, at
            most the size of a window.
        batch_size: Integer. Number of windows processed together.
        argmax: Boolean. Whether to return classes instead of logits.

    Returns:
        Array of logits of shape `(height, width, classes)`, or of classes of
        shape `(height, width)`.

    Raises:
        ValueError: if an argument is wrong, or the model does not return a map
            of the size of a window.

    Example:

    >>> logits = keras_vit.segmentation.sliding_window(
    ...     model, photo, window=512, stride=384)
    """
    image = np.asarray(image)
    window = checks.positive_pair("window", window)
    stride = checks.positive_pair("stride", stride)
    batch_size = checks.positive_int("batch_size", batch_size)
    if any(s > w for s, w in zip(stride, window, strict=True)):
        raise ValueError(
            "`stride` must be at most `window`, or pixels between windows "
            f"would have no class. Received: stride={stride}, window={window}"
        )
    height, width, _ = image.shape
    window = min(window[0], height), min(window[1], width)
    tops = _starts(height, window[0], stride[0])
    lefts = _starts(width, window[1], stride[1])
    result = logits = counts = np.empty(0)
    done = 0  # rows that are finished
    for top, next_top in zip(tops, [*tops[1:], height], strict=True):
        rows = slice(top, top + window[0])
        for first in range(0, len(lefts), batch_size):
            some = lefts[first : first + batch_size]
            windows = [image[rows, left : left + window[1]] for left in some]
            outputs = model.predict_on_batch(np.stack(windows))
            outputs = np.asarray(outputs, "float32")
            if outputs.ndim != 4 or outputs.shape[1:3] != window:
                raise ValueError(
                    f"The model {model.name!r} must return logits for each "
                    f"pixel, of shape (batch, {window[0]}, {window[1]}, "
                    f"classes). Received: shape {outputs.shape}"
                )
            if not logits.size:
                classes = outputs.shape[-1]
                logits = np.zeros((window[0], width, classes), "float32")
                counts = np.zeros((window[0], width, 1), "float32")
                shape = (height, width) if argmax else (height, width, classes)
                result = np.empty(shape, "int64" if argmax else "float32")
            for left, output in zip(some, outputs, strict=True):
                logits[:, left : left + window[1]] += output
                counts[:, left : left + window[1]] += 1
        # The next windows do not reach these rows.
        count = next_top - top if next_top < height else window[0]
        finished = result[done : done + count]
        if argmax:
            finished[:] = np.argmax(logits[:count], axis=-1)
        else:
            np.divide(logits[:count], counts[:count], out=finished)
        done += count
        for buffer in (logits, counts):
            for row in range(window[0] - count):  # without a second buffer
                buffer[row] = buffer[row + count]
            buffer[window[0] - count :] = 0
    return result


def _starts(size: int, window: int, stride: int) -> list[int]:
    """Returns the first pixels of windows that cover an axis."""
    return [*range(0, size - window, stride), size - window]
