"""What a model is built from: each value is the one given, otherwise the checkpoint's,
otherwise the default."""

import dataclasses
import functools
import numbers
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import keras

from keras_vit.config import (
    BiTConfig,
    HybridConfig,
    ResNetConfig,
    ViTConfig,
    known,
    resolve,
)
from keras_vit.layers import PatchEmbedding
from keras_vit.models.assigning import load_weights, open_for
from keras_vit.utils import checks
from keras_vit.utils.published import rotary_periods
from keras_vit.utils.scaling import Mode, ModeLike, as_mode
from keras_vit.utils.types import Config, StrPath, Tensor
from keras_vit.utils.warnings import warn
from keras_vit.weights import Checkpoint
from keras_vit.weights.infer import Grid

DEFAULT_IMAGE_SIZE = 224
CLASSES_21K = 21843


class Given(NamedTuple):
    """The arguments of a function that builds models, except the architecture.

    They are those of `VisionTransformer`.
    """

    include_top: bool
    weights: StrPath | Checkpoint | None
    input_tensor: Tensor | None
    input_shape: tuple[int | None, ...] | None
    classes: int | None
    preprocessing: bool | ModeLike


_Config = TypeVar("_Config", bound=ViTConfig | ResNetConfig, covariant=True)


class Resolved(NamedTuple, Generic[_Config]):
    """What a model is built of.

    Attributes:
        config: The config of its architecture.
        input_shape: `(height, width, channels)` of its images.
        classes: Integer. Number of classes; None for no head.
        mode: The mode of its `ImagePreprocessing`; None for no such layer.
        load: Function that loads the checkpoint's weights into it; None without a
            checkpoint.
    """

    config: _Config
    input_shape: tuple[int | None, ...]
    classes: int | None
    mode: Mode | None
    load: Callable[[keras.Model], None] | None


def resolve_vit(
    config_class: type[ViTConfig], architecture: Config, given: Given
) -> Resolved[ViTConfig]:
    """Resolves a Vision Transformer or a hybrid, of a given architecture."""
    shape = _given_shape(given.input_shape, given.input_tensor)
    checkpoint, stored = None, {}
    if given.weights is not None:
        family = "hybrid" if config_class is HybridConfig else "vit"
        checkpoint = open_for(family, given.weights, architecture)
        stored = _stored(checkpoint, architecture, shape)
    stored_grid = stored.get("grid_size")
    config = _architecture(config_class, architecture, stored, given.include_top)
    if shape is None:
        patch_size = checkpoint.patch_size if checkpoint else None
        size = _image_size(config, patch_size, stored_grid)
        shape = (*size, checkpoint.channels if checkpoint else 3)
    grid = architecture.get("grid_size", _position_grid(config, shape, stored_grid))
    config = dataclasses.replace(config, grid_size=grid)
    classes = _classes(given.include_top, given.classes, checkpoint)
    mode = _mode(given.preprocessing, given.input_tensor, checkpoint)
    if checkpoint is None:
        return Resolved(config, shape, classes, mode, None)
    if architecture.get("rope_base") not in (None, stored.get("rope_base")):
        checkpoint = _replace_periods(checkpoint, config)
    pooling = architecture.get("pooling")
    load = functools.partial(
        load_weights,
        checkpoint=checkpoint,
        grid=stored_grid,
        reuse_head=_keeps_head(checkpoint, stored, pooling, classes),
    )
    return Resolved(config, shape, classes, mode, load)


