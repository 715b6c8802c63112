"""Models for the flags `--model` and `--weights`."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit import converters, models
from keras_vit.config import ViTConfig
from keras_vit.converters import describe
from keras_vit.data.dataset import ImageDataset
from keras_vit.evaluation.runs import config_of_run, open_weights, resolve_weights_path
from keras_vit.training.freezing import HEADS
from keras_vit.weights import Checkpoint
from keras_vit.weights.formats import (
    check_representable,
    get_weight_map,
    implied_arguments,
)
from keras_vit.weights.infer import is_position_layer
from keras_vit_programs.sizes import COMPACT, MODEL_NAMES, sizes_of, stride_of

_NO_REGULARIZATION = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "drop_path": 0.0,
    "remat": False,
}


def build_model(
    model: str | None,
    weights: str | None,
    patch_size: int | None,
    seed: int = 0,
    mean_pooling: bool = False,
    keep_head: bool = False,
    **arguments: Any,
) -> keras.Model:
    """Builds the model that a recipe's flags specify.

    Args:
        model: String. One of `MODEL_NAMES`. None for the architecture of the
            checkpoint, or "compact-vit" if `weights` is None.
        weights: String. Path, URL or name of the weights to fine-tune, or
            None. The classification head is replaced, and its initial values
            are zero ("An Image is Worth 16x16 Words", Section 3.2).
        patch_size: Integer. Height and width of a patch, in pixels. It is
            used only for Vision Transformers without `weights`.
        seed: Integer. Seed of the initial position embeddings of compact-vit.
        mean_pooling: Boolean. Whether the head reads the mean of the patches
            instead of the class token of `weights`. The last layer norm is
            replaced by a new one after the mean, as in the fine-tuning of MAE
            (facebookresearch/mae, `global_pool` of models_vit.py).
        keep_head: Boolean. Whether to keep the classification head of
            `weights`, which must have the same number of classes.
        **arguments: `input_shape`, `classes`, and options of the encoder. If
            `weights` is None, also other arguments of the model function.

    Returns:
        A Keras model.

    Raises:
        ValueError: if an option is not that of the model, or if `keep_head` is
            True and the weights have no head of this number of classes, or
            one of another pooling than `mean_pooling` asks for.
    """
    if weights is None:
        model = model or "compact-vit"
        sizes = {}
        if "resnet_layers" not in sizes_of(model):
            sizes["patch_size"] = patch_size
        if not stride_of(sizes_of(model)):
            arguments = _for_bit(arguments)
        name = model
        if model in COMPACT:
            name, sizes = COMPACT[model][0], {**COMPACT[model][1], **sizes}
            sizes["name"] = model.replace("-", "_")
        built = getattr(models, name)(**{**sizes, **arguments})
        if model in ("compact-vit", "compact-hybrid"):
            spread_positions(built, seed)
        return built
    checkpoint = open_weights(model, weights, sizes_of(model))
    name = model or config_of_run(checkpoint.path).get("config", {}).get("model")
    if name in MODEL_NAMES:
        arguments["name"] = name.replace("-", "_")
    if keep_head:
        bias = checkpoint.weights.get("head/bias", ())
        if len(bias) != arguments["classes"]:
            raise ValueError(
                f"--keep-head needs weights of {arguments['classes']} classes, "
                f"those of the dataset, and {weights!r} has a head of "
                f"{len(bias)} classes: leave out --keep-head."
            )
        if mean_pooling and _with_mean_pooling(checkpoint) is not checkpoint:
            pooling = vars(checkpoint.config)["pooling"]
            raise ValueError(
                "--keep-head keeps a head that does not read the mean of the "
                "patches: leave out --keep-head, or what asks for the mean "
                "(--pooling gap, --preset mae). Received: "
                f"pooling={pooling!r} in {weights!r}"
            )
    if checkpoint.encoder_family == "bit":
        arguments = _for_bit(arguments)
    else:  # what the flags say, not the rates that a file was trained with
        arguments = {**_NO_REGULARIZATION, **arguments}
        if not keep_head:
            # The paper removes the whole pre-training head: both of its layers.
            arguments["representation_size"] = None
            if mean_pooling:
                checkpoint = _with_mean_pooling(checkpoint)
    built = converters.load_for_images(checkpoint, include_top=True, **arguments)
    built = models.without_preprocessing(built)  # datasets scale
    # `load` keeps the head if the number of classes is that of the checkpoint.
    if not keep_head:
        zero_init_head(built)
    return built


def _for_bit(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments without options of encoders, which a BiT has not."""
    options = ("remat", "dropout", "drop_path", "representation_size")
    options += ("position_embedding", "position_prefix", "distillation")
    for name in options:
        if arguments.get(name):
            flag = {"distillation": "distill token"}.get(name, name)
            raise ValueError(
                f"--{flag.replace('_', '-')} is for Vision Transformers and "
                "hybrids, and a BiT has no encoder: leave it out. Received: "
                f"{arguments[name]}"
            )
    return {k: v for k, v in arguments.items() if k not in options}


