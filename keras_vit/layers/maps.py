"""Layers of feature maps: from tokens, to a pyramid, to pixels."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers import _kernels
from keras_vit.layers._utils import axis_sizes, cast_inputs
from keras_vit.layers.composite import CompositeLayer, Layer
from keras_vit.layers.resampling import resample_maps
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor

# Output: number of positions along an axis for each of the input's.
_SCALES = {"P2": 4, "P3": 2, "P4": 1, "P5": 0.5}


@keras.saving.register_keras_serializable("keras_vit")
class FeatureMap(Layer):
    """Arranges the tokens of patches in the map of rows and columns from which they
    come.

    Args:
        num_prefix_tokens: Integer. Number of tokens before the patches, which
            are left out.

    Call arguments:
        inputs: Tokens of shape `(batch, num_prefix_tokens + rows * columns,
            hidden_size)`.
        grid: Tensor of shape `(batch, rows, columns, ...)` that the patches
            come from, such as the output of `PatchEmbedding`. Only its shape
            is used.

    Output shape:
        `(batch, rows, columns, hidden_size)`

    Raises:
        ValueError: if the number of tokens is not that of the grid.

    Example:

    >>> grid = keras_vit.layers.PatchEmbedding(768, 16)(images)
    >>> tokens = keras.ops.reshape(grid, (batch, -1, 768))
    >>> keras_vit.layers.FeatureMap()(tokens, grid).shape
    (1, 14, 14, 768)
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_prefix_tokens = checks.non_negative_int(
            "num_prefix_tokens", num_prefix_tokens
        )

    def build(self, inputs_shape: Shape, grid_shape: Shape) -> None:
        self.compute_output_shape(inputs_shape, grid_shape)

    def call(self, inputs: Tensor, grid: Tensor) -> Tensor:
        inputs = cast_inputs(self, inputs)
        self.compute_output_shape(inputs.shape, grid.shape)
        patches = inputs[:, self.num_prefix_tokens :]
        shape = (ops.shape(inputs)[0], *axis_sizes(grid, 1, 2))
        return ops.reshape(patches, (*shape, inputs.shape[-1]))

    def compute_output_shape(self, inputs_shape: Shape, grid_shape: Shape) -> Shape:
        checks.check_rank(self, inputs_shape, "(batch, length, channels)")
        batch, length, hidden_size = inputs_shape
        rows, columns = grid_shape[1:3]
        if None not in (rows, columns, length):
            expected = self.num_prefix_tokens + rows * columns
            if length != expected:
                raise ValueError(
                    f"FeatureMap expected {expected} tokens: "
                    f"{self.num_prefix_tokens} prefix tokens and a grid of "
                    f"{rows} x {columns} patches. Received: shape "
                    f"{tuple(inputs_shape)}"
                )
        return (batch, rows, columns, hidden_size)


