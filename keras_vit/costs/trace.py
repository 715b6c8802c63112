"""The layers of a Keras model and what each costs for one image."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras

from keras_vit import _checks
from keras_vit import layers as keras_vit_layers
from keras_vit._types import Tensor
from keras_vit.models.features import check_takes_images
from keras_vit.models.features import for_another_size
from keras_vit.segmentation import eomt

# A shape without the batch axis.
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """Cost of one layer for one image; see `Cost.layers`.

    Attributes:
        name: String. Name of the layer, with those of the layers around it:
            "block_3/mlp".
        kind: String. Its class.
        output_shape: Shape of its output, without the batch axis.
        parameters: Integer. Number of its weights, trainable or not.
        non_trainable: Integer. How many of these are not trained.
        macs: Integer. Multiply-adds of its matrix products and convolutions.
        padding_macs: Integer. How many of these multiply a zero of the padding.
        activations: Integer. Values that its matrix products and convolutions
            output; those within attention are not counted, as in timm's lists.
        stored: Integer. Values that PyTorch stores for the gradients, with
            fused attention.
        stored_weights: Integer. Values that are stored for the gradients and
            do not depend on the number of images.
        remat: Boolean. Whether training stores only its block's output, and
            computes the rest again for the gradients.
    """

    name: str
    kind: str
    output_shape: Shape
    parameters: int = 0
    non_trainable: int = 0
    macs: int = 0
    padding_macs: int = 0
    activations: int = 0
    stored: int = 0
    stored_weights: int = 0
    remat: bool = False

    @property
    def group(self) -> str:
        """Name of the layer of the model that this one is part of."""
        return self.name.partition("/")[0]


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a layer: its shapes and the arguments besides the inputs."""

    layer: keras.layers.Layer
    shapes: list[Shape]
    output: Shape
    options: dict[str, Any]


def trace(
    model: keras.Model, image_size: int | tuple[int, int] | None = None
) -> list[LayerCost]:
    """Returns the costs of a functional model's layers, the input's first.

    The model is called on symbolic tensors, which computes nothing.
    """
    check_takes_images(model)
    shape = tuple(model.inputs[0].shape[1:])
    if image_size is not None:
        size = _checks.positive_pair("image_size", image_size)
        shape = (*size, shape[-1])
    if None in shape:
        raise ValueError(
            f"The model {model.name!r} takes images of any size: give "
            f"`image_size`. Received: image_size={image_size!r}, images of "
            f"shape {shape}"
        )
    rows = [LayerCost("images", "InputLayer", shape)]
    _walk(model, shape, "", rows, set())
    return rows


# Names of the arguments that layers of keras_vit take by position.
_ARGUMENTS = {
    keras_vit_layers.MultiHeadAttention: ("inputs", "context", "relative"),
    keras_vit_layers.TransformerBlock: ("inputs", "relative"),
}


def _walk(
    model: keras.Model,
    shape: Shape,
    prefix: str,
    rows: list[LayerCost],
    seen: set[int],
) -> None:
    """Appends the costs of a model's layers to `rows`; the layers whose ids
    are in `seen` have been counted."""
    unknown = []

    def call(
        layer: keras.layers.Layer, *arguments: Any, **options: Any
    ) -> Tensor:
        outputs = layer(*arguments, **options)
        inputs = keras.tree.flatten([arguments, list(options.values())])
        shapes = [
            tuple(x.shape[1:]) for x in inputs if keras.utils.is_keras_tensor(x)
        ]
        name = prefix + layer.name
        if isinstance(layer, keras.Model):
            _walk(layer, shapes[0], f"{name}/", rows, seen)
            return outputs
        for kind, names in _ARGUMENTS.items():
            if isinstance(layer, kind):
                options = dict(zip(names, arguments, strict=False)) | options
        output = tuple(keras.tree.flatten(outputs)[0].shape[1:])
        found = _rows(_Call(layer, shapes, output, options))
        if found is None:
            unknown.append(f"{name} ({type(layer).__name__})")
            return outputs
        rows.extend(_named(layer, name, found, seen))
        return outputs

    images = keras.Input(shape, dtype=model.inputs[0].dtype)
    keras.models.clone_model(
        # The copy of a compiled model would be compiled, too.
        keras.Model(model.inputs, model.outputs),
        input_tensors=[images],
        clone_function=for_another_size,
        call_function=call,
    )
    if unknown:
        raise ValueError(
            "The cost of these layers is not known: "
            f"{', '.join(unknown)}. `keras_vit.cost` knows the layers of "
            "keras_vit, Keras's dense layers, 2-D convolutions and norms, and "
            "layers without weights that compute no matrix products."
        )


