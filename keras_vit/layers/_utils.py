"""Helpers that several layers share."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops

from keras_vit.utils.types import Tensor


def cast_inputs(layer: keras.Layer, inputs: Tensor) -> Tensor:
    """Returns integer inputs of a call in the layer's compute dtype.

    Before a call, Keras casts floats, but not integers, to whose dtype a layer
    would round its weights. Wrappers such as `TimeDistributed` use `call`
    itself, so integers are cast there.
    """
    if keras.backend.is_float_dtype(inputs.dtype):
        return inputs
    return ops.cast(inputs, layer.compute_dtype)


def axis_sizes(x: Tensor, *axes: int) -> tuple[Any, ...]:
    """Returns the sizes of the given axes of a tensor.

    Sizes are integers, or scalar tensors where TensorFlow knows them only when
    the graph runs.
    """
    shape = ops.shape(x)
    sizes = tuple(shape[axis] for axis in axes)
    if keras.config.backend() == "torch":
        # While PyTorch traces for an export, sizes are tensors with constant
        # values.
        sizes = tuple(int(size) for size in sizes)
    return sizes


def is_static(sizes: Iterable[Any]) -> bool:
    """Returns whether all sizes are integers, not tensors of a graph."""
    return all(isinstance(size, int) for size in sizes)


def call_channels_last(
    operation: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Calls `ops.conv` or `ops.max_pool` on images with channels last.

    With PyTorch, Keras would copy the images into another memory layout, and
    the outputs back; transposing them here copies nothing.
    """
    if keras.config.backend() != "torch":
        return operation(x, *args, data_format="channels_last", **kwargs)
    x = ops.transpose(x, (0, 3, 1, 2))
    x = operation(x, *args, data_format="channels_first", **kwargs)
    return ops.transpose(x, (0, 2, 3, 1))
