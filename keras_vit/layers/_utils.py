"""Helpers that several layers share."""

import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vit._types import Config
from keras_vit._types import Tensor


class NumberedLayer(keras.Layer):
    """Base class of layers whose automatic names are all numbered.

    Keras names the first unnamed layer of a class after the class, such as
    "class_token", which is the name of this package's layer in its models. A
    layer that is added to a model must have another name.
    """

    def __init__(self, *, name: str | None = None, **kwargs: Any) -> None:
        if name is None:
            words = re.sub(r"(?<=.)(?=[A-Z])", "_", type(self).__name__).lower()
            name = f"{words}_{keras.backend.get_uid(words)}"
        super().__init__(name=name, **kwargs)


class CompositeLayer(keras.Layer):
    """Base class of layers that contain other layers.

    Saves and restores two properties of sublayers that a Keras config does not
    contain. Subclasses call `restore_trainable` at the end of `build`.

    - Which sublayers are frozen, in `sublayer_trainable`: paths of sublayers,
      such as "mlp/dense_1", to booleans. Keras creates sublayers as trainable,
      so that a frozen block would be trained after loading or cloning. Here
      they inherit the flag of the layer that contains them, unless listed.
    - Which sublayers are quantised. `model.quantize("int8")` quantises the
      dense layers inside a block, but a saved block is created from its own
      arguments only. The quantisation configs of its sublayers are therefore
      added to the build config, which Keras stores next to the config.
    """

    def __init__(
        self,
        *,
        sublayer_trainable: Mapping[str, bool] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Pairs, because Keras would wrap a dict. None once they are applied.
        self._pending_flags = tuple((sublayer_trainable or {}).items())

    def restore_trainable(self) -> None:
        """Sets the `trainable` flags of the sublayers, outer layers first;
        raises a `ValueError` if `sublayer_trainable` names an unknown layer."""
        flags = dict(self._pending_flags or ())
        paths = set()
        for path, sublayer, parent in _sublayers(self):
            paths.add(path)
            # With TensorFlow, Keras's setter ignores an unchanged value and
            # so does not reach deeper layers: each layer is set here.
            inherited = parent.trainable and sublayer.trainable
            sublayer.trainable = flags.get(path, inherited)
        unknown = sorted(flags.keys() - paths)
        if unknown:
            raise ValueError(
                f"`sublayer_trainable` of {self.name!r} must name layers "
                f"inside it: {', '.join(sorted(paths))}. "
                f"Received: {', '.join(unknown)}"
            )
        self._pending_flags = None

    def get_config(self) -> Config:
        config = super().get_config()
        flags = self._pending_flags
        if flags is None:
            flags = [
                (path, sublayer.trainable)
                for path, sublayer, parent in _sublayers(self)
                if sublayer.trainable != parent.trainable
            ]
        if flags:
            config["sublayer_trainable"] = dict(flags)
        return config

    def get_build_config(self) -> Config:
        config = super().get_build_config()
        quantization = {
            path: keras.saving.serialize_keras_object(
                getattr(sublayer, "quantization_config", None)
            )
            for path, sublayer, _ in _sublayers(self)
            if sublayer.quantization_mode is not None
        }
        if quantization:
            config = {**config, "quantization": quantization}
        return config

    def build_from_config(self, config: Config) -> None:
        super().build_from_config(config)
        quantization = config.get("quantization", {})
        for path, sublayer, _ in _sublayers(self):
            value = quantization.get(path)
            if sublayer.quantization_mode is not None:
                continue  # by the dtype policy, as of a `DTypePolicyMap`
            if value is not None:
                sublayer.quantize(
                    config=keras.saving.deserialize_keras_object(value)
                )


def _sublayers(
    layer: keras.Layer, prefix: str = ""
) -> Iterator[tuple[str, keras.Layer, keras.Layer]]:
    """Yields `(path, sublayer, parent)` for all layers inside a layer.

    Keras has no public way to list the layers inside a layer that is not a
    model, hence the private method `_flatten_layers`. It is used only here.
    """
    for sublayer in layer._flatten_layers(include_self=False, recursive=False):
        path = prefix + sublayer.name
        yield path, sublayer, layer
        yield from _sublayers(sublayer, f"{path}/")


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