def _named(
    layer: keras.layers.Layer,
    name: str,
    rows: list[LayerCost],
    seen: set[int],
) -> list[LayerCost]:
    """Returns rows with their full names; those of a layer that was called
    before have no parameters."""
    if len(rows) == 1:
        rows = [dataclasses.replace(rows[0], name=name)]
    else:
        rows = [
            dataclasses.replace(row, name=f"{name}/{row.name}") for row in rows
        ]
    if id(layer) in seen:
        return [
            dataclasses.replace(row, parameters=0, non_trainable=0)
            for row in rows
        ]
    seen.add(id(layer))
    # Weights of the layer itself count in its first row.
    total, frozen = _sizes(layer)
    total -= sum(row.parameters for row in rows)
    frozen -= sum(row.non_trainable for row in rows)
    first = dataclasses.replace(
        rows[0],
        parameters=rows[0].parameters + total,
        non_trainable=rows[0].non_trainable + frozen,
    )
    return [first, *rows[1:]]


def _sizes(layer: keras.layers.Layer) -> tuple[int, int]:
    """Returns the number of a layer's weights and of those that are not
    trained, without the states of random generators."""
    trained = {id(v) for v in layer.trainable_weights}
    counts = [
        (math.prod(v.shape), id(v) in trained)
        for v in layer.weights
        if "seed_generator" not in v.path.split("/")
    ]
    return (
        sum(count for count, _ in counts),
        sum(count for count, is_trained in counts if not is_trained),
    )


def _rows(call: _Call) -> list[LayerCost] | None:
    """Returns the costs of a layer's parts; None if they are not known."""
    layer = call.layer
    for kind in type(layer).__mro__:
        if kind in _RULES:
            return _RULES[kind](call)
    if type(layer).__name__ in _PRODUCTS or getattr(layer, "weights", ()):
        return None
    return [_without_products(call)]


# Layers and operations without weights that compute matrix products.
_PRODUCTS = (
    *("AdditiveAttention", "Attention", "Dot", "DotProductAttention"),
    *("Einsum", "Matmul", "Tensordot", "Inner", "Outer", "Vdot", "Conv"),
)


def _row(layer: keras.layers.Layer, output: Shape, **costs: int) -> LayerCost:
    """Returns the cost of a layer, with its weights; `costs` are fields."""
    parameters, frozen = _sizes(layer)
    kind = type(layer).__name__
    row = LayerCost(layer.name, kind, output, parameters, frozen)
    return dataclasses.replace(row, **costs)


def _without_products(call: _Call) -> LayerCost:
    """Returns the cost of a layer, or of an operation, which has no weights."""
    layer, output = call.layer, call.output
    row = LayerCost(layer.name, type(layer).__name__, output)
    dropout = isinstance(layer, keras.layers.Dropout) and layer.rate
    if dropout or isinstance(layer, keras.layers.ReLU):
        return dataclasses.replace(row, stored=math.prod(output))
    return row


def _weights_only(call: _Call) -> list[LayerCost]:
    return [_row(call.layer, call.output)]


def _norm(call: _Call) -> list[LayerCost]:
    return [_stores(call.layer, call.shapes[0])]