def resolve_bit(
    config: ResNetConfig | None,
    preactivation: bool | None,
    architecture: Config,
    given: Given,
) -> Resolved[ResNetConfig]:
    """Resolves a ResNet alone, of a given architecture and version; by default, the
    version is that of the given config."""
    shape = _given_shape(given.input_shape, given.input_tensor)
    checkpoint, known_config = None, config
    if given.weights is not None:
        checkpoint = open_for("bit", given.weights, architecture)
        known_config = config or checkpoint.config
        architecture = {**vars(checkpoint.config), **architecture}
    if preactivation is None:
        preactivation = known_config is None or isinstance(known_config, BiTConfig)
    checks.boolean("preactivation", preactivation)
    if shape is None:
        size = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
        shape = (*size, checkpoint.channels if checkpoint else 3)
    return Resolved(
        resolve(BiTConfig if preactivation else ResNetConfig, architecture),
        shape,
        _classes(given.include_top, given.classes, checkpoint),
        _mode(given.preprocessing, given.input_tensor, checkpoint),
        checkpoint and functools.partial(load_weights, checkpoint=checkpoint),
    )


def _stored(
    checkpoint: Checkpoint,
    explicit: Config,
    input_shape: tuple[int | None, ...] | None,
) -> Config:
    """Returns the arguments that are inferred from a checkpoint, given those of
    the caller."""
    grid, image_grid = explicit.get("grid_size"), None
    if grid is not None:
        grid = checks.positive_pair("grid_size", grid)
    patch = explicit.get("patch_size")
    if patch is not None:
        patch = checks.positive_pair("patch_size", patch)
    stored = checkpoint.patch_size or (1, 1)
    if input_shape:
        pads = {**checkpoint.stored, **explicit}.get("pad_to_patch")
        pads = pads or patch not in (None, stored)
        image_grid = _image_grid(input_shape[:2], checkpoint.stride, stored, pads)
    given = {
        "grid_size": grid,
        "image_grid": image_grid,
        "position_prefix": explicit.get("position_prefix"),
    }
    inferred = checkpoint.arguments(given)
    count = inferred["num_positions"]
    if count is not None and inferred["grid_size"] is None:
        raise ValueError(
            f"{checkpoint.path!r} has {count} positions, which form neither a square "
            "grid nor the grid of the image. Give `grid_size=(rows, columns)` of the "
            f"file, with rows * columns = {count} (an argument of `converters.load`). "
            f"Received: grid_size={grid}, input_shape={input_shape}"
        )
    return inferred


def _architecture(
    config_class: type[ViTConfig],
    explicit: Config,
    inferred: Config,
    include_top: bool,
) -> ViTConfig:
    """Builds the `ViTConfig` or `HybridConfig` of a model from explicit values,
    otherwise inferred ones, otherwise defaults, without its `grid_size`."""
    explicit, inferred = known(explicit), known(inferred)
    # These depend on the new model: on the size of its images, and on whether
    # its output is the pooled vector, pre_logits or all tokens.
    for name in ("grid_size", "representation_size"):
        inferred.pop(name, None)
    explicit.pop("grid_size", None)
    embedding = explicit.get("position_embedding")
    embedding = "learned" if embedding == "learned_1d" else embedding
    if embedding not in (None, inferred.get("position_embedding")):
        for name in [n for n in inferred if n.startswith("rope_")]:
            del inferred[name]
        inferred.pop("position_placement", None)
    if not include_top:
        inferred.pop("pooling", None)
        if "pooling" not in explicit and inferred:
            final_norm = explicit.get("final_norm") or inferred["final_norm"]
            if final_norm == "after_pooling":  # and there is no pooling
                explicit["final_norm"] = "none"
    elif "pooling" not in {**inferred, **explicit}:
        explicit["pooling"] = "token" if explicit.get("class_token", True) else "gap"
    return resolve(config_class, {**inferred, **explicit})


def _given_shape(
    input_shape: object, input_tensor: Tensor | None
) -> tuple[int | None, ...] | None:
    """Returns the checked shape of the model's images; None if unspecified."""
    if input_tensor is not None:
        shape = _check_shape("input_tensor", input_tensor.shape[1:])
        fits = input_shape in (None, shape, list(shape))
        checks.require(fits, "input_shape", input_shape, f"{shape}, as `input_tensor`")
        return shape
    if input_shape is None:
        return None
    return _check_shape("input_shape", input_shape)


