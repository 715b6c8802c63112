"""Layers of the ResNets in hybrid models and in BiT."""

import functools
import itertools
import math
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
from keras_vit.layers.composite import CompositeLayer, Layer
from keras_vit.utils import checks
from keras_vit.utils.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class StdConv2D(Layer):
    """Applies a 2-D convolution with weight standardization and without bias.

    Each filter is shifted and scaled to mean 0 and variance 1 over its rows,
    columns and input channels. The variable stores the kernel before
    standardization, whose mean and variance are computed in at least float32,
    also under mixed precision. Channels are last, regardless of Keras's
    `image_data_format`.

    From "Micro-Batch Training with Batch-Channel Normalization and Weight
    Standardization" (https://arxiv.org/abs/1903.10520), as in BiT
    (https://arxiv.org/abs/1912.11370, Section 3.3).

    Args:
        filters: Integer. Number of output channels.
        kernel_size: Integer or `(rows, columns)`. Size of the kernel.
        strides: Integer or `(rows, columns)`. Strides of the convolution.
        padding: String. "same" (TensorFlow's: if the number of zeros is odd, the
            additional one is at the bottom or right), "symmetric" (half a kernel on
            each side, regardless of the strides) or "valid" (none).
        epsilon: Float above 0. Added to the denominator.
        epsilon_place: String. "std" divides by `std + epsilon`
            (google-research/vision_transformer), "variance" by
            `sqrt(variance + epsilon)` (BiT, timm).

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), filters)`; with
        "valid" padding, `height - kernel_size + 1` in place of `height`, and
        `width` likewise.

    Raises:
        ValueError: if an argument is wrong, or the number of channels is
            unknown.

    Example:

    >>> layer = keras_vit.layers.StdConv2D(64, 7, strides=2)
    >>> layer(np.zeros((1, 224, 224, 3))).shape
    (1, 112, 112, 64)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = 1,
        padding: str = "same",
        epsilon: float = 1e-5,
        epsilon_place: str = "std",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = checks.positive_int("filters", filters)
        self.kernel_size = checks.positive_pair("kernel_size", kernel_size)
        self.strides = checks.positive_pair("strides", strides)
        self.padding = checks.one_of("padding", padding, ("same", "symmetric", "valid"))
        self.epsilon = checks.positive_float("epsilon", epsilon)
        self.epsilon_place = checks.one_of(
            "epsilon_place", epsilon_place, ("std", "variance")
        )

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        self.kernel = self.add_weight(
            shape=(*self.kernel_size, channels, self.filters),
            initializer=initializers.lecun_normal(
                math.prod(self.kernel_size) * channels
            ),
            autocast=False,
            name="kernel",
        )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def standardized_kernel(self) -> Tensor:
        """Computes the standardized kernel, which a call convolves with the inputs."""
        kernel = ops.convert_to_tensor(self.kernel)
        dtype = keras.backend.result_type(kernel.dtype, "float32")
        kernel = ops.cast(kernel, dtype)
        axes = (0, 1, 2)
        kernel = kernel - ops.mean(kernel, axis=axes, keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=axes, keepdims=True)
        if self.epsilon_place == "variance":
            return kernel * ops.rsqrt(variance + self.epsilon)
        # The square root of 0 has no finite gradient.
        std = ops.sqrt(ops.maximum(variance, 1e-30))
        return kernel / (std + self.epsilon)

    def call(self, inputs: Tensor) -> Tensor:
        inputs = cast_inputs(self, inputs)
        kernel = ops.cast(self.standardized_kernel(), inputs.dtype)
        if self.kernel_size == (1, 1):  # no padding needed
            return self._pointwise_conv(inputs, kernel[0, 0])
        inputs, padding = _pad(inputs, self.kernel_size, self.strides, self.padding)
        return call_channels_last(
            ops.conv, inputs, kernel, strides=self.strides, padding=padding
        )

    def _pointwise_conv(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        """Computes a 1 x 1 convolution as a matrix product, which is faster."""
        if self.strides != (1, 1):
            inputs = inputs[:, :: self.strides[0], :: self.strides[1]]
        pixels = ops.reshape(inputs, (-1, inputs.shape[-1]))
        # `ops.matmul` returns float32 for float64.
        x = ops.cast(ops.matmul(pixels, kernel), inputs.dtype)
        # jax2onnx cannot export a reshape to an unknown number of images.
        return ops.reshape(x, (-1, *axis_sizes(inputs, 1, 2), self.filters))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        shape = _window_output_shape(
            self,
            input_shape,
            self.kernel_size,
            self.strides,
            valid=self.padding == "valid",
        )
        return (*shape, self.filters)


@keras.saving.register_keras_serializable("keras_vit")
class GroupNorm(Layer):
    """Applies group normalization over rows, columns and groups of channels.

    The result and the weights are those of Keras's `GroupNormalization`. Means
    are computed in two steps, for each channel over rows and columns and then
    over the group, which is faster than reshaping the images. Each group's mean
    is subtracted before values are squared, so that the result is accurate
    where the mean is large. Statistics are computed in at least float32.
    Channels are last.

    From "Group Normalization" (https://arxiv.org/abs/1803.08494).

    Args:
        groups: Integer. Number of groups, which must divide the number of
            channels.
        epsilon: Float above 0. Added to the variance. It has no default, since it is
            1e-6 in google-research/vision_transformer and 1e-5 in BiT and timm.
        gamma_initializer: Keras initializer of the scales.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        That of `inputs`.

    Raises:
        ValueError: if `groups` does not divide the number of channels.
    """

    def __init__(
        self,
        groups: int = 32,
        *,
        epsilon: float,
        gamma_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.groups = checks.positive_int("groups", groups)
        self.epsilon = checks.positive_float("epsilon", epsilon)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        if channels is None or channels % self.groups:
            raise ValueError(
                "GroupNorm needs a number of channels that its "
                f"{self.groups} groups divide. Received: shape "
                f"{tuple(input_shape)}"
            )
        for name, initializer in (
            ("gamma", self.gamma_initializer),
            ("beta", "zeros"),
        ):
            weight = self.add_weight(
                shape=(channels,),
                initializer=initializer,
                autocast=False,
                name=name,
            )
            setattr(self, name, weight)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, inputs: Tensor) -> Tensor:
        inputs = cast_inputs(self, inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.cast(inputs, dtype)
        # Without this, the mean of squares minus the squared mean has no
        # correct digits where the mean is large. Subtracting a constant from a
        # group does not change the output, so no gradient is needed.
        mean = self._mean_over_groups(ops.mean(x, axis=(1, 2)))
        x = x - ops.stop_gradient(mean)
        # The remaining mean is the rounding error of the first.
        mean = self._mean_over_groups(ops.mean(x, axis=(1, 2)))
        square = self._mean_over_groups(ops.mean(ops.square(x), axis=(1, 2)))
        variance = ops.maximum(square - ops.square(mean), 0.0)
        scale = ops.rsqrt(variance + self.epsilon) * ops.cast(self.gamma, dtype)
        x = x * scale + (ops.cast(self.beta, dtype) - mean * scale)
        return ops.cast(x, inputs.dtype)

    def _mean_over_groups(self, means: Tensor) -> Tensor:
        """Averages means of channels (B, C) over groups, as (B, 1, 1, C)."""
        channels = means.shape[-1]
        size = channels // self.groups
        means = ops.reshape(means, (-1, self.groups, size))
        means = ops.mean(means, axis=2, keepdims=True)
        means = ops.repeat(means, size, axis=2)
        return ops.reshape(means, (-1, 1, 1, channels))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        checks.check_rank(self, input_shape, "(batch, height, width, channels)")
        return tuple(input_shape)


@keras.saving.register_keras_serializable("keras_vit")
class MaxPool2D(Layer):
    """Applies 2-D max pooling with the paddings of published ResNets.

    Padding with zeros and with minus infinity differ where values can be
    negative, as in BiT's root, which has no ReLU. Channels are last, regardless
    of Keras's `image_data_format`.

    Args:
        pool_size: Integer or `(rows, columns)`. Size of the window.
        strides: Integer or `(rows, columns)`. Strides of the window.
        padding: String. "same" (TensorFlow's, with minus infinity), "symmetric"
            (half a window of minus infinity on each side) or "zeros" (half a
            window of zeros on each side: BiT).

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), channels)`
    """

    def __init__(
        self,
        pool_size: int | tuple[int, int] = 3,
        strides: int | tuple[int, int] = 2,
        padding: str = "same",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pool_size = checks.positive_pair("pool_size", pool_size)
        self.strides = checks.positive_pair("strides", strides)
        self.padding = checks.one_of("padding", padding, ("same", "symmetric", "zeros"))

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        inputs = cast_inputs(self, inputs)
        zeros = self.padding == "zeros"
        inputs, padding = _pad(
            inputs,
            self.pool_size,
            self.strides,
            "symmetric" if zeros else self.padding,
            0.0 if zeros else -float("inf"),
        )
        # The gradients of the two differ where the largest values are equal.
        # ONNX Runtime fuses a padding with zeros with the pooling as if it were
        # one with minus infinity.
        if (
            (zeros or keras.config.backend() == "jax")
            and not training
            and padding == "valid"
        ):
            return _max_of_slices(inputs, self.pool_size, self.strides)
        return call_channels_last(
            ops.max_pool,
            inputs,
            self.pool_size,
            self.strides,
            padding=padding,
        )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        shape = _window_output_shape(self, input_shape, self.pool_size, self.strides)
        return (*shape, input_shape[-1])


@keras.saving.register_keras_serializable("keras_vit")
# A unit is one layer, since a functional model holds the output of each layer until
# it ends: with a layer for each convolution, PyTorch returned and fetched 430 MB of
# memory at each call.
class ResidualUnit(CompositeLayer):
    """Applies a residual bottleneck unit, as in the hybrids' ResNet or in BiT.

    The unit has three convolutions, 1 x 1, 3 x 3 and 1 x 1, with group norms and
    standardized kernels, and a shortcut. It is from "Deep Residual Learning"
    (https://arxiv.org/abs/1512.03385, Section 4.1); with `preactivation`, it is from
    "Identity Mappings in Deep Residual Networks" (https://arxiv.org/abs/1603.05027), as
    in BiT (https://arxiv.org/abs/1912.11370).

    Args:
        filters: Integer. Number of channels between the convolutions. The
            output has four times as many.
        strides: Integer. Stride of the 3 x 3 convolution.
        projects: Boolean. Whether the shortcut is a 1 x 1 convolution, which
            is needed where the size or the number of channels changes.
        preactivation: Boolean. Whether norm and ReLU come before each
            convolution (BiT; the shortcut has no norm of its own) or after it
            (the hybrids; the residual branch is initially zero).
        groups: Integer. Number of groups of the norms.
        group_norm_epsilon: Float above 0. `epsilon` of `GroupNorm`.
        std_epsilon: Float above 0. `epsilon` of `StdConv2D`.
        std_epsilon_place: String, "std" or "variance". `epsilon_place` of
            `StdConv2D`.
        conv_padding: String, "same" or "symmetric". `padding` of `StdConv2D`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), 4 * filters)`

    Raises:
        ValueError: if an argument is wrong, or the shortcut and the residual
            branch would have different shapes.
    """

    def __init__(
        self,
        filters: int,
        strides: int | tuple[int, int] = 1,
        projects: bool = False,
        preactivation: bool = False,
        groups: int = 32,
        *,
        group_norm_epsilon: float,
        std_epsilon: float = 1e-5,
        std_epsilon_place: str = "std",
        conv_padding: str = "same",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = checks.positive_int("filters", filters)
        self.strides = checks.positive_int("strides", strides)
        self.projects = projects
        self.preactivation = preactivation
        self.groups = checks.positive_int("groups", groups)
        self.group_norm_epsilon = checks.positive_float(
            "group_norm_epsilon", group_norm_epsilon
        )
        self.std_epsilon = checks.positive_float("std_epsilon", std_epsilon)
        self.std_epsilon_place = std_epsilon_place
        self.conv_padding = checks.one_of(
            "conv_padding", conv_padding, ("same", "symmetric")
        )
        self.conv_1 = self._conv(filters, 1, "conv_1")
        self.norm_1 = self._norm("norm_1")
        self.conv_2 = self._conv(filters, 3, "conv_2", strides)
        self.norm_2 = self._norm("norm_2")
        self.conv_3 = self._conv(4 * filters, 1, "conv_3")
        # A scale of zeros makes the residual branch initially zero.
        self.norm_3 = self._norm("norm_3", "ones" if preactivation else "zeros")
        self.conv_proj = self.norm_proj = None
        if projects:
            self.conv_proj = self._conv(4 * filters, 1, "conv_proj", strides)
            if not preactivation:
                self.norm_proj = self._norm("norm_proj")

    def _conv(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        name: str,
        strides: int | tuple[int, int] = 1,
    ) -> StdConv2D:
        return StdConv2D(
            filters,
            kernel_size,
            strides,
            self.conv_padding,
            self.std_epsilon,
            self.std_epsilon_place,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name: str, gamma: str = "ones") -> GroupNorm:
        return GroupNorm(
            self.groups,
            epsilon=self.group_norm_epsilon,
            gamma_initializer=gamma,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape: Shape) -> None:
        shape = self.compute_output_shape(input_shape)
        before = (*input_shape[:-1], self.filters)
        after = (*shape[:-1], self.filters)
        preactivation = self.preactivation
        self.conv_1.build(input_shape)
        self.norm_1.build(input_shape if preactivation else before)
        self.conv_2.build(before)
        self.norm_2.build(before if preactivation else after)
        self.conv_3.build(after)
        self.norm_3.build(after if preactivation else shape)
        if self.conv_proj is not None:
            self.conv_proj.build(input_shape)
        if self.norm_proj is not None:
            self.norm_proj.build(shape)
        self.restore_sublayers()

    def call(self, inputs: Tensor) -> Tensor:
        inputs = cast_inputs(self, inputs)
        if self.preactivation:
            return self._pre_activation(inputs)
        return self._post_activation(inputs)

    def _post_activation(self, x: Tensor) -> Tensor:
        """Applies norms after convolutions, as in vit_jax/models_resnet.py."""
        shortcut = x
        if self.conv_proj is not None and self.norm_proj is not None:
            shortcut = self.norm_proj(self.conv_proj(x))
        x = ops.relu(self.norm_1(self.conv_1(x)))
        x = ops.relu(self.norm_2(self.conv_2(x)))
        x = self.norm_3(self.conv_3(x))
        return ops.relu(x + shortcut)

    def _pre_activation(self, x: Tensor) -> Tensor:
        """Applies norms before convolutions, as in BiT.

        The projection's input is normalized, not its output.
        """
        shortcut = x
        x = ops.relu(self.norm_1(x))
        if self.conv_proj is not None:
            shortcut = self.conv_proj(x)
        x = ops.relu(self.norm_2(self.conv_1(x)))
        x = ops.relu(self.norm_3(self.conv_2(x)))
        return self.conv_3(x) + shortcut

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        shape = _window_output_shape(
            self, input_shape, (1, 1), (self.strides, self.strides)
        )
        return (*shape, 4 * self.filters)


def _pad(
    x: Tensor,
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    padding: str,
    value: float = 0.0,
) -> tuple[Tensor, str]:
    """Pads images for a convolution or pooling, and returns them with the
    operation's `padding` argument, "valid" or "same".

    Images are not padded here where "same" padding by the operation needs no
    copy, or where their size is known only when the graph runs. Otherwise they
    are, since with PyTorch this keeps the memory layout of the images, which
    the operation's own "same" padding does not.
    """
    if padding == "valid":
        return x, "valid"
    if padding == "symmetric":
        pads = [((size - 1) // 2, size // 2) for size in kernel_size]
    else:
        size = axis_sizes(x, 1, 2)
        if not is_static(size):
            return x, "same"
        pads = [
            _same_padding(*axis)
            for axis in zip(size, kernel_size, strides, strict=True)
        ]
    if not any(map(sum, pads)):
        return x, "valid"
    is_symmetric = all(before == after for before, after in pads)
    if is_symmetric and strides == (1, 1) and value == 0:
        return x, "same"
    return ops.pad(x, [(0, 0), *pads, (0, 0)], constant_values=value), "valid"


def _max_of_slices(
    x: Tensor, pool_size: tuple[int, int], strides: tuple[int, int]
) -> Tensor:
    """Computes max pooling without padding as the maximum of strided slices.

    On JAX it is equal and takes a quarter of the time of `ops.max_pool` on a
    CPU, and ONNX Runtime does not run what jax2onnx writes for the latter.
    """
    rows, columns = (
        (size - pool) // stride * stride + 1
        for size, pool, stride in zip(
            axis_sizes(x, 1, 2), pool_size, strides, strict=True
        )
    )
    slices = [
        x[:, i : i + rows : strides[0], j : j + columns : strides[1]]
        for i, j in itertools.product(*map(range, pool_size))
    ]
    # Keras's maximum of float64 is float32.
    return ops.cast(functools.reduce(ops.maximum, slices), x.dtype)


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Returns TensorFlow's "same" padding of one axis, `(before, after)`.

    If the total is odd, `after` is larger by one.
    """
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _window_output_shape(
    layer: keras.Layer,
    shape: Shape,
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    valid: bool = False,
) -> Shape:
    """Returns `(batch, height, width)` of a convolution's or pooling's output.

    It is equal for "same" and symmetric padding.
    """
    checks.check_rank(layer, shape, "(batch, height, width, channels)")
    batch, *size, _ = shape
    if valid:
        size = [
            None if n is None else n - kernel + 1
            for n, kernel in zip(size, kernel_size, strict=True)
        ]
    return (
        batch,
        *(
            None if n is None else -(-n // stride)
            for n, stride in zip(size, strides, strict=True)
        ),
    )
