"""Layers that split images into patches."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers import initializers
from keras_vit.layers._utils import (
    axis_sizes,
    call_channels_last,
    cast_inputs,
    is_static,
)
from keras_vit.layers.composite import Layer, NumberedLayer
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class Patches(Layer):
    """Splits images into patches and flattens each patch: the paper's `x_p`.

    Patches are in row-major order; the values of a patch are ordered by row,
    column and channel. A `Dense` layer applied to the output is the same linear
    map as `PatchEmbedding`, which computes both in one convolution.

    From "An Image is Worth 16x16 Words", Section 3.1
    (https://arxiv.org/abs/2010.11929).

    Args:
        patch_size: Integer or `(rows, columns)`, in pixels.
        pad_to_patch: Boolean. Whether to pad images whose size is not a
            multiple of the patch size with zeros at the bottom and at the right.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, num_patches, patch_rows * patch_columns * channels)`

    Raises:
        ValueError: if the patch size does not divide the image size and
            `pad_to_patch` is False.

    Example:

    >>> keras_vit.layers.Patches(16)(np.zeros((1, 224, 224, 3))).shape
    (1, 196, 768)
    """

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        pad_to_patch: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.patch_size = checks.positive_pair("patch_size", patch_size)
        self.pad_to_patch = pad_to_patch

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        inputs = cast_inputs(self, inputs)
        images = _pad_or_check(inputs, self.patch_size, self.pad_to_patch)
        height, width = axis_sizes(images, 1, 2)
        p, q = self.patch_size
        rows, columns, channels = height // p, width // q, images.shape[-1]
        batch = ops.shape(images)[0]
        x = ops.reshape(images, (batch, rows, p, columns, q, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # (B, rows, columns, p, q, C)
        return ops.reshape(x, (batch, rows * columns, p * q * channels))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        checks.check_rank(self, input_shape, "(batch, height, width, channels)")
        batch, *image_size, channels = input_shape
        rows, columns = grid_size(image_size, self.patch_size, self.pad_to_patch)
        area = self.patch_size[0] * self.patch_size[1]
        return (
            batch,
            None if rows is None or columns is None else rows * columns,
            None if channels is None else area * channels,
        )


@keras.saving.register_keras_serializable("keras_vit")
class MixedSizes(Layer):
    """Prepares patches of images of several sizes for the layers of a model made by
    `keras_vit.mixed_sizes`, whose docstring names the papers.

    Args:
        patch_size: Integer or `(rows, columns)`, in pixels.
        num_prefix_tokens: Integer. Number of tokens that the model inserts
            before the patches.

    Call arguments:
        patches: Tensor of shape `(batch, length, patch_rows * patch_columns *
            channels)`. The values of a patch are ordered as by `Patches`.
        coordinates: Integers of shape `(batch, length, 2)`: the row and the
            column of each patch in the grid of its image, from 0. The grid is
            as large as the largest row and column require.
        valid: Booleans of shape `(batch, length)`, False for padding, whose values and
            coordinates are ignored. Padding may be at any place.

    Output shape:
        A tuple: `(batch, length * patch_rows, patch_columns, channels)`, the
        patches one below the other, zero where they are padding; `(batch,
        length, 4)`, the row and the column of each patch, and the numbers of
        rows and columns of its image; and `(batch, 1, num_prefix_tokens +
        length)`, the mask of the attention.

    Example:

    >>> layer = keras_vit.layers.MixedSizes(16, num_prefix_tokens=1)
    >>> images, places, mask = layer(*keras_vit.data.pack_images(photos, 16))
    """

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        num_prefix_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.patch_size = checks.positive_pair("patch_size", patch_size)
        self.num_prefix_tokens = checks.non_negative_int(
            "num_prefix_tokens", num_prefix_tokens
        )

    def build(self, patches_shape: Shape, **others: Shape) -> None:
        p, q = self.patch_size
        if len(patches_shape) != 3 or patches_shape[-1] % (p * q):
            raise ValueError(
                f"MixedSizes expected patches of shape (batch, length, {p} * "
                f"{q} * channels), as `keras_vit.data.pack_images` makes. "
                f"Received: shape {tuple(patches_shape)}"
            )

    def call(
        self, patches: Tensor, coordinates: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, size = ops.shape(patches)
        p, q = self.patch_size
        valid = ops.cast(valid, "bool")
        # Padding has no effect on outputs and gradients, even if it is NaN.
        images = ops.where(valid[..., None], patches, 0)
        images = ops.cast(images, self.compute_dtype)
        images = ops.reshape(images, (batch, length * p, q, size // (p * q)))
        places = ops.cast(coordinates, "int32")
        places = ops.where(valid[..., None], places, 0)
        sizes = ops.max(places, axis=1, keepdims=True, initial=0) + 1
        sizes = ops.broadcast_to(sizes, ops.shape(places))
        places = ops.concatenate([places, sizes], axis=-1)
        prefix = ops.ones((batch, self.num_prefix_tokens), "bool")
        mask = ops.concatenate([prefix, valid], axis=1)[:, None]
        return images, places, mask


@keras.saving.register_keras_serializable("keras_vit")
class PatchEmbedding(NumberedLayer):
    """Projects each patch of an image to a vector with one convolution.

    Kernel size and stride equal the patch size, so the layer is equivalent to `Patches`
    followed by `Dense`. The output keeps the grid of rows and columns, from which
    position embeddings take its size; reshape it to `(batch, num_patches, hidden_size)`
    for the encoder. Channels are last, regardless of Keras's `image_data_format`.

    From "An Image is Worth 16x16 Words", Section 3.1, Equation 1
    (https://arxiv.org/abs/2010.11929).

    Args:
        hidden_size: Integer. Number of output channels.
        patch_size: Integer or `(rows, columns)`, in pixels of the image or
            positions of the feature map.
        use_bias: Boolean. Whether to add a bias.
        pad_to_patch: Boolean. Whether to pad images whose size is not a
            multiple of the patch size with zeros at the bottom and at the right.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, in
            [-1, 1] for pretrained weights (see `preprocess_input`).

    Output shape:
        `(batch, rows, columns, hidden_size)`

    Raises:
        ValueError: if the patch size does not divide the image size and
            `pad_to_patch` is False.

    Example:

    >>> keras_vit.layers.PatchEmbedding(768, 16)(np.zeros((1, 224, 224, 3))).shape
    (1, 14, 14, 768)
    """  # noqa: E501

    def __init__(
        self,
        hidden_size: int,
        patch_size: int | tuple[int, int],
        use_bias: bool = True,
        pad_to_patch: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size = checks.positive_int("hidden_size", hidden_size)
        self.patch_size = checks.positive_pair("patch_size", patch_size)
        self.use_bias = use_bias
        self.pad_to_patch = pad_to_patch

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        self.kernel = self.add_weight(
            shape=(*self.patch_size, channels, self.hidden_size),
            initializer=initializers.lecun_normal(
                math.prod(self.patch_size) * channels
            ),
            name="kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.hidden_size,),
                initializer="zeros",
                name="bias",
            )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, inputs: Tensor) -> Tensor:
        images = _pad_or_check(
            cast_inputs(self, inputs),
            self.patch_size,
            self.pad_to_patch,
            channels=self.kernel.shape[2],
        )
        x = call_channels_last(
            ops.conv,
            images,
            self.kernel,
            strides=self.patch_size,
            padding="valid",
        )
        return x + self.bias if self.use_bias else x

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        checks.check_rank(self, input_shape, "(batch, height, width, channels)")
        grid = grid_size(input_shape[1:3], self.patch_size, self.pad_to_patch)
        return (input_shape[0], *grid, self.hidden_size)


def grid_size(
    image_size: Sequence[int | None],
    patch_size: tuple[int, int],
    pad_to_patch: bool = False,
) -> tuple[int | None, ...]:
    """Returns the rows and columns of patches in an image of `(height, width)`
    pixels, None for an unknown size; raises a `ValueError` if the patch does
    not divide a known size and the image is not padded."""
    if not pad_to_patch:
        _check_divisible(image_size, patch_size)
    return tuple(
        None if size is None else -(-size // patch)
        for size, patch in zip(image_size, patch_size, strict=True)
    )


def _pad_or_check(
    images: Tensor,
    patch_size: tuple[int, int],
    pad_to_patch: bool,
    channels: int | None = None,
) -> Tensor:
    """Returns images (B, H, W, C) whose sizes are multiples of the patch size.

    With `pad_to_patch`, pads with zeros at the bottom and at the right.
    Otherwise checks the sizes. Sizes that are known only when the graph runs
    (TensorFlow, with an input of unknown size) are checked by a reshape, which
    fails: a strided convolution would silently drop the last rows and columns.

    `channels` is the number of channels, if the layer knows it: the images of a
    TensorFlow graph lose it after others with a different number were traced.
    """
    channels = channels or images.shape[-1]
    height, width = axis_sizes(images, 1, 2)
    if pad_to_patch:
        for axis, (size, patch) in enumerate(
            zip((height, width), patch_size, strict=True), start=1
        ):
            pad_size = (-size) % patch
            if not isinstance(pad_size, int) or pad_size:
                shape = list(ops.shape(images))
                shape[axis] = pad_size
                zeros = ops.zeros(shape, dtype=images.dtype)
                images = ops.concatenate([images, zeros], axis=axis)
        return images
    if is_static((height, width)):
        _check_divisible((height, width), patch_size)
        return images
    rows, columns = height // patch_size[0], width // patch_size[1]
    size = (rows * patch_size[0], columns * patch_size[1])
    # With -1 as the batch size, the reshape could move pixels into the batch
    # axis.
    shape = (ops.shape(images)[0], *size, channels)
    return ops.reshape(images, shape)


def _check_divisible(
    image_size: Sequence[int | None], patch_size: tuple[int, int]
) -> None:
    for size, patch in zip(image_size, patch_size, strict=True):
        if size is not None and (size % patch or size <= 0):
            below, above = size // patch * patch, -(-size // patch) * patch
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"A patch of {patch_size[0]} x {patch_size[1]} pixels does "
                "not divide an image, or a ResNet's feature map, of "
                f"{image_size[0]} x {image_size[1]}: "
                f"{size} is not a multiple of {patch}. Resize the image "
                f"({near} would work in place of {size}), choose another "
                f"`patch_size`, or set `pad_to_patch=True` to add zeros at "
                f"the bottom and at the right."
            )
