"""Scaling of pixels: the `mode` of `preprocess_input`.

A mode is a mean and a standard deviation of pixels in [0, 1]. Those that
published weights share have a name.
"""

import contextlib
from typing import Any, TypeAlias

import numpy as np

from keras_vit.utils.types import Array, ArrayLike, Shape

Values: TypeAlias = tuple[float, ...]
# A name, or `(mean, std)`: one value for all channels, or one for each.
Mode: TypeAlias = str | tuple[Values, Values]
ModeLike: TypeAlias = str | tuple[ArrayLike, ArrayLike]

# "torch" is ImageNet, "clip" is clip.py of https://github.com/openai/CLIP
MODES: dict[str, tuple[Values, Values]] = {
    "tf": ((0.5,), (0.5,)),
    "torch": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    ),
}
MAX_CHANNELS = 16


def as_mode(mode: Any, mean: Any = None, std: Any = None, name: str = "mode") -> Mode:
    """Returns a mode, or that of a mean and a standard deviation if they are
    given: its name if it has one, otherwise a pair of tuples of floats."""
    if mean is not None or std is not None:
        mode = mean, std
    if isinstance(mode, str) and mode in MODES:
        return mode
    known, means, stds = False, np.empty(0), np.empty(0)
    with contextlib.suppress(TypeError, ValueError):
        pair = [np.atleast_1d(np.asarray(values)) for values in mode]
        found = np.array(np.broadcast_arrays(*pair))  # (2, channels)
        means, stds = found.astype("float64")
        known = found.dtype.kind in "iuf" and found.ndim == 2
        known = known and 0 < found.shape[1] <= MAX_CHANNELS
        known = bool(known and np.isfinite(found).all() and (stds > 0).all())
    if not (known and isinstance(mode, (tuple, list))):
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, MODES))}, or a mean and "
            "a standard deviation above 0 of pixels in [0, 1], `(mean, std)`: "
            f"numbers, or one for each of up to {MAX_CHANNELS} channels. "
            f"Received: {name}={mode!r:.200}"
            + ("; the file of the weights does not state it" if mode is None else "")
        )
    for known_name, values in MODES.items():
        count = len(values[0])
        if count in (1, len(means)) and np.allclose(
            found, np.array(values), rtol=0, atol=1e-6
        ):
            return known_name
    if (found == found[:, :1]).all():
        means, stds = means[:1], stds[:1]
    return tuple(means.tolist()), tuple(stds.tolist())


def mean_and_std(mode: Mode, channels: int = 1) -> tuple[Values, Values]:
    """Returns the mean and the standard deviation of a mode, one value for each
    of the channels of images, or one for all."""
    mean, std = MODES[mode] if isinstance(mode, str) else mode
    repeats = channels if len(mean) == 1 else 1
    return mean * repeats, std * repeats


def fits(mode: Mode, channels: int | None) -> bool:
    """Returns whether images of a mode may have this number of channels."""
    return len(mean_and_std(mode)[0]) in (1, channels)


def scale_and_shift(mode: Mode) -> tuple[Array | float, Array | float]:
    """Returns the numbers of `images / scale - shift`, for images in [0, 255]:
    floats if they are the same for all channels, otherwise arrays."""
    mean, std = (np.array(values) for values in mean_and_std(mode))
    scale, shift = 255 * std, mean / std
    if len(mean) == 1:
        return float(scale[0]), float(shift[0])
    return scale.astype("float32"), shift.astype("float32")


def scaled_channels(mode: Mode, shape: Shape) -> int | None:
    """Returns the number of channels, the last axis, of scaled images: that of
    a mode with a value for each channel if the images are gray.

    It raises a `ValueError` if they have neither one channel nor those of the
    mode; None stands for an unknown number.
    """
    count = len(mean_and_std(mode)[0])
    channels = shape[-1] if shape else None
    if count == 1:
        return channels
    if not shape or channels not in (None, 1, count):
        raise ValueError(
            f"`mode={mode!r}` is for images of {count} channels, or of one that is "
            "repeated, channels last. Give `(mean, std)` with one value for each "
            f"channel of others. Received: images of shape {tuple(shape)}"
        )
    return count