@keras.saving.register_keras_serializable("keras_vit")
class SimpleFeaturePyramid(CompositeLayer):
    """Makes a feature pyramid from the last feature map of a Vision Transformer.

    A plain Vision Transformer has maps of one stride. Detectors need several:
    here, deconvolutions of stride 2 and a max pooling compute maps of 4, 2, 1
    and 1/2 times the rows and columns, which are of strides 4, 8, 16 and 32 if
    patches are of 16 pixels. A 1 x 1 and a 3 x 3 convolution follow, each with
    a layer norm over the channels.

    From "Exploring Plain Vision Transformer Backbones for Object Detection",
    Section 3 (https://arxiv.org/abs/2203.16527), with the details of its code
    in detectron2 (`SimpleFeaturePyramid`, `norm="LN"`).

    Args:
        filters: Integer. Number of channels of each map.
        norm_epsilon: Float above 0. Epsilon of the layer norms.
        levels: Names of the maps to compute, from those listed below.

    Call arguments:
        inputs: Feature map of shape `(batch, rows, columns, channels)`, such as
            the output of `dense_features(model, blocks=-1)`. The number of
            channels must be a multiple of 4, and there must be two rows and
            two columns or more.

    Output shape:
        Dict with the keys "P2", "P3", "P4" and "P5", or `levels`, and maps of shapes
        `(batch, 4 * rows, 4 * columns, filters)` to `(batch, rows // 2, columns // 2,
        filters)`.

    Raises:
        ValueError: if the shape of `inputs` is wrong.

    Example:

    >>> maps = keras_vit.dense_features(keras_vit.ViTB16(), blocks=-1)
    >>> pyramid = keras_vit.layers.SimpleFeaturePyramid(256)
    >>> pyramid(maps(np.zeros((1, 224, 224, 3))))["P3"].shape
    (1, 28, 28, 256)
    """

    def __init__(
        self,
        filters: int = 256,
        norm_epsilon: float = 1e-6,
        levels: Sequence[str] = tuple(_SCALES),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        chosen = [checks.one_of("levels", x, tuple(_SCALES)) for x in levels]
        self.levels = tuple(x for x in _SCALES if x in chosen)
        self.filters = checks.positive_int("filters", filters)
        self.norm_epsilon = checks.positive_float("norm_epsilon", norm_epsilon)

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        shape = (*input_shape[:3], channels)
        half = (*input_shape[:3], channels // 2)
        if "P2" in self.levels:
            self.p2_up_1 = self._deconvolution(channels // 2, "p2_up_1")
            self.p2_norm = self._norm("p2_norm")
            self.p2_up_2 = self._deconvolution(channels // 4, "p2_up_2")
            self.p2_up_1.build(shape)
            self.p2_norm.build(half)
            self.p2_up_2.build(half)
        if "P3" in self.levels:
            self.p3_up = self._deconvolution(channels // 2, "p3_up")
            self.p3_up.build(shape)
        widths = {"P2": channels // 4, "P3": channels // 2}
        self.heads = {}
        for level in self.levels:
            shape = (*input_shape[:3], widths.get(level, channels))
            head = []
            for number, size in ((1, 1), (2, 3)):
                name = f"{level.lower()}_conv_{number}"
                convolution = keras.layers.Conv2D(
                    self.filters,
                    size,
                    padding="same",
                    use_bias=False,
                    data_format="channels_last",
                    dtype=self.dtype_policy,
                    name=name,
                )
                norm = self._norm(f"{level.lower()}_norm_{number}")
                convolution.build(shape)
                shape = (*shape[:3], self.filters)
                norm.build(shape)
                head += [convolution, norm]
            self.heads[level] = head
        self.restore_sublayers()

    def _deconvolution(self, filters: int, name: str) -> keras.Layer:
        return keras.layers.Conv2DTranspose(
            filters,
            2,
            2,
            data_format="channels_last",
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name: str) -> keras.Layer:
        return _kernels.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def call(self, inputs: Tensor) -> dict[str, Tensor]:
        inputs = cast_inputs(self, inputs)
        maps = {}
        if "P2" in self.levels:
            twice = self.p2_norm(self.p2_up_1(inputs))
            maps["P2"] = self.p2_up_2(ops.gelu(twice, approximate=False))
        if "P3" in self.levels:
            maps["P3"] = self.p3_up(inputs)
        if "P4" in self.levels:
            maps["P4"] = inputs
        if "P5" in self.levels:
            maps["P5"] = ops.max_pool(inputs, 2, 2, data_format="channels_last")
        for level, head in self.heads.items():
            for layer in head:
                maps[level] = layer(maps[level])
        return maps

    def compute_output_shape(self, input_shape: Shape) -> dict[str, Shape]:
        checks.check_rank(self, input_shape, "(batch, rows, columns, channels)")
        batch, *grid, _ = input_shape
        if any(n is not None and n < 2 for n in grid):
            raise ValueError(
                "SimpleFeaturePyramid halves the rows and columns, so it "
                "needs two of each or more: give larger images. Received: "
                f"shape {tuple(input_shape)}"
            )
        return {
            level: (
                batch,
                *(None if n is None else int(n * _SCALES[level]) for n in grid),
                self.filters,
            )
            for level in self.levels
        }


@keras.saving.register_keras_serializable("keras_vit")
class UpsampleMap(Layer):
    """Resamples a feature map bilinearly to the pixels of its images.

    The map is enlarged by the stride, as by PyTorch's `interpolate` with
    `align_corners=False`, and cropped to the size of the images, which is
    smaller if these were padded to whole patches.

    Args:
        stride: Integer or `(rows, columns)`. Number of pixels from one position
            of the map to the next.

    Call arguments:
        inputs: Feature map of shape `(batch, rows, columns, channels)`.
        images: Tensor of shape `(batch, height, width, ...)`. Only its shape is
            used.

    Output shape:
        `(batch, height, width, channels)`

    Example:

    >>> logits = np.zeros((1, 14, 14, 21))
    >>> images = np.zeros((1, 224, 224, 3))
    >>> keras_vit.layers.UpsampleMap(16)(logits, images).shape
    (1, 224, 224, 21)
    """

    def __init__(self, stride: int | tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stride = checks.positive_pair("stride", stride)

    def build(self, inputs_shape: Shape, images_shape: Shape) -> None:
        self.compute_output_shape(inputs_shape, images_shape)

    def call(self, inputs: Tensor, images: Tensor) -> Tensor:
        self.compute_output_shape(inputs.shape, images.shape)
        height, width = axis_sizes(images, 1, 2)
        grid = axis_sizes(inputs, 1, 2)
        size = tuple(n * s for n, s in zip(grid, self.stride, strict=True))
        x = resample_maps(cast_inputs(self, inputs), size)
        return x[:, :height, :width]

    def compute_output_shape(self, inputs_shape: Shape, images_shape: Shape) -> Shape:
        checks.check_rank(self, inputs_shape, "(batch, rows, columns, channels)")
        grid, size = inputs_shape[1:3], images_shape[1:3]
        for count, pixels, stride in zip(grid, size, self.stride, strict=True):
            if None not in (count, pixels) and -(-pixels // stride) != count:
                raise ValueError(
                    f"UpsampleMap of stride {self.stride} needs the images from which "
                    f"the map was computed. Received: a map of {grid[0]} x {grid[1]} "
                    f"positions and images of {size[0]} x {size[1]} pixels"
                )
        return (inputs_shape[0], *size, inputs_shape[-1])
