"""The layers of a Keras model and their costs."""

import dataclasses
import math

import keras

from keras_vit import _checks
from keras_vit import layers as keras_vit_layers
from keras_vit.costs import layers
from keras_vit.costs import plan
from keras_vit.models.features import check_takes_images
from keras_vit.models.features import for_another_size
from keras_vit.segmentation import eomt


def trace(model, image_size=None):
    """Returns the costs of the layers of a functional model.

    The model is called on symbolic tensors, which computes nothing.

    Args:
        model: A functional `keras.Model` with one input of images.
        image_size: Integer, `(height, width)`, or None for that of the model.

    Returns:
        List of `LayerCost`, the first one of the input.

    Raises:
        ValueError: if the model is not functional, the size of its images is
            unknown, or the cost of a layer is not known.
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
    rows = [layers.other("images", "InputLayer", shape, 0)]
    seen = set()
    _walk(model, shape, "", rows, seen)
    return rows


# Names of the arguments that layers of keras_vit take by position.
_ARGUMENTS = {
    keras_vit_layers.MultiHeadAttention: ("inputs", "context", "relative"),
    keras_vit_layers.TransformerBlock: ("inputs", "relative"),
}


def _walk(model, shape, prefix, rows, seen):
    """Appends the costs of a model's layers to `rows`.

    Args:
        model: A functional model.
        shape: Shape of its input, without the batch axis.
        prefix: String. What the names of its layers begin with.
        rows: List of `LayerCost`.
        seen: Set of the ids of layers whose weights have been counted.
    """
    unknown = []

    def call(layer, *arguments, **options):
        outputs = layer(*arguments, **options)
        tensors = [x for x in arguments if keras.utils.is_keras_tensor(x)]
        for x in arguments:
            if isinstance(x, (list, tuple)):
                tensors += x
        tensors += [
            x for x in options.values() if keras.utils.is_keras_tensor(x)
        ]
        shapes = [tuple(x.shape[1:]) for x in tensors]
        name = prefix + layer.name
        if isinstance(layer, keras.Model):
            _walk(layer, shapes[0], f"{name}/", rows, seen)
            return outputs
        structure = keras.tree.flatten(outputs)
        output = tuple(structure[0].shape[1:])
        for kind, names in _ARGUMENTS.items():
            if isinstance(layer, kind):
                options = dict(zip(names, arguments, strict=False)) | options
        found = _rows(layer, name, shapes, output, options)
        if found is None:
            unknown.append(f"{name} ({type(layer).__name__})")
            return outputs
        rows.extend(_count_once(layer, found, seen))
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
            "layers without weights that make no products."
        )


def _count_once(layer, rows, seen):
    """Returns rows whose parameters are those of the layer's variables, or
    zero if the layer was called before."""
    counted = sum(row.parameters for row in rows)
    actual = 0
    frozen = 0
    if id(layer) not in seen:
        actual = sum(math.prod(v.shape) for v in layer.weights)
        actual -= _random_state(layer)
        frozen = sum(math.prod(v.shape) for v in layer.non_trainable_weights)
        frozen -= _random_state(layer)
    seen.add(id(layer))
    if not rows or (counted == actual and not frozen):
        return rows
    first = dataclasses.replace(
        rows[0], parameters=rows[0].parameters + actual - counted
    )
    rows = [first, *rows[1:]]
    left = frozen
    for i, row in enumerate(rows):
        count = max(0, min(left, row.parameters))
        left -= count
        rows[i] = dataclasses.replace(row, non_trainable=count)
    return rows


def _random_state(layer):
    """Returns the size of the states of a layer's random generators, which are
    among its weights."""
    return sum(
        math.prod(v.shape)
        for v in layer.weights
        if "seed_generator" in v.path.split("/")
    )


def _rows(layer, name, shapes, output, options):
    """Returns the costs of a call of a layer; None if they are not known."""
    for kind in type(layer).__mro__:
        if kind in _RULES:
            return _RULES[kind](layer, name, shapes, output, options)
    if type(layer).__name__ in _PRODUCTS or getattr(layer, "weights", ()):
        return None
    return [_elementwise(layer, name, output)]


# Layers and operations without weights that make products.
_PRODUCTS = (
    *("AdditiveAttention", "Attention", "Dot", "DotProductAttention"),
    *("Einsum", "Matmul", "Tensordot", "Inner", "Outer", "Vdot", "Conv"),
)
_VIEWS = (
    *(keras.layers.Reshape, keras.layers.Flatten, keras.layers.Identity),
    *(keras.layers.InputLayer, keras_vit_layers.FeatureMap),
)


def _elementwise(layer, name, output):
    kind = type(layer).__name__
    dropped = isinstance(layer, keras.layers.Dropout)
    copies = not isinstance(layer, _VIEWS) and not (dropped and not layer.rate)
    stored = 0
    if dropped or isinstance(layer, (keras.layers.ReLU,)):
        stored = math.prod(output) if copies else 0
    return layers.other(name, kind, output, stored=stored, copies=copies)


def _norm(layer, name, shapes, output, options):
    *leading, width = shapes[0]
    return [layers.layer_norm(name, math.prod(leading), width)]


def _group_norm(layer, name, shapes, output, options):
    return [layers.group_norm(name, shapes[0][:2], shapes[0][2])]


def _batch_norm(layer, name, shapes, output, options):
    weights = sum(math.prod(v.shape) for v in layer.weights)
    kind, size = type(layer).__name__, math.prod(output)
    return [layers.other(name, kind, output, weights, size)]


def _tokens(layer, name, shapes, output, options):
    return [plan.token(name, layer.num_tokens, *output)]


def _mask_token(layer, name, shapes, output, options):
    kind, width = type(layer).__name__, output[-1]
    return [layers.other(name, kind, output, width, copies=len(shapes) > 1)]


def _positions(layer, name, shapes, output, options):
    return [
        plan.positions(
            name,
            layer.kind,
            *output,
            layer.built_grid,
            layer.num_prefix_tokens,
        )
    ]


def _relative(layer, name, shapes, output, options):
    row = plan.positions(
        name, "relative", 0, 0, layer.built_grid, 0, layer.head_size
    )
    return [dataclasses.replace(row, output_shape=output)]


def _rotary(layer, name, shapes, output, options):
    return [
        plan.positions(name, "rope", output[0], 0, None, 0, layer.head_size)
    ]


def _attention(layer, name, shapes, output, options):
    queries, width = shapes[0]
    context = options.get("context")
    return [
        layers.attention(
            name,
            queries,
            queries if context is None else context.shape[1],
            width,
            layer.num_heads,
            layer.qkv_bias,
            layer.key_bias,
            layer.qk_norm,
            layer.dropout,
            _relative_patches(options),
        )
    ]


def _relative_patches(options):
    """Returns the number of patches with relative positions, or 0."""
    relative = options.get("relative")
    if relative is None or len(relative.shape) == 4:  # rotary positions
        return 0
    return (relative.shape[1] + 1) // 2


def _mlp(layer, name, shapes, output, options):
    *leading, width = shapes[0]
    tokens = math.prod(leading)
    return [
        layers.mlp(
            name, tokens, width, layer.mlp_dim, layer.activation, layer.dropout
        )
    ]


def _block(layer, name, shapes, output, options):
    known = (
        type(layer.attention) is keras_vit_layers.MultiHeadAttention
        and type(layer.mlp) is keras_vit_layers.MlpBlock
        and all(
            isinstance(norm, keras.layers.LayerNormalization)
            for norm in (layer.norm_1, layer.norm_2)
        )
    )
    if not known:
        return None
    tokens, width = shapes[0]
    queries = None if output[0] == tokens else output[0]
    patches = _relative_patches(options)
    return layers.block(name, tokens, width, layer, queries, patches)


def _attention_pooling(layer, name, shapes, output, options):
    tokens, width = shapes[0]
    return layers.attention_pooling(
        name,
        tokens - layer.num_prefix_tokens,
        width,
        layer.num_heads,
        layer.mlp_dim,
        layer.activation,
        layer.qkv_bias,
    )


def _dense(layer, name, shapes, output, options):
    *leading, inputs = shapes[0]
    count = math.prod(leading)
    return [
        layers.dense(name, count, inputs, output[-1], layer.use_bias)
        if len(output) < 3
        else dataclasses.replace(
            layers.dense(name, count, inputs, output[-1], layer.use_bias),
            output_shape=output,
        )
    ]


def _einsum_dense(layer, name, shapes, output, options):
    operands, result = layer.equation.replace("...", "").split("->")
    summed = math.prod(
        size
        for axis, size in zip(
            operands.split(",")[1], layer.kernel.shape, strict=True
        )
        if axis not in result
    )
    row = layers.dense(name, 1, summed, math.prod(output), False)
    parameters = sum(math.prod(v.shape) for v in layer.weights)
    kind = type(layer).__name__
    return [
        dataclasses.replace(
            row, kind=kind, output_shape=output, parameters=parameters
        )
    ]


def _patches(layer, name, shapes, output, options):
    *grid, width = output
    size = [n * p for n, p in zip(grid, layer.patch_size, strict=True)]
    return [
        layers.convolution(
            name,
            size,
            shapes[0][-1],
            width,
            layer.patch_size,
            layer.patch_size,
            "valid",
            layer.use_bias,
            kind="PatchEmbedding",
        )
    ]


def _std_conv(layer, name, shapes, output, options):
    *size, channels = shapes[0]
    return [
        layers.convolution(
            name,
            size,
            channels,
            layer.filters,
            layer.kernel_size,
            layer.strides,
            layer.padding,
        )
    ]


def _unit(layer, name, shapes, output, options):
    *size, channels = shapes[0]
    return layers.residual_unit(
        name,
        tuple(size),
        channels,
        layer.filters,
        layer.strides,
        layer.projects,
        layer.preactivation,
        layer.conv_padding,
    )


def _max_pool(layer, name, shapes, output, options):
    *size, channels = shapes[0]
    return [layers.max_pool(name, size, channels, layer.padding)]


def _conv(layer, name, shapes, output, options):
    """Keras's 2-D convolutions."""
    *size, channels = shapes[0]
    depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
    transposed = isinstance(layer, keras.layers.Conv2DTranspose)
    kind = type(layer).__name__
    if transposed:
        # As many products as the convolution that it is the gradient of.
        filters = output[-1]
        weights = math.prod(layer.kernel_size) * channels * filters
        parameters = weights + (filters if layer.use_bias else 0)
        return [
            dataclasses.replace(
                layers.other(name, kind, output, parameters),
                macs=math.prod(size) * weights,
                activations=math.prod(output),
                cast_weights=parameters,
            )
        ]
    row = layers.convolution(
        name,
        size,
        channels,
        output[-1],
        tuple(layer.kernel_size),
        tuple(layer.strides),
        layer.padding,
        layer.use_bias,
        channels if depthwise else layer.groups,
        kind,
    )
    dilated = any(rate > 1 for rate in layer.dilation_rate)
    if dilated or layer.data_format != "channels_last":
        return None
    return [row]


