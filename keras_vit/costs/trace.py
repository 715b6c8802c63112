"""The layers of a Keras model and the cost of each for one image."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_vit import layers as keras_vit_layers
from keras_vit.models.features import (
    check_takes_images,
    for_another_size,
    size_of_images,
)
from keras_vit.segmentation import eomt
from keras_vit.utils import checks
from keras_vit.utils.types import Tensor

# A shape without the batch axis.
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """Cost of one layer for one image; see `Cost.layers`.

    Attributes:
        name: String. Name of the layer, after the names of the layers that contain it,
            such as "block_3/mlp".
        kind: String. Its class.
        output_shape: Shape of its output, without the batch axis.
        parameters: Integer. Number of its weights, trainable or not.
        macs: Integer. Multiply-adds of its matrix products and convolutions.
        activations: Integer. Values that its matrix products and convolutions
            output; those inside attention are not counted, as in timm's lists.
    """

    name: str
    kind: str
    output_shape: Shape
    parameters: int = 0
    macs: int = 0
    activations: int = 0

    @property
    def group(self) -> str:
        """Name of the model's layer that this layer is part of."""
        return self.name.partition("/")[0]


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a layer; `offsets` is the number of patches with relative
    positions."""

    layer: keras.layers.Layer
    shapes: list[Shape]
    output: Shape
    offsets: int = 0


def trace(
    model: keras.Model, image_size: int | tuple[int, int] | None = None
) -> list[LayerCost]:
    """Returns the costs of a functional model's layers, beginning at the input.

    The model is called on symbolic tensors, which computes nothing.
    """
    check_takes_images(model)
    if image_size is not None:
        image_size = checks.positive_pair("image_size", image_size)
    shape = (*size_of_images(model, image_size), model.inputs[0].shape[-1])
    rows = [LayerCost("images", "InputLayer", shape)]
    _walk(model, shape, "", rows, set())
    return rows


def _walk(
    model: keras.Model,
    shape: Shape,
    prefix: str,
    rows: list[LayerCost],
    seen: set[int],
) -> None:
    """Appends the costs of a model's layers to `rows`; the weights of layers
    whose ids are in `seen` have been counted."""

    def call(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> Tensor:
        outputs = layer(*arguments, **options)
        inputs = keras.tree.flatten([arguments, list(options.values())])
        shapes = [tuple(x.shape[1:]) for x in inputs if keras.utils.is_keras_tensor(x)]
        name = prefix + layer.name
        if isinstance(layer, keras.Model):
            _walk(layer, shapes[0], f"{name}/", rows, seen)
            return outputs
        offsets = 0
        if isinstance(layer, _ATTENTION):
            named = inspect.signature(layer.call).bind(*arguments, **options)
            tensors = [named.arguments.get(x) for x in ("inputs", "context")]
            shapes = [tuple(x.shape[1:]) for x in tensors if x is not None]
            relative = named.arguments.get("relative")
            # Rotary positions have four axes.
            if relative is not None and len(relative.shape) == 3:
                offsets = (relative.shape[1] + 1) // 2
        output = tuple(keras.tree.flatten(outputs)[0].shape[1:])
        found = _rows(_Call(layer, shapes, output, offsets), name)
        if id(layer) in seen:
            found = [dataclasses.replace(row, parameters=0) for row in found]
        seen.add(id(layer))
        rows.extend(found)
        return outputs

    images = keras.Input(shape, dtype=model.inputs[0].dtype)
    keras.models.clone_model(
        # The copy of a compiled model would be compiled, too.
        keras.Model(model.inputs, model.outputs),
        input_tensors=[images],
        clone_function=for_another_size,
        call_function=call,
    )


def _rows(call: _Call, name: str) -> list[LayerCost]:
    """Returns the costs of a layer, or of its parts, with their names."""
    layer = call.layer
    kinds = [kind for kind in type(layer).__mro__ if kind in _RULES]
    package = type(layer).call.__module__.partition(".")[0]
    of_channels_first = getattr(layer, "data_format", None) == "channels_first"
    found: LayerCost | list[LayerCost] | None = None
    # A subclass of another package may compute something else.
    if kinds and package in ("keras", "keras_vit") and not of_channels_first:
        found = _RULES[kinds[0]](call)
    elif not (type(layer).__name__ in _PRODUCTS or _parameters(layer)):
        found = _row(layer, call.output)
    if isinstance(found, LayerCost):
        return [dataclasses.replace(found, name=name)]
    # A subclass may have other parts.
    if not found or sum(x.parameters for x in found) != _parameters(layer):
        raise ValueError(
            f"The cost of the layer {name} ({type(layer).__name__}) is not "
            "known. `keras_vit.cost` knows the layers of keras_vit, Keras's "
            "dense layers, 2-D convolutions with channels last and norms, and "
            "layers without weights that compute no matrix products."
        )
    return [dataclasses.replace(x, name=f"{name}/{x.name}") for x in found]


def _parameters(layer: keras.layers.Layer) -> int:
    """Returns the number of weights, which an operation does not have."""
    return sum(math.prod(x.shape) for x in getattr(layer, "weights", ()))


# Layers and operations without weights that compute matrix products.
_PRODUCTS = (
    *("AdditiveAttention", "Attention", "Dot", "DotProductAttention"),
    *("Einsum", "Matmul", "Tensordot", "Inner", "Outer", "Vdot", "Conv"),
    *("ConvTranspose", "DepthwiseConv", "SeparableConv"),
)
_ATTENTION = (
    keras_vit_layers.MultiHeadAttention,
    keras_vit_layers.TransformerBlock,
)


def _row(layer: keras.layers.Layer, output: Shape, **costs: Any) -> LayerCost:
    """Returns the cost of a layer, with its weights; `costs` are fields."""
    return LayerCost(
        layer.name, type(layer).__name__, output, _parameters(layer), **costs
    )


def _parts(layers: Iterable[keras.layers.Layer], shape: Shape) -> list[LayerCost]:
    """Returns the costs of layers that are called one after another."""
    found = []
    for layer in layers:
        output = tuple(layer.compute_output_shape((None, *shape))[1:])
        found += _rows(_Call(layer, [shape], output), layer.name)
        shape = output
    return found


def _product(call: _Call) -> LayerCost:
    """Returns the cost of a dense layer or a convolution, whose kernel is
    multiplied at each position of its output, or of a transposed convolution,
    at each of its input."""
    layer = call.layer
    transposed = isinstance(layer, keras.layers.Conv2DTranspose)
    positions = math.prod((call.shapes[0] if transposed else call.output)[:-1])
    return _row(
        layer,
        call.output,
        macs=positions * math.prod(layer.kernel.shape),
        activations=math.prod(call.output),
    )


def _attention(call: _Call) -> LayerCost:
    """Returns the cost of `MultiHeadAttention`, to which rotary positions add
    nothing: products of single values do not count."""
    layer, offsets = call.layer, call.offsets
    queries, width = call.shapes[0]
    tokens = call.shapes[-1][0]
    # The queries, keys, values and the result of attention.
    activations = 2 * queries * width + 2 * tokens * width
    macs = (2 * queries + 2 * tokens) * width**2 + 2 * queries * tokens * width
    if offsets:
        pairs = offsets * (2 * offsets - 1)
        macs += pairs * width
        activations += layer.num_heads * pairs
    return _row(layer, call.output, macs=macs, activations=activations)


def _mlp(call: _Call) -> LayerCost:
    layer, (*leading, width) = call.layer, call.shapes[0]
    units = layer.mlp_dim * (2 if layer.activation == "swiglu" else 1)
    tokens = math.prod(leading)
    return _row(
        layer,
        call.output,
        macs=tokens * width * (units + layer.mlp_dim),
        activations=tokens * (units + width),
    )


def _block(call: _Call) -> list[LayerCost]:
    block, (tokens, width), (outputs, _) = (
        call.layer,
        call.shapes[0],
        call.output,
    )
    # With relative positions, attention computes all tokens.
    queries = (tokens if call.offsets else outputs, width)
    attention = _Call(
        block.attention, [queries, (tokens, width)], queries, call.offsets
    )
    scales = [x for x in (block.scale_1, block.scale_2) if x is not None]
    return [
        *_parts([block.norm_1], (tokens, width)),
        *_rows(attention, block.attention.name),
        *_parts([block.norm_2, block.mlp, *scales], (outputs, width)),
    ]


def _attention_pooling(call: _Call) -> list[LayerCost]:
    layer, (tokens, width) = call.layer, call.shapes[0]
    shapes = [(1, width), (tokens - layer.num_prefix_tokens, width)]
    probe = LayerCost("probe", "Variable", (1, width), width)
    attention = _attention(_Call(layer.attention, shapes, (1, width)))
    return [probe, attention, *_parts([layer.norm, layer.mlp], (1, width))]


def _unit(call: _Call) -> list[LayerCost]:
    unit = call.layer
    order = [unit.conv_1, unit.norm_1, unit.conv_2, unit.norm_2]
    order += [unit.conv_3, unit.norm_3]
    if unit.preactivation:  # each norm comes before its convolution
        order = [order[i ^ 1] for i in range(6)]
    shortcut = [x for x in (unit.conv_proj, unit.norm_proj) if x is not None]
    shape = call.shapes[0]
    return _parts(order, shape) + _parts(shortcut, shape)


def _pyramid(call: _Call) -> list[LayerCost]:
    layer, shape = call.layer, call.shapes[0]
    rows, columns, channels = shape
    before = {
        "P2": ("p2_up_1", "p2_norm", "p2_up_2"),
        "P3": ("p3_up",),
    }
    found = []
    for level, head in layer.heads.items():
        if level == "P5":
            shape = (rows // 2, columns // 2, channels)
        first = [getattr(layer, name) for name in before.get(level, ())]
        found += _parts([*first, *head], shape)
    return found


def _eomt_head(call: _Call) -> list[LayerCost]:
    layer, ((_, width), (rows, columns, *_)) = call.layer, call.shapes[:2]
    size = math.prod(call.output)
    masks = LayerCost("masks", "EoMTHead", call.output)
    return [
        *_parts(layer.mask_layers, (layer.num_queries, width)),
        *_parts([layer.class_head], (layer.num_queries, width)),
        *_parts(layer.upscales, (rows, columns, width)),
        dataclasses.replace(masks, macs=size * width, activations=size),
    ]


def _upscale(call: _Call) -> list[LayerCost]:
    layer = call.layer
    parts = [layer.deconvolution, layer.convolution, layer.norm]
    return _parts(parts, call.shapes[0])


def _resampled(call: _Call) -> LayerCost:
    """Returns the cost of resampling a map by one matrix for each axis: to
    the output's size, or a `QueryMask`'s to the grid of the patches."""
    is_mask = isinstance(call.layer, eomt.QueryMask)
    rows, columns = (call.shapes[1] if is_mask else call.output)[:2]
    before, width, channels = call.shapes[0]
    skips = isinstance(call.layer, keras_vit_layers.ImagePreprocessing)
    macs = activations = 0
    for values, old, new in (
        (rows * width * channels, before, rows),
        (rows * columns * channels, width, columns),
    ):
        if old != new or not skips:
            macs += values * old
            activations += values
    return _row(call.layer, call.output, macs=macs, activations=activations)


# Layers that have weights and compute no matrix products.
_WITHOUT_PRODUCTS = (
    keras_vit_layers.AddPositionEmbs,
    keras_vit_layers.ClassToken,
    keras_vit_layers.GroupNorm,
    keras_vit_layers.LayerScale,
    keras_vit_layers.MaskToken,
    keras_vit_layers.RelativePositionEmbs,
    keras_vit_layers.RotaryPositionEmbs,
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)
_RULES: dict[type, Callable[[_Call], LayerCost | list[LayerCost]]] = {
    **dict.fromkeys(_WITHOUT_PRODUCTS, lambda call: _row(call.layer, call.output)),
    keras_vit_layers.AttentionPooling: _attention_pooling,
    keras_vit_layers.ImagePreprocessing: _resampled,
    keras_vit_layers.MlpBlock: _mlp,
    keras_vit_layers.MultiHeadAttention: _attention,
    keras_vit_layers.PatchEmbedding: _product,
    keras_vit_layers.ResidualUnit: _unit,
    keras_vit_layers.SimpleFeaturePyramid: _pyramid,
    keras_vit_layers.StdConv2D: _product,
    keras_vit_layers.TransformerBlock: _block,
    keras_vit_layers.UpsampleMap: _resampled,
    eomt.EoMTHead: _eomt_head,
    eomt.QueryMask: _resampled,
    eomt.Upscale: _upscale,
    keras.layers.Conv2D: _product,
    keras.layers.Conv2DTranspose: _product,
    keras.layers.Dense: _product,
    keras.layers.DepthwiseConv2D: _product,
}
