"""Base classes of layers."""

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_vit.utils.types import Config

# Arguments that a config contains in another way, if at all.
_NO_ATTRIBUTES = (
    *("self", "kwargs", "name", "dtype"),
    *("sublayer_trainable", "sublayer_quantization"),
)


@functools.cache
def _arguments(kind: type) -> tuple[str, ...]:
    """Returns the names of the arguments of the constructors in this package."""
    return tuple(
        name
        for base in kind.__mro__
        if base.__module__.startswith("keras_vit.") and "__init__" in vars(base)
        for name in inspect.signature(base.__init__).parameters
        if name not in _NO_ATTRIBUTES
    )


def with_arguments(instance: Any, config: Config) -> Config:
    """Returns a config with the arguments of the constructors of a layer or
    model in this package, each of which is an attribute of the same name."""
    for name in _arguments(type(instance)):
        if name not in config:
            value = getattr(instance, name)
            if not isinstance(value, (bool, int, float, str, tuple)):
                value = keras.saving.serialize_keras_object(value)
            config[name] = value
    return config


class Layer(keras.Layer):
    """Base class of layers whose arguments are attributes of the same name.

    These attributes can be set only once: sublayers and weights that were made from a
    first value would not follow a second value, but the second would be saved.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        kind: Any = type(self)
        if name in vars(self) and name in _arguments(kind):
            raise AttributeError(
                f"`{name}` of the layer {self.name!r} cannot be changed, because "
                "parts of the layer depend on it. Create another layer with "
                f"{name}={value!r}; in a model, use `block=` of "
                "`keras_vit.config.ViTConfig`."
            )
        super().__setattr__(name, value)

    def get_config(self) -> Config:
        return with_arguments(self, super().get_config())


class NumberedLayer(Layer):
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


class CompositeLayer(Layer):
    """Base class of layers that contain other layers.

    It saves and restores two properties of sublayers that a Keras config does not
    contain, by paths of sublayers such as "mlp/dense_1". Subclasses call
    `restore_sublayers` at the end of `build`.

    - Which sublayers are frozen, in `sublayer_trainable`: paths to booleans.
      Keras creates sublayers as trainable, so that a frozen block would be
      trained after loading or cloning. Here they inherit the flag of the layer
      that contains them, unless listed.
    - Which sublayers are quantized, in `sublayer_quantization`: paths to
      serialized quantization configs. `model.quantize("int8")` quantizes the
      dense layers inside a block, but a saved or cloned block is created from
      its own arguments only.
    """

    def __init__(
        self,
        *,
        sublayer_trainable: Mapping[str, bool] | None = None,
        sublayer_quantization: Mapping[str, Config] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Pairs, because Keras would wrap a dict. None once they are applied.
        self._pending_flags = tuple((sublayer_trainable or {}).items())
        self._pending_quantization = _pairs(sublayer_quantization)

    def restore_sublayers(self) -> None:
        """Sets the `trainable` flags of the sublayers, outer layers first, and
        quantizes them; raises a `ValueError` if `sublayer_trainable` names an
        unknown layer."""
        flags = dict(self._pending_flags or ())
        quantization = dict(self._pending_quantization)
        paths = set()
        for path, sublayer, parent in sublayers(self):
            paths.add(path)
            # With TensorFlow, Keras's setter ignores an unchanged value and
            # so does not reach deeper layers: each layer is set here.
            inherited = parent.trainable and sublayer.trainable
            sublayer.trainable = flags.get(path, inherited)
            # A dtype policy, as of a `DTypePolicyMap`, may have quantized it.
            if path in quantization and sublayer.quantization_mode is None:
                sublayer.quantize(config=quantization[path])
        unknown = sorted(flags.keys() - paths)
        if unknown:
            raise ValueError(
                f"`sublayer_trainable` of {self.name!r} must name layers "
                f"inside it: {', '.join(sorted(paths))}. "
                f"Received: {', '.join(unknown)}"
            )
        self._pending_flags, self._pending_quantization = None, ()

    def get_config(self) -> Config:
        config = super().get_config()
        flags, quantized = self._pending_flags, self._pending_quantization
        if flags is None:
            flags = [
                (path, sublayer.trainable)
                for path, sublayer, parent in sublayers(self)
                if sublayer.trainable != parent.trainable
            ]
            quantized = [
                (path, getattr(sublayer, "quantization_config", None))
                for path, sublayer, _ in sublayers(self)
                if sublayer.quantization_mode is not None
            ]
        if flags:
            config["sublayer_trainable"] = dict(flags)
        if quantized:
            config["sublayer_quantization"] = {
                path: keras.saving.serialize_keras_object(value)
                for path, value in quantized
            }
        return config

    def build_from_config(self, config: Config) -> None:
        # Earlier versions stored the quantization here.
        self._pending_quantization += _pairs(config.get("quantization"))
        super().build_from_config(config)


def _pairs(quantization: Mapping[str, Config] | None) -> tuple:
    """Returns pairs of a path and a quantization config."""
    return tuple(
        (path, keras.saving.deserialize_keras_object(value))
        for path, value in (quantization or {}).items()
        if value is not None  # of layers that a dtype policy quantizes
    )


def sublayers(
    layer: keras.Layer, prefix: str = ""
) -> Iterator[tuple[str, keras.Layer, keras.Layer]]:
    """Yields `(path, sublayer, parent)` for all layers inside a layer or a model.

    Keras has no public way to list the layers inside a layer that is not a
    model, hence the private method `_flatten_layers`.
    """
    for sublayer in layer._flatten_layers(include_self=False, recursive=False):
        path = prefix + sublayer.name
        yield path, sublayer, layer
        yield from sublayers(sublayer, f"{path}/")
