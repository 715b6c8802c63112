import sys

import keras
import numpy as np
from keras import ops

from keras_vit._warnings import warn
from keras_vit.preprocessing import _dtypes

# A float resize of pixels in [0, 255] can end at 255.00003.
ROUNDING = 1e-3

# Images / scale - shift.
_MEAN = np.array([0.485, 0.456, 0.406])
_STD = np.array([0.229, 0.224, 0.225])
_SCALES = {
    "tf": (127.5, 1.0),
    "torch": (
        (255 * _STD).astype("float32"),
        (_MEAN / _STD).astype("float32"),
    ),
}


def preprocess_input(images, mode="tf"):
    """Scales images from [0, 255] to what pretrained models expect.

    With `mode="tf"` that is [-1, 1]: `images / 127.5 - 1`. All of Google's
    weights were trained so, those of "An Image is Worth 16x16 Words"
    (https://arxiv.org/abs/2010.11929) and of "How to train your ViT?"
    (https://arxiv.org/abs/2106.10270): mean 0.5 and standard deviation 0.5 of
    images in [0, 1], in every channel. With `mode="torch"` it is ImageNet's
    mean (0.485, 0.456, 0.406) and standard deviation (0.229, 0.224, 0.225):
    Meta's weights, DeiT, DINOv2 and MAE. `keras_vit.list_weights()` tells
    which. With the wrong one, or with [0, 1], a pretrained model still runs
    and is silently less accurate.

    It also works inside `tf.data.Dataset.map` under every backend, and on
    the symbolic inputs of a functional model.

    Args:
        images: NumPy array, tensor of any of the backends or `KerasTensor`,
            of any shape, channels last, values in [0, 255]: integers or
            floats. It is left as it is.
        mode: "tf" for [-1, 1] or, for images of three channels, "torch" for
            ImageNet's mean and standard deviation.

    Returns:
        The images as float32, values in [-1, 1] (compiled, 255 may come out
        as 1.0000001), or within 3 of 0 for "torch", in the same shape: a
        NumPy array for a NumPy array, otherwise a tensor of the same library.

    Raises:
        ValueError: if `images` is not an array or tensor of real numbers, or
            `mode` is another.
            Also if a value is NaN, below 0 or above 255, of a NumPy array or
            of a tensor in the CPU's memory. Other values are not looked at:
            they are not known yet, as in `tf.data.Dataset.map`, or are on
            another device.

    Warns:
        UserWarning: if floats that are looked at seem to be in [0, 1]: no
            value is above 1, and some are between 0 and 1.

    Example:

    >>> image = np.array([[[0, 51, 255]]], dtype="uint8")
    >>> keras_vit.preprocessing.preprocess_input(image)
    array([[[-1. , -0.6,  1. ]]], dtype=float32)
    """
    if mode not in _SCALES:
        raise ValueError(
            f"`mode` must be 'tf' or 'torch'. Received: mode={mode!r}"
        )
    if not _dtypes.is_numeric(images):
        raise _not_images(images)
    if mode == "torch" and tuple(images.shape)[-1:] != (3,):
        raise ValueError(
            "`mode='torch'` is for images of three channels, channels last. "
            f"Received: images of shape {tuple(images.shape)}"
        )
    scale, shift = _SCALES[mode]
    if isinstance(images, (np.ndarray, np.generic)):
        images = np.asarray(images)
        _check_values(images)
        scaled = images.astype("float32")
        scaled /= scale
        scaled -= shift
        return scaled
    values = _values(images)
    if values is not None:
        _check_values(values)
    images = _to_float32(images)
    if mode == "torch" and hasattr(images, "new_tensor"):
        # PyTorch takes no NumPy arrays into its arithmetic on other devices.
        scale, shift = images.new_tensor(scale), images.new_tensor(shift)
    return images / scale - shift


def _to_float32(images):
    """Casts a tensor, with the library that it belongs to."""
    if isinstance(images, keras.KerasTensor) or ops.is_tensor(images):
        return ops.cast(images, "float32")
    # Another library's tensor: an input pipeline may well run in TensorFlow
    # or PyTorch while Keras runs on something else. If it is TensorFlow's,
    # then TensorFlow is already imported; it is never imported from here.
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.is_tensor(images):
        return tensorflow.cast(images, "float32")
    for method, arguments in (("astype", ("float32",)), ("float", ())):
        if hasattr(images, method):
            return getattr(images, method)(*arguments)
    raise _not_images(images)


def _values(images):
    """Returns an array in the memory of a tensor; None if that is not the
    CPU's, or there are no values yet."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        return None
    try:
        return np.from_dlpack(images)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return None


def _not_images(images):
    return ValueError(
        "`images` must be a NumPy array or a tensor of integers or floats in "
        "[0, 255]. Turn lists and images of other libraries into arrays "
        "first, `np.asarray(images)`, and read files with "
        f"`keras.utils.load_img`. Received: {_dtypes.describe(images)}"
    )


def _check_values(images):
    if images.dtype == "uint8" or images.size == 0:
        return
    with np.errstate(invalid="ignore"):
        lowest, highest = float(images.min()), float(images.max())
    # Comparisons with NaN are false: this refuses NaN too.
    if not (lowest >= -ROUNDING and highest <= 255 + ROUNDING):
        raise ValueError(
            "`images` must have values in [0, 255], none of them NaN. Images "
            "in [-1, 1], or with mean and deviation already applied, must "
            "not be preprocessed again; values that a bicubic or Lanczos "
            "resize threw past the ends are mended with "
            "`np.clip(images, 0, 255)`. "
            f"Received: values from {lowest:g} to {highest:g}"
        )
    if highest <= 1 and ((images > 0) & (images < 1)).any():
        # The text is the same each time, so that Python's usual filter shows
        # it once for a line of the caller's and not once an image.
        warn(
            "`preprocess_input` takes values in [0, 255] and received floats "
            "that all lie in [0, 1]: they seem to be scaled already, and "
            "would all come out close to -1. Pass `images * 255` instead, "
            "or drop the earlier scaling.",
        )