def _stores(
    layer: keras.layers.Layer, shape: Shape, times: int = 1
) -> LayerCost:
    """Returns the cost of a layer that stores its values `times` times."""
    return _row(layer, shape, stored=times * math.prod(shape))


def _positions(call: _Call) -> list[LayerCost]:
    adds = call.layer.kind != "none"
    return [_stores(call.layer, call.output, int(adds))]


def _dense_row(
    layer: keras.layers.Layer, vectors: int, inputs: int, units: int
) -> LayerCost:
    return _row(
        layer,
        (units,) if vectors == 1 else (vectors, units),
        macs=vectors * inputs * units,
        activations=vectors * units,
    )


def _dense(call: _Call) -> list[LayerCost]:
    *leading, inputs = call.shapes[0]
    row = _dense_row(call.layer, math.prod(leading), inputs, call.output[-1])
    return [dataclasses.replace(row, output_shape=call.output)]


def _einsum_dense(call: _Call) -> list[LayerCost]:
    operands, result = call.layer.equation.replace("...", "").split("->")
    kernel = zip(operands.split(",")[1], call.layer.kernel.shape, strict=True)
    summed = math.prod(size for axis, size in kernel if axis not in result)
    size = math.prod(call.output)
    macs = summed * size
    return [_row(call.layer, call.output, macs=macs, activations=size)]


def _attention_row(
    layer: keras.layers.Layer,
    queries: int,
    tokens: int,
    width: int,
    offsets: int,
) -> LayerCost:
    """Returns the cost of `MultiHeadAttention` and the residual sum after it.

    Rotary positions add nothing: PyTorch stores rotated queries and keys
    instead of the projected ones, and products of single values do not count.
    `offsets` is the number of patches with relative positions.
    """
    q, kv = queries * width, tokens * width
    scores = layer.num_heads * queries * tokens
    # The queries, keys, values and the result of attention; the residual sum.
    stored = q + 2 * kv + q + q
    activations = q + 2 * kv + q
    macs = (2 * queries + 2 * tokens) * width**2 + 2 * queries * tokens * width
    if layer.qk_norm:
        stored += q + kv
    if offsets:
        pairs = offsets * (2 * offsets - 1)
        macs += pairs * width
        activations += layer.num_heads * pairs
    if offsets or layer.dropout:
        # Attention is not fused: scaled queries and keys; probabilities.
        stored += q + scores + (kv if offsets else 2 * scores)
    return _row(
        layer,
        (queries, width),
        macs=macs,
        activations=activations,
        stored=stored,
    )


def _attention(call: _Call) -> list[LayerCost]:
    queries, width = call.shapes[0]
    context = call.options.get("context")
    tokens = queries if context is None else context.shape[1]
    offsets = _relative_patches(call)
    return [_attention_row(call.layer, queries, tokens, width, offsets)]


def _relative_patches(call: _Call) -> int:
    """Returns the number of patches with relative positions, or 0."""
    relative = call.options.get("relative")
    if relative is None or len(relative.shape) == 4:  # rotary positions
        return 0
    return (relative.shape[1] + 1) // 2


def _mlp_row(layer: keras.layers.Layer, tokens: int, width: int) -> LayerCost:
    """Returns the cost of an `MlpBlock` and the residual sum after it."""
    dim, activation = layer.mlp_dim, layer.activation
    size, hidden = tokens * width, tokens * dim
    units = 2 * dim if activation == "swiglu" else dim
    # Tensors of the size of the hidden layer: its input to the activation and
    # its output, and what the activation stores in addition.
    count = {"quick_gelu": 3, "swiglu": 4, "relu": 1}.get(activation, 2)
    # Dropout stores random factors and its results.
    dropped = 2 * hidden + size if layer.dropout else 0
    return _row(
        layer,
        (tokens, width),
        macs=tokens * (width * units + dim * width),
        activations=tokens * units + size,
        stored=count * hidden + size + dropped,
    )


