import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _patch_grid


@keras.saving.register_keras_serializable("keras_vit")
class Patches(keras.Layer):
    """Cuts images into patches and flattens each: the paper's `x_p`.

    Patches run row by row, and inside a patch the order is row, column,
    channel. A `Dense` layer on the result is the same linear map as
    `PatchEmbedding`, which does both in one convolution.

    From "An Image is Worth 16x16 Words", Section 3.1
    (https://arxiv.org/abs/2010.11929).

    Args:
        patch_size: Integer or `(rows, columns)`, in pixels.
        pad_to_patch: Boolean. Whether to accept images that the patch does
            not divide, adding zeros at the bottom and at the right.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, num_patches, patch_rows * patch_columns * channels)`

    Raises:
        ValueError: if the patch does not divide the image and `pad_to_patch`
            is False.

    Example:

    >>> keras_vit.layers.Patches(16)(np.zeros((1, 224, 224, 3))).shape
    (1, 196, 768)
    """

    def __init__(self, patch_size, pad_to_patch=False, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = _checks.positive_pair("patch_size", patch_size)
        self.pad_to_patch = pad_to_patch

    def build(self, input_shape):
        self.compute_output_shape(input_shape)

    def call(self, inputs):
        images = _patch_grid.fit(inputs, self.patch_size, self.pad_to_patch)
        height, width = _patch_grid.size_of(images, 1, 2)
        p, q = self.patch_size
        rows, columns, channels = height // p, width // q, images.shape[-1]
        batch = ops.shape(images)[0]
        x = ops.reshape(images, (batch, rows, p, columns, q, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # (B, rows, columns, p, q, C)
        return ops.reshape(x, (batch, rows * columns, p * q * channels))

    def compute_output_shape(self, input_shape):
        _checks.rank(
            "Patches", input_shape, 4, "(batch, height, width, channels)"
        )
        batch, *image_size, channels = input_shape
        rows, columns = _patch_grid.grid_size(
            image_size, self.patch_size, self.pad_to_patch
        )
        known = rows is not None and columns is not None
        area = self.patch_size[0] * self.patch_size[1]
        return (
            batch,
            rows * columns if known else None,
            None if channels is None else area * channels,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "patch_size": self.patch_size,
            "pad_to_patch": self.pad_to_patch,
        }
