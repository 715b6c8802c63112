"""Outputs of a model's layers, unchanged or as dense feature maps."""

import dataclasses
import numbers
import re
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.config import ViTConfig, stride
from keras_vit.layers import (
    ClassToken,
    FeatureMap,
    ImagePreprocessing,
    PatchEmbedding,
    Pooling,
    TransformerBlock,
    initializers,
)
from keras_vit.models.graph import Graph, with_calls
from keras_vit.models.model import Model, copy_attributes, unique_name
from keras_vit.utils import checks
from keras_vit.utils.types import Tensor

_STAGE = re.compile(r"stage_\d+")


def feature_extractor(model: keras.Model, names: str | Sequence[str]) -> Model:
    """Builds a model that outputs the features of named layers.

    The new model shares its weights with `model`.

    Args:
        model: A functional `keras.Model`, such as `ViTB16()`.
        names: String, or list of strings. Names of layers:
            "patch_embedding", "position_embedding", "block_0" ...,
            "encoder_norm", "pooling", "pre_logits", "head". For a layer that all blocks
            share, the output is that of its first call.

    Returns:
        A `keras.Model` that maps images to a dict `{name: output}` if `names`
        is a list, and to the output itself if it is a string. Index the dict by name:
        `predict` sorts it by its keys.

    Raises:
        ValueError: if the model has no such layer.

    Example:

    >>> extract = keras_vit.feature_extractor(model, ["block_3", "pre_logits"])
    >>> features = extract(images)["block_3"]
    """
    check_functional(model)
    requested = [names] if isinstance(names, str) else list(names)
    for name in requested:
        checks.one_of("names", name, [layer.name for layer in model.layers])
    graph = Graph(model)
    outputs = {name: graph.all_tokens(model.get_layer(name)) for name in requested}
    if isinstance(names, str):
        outputs = outputs[names]
    inputs = graph.inputs
    # With a list of one input, Keras would warn at every call with a tensor.
    inputs = inputs[0] if len(inputs) == 1 else inputs
    features = Model(inputs, outputs, name=unique_name(f"{model.name}_features"))
    copy_attributes(model, features, new_head=True)
    features.config = _config_of_part(model, features)
    return features


def check_functional(model: keras.Model) -> None:
    """Raises a `ValueError` if a model is not functional."""
    # `keras.Functional` is no public name.
    functional = hasattr(model, "inputs") and hasattr(model, "outputs")
    if not isinstance(model, keras.Model) or not functional:
        raise ValueError(
            "The model must be a functional `keras.Model`, such as "
            f"`keras_vit.ViTB16()`. Received: {model!r}"
        )


def check_takes_images(model: keras.Model) -> None:
    """Raises a `ValueError` if a model is not a functional model of images."""
    check_functional(model)
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
        raise ValueError(
            f"The model {model.name!r} must have one input, images of shape "
            "(batch, height, width, channels). Received: inputs of shapes "
            f"{[tuple(x.shape) for x in model.inputs]}"
        )


def size_of_images(
    model: keras.Model, image_size: Sequence[int] | None = None
) -> tuple[int, int]:
    """Returns `image_size`, or if it is None, the size of a model's images, `(height,
    width)`; raises a `ValueError` if the model takes images of any size."""
    height, width = image_size or model.inputs[0].shape[1:3]
    if None in (height, width):
        raise ValueError(
            f"The model {model.name!r} takes images of any size: give "
            f"`image_size=(height, width)`. Received: image_size={image_size}"
        )
    return height, width


