"""The layers of a model and their costs, from its arguments alone."""

import dataclasses
import inspect
import math

from keras_vit import _checks
from keras_vit import models
from keras_vit.costs import layers
from keras_vit.layers import PatchEmbedding
from keras_vit.layers import TransformerBlock
from keras_vit.models import config as configs

DEFAULT_CLASSES = 1000


def plan(name, image_size, channels, classes, include_top, architecture):
    """Returns the costs of a named model's layers.

    Args:
        name: String. A named model, or one of `VisionTransformer`,
            `HybridVisionTransformer` and `BiT`.
        image_size: Integer, `(height, width)`, or None for 224.
        channels: Integer. Channels of the images.
        classes: Integer. Number of classes.
        include_top: Boolean. Whether the model has a head.
        architecture: Dict of the other arguments of the model function.

    Returns:
        List of `LayerCost`.
    """
    function, sizes = _function(name)
    accepted = inspect.signature(getattr(models, function)).parameters
    configs.check_arguments(name, architecture, accepted)
    for refused in ("weights", "input_tensor", "input_shape", "preprocessing"):
        if architecture.pop(refused, None) is not None:
            raise ValueError(
                f"The cost of a name does not depend on `{refused}`: leave it "
                "out, or build the model and pass it. The size of the images "
                "is `image_size`."
            )
    architecture.pop("name", None)
    arguments = {**sizes, **architecture}
    size = 224 if image_size is None else image_size
    size = _checks.positive_pair("image_size", size)
    classes = configs.resolve_classes(include_top, classes, {}, None)
    rows = [
        layers.other("images", "InputLayer", (*size, channels), 0),
    ]
    if function == "BiT":
        return rows + _bit(arguments, size, channels, classes, include_top)
    stem = None
    if function == "HybridVisionTransformer":
        if arguments.pop("move_stage_4", False):
            *first, third, fourth = arguments["resnet_layers"]
            arguments["resnet_layers"] = (*first, third + fourth)
        stem = configs.resolve(models.ResNetConfig, arguments, {})
    config = configs.resolve_vit(arguments, {}, include_top)
    if config.block is not TransformerBlock:
        raise ValueError(
            "The cost of blocks of another class is not known from their name: "
            "build the model and pass it. Received: block="
            f"{config.block!r}"
        )
    if stem is not None:
        rows += resnet(stem, size, channels)
        *size, channels = rows[-1].output_shape
    return rows + _vit(config, size, channels, classes, architecture)


def _function(name):
    if name in configs.VARIANTS:
        sizes = configs.VARIANTS[name].sizes()
        hybrid = "resnet_layers" in sizes
        kind = "HybridVisionTransformer" if hybrid else "VisionTransformer"
        return kind, sizes
    if name in configs.BIT_VARIANTS:
        units, width = configs.BIT_VARIANTS[name]
        return "BiT", {"resnet_layers": units, "width_factor": width}
    functions = ("VisionTransformer", "HybridVisionTransformer", "BiT")
    known = (*configs.VARIANTS, *configs.BIT_VARIANTS, *functions)
    _checks.one_of("model", name, known)
    return name, {}


def _vit(c, size, channels, classes, architecture):
    width, heads = c.hidden_size, c.num_heads
    embedding = PatchEmbedding(1, c.patch_size, pad_to_patch=c.pad_to_patch)
    grid = embedding.compute_output_shape((None, *size, channels))[1:3]
    learned = architecture.get("grid_size") or grid
    learned = _checks.positive_pair("grid_size", learned)
    patches, prefix = math.prod(grid), c.prefix_tokens
    num_prefix = sum(count for count, _ in prefix.values())
    tokens = num_prefix + patches

    padded = tuple(n * p for n, p in zip(grid, c.patch_size, strict=True))
    rows = [
        layers.convolution(
            "patch_embedding",
            padded,
            channels,
            width,
            c.patch_size,
            c.patch_size,
            "valid",
            c.patch_bias,
            kind="PatchEmbedding",
        )
    ]
    if c.mask_token:
        shape = (patches, width)
        row = layers.other("mask_token", "MaskToken", shape, width, copies=0)
        rows.append(dataclasses.replace(row, non_trainable=width))
    seen = patches
    for is_positioned in (True, False):
        for name, (count, has_position) in prefix.items():
            if has_position == is_positioned:
                seen += count
                rows.append(token(name, count, seen, width))
        if is_positioned and c.position_placement == "stem":
            rows.append(_positions(c, "position_embedding", seen, learned))
    if c.dropout:
        shape = (tokens, width)
        rows.append(
            layers.other(
                "embedding_dropout", "Dropout", shape, 0, tokens * width
            )
        )
    if c.pre_norm:
        rows.append(layers.layer_norm("pre_norm", tokens, width))

    shared = c.position_placement == "every_layer_shared"
    relative = c.position_embedding == "relative"
    positioned = sum(count for count, has in prefix.values() if has)
    for i in range(c.num_layers):
        if c.position_placement != "stem" and not (shared and i):
            name = "position_embedding_shared" if shared else ""
            name = name or f"position_embedding_{i}"
            rows.append(_positions(c, name, tokens, learned, positioned))
        elif shared and c.position_embedding not in ("relative", "rope"):
            row = _positions(c, "position_embedding_shared", tokens, learned)
            rows.append(dataclasses.replace(row, parameters=0))
        rows += layers.block(
            f"block_{i}",
            tokens,
            width,
            c,
            patches=patches if relative else 0,
        )
    if c.final_norm == "before_pooling":
        rows.append(layers.layer_norm("encoder_norm", tokens, width))
    if c.pooling is None:
        return rows
    if c.pooling == "map":
        pooled = tokens - num_prefix
        rows += layers.attention_pooling(
            "pooling",
            pooled,
            width,
            heads,
            c.mlp_dim,
            c.activation,
            True,
        )
    else:
        outputs = 2 * width if c.pooling == "token_gap" else width
        rows.append(layers.other("pooling", "Pooling", (outputs,)))
    distilled = c.distillation and c.pooling == "token"
    if distilled:
        rows.append(layers.other("distillation", "Pooling", (width,)))
    width = math.prod(rows[-1].output_shape)
    if c.final_norm == "after_pooling":
        rows.append(layers.layer_norm("head_norm", 1, width))
    if c.representation_size:
        rows.append(layers.dense("pre_logits", 1, width, c.representation_size))
        width = c.representation_size
    if classes is not None:
        rows.append(layers.dense("head", 1, width, classes))
        if distilled:
            rows.append(layers.dense("distillation_head", 1, width, classes))
    if distilled:
        shape = rows[-1].output_shape
        rows.append(layers.other("distilled_mean", "Average", shape))
    return rows


