"""ResNets: v1 as the stem of the hybrids, and BiT, which is v2."""

from collections.abc import Callable
from typing import Unpack

import keras

from keras_vit.config import (
    GROUPS,
    BiTConfig,
    ResNetArguments,
    ResNetConfig,
)
from keras_vit.layers import GroupNorm, MaxPool2D, ResidualUnit, StdConv2D
from keras_vit.models.arguments import architecture_of, takes_fields
from keras_vit.models.model import Model, build_model, classification_head, unique_name
from keras_vit.models.resolution import Given, resolve_bit
from keras_vit.utils import checks
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.types import StrPath, Tensor
from keras_vit.weights import Checkpoint


def resnet(images: Tensor, config: ResNetConfig) -> Tensor:
    """Builds the graph of a ResNet up to its feature map.

    Args:
        images: Keras tensor of shape `(B, H, W, channels)`.
        config: A `ResNetConfig`; a `BiTConfig` for version 2.

    Returns:
        Keras tensor of shape `(B, H / stride, W / stride, C)`.
    """
    c = config
    convolution = {
        "padding": c.conv_padding,
        "epsilon": c.std_epsilon,
        "epsilon_place": c.std_epsilon_place,
    }
    x = StdConv2D(c.width, 7, 2, **convolution, name="root_conv")(images)
    if not c.preactivation:
        x = GroupNorm(GROUPS, epsilon=c.group_norm_epsilon, name="root_norm")(x)
        x = keras.layers.ReLU(name="root_relu")(x)
    x = MaxPool2D(3, 2, c.pool_padding, name="root")(x)  # (B, H/4, W/4, width)
    for stage, num_units in enumerate(c.resnet_layers, start=1):
        for unit in range(1, num_units + 1):
            first_in_stage = unit == 1
            x = ResidualUnit(
                c.width * 2 ** (stage - 1),
                strides=2 if first_in_stage and stage > 1 else 1,
                projects=first_in_stage,
                preactivation=c.preactivation,
                groups=GROUPS,
                group_norm_epsilon=c.group_norm_epsilon,
                std_epsilon=c.std_epsilon,
                std_epsilon_place=c.std_epsilon_place,
                conv_padding=c.conv_padding,
                name=f"stage_{stage}_unit_{unit}",
            )(x)
        x = keras.layers.Identity(name=f"stage_{stage}")(x)
    return x


@takes_fields(BiTConfig)
def BiT(
    config: ResNetConfig | None = None,
    *,
    include_top: bool = True,
    weights: StrPath | Checkpoint | None = None,
    input_tensor: Tensor | None = None,
    input_shape: tuple[int | None, ...] | None = None,
    pooling: str | None = None,
    classes: int | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
    preprocessing: bool | ModeLike = False,
    preactivation: bool | None = None,
    name: str | None = None,
    **architecture: Unpack[ResNetArguments],
) -> Model:
    """Builds a BiT ResNet of any size as a functional Keras model.

    From "Big Transfer (BiT): General Visual Representation Learning",
    Section 3.3 (https://arxiv.org/abs/1912.11370): a ResNet v2 with group
    norm and weight standardization. The defaults are those of
    google-research/big_transfer. With `preactivation=False`, it is the ResNet
    v1 of the hybrids (big_vision's `bit.py`), with the defaults of
    `HybridVisionTransformer`. An architecture argument that is not passed, or is None,
    is inferred from `weights` where they determine it; otherwise, it has its default.

    Images are `(batch, height, width, channels)` floats in [-1, 1] (see
    `preprocess_input`), of any size. Layers are named `root_conv`, `root`
    (after the pooling), `stage_1_unit_1` ..., `stage_1` ..., `final_norm`,
    `pooling`, `pre_logits` and `head`; `feature_extractor` returns their
    outputs.

    Args:
        config: A `keras_vit.config.BiTConfig`, or a `ResNetConfig` for version 1. Other
            arguments take precedence over it. If None, the other arguments alone define
            the architecture.
        include_top: Boolean. Whether to end in a classification head, which
            is initialized to zero.
        weights: None for random weights, or the path or URL of a checkpoint:
            an official BiT .npz file, a file of big_vision's `bit.py` or
            `bit_paper.py`, or timm's `resnetv2_*_bit`.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size. None means 224 x 224 pixels, with the
            channels of `weights`, or 3 without weights.
        pooling: "gap" (mean over all positions) or None. With `include_top`,
            None means "gap"; otherwise it means no pooling, and the output is
            the feature map.
        classes: Integer. Number of classes; None for the number in `weights`, or 1000
            without weights.
        classifier_activation: Activation of the head; None for logits.
        preprocessing: As in `VisionTransformer`.
        preactivation: Boolean. Whether norm and ReLU come before each
            convolution (ResNet v2). None means as in `weights`, or True
            without weights.
        name: String. Name of the model. None for "bit", with a number appended from the
            second such model in a program on.
        **architecture: Fields of `keras_vit.config.BiTConfig`.

    Loading `weights` is exact and strict, as in `VisionTransformer`. With
    another number of `classes`, the head is initialized to zero; with another
    number of channels, the root's kernel is summed over its channels (for one
    channel), or its channels are repeated and rescaled.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if an argument is wrong or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.

    Example:

    >>> model = keras_vit.BiT(resnet_layers=(3, 4, 6, 3), classes=10)
    """
    checks.one_of("pooling", pooling, ("gap", None))
    resolved = resolve_bit(
        config,
        preactivation,
        architecture_of(ResNetConfig, config, architecture),
        Given(include_top, weights, input_tensor, input_shape, classes, preprocessing),
    )
    c = resolved.config

    def forward(images: Tensor) -> Tensor:
        x = resnet(images, c)  # (B, h, w, C)
        if isinstance(c, BiTConfig):
            epsilon = c.group_norm_epsilon
            x = GroupNorm(GROUPS, epsilon=epsilon, name="final_norm")(x)
            x = keras.layers.ReLU(name="final_relu")(x)
        if pooling == "gap" or include_top:
            x = keras.layers.GlobalAveragePooling2D(
                data_format="channels_last", name="pooling"
            )(x)  # (B, C)
            x = keras.layers.Identity(name="pre_logits")(x)
        if include_top:
            head = classification_head(resolved.classes, classifier_activation, "head")
            x = head(x)  # (B, classes)
        return x

    return build_model(forward, resolved, input_tensor, name or unique_name("bit"))
