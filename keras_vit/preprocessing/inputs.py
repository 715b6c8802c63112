"""Scaling of images for pretrained models."""

import sys

import keras
import numpy as np
from keras import ops

from keras_vit.utils.scaling import ModeLike, as_mode, scale_and_shift, scaled_channels
from keras_vit.utils.types import Array, ArrayLike, Tensor
from keras_vit.utils.warnings import warn

# Resizing float images in [0, 255] can return 255.00003.
_TOLERANCE = 1e-3


def preprocess_input(
    images: Tensor,
    mode: ModeLike = "tf",
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
) -> Tensor:
    """Scales images with values in [0, 255] for pretrained models.

    - `mode="tf"` scales to [-1, 1]: `images / 127.5 - 1`. All weights by
      Google require it: those of "An Image is Worth 16x16 Words"
      (https://arxiv.org/abs/2010.11929) and of "How to train your ViT?"
      (https://arxiv.org/abs/2106.10270).
    - `mode="torch"` scales to [0, 1], subtracts ImageNet's mean (0.485,
      0.456, 0.406) and divides by its standard deviation (0.229, 0.224,
      0.225). The weights by Meta (DeiT, DINOv2 and MAE) require it.
    - `mode="clip"` does the same with CLIP's mean and standard deviation.
    - `mean=, std=` does the same with other values: `(images / 255 - mean) / std`.

    Images of one channel are repeated to the three channels of ImageNet's or CLIP's
    mean.

    For released weights, `model.preprocess_mode` is the right mode. With the wrong
    mode, or with images in [0, 1], a pretrained model raises no error but is less
    accurate.

    The function also works inside `tf.data.Dataset.map` with every backend,
    and on the symbolic inputs of a functional model.

    Args:
        images: NumPy array, tensor of any backend or `KerasTensor`, of any
            shape, channels last: integers or floats in [0, 255]. It is not
            modified.
        mode: "tf" for [-1, 1], "torch" for ImageNet's mean and standard
            deviation, "clip" for CLIP's, or a pair of other values, `(mean, std)`.
        mean: Mean of pixels in [0, 1]: a number, or one number for each of up to 16
            channels. With `std`, it replaces `mode`.
        std: Standard deviation of pixels in [0, 1], above 0; a number or one for each
            channel, like `mean`.

    Returns:
        The images in float32, of the same shape: a NumPy array for a NumPy
        array, otherwise a tensor of the same library. If the mode has a value for each
        channel, images of one channel are repeated to the mode's number of channels.
        Values are in [-1, 1] for "tf" (in compiled code, 255 may become 1.0000001), and
        in [-3, 3] for "torch" and "clip".

    Raises:
        ValueError: if `images` is not an array or tensor of real numbers, or
            `mode` is wrong or for another number of channels. Also if a value is
            NaN, below 0 or above 255: this is checked for NumPy arrays and for
            tensors in CPU memory, but not for symbolic tensors, as in
            `tf.data.Dataset.map`, or for tensors on another device.

    Warns:
        UserWarning: if checked floats seem to be in [0, 1]: no value is above
            1, and some are between 0 and 1.

    Example:

    >>> image = np.array([[[0, 51, 255]]], dtype="uint8")
    >>> keras_vit.preprocessing.preprocess_input(image)
    array([[[-1. , -0.6,  1. ]]], dtype=float32)
    """
    mode = as_mode(mode, mean, std)
    try:
        dtype = keras.backend.standardize_dtype(images.dtype)
    except (AttributeError, ValueError):
        dtype = "none"
    if not dtype.startswith(("int", "uint", "float", "bfloat")):
        raise ValueError(
            "`images` must be a NumPy array or a tensor of integers or floats "
            "in [0, 255]; read files with `keras.utils.load_img`. Received: "
            f"{type(images).__name__} of type {dtype}"
        )
    scale, shift = scale_and_shift(mode)
    if isinstance(scale, np.ndarray):
        scaled_channels(mode, images.shape)
    if isinstance(images, (np.ndarray, np.generic)):
        images = np.asarray(images)
        _check_values(images)
        scaled = np.asarray(images.astype("float32") / scale)
        scaled -= shift
        return scaled
    values = _as_numpy_view(images)
    if values is not None:
        _check_values(values)
    images = _to_float32(images)
    if isinstance(scale, np.ndarray) and hasattr(images, "new_tensor"):
        # PyTorch does not combine NumPy arrays with tensors on a GPU.
        scale, shift = images.new_tensor(scale), images.new_tensor(shift)
    return images / scale - shift


def _to_float32(images: Tensor) -> Tensor:
    """Casts a tensor to float32 with its own library."""
    if isinstance(images, keras.KerasTensor) or ops.is_tensor(images):
        return ops.cast(images, "float32")
    # The tensor is not of the backend: input pipelines often use TensorFlow
    # or PyTorch. `sys.modules` suffices, since the library of the tensor has
    # been imported.
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.is_tensor(images):
        return tensorflow.cast(images, "float32")
    if hasattr(images, "astype"):
        return images.astype("float32")
    return images.float()


def _as_numpy_view(images: Tensor) -> Array | None:
    """Returns a NumPy view of a tensor in CPU memory, or None."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        return None
    try:
        return np.from_dlpack(images)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return None


def _check_values(images: Array) -> None:
    """Raises for values outside [0, 255], and warns of those in [0, 1]."""
    if images.dtype == "uint8" or images.size == 0:
        return
    with np.errstate(invalid="ignore"):
        lowest, highest = float(images.min()), float(images.max())
    # Comparisons with NaN are false, so that NaN raises too.
    if not (lowest >= -_TOLERANCE and highest <= 255 + _TOLERANCE):
        raise ValueError(
            "`images` must have values in [0, 255], and no NaN. Images "
            "in [-1, 1], or standardized, must not be preprocessed again. "
            "After a bicubic or Lanczos resize, use "
            "`np.clip(images, 0, 255)`. "
            f"Received: values from {lowest:g} to {highest:g}"
        )
    if highest <= 1 and ((images > 0) & (images < 1)).any():
        # The text is constant, so that Python's default filter shows the
        # warning once per line of the caller, not once per image.
        warn(
            "`preprocess_input` expects values in [0, 255] and received "
            "floats in [0, 1], which become values close to -1. If they were "
            "scaled before, pass `images * 255`, or drop the earlier scaling.",
        )
