"""Vision Transformers, pure and hybrid."""

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
from keras_vit.models.arguments import architecture_of, takes_fields
from keras_vit.models.model import Model, build_model, classification_head, unique_name
from keras_vit.models.resnet import resnet
from keras_vit.models.resolution import Given, resolve_vit
from keras_vit.utils import checks
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.types import Config, StrPath, Tensor
from keras_vit.weights import Checkpoint


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
    (https://arxiv.org/abs/2010.11929). The defaults are those of the paper's code,
    google-research/vision_transformer; the other options are for models of timm,
    Hugging Face, torchvision and big_vision.

    The architecture is given by `config`, or by its fields as arguments. A field that
    is not given, or is None, is inferred from `weights` where they determine it;
    otherwise, it has the default of `ViTConfig`. A field of `config` that equals its
    default is treated in the same way.

    Images are `(batch, height, width, channels)` floats in [-1, 1] (see
    `preprocess_input`). Layers are named `patch_embedding`, `class_token`,
    `position_embedding`, `block_0` ..., `encoder_norm`, `pooling`,
    `pre_logits` and `head`; `feature_extractor` returns their outputs. Position
    embeddings in every layer are named `position_embedding_0` ..., or
    `position_embedding_shared` if all layers share them.

    Args:
        config: A `keras_vit.config.ViTConfig`. Other arguments take precedence over it.
            If None, the other arguments alone define the architecture.
        include_top: Boolean. Whether to end in a classification head, which
            is initialized to zero. Without it, the output is the pooled vector
            (after `pre_logits`), or all tokens if `pooling` is None.
        weights: None for random weights, or the path or URL of a checkpoint: a
            file of google-research/vision_transformer, big_vision, timm,
            Hugging Face (or its folder), torchvision, DINOv2 or MAE. See below.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size and aspect ratio. None means the shape that `weights`
            were trained with, or `(224, 224, 3)` without weights.
        classes: Integer. Number of classes; None for the number in `weights`, or 1000
            without weights.
        classifier_activation: Activation of the head; None for logits, even if
            `weights` are those of a model that ends in an activation. `converters.load`
            keeps this activation, and the model's `preprocessing`.
        preprocessing: Boolean, string or `(mean, std)`. Whether the first layer
            is an `ImagePreprocessing`: the model then takes images of any size
            with values in [0, 255], resizes them to the height and width of
            `input_shape` and scales them. True for the mode that `weights`
            require, or "tf" without weights; or a mode of `preprocess_input`.
            If the mode has a value for each channel, images of one channel are repeated
            to this number of channels.
        name: String. Name of the model. None for "vision_transformer", with a number
            appended from the second such model in a program on.
        **architecture: Fields of `keras_vit.config.ViTConfig`.

    Loading `weights` is exact and strict: if arrays are missing, unknown or of
    the wrong shape, one error lists all of them. Weights are adapted to five kinds of
    differences. With another number of `classes`, the head is initialized to zero. With
    another `input_shape`, the position embeddings are resampled. With another
    `patch_size`, the patch kernel is resized by the pseudo-inverse of bicubic resizing
    ("FlexiViT", https://arxiv.org/abs/2212.08013), and a warning says so. With another
    number of channels, the patch kernel is summed over its channels (for one channel),
    or its channels are repeated and rescaled. If the weights need another scaling of
    each channel, `preprocessing` repeats the channel of gray images instead. Without
    `representation_size`, a stored `pre_logits` layer is dropped, together with the
    head that was trained on it. A `.weights.h5` file of Keras's `save_weights` does not
    store `activation`, `norm_epsilon` and `resampling`, which must be passed.

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
    return _build(
        ViTConfig,
        architecture_of(ViTConfig, config, architecture),
        Given(include_top, weights, input_tensor, input_shape, classes, preprocessing),
        classifier_activation,
        name or unique_name("vision_transformer"),
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
    google-research/vision_transformer, or those that the format of `weights`
    implies.

    The feature map is split into patches, so `patch_size` is in positions of the
    feature map. It must divide the size of the feature map, or `pad_to_patch` must be
    True. The layers before `patch_embedding` are `root_conv`, `root_norm`, `root`
    (after the pooling) and, numbered from 1, `stage_1_unit_1` ..., `stage_1`
    ...; `feature_extractor` returns their outputs.

    Args:
        config: A `keras_vit.config.HybridConfig`. Other arguments take precedence over
            it. If None, the other arguments alone define the architecture.
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
        name: As in `VisionTransformer`, but the default is "hybrid_vision_transformer".
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
        Given(include_top, weights, input_tensor, input_shape, classes, preprocessing),
        classifier_activation,
        name or unique_name("hybrid_vision_transformer"),
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
                "`block` must be `TransformerBlock`, a subclass, or a function that "
                f"returns one with the `name` {name!r}. Received: {block!r}"
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
            activation="linear" if c.unit_norm else "tanh",
            kernel_initializer=initializers.lecun_normal(x.shape[-1]),
            bias_initializer=initializers.Constant(0.0),
            name="pre_logits",
        )(x)  # (B, representation_size)
    if c.unit_norm:
        x = keras.layers.UnitNormalization(name="unit_norm")(x)
    return x if classes is None else make_head(name="head")(x)


def _block_class(config: ViTConfig) -> Callable[..., TransformerBlock]:
    """Returns the class or the function that makes a model's blocks."""
    block = TransformerBlock if config.block is None else config.block
    if isinstance(block, str):
        raise ValueError(
            "The blocks of the saved model have a class of their own or differ: "
            f"{block!r}, which cannot be built from the file. Pass the class, or the "
            "function that made them, as `block`."
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
    given: Given,
    classifier_activation: str | Callable[[Tensor], Tensor] | None,
    name: str,
) -> Model:
    """Builds the model of a given architecture and other given arguments."""
    resolved = resolve_vit(config_class, architecture, given)

    def forward(images: Tensor) -> Tensor:
        return vit(images, resolved.config, resolved.classes, classifier_activation)

    return build_model(forward, resolved, given.input_tensor, name)