def token(name, count, tokens, width):
    """Returns the cost of a `ClassToken` whose output has `tokens` tokens."""
    return dataclasses.replace(
        layers.other(name, "ClassToken", (tokens, width), count * width),
        cast_weights=count * width,
    )


def _positions(c, name, tokens, grid, prefix=None):
    if prefix is None:
        prefix = sum(count for count, has in c.prefix_tokens.values() if has)
    return positions(
        name,
        c.position_embedding,
        tokens,
        c.hidden_size,
        grid,
        prefix,
        c.hidden_size // c.num_heads,
    )


def positions(name, kind, tokens, width, grid, prefix, head_size=None):
    """Returns the cost of `AddPositionEmbs`, `RelativePositionEmbs` or
    `RotaryPositionEmbs`.

    Args:
        name: String. Name of the layer.
        kind: String. Kind of the position embeddings.
        tokens: Integer. Number of tokens that they are added to.
        width: Integer. Hidden size.
        grid: `(rows, columns)` for which they are learned.
        prefix: Integer. Number of prefix tokens that have a position.
        head_size: Integer. Channels of a head, for relative and rotary
            positions.
    """
    if kind == "rope":
        shape, weights = (tokens, 2, head_size // 2), head_size // 4
        row = layers.other(
            name, "RotaryPositionEmbs", shape, weights, copies=False
        )
        return dataclasses.replace(row, non_trainable=weights)
    rows, columns = grid
    if kind == "relative":
        count = 2 * rows * columns - 1
        shape, weights = (count, head_size), count * head_size
        return layers.other(
            name, "RelativePositionEmbs", shape, weights, copies=False
        )
    weights = {
        "learned": (prefix + rows * columns) * width,
        "learned_2d": (rows + columns) * (width // 2) + prefix * width,
    }.get(kind, 0)
    stored = tokens * width if kind != "none" else 0
    return layers.other(
        name,
        "AddPositionEmbs",
        (tokens, width),
        weights,
        stored,
        copies=kind != "none",
    )


def resnet(c, size, channels, preactivation=False):
    """Returns the costs of a ResNet up to its feature map.

    Args:
        c: A `ResNetConfig`.
        size: `(height, width)` of the images.
        channels: Integer. Channels of the images.
        preactivation: Boolean. As in `keras_vit.BiT`.
    """
    rows = [
        layers.convolution(
            "root_conv", size, channels, c.width, (7, 7), (2, 2), c.conv_padding
        )
    ]
    size = rows[-1].output_shape[:2]
    if not preactivation:
        rows.append(layers.group_norm("root_norm", size, c.width))
        rows.append(relu("root_relu", (*size, c.width)))
    rows.append(layers.max_pool("root", size, c.width, c.pool_padding))
    *size, channels = rows[-1].output_shape
    for stage, count in enumerate(c.resnet_layers, start=1):
        filters = c.width * 2 ** (stage - 1)
        for unit in range(1, count + 1):
            strides = 2 if unit == 1 and stage > 1 else 1
            rows += layers.residual_unit(
                f"stage_{stage}_unit_{unit}",
                tuple(size),
                channels,
                filters,
                strides,
                unit == 1,
                preactivation,
                c.conv_padding,
            )
            size = [-(-n // strides) for n in size]
            channels = 4 * filters
        shape = (*size, channels)
        rows.append(
            layers.other(f"stage_{stage}", "Identity", shape, copies=False)
        )
    return rows


def relu(name, shape):
    """Returns the cost of a `ReLU` layer, which stores its output."""
    return layers.other(name, "ReLU", shape, stored=math.prod(shape))


def _bit(arguments, size, channels, classes, include_top):
    preactivation = arguments.pop("preactivation", None)
    preactivation = True if preactivation is None else preactivation
    pooling = arguments.pop("pooling", None)
    _checks.one_of("pooling", pooling, ("gap", None))
    config_class = models.BiTConfig if preactivation else models.ResNetConfig
    c = configs.resolve(config_class, arguments, {})
    rows = resnet(c, size, channels, preactivation)
    shape = rows[-1].output_shape
    if preactivation:
        rows.append(layers.group_norm("final_norm", shape[:2], shape[2]))
        rows.append(relu("final_relu", shape))
    if pooling == "gap" or include_top:
        row = layers.other("pooling", "GlobalAveragePooling2D", shape[2:])
        rows.append(row)
    if include_top:
        rows.append(layers.dense("head", 1, shape[2], classes))
    return rows