def check_classes(model: str | None, weights: str, data: ImageDataset) -> None:
    """Raises a `ValueError` if weights name other classes than a dataset has, or in
    another order."""
    found = config_of_run(resolve_weights_path(weights)).get("data", {})
    names = found.get("class_names")
    if names is None:
        checkpoint = open_weights(model, weights, sizes_of(model))
        names = checkpoint.class_names(checkpoint.classes)
    if names is None or list(names) == list(data.class_names):
        return
    other = sorted(set(names) ^ set(data.class_names)) or names
    raise ValueError(
        f"--keep-head needs the classes of {weights!r}, in the same order. "
        f"{data.name!r} has others, such as {other[0]!r}: leave out "
        "--keep-head."
    )


def _with_mean_pooling(checkpoint: Checkpoint) -> Checkpoint:
    """Returns a checkpoint whose head reads the mean of the patches."""
    config = checkpoint.config
    if not isinstance(config, ViTConfig) or config.pooling == "gap":
        return checkpoint
    weights = {
        path: array
        for path, array in checkpoint.weights.items()
        if not path.startswith("encoder_norm/")
    }
    width = config.hidden_size
    weights["head_norm/gamma"] = np.ones(width, "float32")
    weights["head_norm/beta"] = np.zeros(width, "float32")
    pooling = {"pooling": "gap", "final_norm": "after_pooling"}
    return dataclasses.replace(
        checkpoint, weights=weights, stored={**checkpoint.stored, **pooling}
    )


def spread_positions(model: keras.Model, seed: int) -> None:
    """Initializes position embeddings with a standard deviation of 0.5."""
    # With the usual standard deviation of 0.02, position embeddings are too
    # small relative to the embeddings of small patches, and training on digits
    # is much slower: accuracy 0.91 after 800 steps, where a standard deviation
    # of 0.5 gives 0.97 after 600. All kinds of position embeddings have the
    # same one, wherever they are added.
    layers = [x for x in model.layers if is_position_layer(x.name)]
    tables = [table for x in layers for table in x.embedding_variables().values()]
    for i, table in enumerate(tables):
        table.assign(keras.random.normal(table.shape, stddev=0.5, seed=seed + i))


def initialize_positions(model: keras.Model, seed: int) -> None:
    """Initializes learned position embeddings as big_vision does: normally
    distributed with a standard deviation of 1 / sqrt(width)."""
    layer = model.get_layer("position_embedding")
    if layer.kind == "learned":
        shape = layer.embedding.shape
        generator = np.random.default_rng(seed)
        layer.embedding.assign(
            generator.normal(0, shape[-1] ** -0.5, shape).astype("float32")
        )


def zero_init_head(model: keras.Model) -> None:
    """Sets all weights of the classification head to zero."""
    for layer in model.layers:
        if layer.name in HEADS:
            layer.set_weights([array * 0 for array in layer.get_weights()])
    described: Any = model
    described.class_names = None  # those of the weights


def init_head_bias(model: keras.Model, bias: float) -> None:
    """Sets all biases of the classification head to one value.

    With a sigmoid loss and a bias of -10, the initial probability of every
    class is close to 0, which is right for nearly all of them.
    """
    head = model.get_layer("head")
    head.bias.assign(keras.ops.full(head.bias.shape, bias))


def lossless_format(model: keras.Model) -> str | None:
    """Returns the Google format, "vit_jax" or "bit", that stores a model
    without loss; None if neither can, for example for DeiT, or for position
    embeddings of a grid that is not square."""
    if getattr(model, "config", None) is None:
        return None  # layers that a program assembled, of which no format knows
    weights, arguments, _ = describe(model)
    rows, columns = arguments.get("grid_size") or (1, 1)
    if rows != columns:
        return None
    for format in ("vit_jax", "bit"):
        weight_map = get_weight_map(format, weights)
        if weight_map.unmapped_paths(weights):
            continue
        try:
            check_representable(arguments, format)
        except ValueError:
            continue
        implied = implied_arguments(format, weight_map, weights)
        if all(arguments.get(k) == value for k, value in implied.items()):
            return format
    return None