def dense_features(
    model: keras.Model,
    blocks: int | Sequence[int] | None = None,
    norm: bool = True,
    stages: int | Sequence[int] | None = None,
) -> Model:
    """Builds a model that maps images of any size to dense feature maps.

    The outputs of Transformer blocks are arranged in the grid of their patches,
    without the prefix tokens, as detectors and segmenters need them. Position
    embeddings are resampled to the grid of the images, even if `model` takes images of
    one size. If `model` has `preprocessing`, the new model scales the images, but does
    not resize them. The new model shares its weights with `model` and has no layer
    after the last one that it needs.

    Args:
        model: A functional `keras.Model`, such as `ViTB16()`, a hybrid or a
            BiT.
        blocks: Integer, or tuple of integers. Indices of the blocks, from 0;
            negative ones count from the last. None for the last block, unless
            `stages` are given.
        norm: Boolean. Whether to apply the model's `encoder_norm` to the map
            of each block and, in a BiT, `final_norm` and ReLU to the map of
            the last stage. Maps of other stages are not normalized.
        stages: Integer, or tuple of integers. Stages of the ResNet of a hybrid
            or of a BiT, from 1. None for no stage or, in a BiT, the last one.

    Returns:
        A `keras.Model` that maps images `(batch, height, width, channels)` to
        a dict of maps. "block_3" is of shape `(batch, height / patch_rows,
        width / patch_columns, hidden_size)`, "stage_2" of shape `(batch,
        height / 8, width / 8, channels)`. If a single integer is requested,
        the output is the map itself. Index the dict by name: `predict` sorts it by its
        keys, with "block_11" before "block_2".

    Raises:
        ValueError: if the model has no such blocks or stages, or no norm over
            tokens.

    Example:

    >>> model = keras_vit.ViTB16(weights="imagenet21k", include_top=False)
    >>> maps = keras_vit.dense_features(model, blocks=(2, 5, 8, 11))
    >>> maps(np.zeros((1, 480, 640, 3)))["block_11"].shape
    (1, 30, 40, 768)

    In timm, these are the maps of `forward_intermediates(images, indices,
    norm=True)`, which have their channels second.
    """
    check_takes_images(model)
    found_blocks = [x for x in model.layers if isinstance(x, TransformerBlock)]
    found_stages = [x for x in model.layers if _STAGE.fullmatch(x.name)]
    if blocks is None and stages is None:
        blocks, stages = (-1, None) if found_blocks else (None, len(found_stages))
    indices = _indices("blocks", blocks, found_blocks, 0, model)
    stage_indices = _indices("stages", stages, found_stages, 1, model)
    graph = Graph(model)
    outputs = {
        found_stages[i].name: _stage_map(model, graph, found_stages, i, norm)
        for i in stage_indices
    }
    for i in indices:
        outputs[found_blocks[i].name] = _block_map(model, graph, found_blocks[i], norm)
    requested = blocks if stages is None else stages
    if len(outputs) == 1 and isinstance(requested, numbers.Integral):
        (outputs,) = outputs.values()
    name = unique_name(f"{model.name}_maps")
    maps = Model(graph.inputs[0], outputs, name=name)
    copy_attributes(model, maps, new_head=True)
    maps.config = _config_of_part(model, maps)
    return with_any_size(maps)


def _config_of_part(model: Any, part: Model) -> Any:
    """Returns the config of a model that ends in a layer of another."""
    config, names = getattr(model, "config", None), {x.name for x in part.layers}
    if not isinstance(config, ViTConfig):
        return config
    blocks = sum(isinstance(x, TransformerBlock) for x in part.layers)
    norm = {"before_pooling": "encoder_norm", "after_pooling": "head_norm"}
    late = "pre_logits" in names  # after the pooling
    return dataclasses.replace(
        config,
        num_layers=blocks or config.num_layers,
        final_norm=config.final_norm
        if norm.get(config.final_norm) in names
        else "none",
        pooling=config.pooling if "pooling" in names else None,
        representation_size=config.representation_size if late else None,
    )


def _indices(
    name: str,
    requested: Any,
    layers: list[keras.Layer],
    first: int,
    model: keras.Model,
) -> list[int]:
    """Returns the sorted indices in `layers` of requested blocks or stages,
    which are numbered from `first`."""
    if requested is None:
        return []
    single = isinstance(requested, numbers.Integral)
    wanted: list[Any] = [requested] if single else list(requested)
    count = len(layers)
    index_of = {i + first: i for i in range(count)}
    index_of |= {i - count: i for i in range(count)}
    if not wanted or any(number not in index_of for number in wanted):
        numbered = f" from {first} to {count - 1 + first}, or from -{count} to -1"
        raise ValueError(
            f"The model {model.name!r} has {count or 'no'} {name}"
            + (numbered if count else "")
            + f". Received: {name}={requested!r}"
        )
    return sorted({index_of[number] for number in wanted})


def _block_map(
    model: keras.Model, graph: Graph, block: TransformerBlock, norm: bool
) -> Tensor:
    """Returns the feature map of a block's patches."""
    tokens = graph.all_tokens(block)
    if norm:
        names = [layer.name for layer in model.layers]
        if "encoder_norm" not in names:
            raise ValueError(
                f"The model {model.name!r} has no layer 'encoder_norm' (its "
                "norm comes after the pooling), so its maps cannot be "
                "normalized: give `norm=False`. Received: norm=True"
            )
        tokens = model.get_layer("encoder_norm")(tokens)
    embedding = next(x for x in model.layers if isinstance(x, PatchEmbedding))
    num_prefix_tokens = sum(
        layer.num_tokens for layer in model.layers if isinstance(layer, ClassToken)
    )
    layer = FeatureMap(num_prefix_tokens, name=f"{block.name}_map")
    return layer(tokens, graph.output(embedding))


def _stage_map(
    model: keras.Model,
    graph: Graph,
    stages: list[keras.Layer],
    index: int,
    norm: bool,
) -> Tensor:
    """Returns the feature map of a ResNet's stage."""
    names = [layer.name for layer in model.layers]
    if norm and index == len(stages) - 1 and "final_relu" in names:
        return graph.output(model.get_layer("final_relu"))
    return graph.output(stages[index])


