"""Resizing and scaling of images inside a model."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers._utils import axis_sizes
from keras_vit.layers.composite import Layer
from keras_vit.layers.resampling import resampling_matrix
from keras_vit.utils import checks
from keras_vit.utils.scaling import ModeLike, as_mode, scale_and_shift, scaled_channels
from keras_vit.utils.types import ArrayLike, Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class ImagePreprocessing(Layer):
    """Resizes images and scales their values for pretrained models.

    The whole image is resized, so that its aspect ratio changes unless it equals that
    of `image_size`. Resizing is bilinear with antialiasing, as in Pillow: the result
    equals Pillow's, except for Pillow's rounding to integers. Resizing consists of two
    matrix products, which all export formats support. Values are scaled as by
    `keras_vit.preprocess_input`.

    The layer computes in float32 and returns a tensor of its policy's compute dtype.

    Args:
        image_size: `(height, width)` of the output, or an integer for both.
            None keeps the size of the images.
        mode: String, or `(mean, std)`. The `mode` of
            `keras_vit.preprocess_input`: "tf" for [-1, 1], "torch" for
            ImageNet's mean and standard deviation, "clip" for CLIP's, or others.
        mean: Like `std`, an argument of `keras_vit.preprocess_input`. Both together
            replace `mode`.
        std: See `mean`.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, integers or
            floats in [0, 255]. They are not checked.

    Output shape:
        `(batch, *image_size, channels)`. If the mode has a value for each channel,
        images of one channel are repeated to the mode's number of channels.

    Raises:
        ValueError: if `mode` is unknown or wrong, or is for another number of
            channels.

    Example:

    >>> layer = keras_vit.layers.ImagePreprocessing((224, 224))
    >>> layer(np.zeros((1, 300, 400, 3), "uint8")).shape
    (1, 224, 224, 3)
    """

    def __init__(
        self,
        image_size: int | tuple[int, int] | None = None,
        mode: ModeLike = "tf",
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        **kwargs: Any,
    ) -> None:
        # Without autocast, so that pixels are not rounded to half precision.
        super().__init__(autocast=False, **kwargs)
        if image_size is not None:
            image_size = checks.positive_pair("image_size", image_size)
        self.image_size = image_size
        self.mode = as_mode(mode, mean, std)

    def get_config(self) -> Config:
        # `mode` has the mean and the standard deviation.
        config = {"image_size": self.image_size, "mode": self.mode}
        return {**keras.layers.Layer.get_config(self), **config}

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        images = ops.cast(inputs, "float32")
        if self.image_size is not None:
            for axis, (letter, new) in enumerate(
                zip("hw", self.image_size, strict=True), start=1
            ):
                (old,) = axis_sizes(images, axis)
                if isinstance(old, int) and old == new:
                    continue
                matrix = resampling_matrix(old, new, "bilinear_antialias")
                matrix = ops.cast(matrix, "float32")  # (new, old)
                output = "bhwc".replace(letter, "n")
                images = ops.einsum(f"n{letter},bhwc->{output}", matrix, images)
        scale, shift = scale_and_shift(self.mode)
        images = images / ops.cast(scale, "float32")
        return ops.cast(images - ops.cast(shift, "float32"), self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        checks.check_rank(self, input_shape, "(batch, height, width, channels)")
        batch, *image_size, _ = input_shape
        channels = scaled_channels(self.mode, input_shape)
        return (batch, *(self.image_size or image_size), channels)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(
            self.compute_output_shape(inputs.shape), self.compute_dtype
        )
