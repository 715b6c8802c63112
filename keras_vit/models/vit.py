"""Vision Transformers, pure and hybrid."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Unpack

import keras

from keras_vit.config import HybridArguments, HybridConfig, ViTArguments, ViTConfig
from keras_vit.layers import (
    AddPositionEmbs,
    AttentionPooling,
    ClassToken,
    LayerNormalization,
    MaskToken,
    PatchEmbedding,
    Pooling,
    RelativePositionEmbs,
    RotaryPositionEmbs,
    TransformerBlock,
    initializers,
)
from keras_vit.models.arguments import (
    DEFAULT_IMAGE_SIZE,
    architecture_of,
    resolve_classes,
    resolve_input_shape,
    resolve_preprocessing,
    resolve_vit,
    takes_fields,
)
from keras_vit.models.assigning import load_weights, open_for
from keras_vit.models.model import Model, build_model, classification_head, unique_name
from keras_vit.models.resnet import resnet
from keras_vit.utils import checks
from keras_vit.utils.published import rotary_periods
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.types import Config, StrPath, Tensor
from keras_vit.utils.warnings import warn
from keras_vit.weights import Checkpoint
from keras_vit.weights.infer import Grid

CLASSES_21K = 21843


@takes_fields(ViTConfig)
def VisionTransformer(
    config: ViTConfig | None = None,
    *,
    include_top: bool = True,
    weights: StrPath | Checkpoint | None = None,
    input_tensor: Tensor | None = None,
    input_shape: tuple[int | None, ...] | None = None,
    classes: int | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
    preprocessing: bool | ModeLike = False,
    name: str | None = None,
    **architecture: Unpack[ViTArguments],
) -> Model:
    """Builds a Vision Transformer of any size as a functional Keras model.

    From "An Image is Worth 16x16 Words", Section 3.1
    (https://arxiv.org/abs/2010.11929). The defaults are those of its code,
    google-research/vision_transformer; the other options are for models of
    timm, Hugging Face, torchvision and big_vision.

    The architecture is given by `config`, or by its fields as arguments. One
    that is not given, or None, is inferred from `weights`, or else has the
    default of `ViTConfig`. So is a field of `config` that has its default.

    Images are `(batch, height, width, channels)` floats in [-1, 1] (see
    `preprocess_input`). Layers are named `patch_embedding`, `class_token`,
    `position_embedding`, `block_0` ..., `encoder_norm`, `pooling`,
    `pre_logits` and `head`; `feature_extractor` returns their outputs. Position
    embeddings in every layer are named `position_embedding_0` ..., or, if
    shared, `position_embedding_shared`.

    Args:
        config: A `keras_vit.config.ViTConfig`, over which the other arguments
            take precedence; None for these alone.
        include_top: Boolean. Whether to end in a classification head, which
            is initialized to zero. Without it, the output is the pooled vector
            (after `pre_logits`), or all tokens if `pooling` is None.
        weights: None for random weights, or the path or URL of a checkpoint: a
            file of google-research/vision_transformer, big_vision, timm,
            Hugging Face (or its folder), torchvision, DINOv2 or MAE. See below.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size and aspect ratio. None means that of
            `weights`, or `(224, 224, 3)` without weights.
        classes: Integer. Number of classes; None for that of `weights`, or
            1000 without weights.
        classifier_activation: Activation of the head; None for logits, also
            of `weights` of a model that ends in an activation, which
            `converters.load` keeps, as it keeps `preprocessing`.
        preprocessing: Boolean, string or `(mean, std)`. Whether the first layer
            is an `ImagePreprocessing`: the model then takes images of any size
            with values in [0, 255], resizes them to the height and width of
            `input_shape` and scales them. True for the mode that `weights`
            require, or "tf" without weights; or a mode of `preprocess_input`.
            Images of one channel get those of a mode that has a value for each.
        name: String. Name of the model. None for "vision_transformer", with a
            number from the second such model of a program on.
        **architecture: Fields of `keras_vit.config.ViTConfig`.

    Loading `weights` is exact and strict: if arrays are missing, unknown or of
    the wrong shape, one error lists all of them. Five differences are adapted.
    With another number of `classes`, the head is initialized to zero. With
    another `input_shape`, the position embeddings are resampled. With another
    `patch_size`, the patch kernel is resized by the pseudo-inverse of bicubic
    resizing ("FlexiViT", https://arxiv.org/abs/2212.08013), and a warning says
    so. With another number of channels, the patch kernel is summed over its
    channels (for one channel), or its channels are repeated and rescaled. If the
    weights need another scaling of each channel, `preprocessing` repeats the
    channel of gray images instead.
    Without `representation_size`, a stored `pre_logits` layer is dropped,
    together with the head that was trained on it. A `.weights.h5` file of
    Keras's `save_weights` does not store `activation`, `norm_epsilon` and
    `resampling`, which must be passed.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if an argument is wrong, the patch size does not divide the
            image size, or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.

    Example:

    >>> model = keras_vit.VisionTransformer(
    ...     input_shape=(32, 32, 3), patch_size=4, hidden_size=192,
    ...     num_layers=6, num_heads=3, classes=10)

    With `block`, the model has blocks with another norm, attention or MLP; see
    `TransformerBlock`. `weights` must then have the names and shapes of the
    weights of these blocks. Keras saves and loads such a model if the class is
    registered or in `custom_objects`:

    >>> @keras.saving.register_keras_serializable("my_package")
    ... class RMSNormBlock(keras_vit.layers.TransformerBlock):
    ...     def make_norm(self, name):
    ...         return keras.layers.RMSNormalization(
    ...             epsilon=self.norm_epsilon,
    ...             dtype=self.dtype_policy,
    ...             name=name,
    ...         )
    >>> model = keras_vit.VisionTransformer(
    ...     input_shape=(32, 32, 3), patch_size=4, hidden_size=192,
    ...     num_layers=6, num_heads=3, classes=10, block=RMSNormBlock)
    >>> model.save("model.keras")
    >>> model = keras.models.load_model("model.keras")
    """
    given = architecture_of(ViTConfig, config, architecture)
    return _build(
        ViTConfig,
        given,
        include_top=include_top,
        weights=weights,
        input_tensor=input_tensor,
        input_shape=input_shape,
        classes=classes,
        classifier_activation=classifier_activation,
        preprocessing=preprocessing,
        name=name or unique_name("vision_transformer"),
    )


@takes_fields(HybridConfig)
def HybridVisionTransformer(
    config: HybridConfig | None = None,
    *,
    include_top: bool = True,
    weights: StrPath | Checkpoint | None = None,
    input_tensor: Tensor | None = None,
    input_shape: tuple[int | None, ...] | None = None,
    classes: int | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
    preprocessing: bool | ModeLike = False,
    move_stage_4: bool = False,
    name: str | None = None,
    **architecture: Unpack[HybridArguments],
) -> Model:
    """Builds a Vision Transformer on the feature map of a ResNet.

    From "An Image is Worth 16x16 Words", Section 3.1, Hybrid Architecture
    (https://arxiv.org/abs/2010.11929). The ResNet has group norms and weight
    standardization, like BiT, and the units of ResNet v1: convolution, norm,
    ReLU. The defaults of its arguments are those of
    google-research/vision_transformer, or those that the layout of `weights`
    implies.

    The feature map is split into patches: `patch_size` is in its positions. It
    must divide the size of the feature map, or `pad_to_patch` must be True.
    The layers before `patch_embedding` are `root_conv`, `root_norm`, `root`
    (after the pooling) and, numbered from 1, `stage_1_unit_1` ..., `stage_1`
    ...; `feature_extractor` returns their outputs.

    Args:
        config: A `keras_vit.config.HybridConfig`, over which the other
            arguments take precedence; None for these alone.
        include_top: As in `VisionTransformer`.
        weights: As in `VisionTransformer`.
        input_tensor: As in `VisionTransformer`.
        input_shape: As in `VisionTransformer`.
        classes: As in `VisionTransformer`.
        classifier_activation: As in `VisionTransformer`.
        preprocessing: As in `VisionTransformer`.
        move_stage_4: Boolean. Whether to move the units of the fourth stage
            into the third, whose output has four times as many positions: the
            paper's option ii. False is its option i, which uses the output of
            the fourth stage.
        name: As in `VisionTransformer`, but "hybrid_vision_transformer".
        **architecture: Fields of `keras_vit.config.HybridConfig`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if an argument is wrong, the patch size does not divide the
            size of the feature map, or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.

    Example:

    >>> model = keras_vit.HybridVisionTransformer(
    ...     input_shape=(64, 64, 3), resnet_layers=(1, 1), width_factor=0.5,
    ...     patch_size=1, hidden_size=192, num_layers=4, num_heads=3,
    ...     classes=10)
    """
    given = architecture_of(HybridConfig, config, architecture)
    if checks.boolean("move_stage_4", move_stage_4):
        stages = tuple(given.get("resnet_layers", ()))
        if len(stages) != 4:
            raise ValueError(
                "`move_stage_4` moves the fourth of four stages. Received: "
                f"resnet_layers={stages}"
            )
        given["resnet_layers"] = (*stages[:2], stages[2] + stages[3])
    return _build(
        HybridConfig,
        given,
        include_top=include_top,
        weights=weights,
        input_tensor=input_tensor,
        input_shape=input_shape,
        classes=classes,
        classifier_activation=classifier_activation,
        preprocessing=preprocessing,
        name=name or unique_name("hybrid_vision_transformer"),
    )


def vit(
    images: Tensor,
    config: ViTConfig,
    classes: int | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Builds the graph of a Vision Transformer, or of a hybrid.

    Args:
        images: Keras tensor of shape `(B, H, W, C)`.
        config: A `ViTConfig` or `HybridConfig`.
        classes: Integer. Number of classes; None for no head.
        classifier_activation: Activation of the head; None for logits.

    Returns:
        Keras tensor: logits `(B, classes)`, the pooled vector `(B, D)`, or
        all tokens `(B, P + N, D)` if `config.pooling` is None.
    """
    # B batch, h w grid of patches, N = h w patches, P prefix tokens,
    # D hidden size
    c = config

    def norm(name: str) -> keras.Layer:
        return LayerNormalization(epsilon=c.norm_epsilon, name=name)

    zeros, normal = initializers.Constant(0.0), initializers.Normal
    prefix, num_prefix, num_positioned = [], 0, 0
    for name, (count, has_position) in c.prefix_tokens.items():
        initializer = zeros if name == "class_token" else normal(0.02)
        layer = ClassToken(count, index=num_prefix, initializer=initializer, name=name)
        prefix.append((layer, has_position))
        num_prefix += count
        num_positioned += count if has_position else 0

    # The stem: images to tokens
    x = images
    if isinstance(c, HybridConfig):
        x = resnet(images, c)  # (B, H', W', C')
    grid = PatchEmbedding(
        c.hidden_size,
        c.patch_size,
        use_bias=c.patch_bias,
        pad_to_patch=c.pad_to_patch,
        name="patch_embedding",
    )(x)  # (B, h, w, D)
    x = keras.layers.Reshape((-1, c.hidden_size), name="tokens")(grid)
    if c.mask_token:
        x = MaskToken(name="mask_token", trainable=False)(x)  # (B, N, D)

    # Tokens with a position embedding are inserted before positions are added,
    # the others afterwards.
    for layer, has_position in prefix:
        if has_position:
            x = layer(x)
    if c.position_placement == "stem":
        x = _positions(c, "position_embedding", num_positioned)(x, grid)
    for layer, has_position in prefix:
        if not has_position:
            x = layer(x)  # (B, P + N, D)
    x = keras.layers.Dropout(c.dropout, name="embedding_dropout")(x)
    if c.pre_norm:
        x = norm(name="pre_norm")(x)

    # The encoder
    make_block, shared = _block_class(c), None
    if c.position_placement == "every_layer_shared":
        name = "position_embedding_shared"
        shared = _positions(c, name, num_positioned, num_prefix - num_positioned)
    relative = None
    for i in range(c.num_layers):
        name = f"block_{i}"
        block = make_block(**c.block_arguments(i), name=name)
        if not isinstance(block, TransformerBlock) or block.name != name:
            raise ValueError(
                "`block` must be `TransformerBlock`, a subclass, or a function "
                f"that returns one of the `name` {name!r}. Received: {block!r}"
            )
        if c.position_placement != "stem":
            positions = shared or _positions(
                c,
                f"position_embedding_{i}",
                num_positioned,
                num_prefix - num_positioned,
            )
            if c.position_embedding not in ("relative", "rope"):
                x = positions(x, grid)
            elif relative is None or shared is None:
                # Once, if all blocks share it. (B, 2 N - 1, D / heads), or
                # (B, P + N, 2, D / heads / 2) of rotary positions
                relative = positions(grid)
        x = block(x) if relative is None else block(x, relative)
    if c.final_norm == "before_pooling":
        x = norm(name="encoder_norm")(x)  # (B, P + N, D)

    # The head
    if c.pooling is None:
        return x
    if c.pooling == "map":
        pooling = AttentionPooling(
            c.num_heads,
            c.mlp_dim,
            activation=c.activation,
            norm_epsilon=c.norm_epsilon,
            num_prefix_tokens=num_prefix,
            name="pooling",
        )
    else:
        pooling = Pooling(c.pooling, num_prefix_tokens=num_prefix, name="pooling")
    make_head = functools.partial(classification_head, classes, classifier_activation)
    if c.pooling == "token" and c.distillation:
        distillation = Pooling("token", index=1, name="distillation")
        vectors = [pooling(x), distillation(x)]  # 2 x (B, D)
        dtype = None
        if classes is not None:
            names = ("head", "distillation_head")
            vectors = [
                make_head(name=name)(vector)
                for name, vector in zip(names, vectors, strict=True)
            ]
            # The precision of the heads: under mixed precision, the mean of
            # float32 logits would be rounded.
            dtype = vectors[0].dtype
        return keras.layers.Average(name="distilled_mean", dtype=dtype)(vectors)
    x = pooling(x)  # (B, D)
    if c.final_norm == "after_pooling":
        x = norm(name="head_norm")(x)
    if c.representation_size is None:
        x = keras.layers.Identity(name="pre_logits")(x)
    else:
        x = keras.layers.Dense(
            c.representation_size,
            activation="tanh",
            kernel_initializer=initializers.lecun_normal(x.shape[-1]),
            bias_initializer=initializers.Constant(0.0),
            name="pre_logits",
        )(x)  # (B, representation_size)
    return x if classes is None else make_head(name="head")(x)


def _block_class(config: ViTConfig) -> Callable[..., TransformerBlock]:
    """Returns the class or the function that makes a model's blocks."""
    block = TransformerBlock if config.block is None else config.block
    if isinstance(block, str):
        raise ValueError(
            "The blocks of the saved model are of a class of their own or differ: "
            f"{block!r}, which cannot be built from the file. Pass the class, or "
            "the function that made them, as `block`."
        )
    return block


def _positions(
    config: ViTConfig,
    name: str,
    num_prefix_tokens: int,
    num_skipped_tokens: int = 0,
) -> keras.Layer:
    """Returns the layer of a model's position embeddings."""
    if config.position_embedding == "relative":
        return RelativePositionEmbs(
            config.hidden_size // config.num_heads,
            grid_size=config.grid_size,
            resampling=config.resampling,
            name=name,
        )
    if config.position_embedding == "rope":
        return RotaryPositionEmbs(
            config.hidden_size // config.num_heads,
            base=config.rope_base,
            num_prefix_tokens=num_prefix_tokens + num_skipped_tokens,
            shift=config.rope_shift,
            jitter=config.rope_jitter,
            rescale=config.rope_rescale,
            name=name,
        )
    return AddPositionEmbs(
        config.position_embedding,
        grid_size=config.grid_size,
        num_prefix_tokens=num_prefix_tokens,
        resampling=config.resampling,
        num_skipped_tokens=num_skipped_tokens,
        name=name,
    )


def _build(
    config_class: type[ViTConfig],
    architecture: Config,
    include_top: bool,
    weights: StrPath | Checkpoint | None,
    input_tensor: Tensor | None,
    input_shape: tuple[int | None, ...] | None,
    classes: int | None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None,
    preprocessing: bool | ModeLike,
    name: str,
) -> Model:
    """Resolves the arguments of `VisionTransformer` or
    `HybridVisionTransformer`, and builds the model.

    Each field of the architecture is the given one, else the checkpoint's, else
    the default of its config.
    """
    input_shape = resolve_input_shape(input_shape, input_tensor)
    checkpoint, inferred = None, {}
    if weights is not None:
        family = "hybrid" if config_class is HybridConfig else "vit"
        checkpoint = open_for(family, weights, architecture)
        inferred = _infer(checkpoint, architecture, input_shape)
    config = resolve_vit(config_class, architecture, inferred, include_top)
    checkpoint_grid = inferred.get("grid_size")
    if input_shape is None:
        patch_size = checkpoint.patch_size if checkpoint else None
        size = _image_size(config, patch_size, checkpoint_grid)
        input_shape = (*size, checkpoint.channels if checkpoint else 3)
    grid = _position_grid(config, input_shape, checkpoint_grid)
    grid = architecture.get("grid_size", grid)
    config = dataclasses.replace(config, grid_size=grid)
    base = architecture.get("rope_base")
    if checkpoint is not None and base not in (None, inferred.get("rope_base")):
        checkpoint = _replace_periods(checkpoint, config)

    classes = resolve_classes(include_top, classes, checkpoint)
    mode = resolve_preprocessing(preprocessing, input_tensor, checkpoint)
    load = None
    if checkpoint is not None:
        pooling = architecture.get("pooling")
        load = functools.partial(
            load_weights,
            checkpoint=checkpoint,
            grid=checkpoint_grid,
            reuse_head=_keeps_head(checkpoint, inferred, pooling, classes),
        )

    def forward(images: Tensor) -> Tensor:
        return vit(images, config, classes, classifier_activation)

    return build_model(forward, config, input_tensor, input_shape, name, load, mode)


def _replace_periods(checkpoint: Checkpoint, config: ViTConfig) -> Checkpoint:
    """Returns a checkpoint with the periods of another `rope_base`."""
    path = "position_embedding_shared/periods"
    if path not in checkpoint.weights:
        return checkpoint
    head_size = config.hidden_size // config.num_heads
    periods = rotary_periods(config.rope_base, head_size)
    weights = {**checkpoint.weights, path: periods}
    return dataclasses.replace(checkpoint, weights=weights)


def _infer(
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
            f"{checkpoint.path!r} has {count} positions, which are no square "
            "grid and not that of the image. Give `grid_size=(rows, columns)` "
            f"of the file, with rows * columns = {count} (an argument of "
            f"`converters.load`). Received: grid_size={grid}, "
            f"input_shape={input_shape}"
        )
    return inferred


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
    if checkpoint.layout in ("timm", "mae", "open_clip"):
        return True
    return pooling == inferred["pooling"] or (is_ambiguous and pooling == "first_patch")