def with_any_size(model: keras.Model) -> keras.Model:
    """Returns a model with the same layers, weights and graph for images of any size,
    which it scales, but does not resize; `model` itself if it is such a model already.
    The result is not compiled."""
    resizes = any(
        isinstance(x, ImagePreprocessing) and x.image_size for x in model.layers
    )
    if None in model.inputs[0].shape[1:3] and not resizes:
        return model
    (images,) = model.inputs

    def reuse(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, ImagePreprocessing):
            config = {**layer.get_config(), "image_size": None}
            return type(layer).from_config(config)
        return for_another_size(layer)

    inputs = keras.Input(
        (None, None, images.shape[-1]), dtype=images.dtype, name="images"
    )
    return _copy(model, inputs, clone_function=reuse)


def preprocessing_of(model: keras.Model) -> ImagePreprocessing | None:
    """Returns the layer by which a model scales images itself, or None if it takes
    scaled images: callers then have to scale them."""
    kinds = ImagePreprocessing, keras.layers.Rescaling
    # A model that rescales its images first, such as that of `as_teacher`,
    # takes scaled ones.
    first = next((x for x in model.layers if isinstance(x, kinds)), None)
    return first if isinstance(first, ImagePreprocessing) else None


def without_preprocessing(model: keras.Model) -> keras.Model:
    """Returns a model for images that are already scaled and resized: a copy with the
    same weights that is not compiled, or `model` itself if it has no preprocessing."""
    preprocessing = preprocessing_of(model)
    if preprocessing is None:
        return model
    inputs = keras.Input(preprocessing.output.shape[1:], name="images")

    def call(layer: keras.Layer, *args: Any, **kwargs: Any) -> Tensor:
        skipped = isinstance(layer, ImagePreprocessing)
        return args[0] if skipped else layer(*args, **kwargs)

    with initializers.skip_init():
        copy = _copy(model, inputs, call_function=call)
    copy.set_weights(model.get_weights())
    return copy


def _copy(model: keras.Model, inputs: Tensor, **functions: Any) -> keras.Model:
    """Returns a copy of a model with one input, made by functions of `clone_model`,
    with its class names and preprocessing mode."""
    structure = [inputs] if isinstance(model.input, list) else inputs
    # `clone_model` would compile the copy of a compiled model, which fails with
    # a loss that is not registered.
    compiled, model.compiled = model.compiled, False
    try:
        copy = keras.models.clone_model(model, input_tensors=structure, **functions)
    finally:
        model.compiled = compiled
    copy_attributes(model, copy)
    return copy


def for_another_size(layer: keras.Layer) -> keras.Layer:
    """Returns a layer, or a copy if it is a `Reshape`, which has no weights and
    remembers the shape it was built with."""
    if isinstance(layer, keras.layers.Reshape):
        return type(layer).from_config(layer.get_config())
    return layer


def inference_model(model: keras.Model) -> keras.Model:
    """Returns a model whose last block computes only the tokens it pools.

    A head on the class token reads one token of the last block. In a model of 12
    blocks, the other tokens take 7 % of the operations, 5 to 7 % of the time of
    `predict` and 7 to 9 % of the time of a training step. Recipes that train or run a
    classifier, and exports, use this function to leave them out.

    Args:
        model: A functional `keras.Model`.

    Returns:
        A model with the same layers, weights, gradients and outputs, which is not
        compiled; `model` itself if it reads other tokens of its last block, or has no
        blocks.

    Example:

    >>> fast = keras_vit.models.inference_model(keras_vit.ViTB16())
    >>> logits = fast.predict(images)
    """
    blocks = [x for x in model.layers if isinstance(x, TransformerBlock)]
    if isinstance(model, keras.Sequential) or not blocks:
        return model
    graph = Graph(model)
    tokens = [x for layer, *_, x in graph.calls if layer is blocks[-1]]
    count = 0
    for layer, args, kwargs, output in graph.calls:
        inputs = keras.tree.flatten((args, kwargs))
        if not any(x is y for x in inputs for y in tokens):
            continue
        if layer.name == "encoder_norm":
            tokens.append(output)
        elif isinstance(layer, Pooling) and layer.mode == "token":
            count = max(count, layer.index + 1)
        else:
            return model
    outputs = keras.tree.flatten(graph.outputs)
    if not count or any(x is y for x in outputs for y in tokens):
        return model

    def pool(layer: keras.Layer, *args: Any, **kwargs: Any) -> Tensor:
        if layer is blocks[-1]:
            kwargs["num_queries"] = count
        return layer(*args, **kwargs)

    return with_calls(model, pool)


def patch_pixels(model: keras.Model) -> tuple[int, int]:
    """Returns `(rows, columns)` in pixels from one patch to the next, for hybrids
    too."""
    embedding = next(x for x in model.layers if isinstance(x, PatchEmbedding))
    rows, columns = embedding.patch_size
    names = [layer.name for layer in model.layers]
    stages = tuple(1 for name in names if _STAGE.fullmatch(name))
    pixels = stride(stages) if "root_conv" in names else 1
    return rows * pixels, columns * pixels
