"""The calls of layers in a model, and the heads at its end."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_vit.layers import TransformerBlock
from keras_vit.models.model import Model, copy_attributes
from keras_vit.utils.types import Tensor

# The layers that may follow the dense heads of a model.
_AFTER_HEADS = (
    keras.layers.Average,
    keras.layers.Activation,
    keras.layers.Softmax,
)


class Graph:
    """The symbolic tensors of a model, in a copy of its graph.

    The attributes `input` and `output` of a layer belong to its first call, which may
    be in another model that shares the layer. `calls` are those in this model, as
    `(layer, args, kwargs, output)`.
    """

    def __init__(self, model: keras.Model) -> None:
        self.calls: list[tuple[Any, ...]] = []

        def record(layer: keras.Layer, *args: Any, **kwargs: Any) -> Tensor:
            output = layer(*args, **kwargs)
            self.calls.append((layer, args, kwargs, output))
            return output

        copy = with_calls(model, record)
        self.inputs, self.outputs = copy.inputs, copy.output
        self._first: dict[str, tuple[Any, ...]] = {
            x.name: ((), {}, x) for x in self.inputs
        }
        for layer, *call in self.calls:
            self._first.setdefault(layer.name, tuple(call))

    def input(self, layer: keras.Layer) -> Any:
        """Returns the tensor that a layer is first called with, or a list of
        several; raises a `ValueError` if one is a mask."""
        args, kwargs, _ = self._first[layer.name]
        if kwargs.get("mask") is not None:
            raise ValueError(
                f"Attention is computed without masks. Received: {layer.name!r}, "
                "which is called with one; build an EoMT with `masked=False`."
            )
        found = keras.tree.flatten((args, kwargs))
        found = [x for x in found if keras.utils.is_keras_tensor(x)]
        return found[0] if len(found) == 1 else found

    def output(self, layer: keras.Layer) -> Any:
        """Returns the output of the first call of a layer."""
        return self._first[layer.name][-1]

    def all_tokens(self, layer: keras.Layer) -> Any:
        """Returns `output`, for a block or the norm after it of all tokens, even where
        the last block of an `inference_model` computes only some of them."""
        args, kwargs, output = self._first[layer.name]
        if kwargs.get("num_queries"):
            return layer(*args, **{**kwargs, "num_queries": None})
        if isinstance(layer, keras.layers.LayerNormalization):
            for block, *_, some in self.calls:
                if isinstance(block, TransformerBlock) and args[0] is some:
                    tokens = self.all_tokens(block)
                    return output if tokens is some else layer(tokens)
        return output

    def last_layers(self) -> Iterator[keras.Layer]:
        """Yields the layers whose outputs are the model's outputs, and the layers whose
        outputs these only average or pass through an activation."""
        ends = keras.tree.flatten(self.outputs)
        for layer, args, kwargs, output in reversed(self.calls):
            if any(x is end for x in keras.tree.flatten(output) for end in ends):
                yield layer
                if isinstance(layer, _AFTER_HEADS):
                    ends += keras.tree.flatten((args, kwargs))


def heads_of(model: keras.Model) -> list[keras.layers.Dense]:
    """Returns the dense layers at the end of a model, whose outputs may be
    averaged or pass an activation."""
    return [
        layer
        for layer in Graph(model).last_layers()
        # `pre_logits` are features, not classes.
        if isinstance(layer, keras.layers.Dense) and layer.name != "pre_logits"
    ]


def output_activation(model: keras.Model) -> str:
    """Returns the name of the activation that a model ends in, "linear" for
    logits; several names if its heads differ."""
    found = set()
    for layer in Graph(model).last_layers():
        name = type(layer).__name__.lower()
        if isinstance(layer, keras.Model):
            found.add(output_activation(layer))
        elif name in ("softmax", "sigmoid", "logsoftmax"):  # also of `keras.ops`
            found.add(name)
        elif callable(function := getattr(layer, "activation", None)):
            found.add(getattr(function, "__name__", str(function)))
    return ", ".join(sorted(found - {"linear"})) or "linear"


def with_calls(model: keras.Model, call: Callable[..., Tensor]) -> keras.Model:
    """Returns a model with the same layers, each called by the function `call`."""
    # `clone_model` would compile the copy of a compiled model, which fails with
    # a loss that is not registered, and builds the variables of an optimizer.
    source = Model(model.input, model.output, name=model.name)
    copy = keras.models.clone_model(
        source, clone_function=lambda layer: layer, call_function=call
    )
    copy_attributes(model, copy)
    return copy