def _mlp(call: _Call) -> list[LayerCost]:
    *leading, width = call.shapes[0]
    return [_mlp_row(call.layer, math.prod(leading), width)]


def _block(call: _Call) -> list[LayerCost] | None:
    block = call.layer
    known = (
        type(block.attention) is keras_vit_layers.MultiHeadAttention
        and type(block.mlp) is keras_vit_layers.MlpBlock
        and all(
            isinstance(norm, keras.layers.LayerNormalization)
            for norm in (block.norm_1, block.norm_2)
        )
    )
    if not known:
        return None
    (tokens, width), (outputs, _) = call.shapes[0], call.output
    offsets = _relative_patches(call)
    shape = (outputs, width)
    rows = [
        _stores(block.norm_1, (tokens, width)),
        _attention_row(
            block.attention,
            # With relative positions, attention computes all tokens.
            tokens if offsets else outputs,
            tokens,
            width,
            offsets,
        ),
        _stores(block.norm_2, shape),
        _mlp_row(block.mlp, outputs, width),
    ]
    if block.scale_1 is not None:
        rows += [_stores(block.scale_1, shape), _stores(block.scale_2, shape)]
    if block.dropout:
        size = math.prod(shape)
        rows.append(LayerCost("dropout", "Dropout", shape, stored=size))
    return [dataclasses.replace(row, remat=bool(block.remat)) for row in rows]


def _attention_pooling(call: _Call) -> list[LayerCost]:
    layer, (tokens, width) = call.layer, call.shapes[0]
    tokens -= layer.num_prefix_tokens
    return [
        _attention_row(layer.attention, 1, tokens, width, 0),
        _stores(layer.norm, (1, width)),
        _mlp_row(layer.mlp, 1, width),
    ]


