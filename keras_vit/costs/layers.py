"""What each layer costs, from its sizes alone.

The functions return `LayerCost`s. Numbers are those of one image. Tensors that
a training step stores for its gradients are those that PyTorch stores for the
operations of `keras_vit.layers`, with fused attention.
"""

import dataclasses
import math


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
        stored: Integer. Values that are stored for the gradients, in the
            precision of the computation.
        stored_float32: Integer. The same, in float32 in any precision.
        stored_half: Integer. The same, in float32, if the precision is a half
            one.
        stored_weights: Integer. Values that do not depend on the batch and are
            stored for the gradients, in float32.
        cast_weights: Integer. Weights that are cast under mixed precision.
        retained: Integer. Values of its output that are not stored for the
            gradients, but exist until the end of the forward pass.
        forward_workspace: Integer. Values, besides its inputs, that exist
            together while the layer is computed.
        backward_workspace: Integer. The same, while its gradients are computed.
        remat: Boolean. Whether training stores only its block's output, and
            computes the rest again for the gradients.
    """

    name: str
    kind: str
    output_shape: tuple
    parameters: int = 0
    non_trainable: int = 0
    macs: int = 0
    padding_macs: int = 0
    activations: int = 0
    stored: int = 0
    stored_float32: int = 0
    stored_half: int = 0
    stored_weights: int = 0
    cast_weights: int = 0
    retained: int = 0
    forward_workspace: int = 0
    backward_workspace: int = 0
    remat: bool = False

    @property
    def group(self):
        """Name of the layer of the model that this one is part of."""
        return self.name.partition("/")[0]


def other(name, kind, output_shape, parameters=0, stored=0, copies=True):
    """Returns the cost of a layer without products.

    Args:
        name: String. Name of the layer.
        kind: String. Its class.
        output_shape: Shape of the output, without the batch axis.
        parameters: Integer. Number of its weights.
        stored: Integer. Values that it stores for the gradients.
        copies: Boolean. Whether the output is new memory.
    """
    size = math.prod(output_shape) if copies else 0
    return LayerCost(
        name,
        kind,
        tuple(output_shape),
        parameters=parameters,
        stored=stored,
        retained=max(0, size - stored),
        forward_workspace=size,
        backward_workspace=size,
    )


def dense(name, leading, inputs, units, bias=True, kind="Dense"):
    """Returns the cost of a dense layer on `leading` vectors of an image."""
    size = leading * units
    weights = inputs * units + (units if bias else 0)
    shape = (units,) if leading == 1 else (leading, units)
    return LayerCost(
        name,
        kind,
        shape,
        parameters=weights,
        macs=leading * inputs * units,
        activations=size,
        cast_weights=weights,
        retained=size,
        forward_workspace=size,
        backward_workspace=size + leading * inputs,
    )


def layer_norm(name, tokens, width):
    size = tokens * width
    return LayerCost(
        name,
        "LayerNormalization",
        (tokens, width),
        parameters=2 * width,
        stored=size,
        stored_float32=2 * tokens,
        stored_half=size,
        forward_workspace=size,
        backward_workspace=2 * size,
    )


def attention(
    name,
    queries,
    tokens,
    width,
    heads,
    qkv_bias=True,
    key_bias=True,
    qk_norm=False,
    dropout=0.0,
    patches=0,
):
    """Returns the cost of `MultiHeadAttention` and the residual sum after it.

    Rotary positions add nothing: PyTorch stores rotated queries and keys
    instead of the projected ones, and products of single values do not count.

    Args:
        name: String. Name of the layer.
        queries: Integer. Number of query tokens.
        tokens: Integer. Number of key and value tokens.
        width: Integer. Hidden size.
        heads: Integer. Number of heads.
        qkv_bias: Boolean. As in the layer.
        key_bias: Boolean. As in the layer.
        qk_norm: Boolean. As in the layer.
        dropout: Float. As in the layer.
        patches: Integer. Number of patches with relative positions; 0 for none.
    """
    q, kv, scores = queries * width, tokens * width, heads * queries * tokens
    biases = 1 + (2 + key_bias if qkv_bias else 0)
    weights = 4 * width**2 + biases * width
    parameters = weights + (4 * (width // heads) if qk_norm else 0)
    # query, keys and values, result of the attention; sum of the residual
    stored = q + 2 * kv + q + q
    stored_float32 = heads * queries  # logarithms of the sums of the softmax
    activations = q + 2 * kv + q
    macs = (2 * queries + 2 * tokens) * width**2 + 2 * queries * tokens * width
    workspace = 0
    if qk_norm:
        stored += q + kv
        stored_float32 += 2 * heads * (queries + tokens)
    if patches:
        offsets = heads * patches * (2 * patches - 1)
        macs += patches * (2 * patches - 1) * width
        activations += offsets
    if patches or dropout:
        # Not fused: scaled queries and keys; probabilities.
        stored += q + scores
        stored += kv if patches else 2 * scores
        workspace = 3 * scores
    return LayerCost(
        name,
        "MultiHeadAttention",
        (queries, width),
        parameters=parameters,
        macs=macs,
        activations=activations,
        stored=stored,
        stored_float32=stored_float32,
        cast_weights=weights,
        forward_workspace=q + 2 * kv + 2 * q + workspace,
        backward_workspace=q + 2 * kv + 2 * q + workspace,
    )


def mlp(name, tokens, width, dim, activation="gelu_tanh", dropout=0.0):
    """Returns the cost of an `MlpBlock` and the residual sum after it."""
    size, hidden = tokens * width, tokens * dim
    units = 2 * dim if activation == "swiglu" else dim
    weights = width * units + units + dim * width + width
    # Tensors of the size of the hidden layer: its input to the activation and
    # its output, and what the activation stores in addition.
    count = {"quick_gelu": 3, "swiglu": 4, "relu": 1}.get(activation, 2)
    dropped = 2 * hidden + size if dropout else 0  # random factors, results
    return LayerCost(
        name,
        "MlpBlock",
        (tokens, width),
        parameters=weights,
        macs=tokens * (width * units + dim * width),
        activations=tokens * units + size,
        stored=count * hidden + size + dropped,
        cast_weights=weights,
        forward_workspace=count * hidden + size,
        backward_workspace=hidden + 2 * size,
    )


def block(name, tokens, width, options, queries=None, patches=0):
    """Returns the costs of a `TransformerBlock`.

    Args:
        name: String. Name of the block.
        tokens: Integer. Number of tokens.
        width: Integer. Hidden size.
        options: A `TransformerBlock` or a `ViTConfig`, whose attributes of the
            same names are the options of the block.
        queries: Integer. Number of output tokens; None for all.
        patches: Integer. Number of patches with relative positions, or 0.

    Returns:
        List of `LayerCost`.
    """
    c = options
    outputs = queries or tokens
    rows = [
        layer_norm(f"{name}/norm_1", tokens, width),
        attention(
            f"{name}/attention",
            # With relative positions, attention computes all tokens.
            tokens if patches else outputs,
            tokens,
            width,
            c.num_heads,
            c.qkv_bias,
            c.key_bias,
            c.qk_norm,
            c.attention_dropout,
            patches,
        ),
    ]
    if c.dropout:
        shape, size = (outputs, width), outputs * width
        rows.append(other(f"{name}/dropout", "Dropout", shape, 0, size))
    if c.layer_scale is not None:
        rows.append(_scale(f"{name}/scale_1", outputs, width))
    rows.append(layer_norm(f"{name}/norm_2", outputs, width))
    rows.append(
        mlp(f"{name}/mlp", outputs, width, c.mlp_dim, c.activation, c.dropout)
    )
    if c.layer_scale is not None:
        rows.append(_scale(f"{name}/scale_2", outputs, width))
    return [dataclasses.replace(row, remat=bool(c.remat)) for row in rows]


def _scale(name, tokens, width):
    return LayerCost(
        name,
        "LayerScale",
        (tokens, width),
        parameters=width,
        cast_weights=width,
        stored=tokens * width,
        forward_workspace=tokens * width,
        backward_workspace=tokens * width,
    )


def attention_pooling(name, tokens, width, heads, mlp_dim, activation, bias):
    """Returns the costs of an `AttentionPooling` over `tokens` patches."""
    found = attention(f"{name}/attention", 1, tokens, width, heads, bias)
    found = dataclasses.replace(found, parameters=found.parameters + width)
    return [
        found,
        layer_norm(f"{name}/norm", 1, width),
        mlp(f"{name}/mlp", 1, width, mlp_dim, activation),
    ]


def convolution(
    name,
    size,
    channels,
    filters,
    kernel,
    strides=(1, 1),
    padding="same",
    bias=False,
    groups=1,
    kind="StdConv2D",
):
    """Returns the cost of a convolution.

    Args:
        name: String. Name of the layer.
        size: `(rows, columns)` of its input.
        channels: Integer. Number of its input channels.
        filters: Integer. Number of its output channels.
        kernel: `(rows, columns)`.
        strides: `(rows, columns)`.
        padding: String. "same", "symmetric" or "valid".
        bias: Boolean. Whether it has a bias.
        groups: Integer. Number of groups of channels.
        kind: String. Class of the layer. A "StdConv2D" standardises its
            weights.
    """
    axes = [
        _axis(n, k, s, padding)
        for n, k, s in zip(size, kernel, strides, strict=True)
    ]
    rows, columns = (outputs for outputs, _, _ in axes)
    taps = math.prod(used for _, used, _ in axes)
    weights = math.prod(kernel) * (channels // groups) * filters
    parameters = weights + (filters if bias else 0)
    macs = rows * columns * weights
    outputs = rows * columns * filters
    standardised = kind == "StdConv2D"
    padded = 0
    pads = any(pad for _, _, pad in axes)
    if standardised and pads and (padding, strides) != ("same", (1, 1)):
        padded = math.prod(
            n + pad for n, (_, _, pad) in zip(size, axes, strict=True)
        )
        padded *= channels
    elif kernel == (1, 1) and strides != (1, 1):
        padded = rows * columns * channels  # every second position, copied
    return LayerCost(
        name,
        kind,
        (rows, columns, filters),
        parameters=parameters,
        macs=macs,
        padding_macs=macs - taps * (channels // groups) * filters,
        activations=outputs,
        stored=padded,
        # The centred and the standardised kernel.
        stored_weights=2 * weights if standardised else 0,
        cast_weights=parameters,
        retained=outputs,
        forward_workspace=outputs * (2 if bias else 1),
        backward_workspace=outputs + math.prod(size) * channels,
    )


def _axis(size, kernel, stride, padding):
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


def group_norm(name, size, channels, relu=False):
    """Returns the cost of a `GroupNorm`, and of a ReLU after it."""
    values = math.prod(size) * channels
    return LayerCost(
        name,
        "GroupNorm",
        (*size, channels),
        parameters=2 * channels,
        # The centred input, and the result of the ReLU.
        stored=(2 if relu else 1) * values,
        stored_half=values,
        retained=0 if relu else values,
        forward_workspace=3 * values,
        backward_workspace=3 * values,
    )


def max_pool(name, size, channels, padding):
    """Returns the cost of the `MaxPool2D` of a ResNet's root."""
    rows, columns = (-(-n // 2) for n in size)
    outputs = rows * columns * channels
    padded = math.prod(n + (1 if padding == "same" else 2) for n in size)
    return LayerCost(
        name,
        "MaxPool2D",
        (rows, columns, channels),
        stored=padded * channels,
        stored_float32=2 * outputs,  # indices of 64 bits
        retained=outputs,
        forward_workspace=outputs,
        backward_workspace=outputs + padded * channels,
    )


def residual_unit(
    name,
    size,
    channels,
    filters,
    strides=1,
    projects=False,
    preactivation=False,
    padding="same",
):
    """Returns the costs of a `ResidualUnit`; arguments as in the layer."""
    after = tuple(-(-n // strides) for n in size)
    pair = (strides, strides)
    conv_1 = convolution(
        f"{name}/conv_1", size, channels, filters, (1, 1), padding=padding
    )
    conv_2 = convolution(
        f"{name}/conv_2", size, filters, filters, (3, 3), pair, padding
    )
    conv_3 = convolution(
        f"{name}/conv_3", after, filters, 4 * filters, (1, 1), padding=padding
    )
    shortcut = []
    if projects:
        shortcut.append(
            convolution(
                f"{name}/conv_proj", size, channels, 4 * filters, (1, 1), pair
            )
        )
    # Each ReLU follows a norm; the last one of the hybrids' units follows the
    # sum with the shortcut.
    if preactivation:
        rows = [
            group_norm(f"{name}/norm_1", size, channels, True),
            *shortcut,
            conv_1,
            group_norm(f"{name}/norm_2", size, filters, True),
            conv_2,
            group_norm(f"{name}/norm_3", after, filters, True),
            conv_3,
        ]
    else:
        if projects:
            norm = group_norm(f"{name}/norm_proj", after, 4 * filters)
            shortcut.append(norm)
        rows = [
            *shortcut,
            conv_1,
            group_norm(f"{name}/norm_1", size, filters, True),
            conv_2,
            group_norm(f"{name}/norm_2", after, filters, True),
            conv_3,
            group_norm(f"{name}/norm_3", after, 4 * filters, True),
        ]
    # Of outputs that are not stored, only the unit's own exists until the end
    # of the forward pass.
    rows = [dataclasses.replace(row, retained=0) for row in rows]
    if preactivation:
        retained = math.prod(after) * 4 * filters
        rows[-1] = dataclasses.replace(rows[-1], retained=retained)
    return rows