def _check_shape(name: str, shape: Any) -> tuple[int | None, ...]:
    is_shape = (
        isinstance(shape, (tuple, list))
        and len(shape) == 3
        and shape[2] is not None
        and all(n is None or isinstance(n, numbers.Integral) for n in shape)
        and all(n is None or n > 0 for n in shape)
    )
    # The first of these sizes is the number of channels.
    is_first = is_shape and shape[0] in (1, 3) and shape[2] > 4
    if not is_shape or (is_first and shape[1] != shape[0]):
        raise ValueError(
            f"`{name}` must have the shape (height, width, channels), channels "
            "last, where height and width may be None for any size. "
            f"Received: {name}={shape!r}"
        )
    return tuple(size if size is None else int(size) for size in shape)


def _image_size(
    config: ViTConfig, stored: tuple[int, int] | None, grid: Grid
) -> tuple[int, ...]:
    """Returns the size of images that is not given, given the patch size and
    the grid of a checkpoint."""
    if stored and grid:  # of the file, also if `patch_size` is another
        pairs = zip(grid, stored, strict=True)
        return tuple(n * patch * config.stride for n, patch in pairs)
    if stored is None or config.pad_to_patch:
        return (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    # A file without a grid, such as one with rotary positions, is for images of
    # any size that its patches divide.
    strides = (patch * config.stride for patch in config.patch_size)
    return tuple(DEFAULT_IMAGE_SIZE // n * n or n for n in strides)


def _position_grid(
    config: ViTConfig, input_shape: tuple[int | None, ...], stored: Grid
) -> tuple[int | None, ...]:
    """Returns the grid of the position embeddings where `grid_size` is not given.

    | images        | weights        | grid of the position embeddings             |
    |---------------|----------------|---------------------------------------------|
    | of one size   | any or none    | that of the images, to which those of the   |
    |               |                | weights are resampled                       |
    | of one size   | of a "_square" | the square of which the images' grid is a   |
    |               | resampling     | part, if the images' is not the weights'    |
    | of any size   | with a grid    | that of the weights                         |
    | of any size   | none, or fixed | that of 224 x 224 pixels                    |
    """
    patch_size, stride = config.patch_size, config.stride
    grid = _image_grid(input_shape[:2], stride, patch_size, config.pad_to_patch)
    if None in grid:
        size = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
        return stored or _image_grid(size, stride, patch_size, pad_to_patch=True)
    if config.resampling.endswith("_square") and grid != stored:
        return (max(filter(None, grid)),) * 2
    return grid


def _image_grid(
    image_size: tuple[int | None, ...],
    stride: int,
    patch_size: tuple[int, int],
    pad_to_patch: bool | None,
) -> tuple[int | None, ...]:
    """Returns `(rows, columns)` of the patches of an image, or of the feature
    map that a ResNet computes from it; None where a size is unknown."""
    size = tuple(n if n is None else -(-n // stride) for n in image_size)
    patches = PatchEmbedding(
        1, patch_size, pad_to_patch=bool(pad_to_patch), name="patch_embedding"
    )
    return patches.compute_output_shape((None, *size, 3))[1:3]


def _classes(
    include_top: bool,
    classes: int | None,
    checkpoint: Checkpoint | None,
) -> int | None:
    """Returns the number of classes; None if there is no head."""
    if include_top not in (True, False):
        # The first positional argument has another meaning in other packages.
        raise ValueError(
            "`include_top` must be True or False. Received: include_top="
            f"{include_top!r}. Give all arguments by name, such as "
            'weights="imagenet21k" or input_shape=(224, 224, 3).'
        )
    if classes is not None:
        features = 'include_top=False, pooling="token"'
        expected = f"a positive integer, and for features left out with {features}"
        checks.require(classes != 0, "classes", 0, expected)
        classes = checks.positive_int("classes", classes)
    if not include_top:
        return None
    if classes is not None:
        return classes
    if checkpoint is None:
        return 1000
    if checkpoint.classes is None:
        raise ValueError(
            f"{checkpoint.path!r} has no classification head. Give `classes` "
            "for a new one, or set `include_top=False`."
        )
    return checkpoint.classes


def _mode(
    preprocessing: bool | ModeLike | None,
    input_tensor: Tensor | None,
    checkpoint: Checkpoint | None,
) -> Mode | None:
    """Returns the mode of a model's `ImagePreprocessing`; None for no layer.

    True is the mode of the checkpoint, if it contains one.
    """
    if preprocessing is None or preprocessing is False:
        return None
    if preprocessing is not True:
        preprocessing = as_mode(preprocessing, name="preprocessing")
    if input_tensor is not None:
        raise ValueError(
            "`preprocessing` adds a layer after the model's own input and "
            "cannot be combined with `input_tensor`. Call "
            "`keras_vit.layers.ImagePreprocessing` on the tensor instead. "
            f"Received: preprocessing={preprocessing!r}"
        )
    if preprocessing is not True:
        return preprocessing
    if checkpoint is None:
        return "tf"
    mode = checkpoint.preprocess_mode
    if mode is None:
        raise ValueError(
            f"{checkpoint.path!r} does not store how images of "
            f"{checkpoint.channels} channels are scaled. Give the mode of "
            '`preprocess_input`: `preprocessing="tf"` for [-1, 1], '
            '`preprocessing="torch"` for ImageNet\'s mean and standard deviation, '
            '"clip" for CLIP\'s, or others as `preprocessing=(mean, std)`. '
            "Received: preprocessing=True"
        )
    return mode


def _replace_periods(checkpoint: Checkpoint, config: ViTConfig) -> Checkpoint:
    """Returns a checkpoint with the periods of another `rope_base`."""
    path = "position_embedding_shared/periods"
    if path not in checkpoint.weights:
        return checkpoint
    head_size = config.hidden_size // config.num_heads
    periods = rotary_periods(config.rope_base, head_size)
    weights = {**checkpoint.weights, path: periods}
    return dataclasses.replace(checkpoint, weights=weights)


def _keeps_head(
    checkpoint: Checkpoint,
    inferred: Config,
    pooling: str | None,
    classes: int | None,
) -> bool:
    """Returns whether a checkpoint's head may have been trained with a pooling,
    which is the inferred one if None.

    Files of timm rarely store the pooling. Those of big_vision and of Keras's
    `save_weights` never do, and their arrays are the same for "gap" and
    "first_patch". There are warnings of this, and of a head of zeros, as in the
    paper's ImageNet-21k checkpoints.
    """
    path = checkpoint.path
    is_ambiguous = checkpoint.may_read_first_patch(inferred)
    head = checkpoint.weights.get("head/kernel")
    if head is not None and classes == head.shape[1] == CLASSES_21K:
        if not head.any():
            warn(
                f"{path!r} was released with a head of zeros: all "
                f"{CLASSES_21K:,} logits of this model are 0 whatever the "
                "image. Give `classes` for a new head to train, or "
                "`include_top=False` for features; AugReg's weights "
                "('augreg-imagenet21k') have a trained head.",
            )
    if is_ambiguous and classes is not None and pooling is None:
        warn(
            f"{path!r} is read as a model whose head takes the mean of the "
            "patches. Its arrays are the same as those of a head that takes "
            'the first patch instead (big_vision\'s `pool_type="0"`). Give '
            '`pooling="gap"` if the mean is right, or `pooling="first_patch"`.'
        )
    if pooling is None or checkpoint.outer_head:
        return True
    if checkpoint.format in ("timm", "mae", "open_clip"):
        return True
    return pooling == inferred["pooling"] or (is_ambiguous and pooling == "first_patch")