def _convolution(
    layer: keras.layers.Layer,
    shape: Shape,
    filters: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: str,
    groups: int = 1,
) -> LayerCost:
    """Returns the cost of a convolution of a map of `shape`; `padding` is
    "same", "symmetric" or "valid"."""
    *size, channels = shape
    axes = [
        _axis(n, k, s, padding)
        for n, k, s in zip(size, kernel, strides, strict=True)
    ]
    rows, columns = (outputs for outputs, _, _ in axes)
    taps = math.prod(used for _, used, _ in axes)
    weights = math.prod(kernel) * (channels // groups) * filters
    macs = rows * columns * weights
    standardized = isinstance(layer, keras_vit_layers.StdConv2D)
    stored = 0
    if kernel == (1, 1) and strides != (1, 1):
        stored = rows * columns * channels  # every second position, copied
    elif standardized and any(pad for _, _, pad in axes):
        if (padding, strides) != ("same", (1, 1)):  # the padded map
            padded = (
                n + pad for n, (_, _, pad) in zip(size, axes, strict=True)
            )
            stored = math.prod(padded) * channels
    return _row(
        layer,
        (rows, columns, filters),
        macs=macs,
        padding_macs=macs - taps * (channels // groups) * filters,
        activations=rows * columns * filters,
        stored=stored,
        # The kernel after the mean is subtracted, and the standardized one.
        stored_weights=2 * weights if standardized else 0,
    )


def _axis(
    size: int, kernel: int, stride: int, padding: str
) -> tuple[int, int, int]:
    """Returns how many outputs an axis has, how many products with pixels of
    the image, over all outputs, and how many positions of padding."""
    outputs = -(-size // stride)
    if padding == "valid":
        outputs = (size - kernel) // stride + 1
        return outputs, outputs * kernel, 0
    if padding == "symmetric":
        before, total = (kernel - 1) // 2, kernel - 1
    else:
        total = max((outputs - 1) * stride + kernel - size, 0)
        before = total // 2
    used = sum(
        max(0, min(size, i * stride - before + kernel))
        - max(0, i * stride - before)
        for i in range(outputs)
    )
    return outputs, used, total


def _patches(call: _Call) -> list[LayerCost]:
    *grid, width = call.output
    patch = call.layer.patch_size
    size = [n * p for n, p in zip(grid, patch, strict=True)]
    shape = (*size, call.shapes[0][-1])
    return [_convolution(call.layer, shape, width, patch, patch, "valid")]


def _conv_row(layer: keras.layers.Layer, shape: Shape) -> LayerCost:
    """Returns the cost of a convolution with attributes as Keras's."""
    *_, channels = shape
    depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
    filters = channels * layer.depth_multiplier if depthwise else layer.filters
    return _convolution(
        layer,
        shape,
        filters,
        tuple(layer.kernel_size),
        tuple(layer.strides),
        layer.padding,
        channels if depthwise else getattr(layer, "groups", 1),
    )


def _conv(call: _Call) -> list[LayerCost] | None:
    layer = call.layer
    if not isinstance(layer, keras_vit_layers.StdConv2D):
        dilated = any(rate > 1 for rate in layer.dilation_rate)
        if dilated or layer.data_format != "channels_last":
            return None
    return [_conv_row(layer, call.shapes[0])]


def _transposed_row(
    layer: keras.layers.Layer, shape: Shape, output: Shape
) -> LayerCost:
    """Returns the cost of `Conv2DTranspose`, which computes as many products as
    the convolution that it is the gradient of."""
    macs = math.prod(shape) * math.prod(layer.kernel_size) * output[-1]
    return _row(layer, output, macs=macs, activations=math.prod(output))


def _transposed(call: _Call) -> list[LayerCost]:
    return [_transposed_row(call.layer, call.shapes[0], call.output)]


def _max_pool(call: _Call) -> list[LayerCost]:
    *size, channels = call.shapes[0]
    pad = 1 if call.layer.padding == "same" else 2
    padded = math.prod(n + pad for n in size) * channels
    # The padded map, and indices of 64 bits.
    stored = padded + 2 * math.prod(call.output)
    return [_row(call.layer, call.output, stored=stored)]


def _unit(call: _Call) -> list[LayerCost]:
    """Returns the costs of a `ResidualUnit`, whose ReLUs follow norms, or the
    sum with the shortcut."""
    unit, shape, after = call.layer, call.shapes[0], call.output
    inner = (*shape[:2], unit.filters)
    strided = (*after[:2], unit.filters)
    rows = [
        _conv_row(unit.conv_1, shape),
        _stores(unit.norm_1, shape if unit.preactivation else inner, 2),
        _conv_row(unit.conv_2, inner),
        _stores(unit.norm_2, inner if unit.preactivation else strided, 2),
        _conv_row(unit.conv_3, strided),
        _stores(unit.norm_3, strided if unit.preactivation else after, 2),
    ]
    if unit.conv_proj is not None:
        rows.append(_conv_row(unit.conv_proj, shape))
    if unit.norm_proj is not None:
        rows.append(_stores(unit.norm_proj, after))
    return rows


def _pyramid(call: _Call) -> list[LayerCost]:
    layer, (rows, columns, channels) = call.layer, call.shapes[0]
    twice = (2 * rows, 2 * columns)
    sizes = {
        "P2": (4 * rows, 4 * columns, channels // 4),
        "P3": (*twice, channels // 2),
        "P4": (rows, columns, channels),
        "P5": (rows // 2, columns // 2, channels),
    }
    found = [
        _transposed_row(layer.p2_up_1, call.shapes[0], sizes["P3"]),
        _stores(layer.p2_norm, sizes["P3"]),
        _transposed_row(layer.p2_up_2, sizes["P3"], sizes["P2"]),
        _transposed_row(layer.p3_up, call.shapes[0], sizes["P3"]),
    ]
    for level, head in layer.heads.items():
        shape = sizes[level]
        for part in head:
            if isinstance(part, keras.layers.Conv2D):
                found.append(_conv_row(part, shape))
                shape = found[-1].output_shape
            else:
                found.append(_stores(part, shape))
    return found


def _eomt_head(call: _Call) -> list[LayerCost]:
    layer, ((_, width), (rows, columns, *_)) = call.layer, call.shapes[:2]
    queries = layer.num_queries
    found = [
        _dense_row(part, queries, width, width) for part in layer.mask_layers
    ]
    classes = layer.classes + 1
    found.append(_dense_row(layer.class_head, queries, width, classes))
    for part in layer.upscales:
        before = (rows, columns, width)
        rows, columns = 2 * rows, 2 * columns
        shape = (rows, columns, width)
        parts = [
            _transposed_row(part.deconvolution, before, shape),
            _conv_row(part.convolution, shape),
            _stores(part.norm, shape),
        ]
        found += [
            dataclasses.replace(row, name=f"{part.name}/{row.name}")
            for row in parts
        ]
    size = rows * columns * queries
    product = LayerCost("masks", "EoMTHead", call.output)
    found.append(
        dataclasses.replace(product, macs=size * width, activations=size)
    )
    return found


def _preprocessing(call: _Call) -> list[LayerCost]:
    """Returns the cost of an `ImagePreprocessing`, which resizes by a matrix
    product for each axis."""
    (before, width, channels), (rows, columns, _) = call.shapes[0], call.output
    # The values of each product's output, and the products for one of them.
    values = [
        (rows * width * channels, before if rows != before else 0),
        (rows * columns * channels, width if columns != width else 0),
    ]
    return [
        dataclasses.replace(
            _without_products(call),
            macs=sum(count * n for count, n in values),
            activations=sum(count for count, n in values if n),
        )
    ]


def _resampled(call: _Call) -> list[LayerCost]:
    """Returns the cost of resampling a map by one matrix for each axis: to
    the output's size, or a `QueryMask`'s to the grid of the patches."""
    is_mask = isinstance(call.layer, eomt.QueryMask)
    rows, columns = (call.shapes[1] if is_mask else call.output)[:2]
    before, width, channels = call.shapes[0]
    products = rows * before * width + columns * width * rows
    return [
        dataclasses.replace(
            _without_products(call),
            macs=products * channels,
            activations=rows * (width + columns) * channels,
        )
    ]


_RULES: dict[type, Callable[[_Call], list[LayerCost] | None]] = {
    keras_vit_layers.AddPositionEmbs: _positions,
    keras_vit_layers.AttentionPooling: _attention_pooling,
    keras_vit_layers.ClassToken: _weights_only,
    keras_vit_layers.GroupNorm: _norm,
    keras_vit_layers.ImagePreprocessing: _preprocessing,
    keras_vit_layers.MaskToken: _weights_only,
    keras_vit_layers.MaxPool2D: _max_pool,
    keras_vit_layers.MlpBlock: _mlp,
    keras_vit_layers.MultiHeadAttention: _attention,
    keras_vit_layers.PatchEmbedding: _patches,
    keras_vit_layers.RelativePositionEmbs: _weights_only,
    keras_vit_layers.ResidualUnit: _unit,
    keras_vit_layers.RotaryPositionEmbs: _weights_only,
    keras_vit_layers.SimpleFeaturePyramid: _pyramid,
    keras_vit_layers.StdConv2D: _conv,
    keras_vit_layers.TransformerBlock: _block,
    keras_vit_layers.UpsampleMap: _resampled,
    eomt.EoMTHead: _eomt_head,
    eomt.QueryMask: _resampled,
    keras.layers.BatchNormalization: _norm,
    keras.layers.Conv2D: _conv,
    keras.layers.Conv2DTranspose: _transposed,
    keras.layers.Dense: _dense,
    keras.layers.DepthwiseConv2D: _conv,
    keras.layers.EinsumDense: _einsum_dense,
    keras.layers.LayerNormalization: _norm,
    keras.layers.RMSNormalization: _norm,
}