def _pyramid(layer, name, shapes, output, options):
    """A `SimpleFeaturePyramid`."""
    rows, columns, channels = shapes[0]

    def up(part, size, inputs):
        shape = (2 * size[0], 2 * size[1], inputs // 2)
        return _conv(part, f"{name}/{part.name}", [(*size, inputs)], shape, {})

    def norm(part, shape):
        tokens = math.prod(shape[:-1])
        return [layers.layer_norm(f"{name}/{part.name}", tokens, shape[-1])]

    twice, half = (2 * rows, 2 * columns), channels // 2
    found = [
        *up(layer.p2_up_1, (rows, columns), channels),
        *norm(layer.p2_norm, (*twice, half)),
        *up(layer.p2_up_2, twice, half),
        *up(layer.p3_up, (rows, columns), channels),
    ]
    sizes = {
        "P2": (4 * rows, 4 * columns, channels // 4),
        "P3": (*twice, half),
        "P4": (rows, columns, channels),
        "P5": (rows // 2, columns // 2, channels),
    }
    for level, head in layer.heads.items():
        shape = sizes[level]
        for part in head:
            if isinstance(part, keras.layers.Conv2D):
                after = (*shape[:2], layer.filters)
                inner = f"{name}/{part.name}"
                found += _conv(part, inner, [shape], after, {})
                shape = after
            else:
                found += norm(part, shape)
    return found


def _eomt_head(layer, name, shapes, output, options):
    """An `EoMTHead`."""
    (_, width), (rows, columns, *_) = shapes
    queries = layer.num_queries
    found = [
        layers.dense(f"{name}/{part.name}", queries, width, width)
        for part in layer.mask_layers
    ]
    found.append(
        layers.dense(f"{name}/class", queries, width, layer.classes + 1)
    )
    for part in layer.upscales:
        size = (rows, columns, width)
        rows, columns = 2 * rows, 2 * columns
        shape = (rows, columns, width)
        inner = f"{name}/{part.name}"
        for sublayer, before in (
            (part.deconvolution, size),
            (part.convolution, shape),
        ):
            path = f"{inner}/{sublayer.name}"
            found += _conv(sublayer, path, [before], shape, {})
        found.append(layers.layer_norm(f"{inner}/norm", rows * columns, width))
    product = layers.dense(
        f"{name}/masks", rows * columns, width, queries, False
    )
    found.append(
        dataclasses.replace(product, parameters=0, output_shape=output)
    )
    return found


def _preprocessing(layer, name, shapes, output, options):
    """An `ImagePreprocessing`, which resizes by a product for each axis."""
    (before, width, channels), (rows, columns, _) = shapes[0], output
    # The values of each product's output, and the products for one of them.
    values = [
        (rows * width * channels, before if rows != before else 0),
        (rows * columns * channels, width if columns != width else 0),
    ]
    return [
        dataclasses.replace(
            _elementwise(layer, name, output),
            macs=sum(count * n for count, n in values),
            activations=sum(count for count, n in values if n),
        )
    ]


def _upsample(layer, name, shapes, output, options):
    return [_resampled(layer, name, shapes[0], output, output[:2])]


def _query_mask(layer, name, shapes, output, options):
    """A `QueryMask`, which resamples masks to the grid of the patches."""
    return [_resampled(layer, name, shapes[0], output, shapes[1][:2])]


def _resampled(layer, name, shape, output, size):
    """Returns the cost of resampling a map by one matrix for each axis."""
    (rows, columns), (before, width, channels) = size, shape
    products = rows * before * width + columns * width * rows
    row = _elementwise(layer, name, output)
    return dataclasses.replace(
        row,
        macs=products * channels,
        activations=rows * (width + columns) * channels,
    )


_RULES = {
    keras_vit_layers.AddPositionEmbs: _positions,
    keras_vit_layers.AttentionPooling: _attention_pooling,
    keras_vit_layers.ClassToken: _tokens,
    keras_vit_layers.GroupNorm: _group_norm,
    keras_vit_layers.ImagePreprocessing: _preprocessing,
    keras_vit_layers.MaskToken: _mask_token,
    keras_vit_layers.MaxPool2D: _max_pool,
    keras_vit_layers.MlpBlock: _mlp,
    keras_vit_layers.MultiHeadAttention: _attention,
    keras_vit_layers.PatchEmbedding: _patches,
    keras_vit_layers.RelativePositionEmbs: _relative,
    keras_vit_layers.ResidualUnit: _unit,
    keras_vit_layers.RotaryPositionEmbs: _rotary,
    keras_vit_layers.SimpleFeaturePyramid: _pyramid,
    keras_vit_layers.StdConv2D: _std_conv,
    keras_vit_layers.TransformerBlock: _block,
    keras_vit_layers.UpsampleMap: _upsample,
    eomt.EoMTHead: _eomt_head,
    eomt.QueryMask: _query_mask,
    keras.layers.BatchNormalization: _batch_norm,
    keras.layers.Conv2D: _conv,
    keras.layers.Conv2DTranspose: _conv,
    keras.layers.Dense: _dense,
    keras.layers.DepthwiseConv2D: _conv,
    keras.layers.EinsumDense: _einsum_dense,
    keras.layers.LayerNormalization: _norm,
    keras.layers.RMSNormalization: _norm,
}
