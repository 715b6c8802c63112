"""ResNets: v1 as the stem of the hybrids, and BiT, which is v2."""

import dataclasses

import keras

from keras_vit import _checks
from keras_vit.checkpoints import infer
from keras_vit.layers import GroupNorm
from keras_vit.layers import MaxPool2D
from keras_vit.layers import ResidualUnit
from keras_vit.layers import StdConv2D
from keras_vit.models.config import DEFAULT_IMAGE_SIZE
from keras_vit.models.config import check_required
from keras_vit.models.config import option
from keras_vit.models.config import resolve
from keras_vit.models.config import resolve_classes
from keras_vit.models.config import resolve_input_shape
from keras_vit.models.config import resolve_preprocessing
from keras_vit.models.config import takes_fields_of
from keras_vit.models.loading import open_for
from keras_vit.models.model import build_model
from keras_vit.models.model import classification_head
from keras_vit.models.model import unique_name

GROUPS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Architecture of the hybrids' ResNet; see `HybridVisionTransformer`.

    The defaults are those of google-research/vision_transformer.
    """

    resnet_layers: tuple = option(
        None,
        "Tuple of integers. Number of units of each stage: (3, 4, 6, 3) for a "
        "ResNet-50, () for the root alone. The root reduces height and width "
        "to a quarter, and each stage but the first halves them. Required "
        "without `weights`.",
    )
    width_factor: float = option(
        1.0,
        "Float. The root has `64 * width_factor` channels, which must be a "
        f"multiple of the {GROUPS} groups of a norm.",
    )
    group_norm_epsilon: float = option(
        1e-6, "Float above 0. Epsilon of the group norms."
    )
    std_epsilon: float = option(
        1e-5, "Float above 0. Epsilon of the weight standardisation."
    )
    std_epsilon_place: str = option(
        "std",
        'String. "std" or "variance": where `std_epsilon` is added; see '
        "`StdConv2D`.",
    )
    conv_padding: str = option(
        "same",
        'String. "same" or "symmetric": padding of the convolutions; see '
        "`StdConv2D`.",
    )
    pool_padding: str = option(
        "same",
        'String. "same", "symmetric" or "zeros": padding of the root\'s max '
        "pooling; see `MaxPool2D`.",
    )

    def __post_init__(self):
        check_required(self, ("resnet_layers",))
        layers = self.resnet_layers
        layers = tuple(layers) if isinstance(layers, list) else layers
        if not isinstance(layers, tuple):
            raise ValueError(
                "`resnet_layers` must be a tuple of the number of units of "
                "each stage, such as (3, 4, 9), or () for the root alone. "
                f"Received: resnet_layers={layers!r}"
            )
        layers = tuple(_checks.positive_int("resnet_layers", n) for n in layers)
        object.__setattr__(self, "resnet_layers", layers)
        for name in ("width_factor", "group_norm_epsilon", "std_epsilon"):
            _checks.positive_float(name, getattr(self, name))
        for name, choices in (
            ("std_epsilon_place", ("std", "variance")),
            ("conv_padding", ("same", "symmetric")),
            ("pool_padding", ("same", "symmetric", "zeros")),
        ):
            _checks.one_of(name, getattr(self, name), choices)
        if not self.width or self.width % GROUPS:
            raise ValueError(
                "`width_factor` must make the root's 64 channels a multiple "
                f"of the {GROUPS} groups of its norms: 0.5, 1, 1.5, 2 ... "
                f"Received: width_factor={self.width_factor!r}"
            )

    @property
    def width(self):
        """Number of channels of the root."""
        return int(64 * self.width_factor)

    @property
    def stride(self):
        """Number of pixels per position of the feature map, along an axis."""
        return infer.stride(self.resnet_layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ResNetConfig):
    """Architecture of a `BiT`.

    The defaults are those of google-research/big_transfer.
    """

    group_norm_epsilon: float = option(
        1e-5, "Float above 0. Epsilon of the group norms."
    )
    std_epsilon: float = option(
        1e-10, "Float above 0. Epsilon of the weight standardisation."
    )
    std_epsilon_place: str = option(
        "variance",
        'String. "variance" or "std": where `std_epsilon` is added; see '
        "`StdConv2D`.",
    )
    conv_padding: str = option(
        "symmetric",
        'String. "symmetric" or "same": padding of the convolutions; see '
        "`StdConv2D`.",
    )
    pool_padding: str = option(
        "zeros",
        'String. "zeros", "symmetric" or "same": padding of the root\'s max '
        "pooling; see `MaxPool2D`.",
    )


def resnet(images, config, preactivation=False):
    """Builds the graph of a ResNet up to its feature map.

    Args:
        images: Keras tensor of shape `(B, H, W, channels)`.
        config: A `ResNetConfig`.
        preactivation: Boolean. Whether to use the units of ResNet v2, with norm
            and ReLU before each convolution.

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
    if not preactivation:
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
                preactivation=preactivation,
                groups=GROUPS,
                group_norm_epsilon=c.group_norm_epsilon,
                std_epsilon=c.std_epsilon,
                std_epsilon_place=c.std_epsilon_place,
                conv_padding=c.conv_padding,
                name=f"stage_{stage}_unit_{unit}",
            )(x)
        x = keras.layers.Identity(name=f"stage_{stage}")(x)
    return x


@takes_fields_of(BiTConfig)
def BiT(
    *,
    include_top=True,
    weights=None,
    input_tensor=None,
    input_shape=None,
    pooling=None,
    classes=None,
    classifier_activation=None,
    preprocessing=False,
    preactivation=None,
    name=None,
    **architecture,
):
    """Builds a BiT ResNet of any size as a functional Keras model.

    From "Big Transfer (BiT): General Visual Representation Learning",
    Section 3.3 (https://arxiv.org/abs/1912.11370): a ResNet v2 with group
    norm and weight standardisation. The defaults are those of
    google-research/big_transfer. With `preactivation=False`, it is the ResNet
    v1 of the hybrids (big_vision's `bit.py`), with the defaults of
    `HybridVisionTransformer`. An architecture argument that is not passed, or
    None, is inferred from `weights`, or else has its default.

    Images are `(batch, height, width, channels)` floats in [-1, 1] (see
    `preprocess_input`), of any size. Layers are named `root_conv`, `root`
    (after the pooling), `stage_1_unit_1` ..., `stage_1` ..., `final_norm`,
    `pooling`, `pre_logits` and `head`; `feature_extractor` returns their
    outputs.

    Args:
        include_top: Boolean. Whether to end in a classification head, which
            is initialised to zero.
        weights: None for random weights, or the path or URL of a checkpoint:
            an official BiT .npz, one of big_vision's `bit.py` or
            `bit_paper.py`, or timm's `resnetv2_*_bit`.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size. None means 224 x 224 pixels, with the
            channels of `weights`, or 3 without weights.
        pooling: "gap" (mean over all positions) or None. With `include_top`,
            None means "gap"; otherwise it means no pooling, and the output is
            the feature map.
        classes: Integer. Number of classes; None for that of `weights`, or
            1000 without weights.
        classifier_activation: Activation of the head; None for logits.
        preprocessing: As in `VisionTransformer`.
        preactivation: Boolean. Whether norm and ReLU come before each
            convolution (ResNet v2). None means as in `weights`, or True
            without weights.
        name: String. Name of the model. None for "bit", with a
            number from the second such model of a program on.
        {architecture}

    Loading `weights` is exact and strict, as in `VisionTransformer`. With
    another number of `classes`, the head is initialised to zero; with another
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
    _checks.one_of("pooling", pooling, ("gap", None))
    input_shape = resolve_input_shape(input_shape, input_tensor)
    checkpoint, inferred = None, {}
    if weights is not None:
        checkpoint = open_for("BiT", weights, architecture)
        inferred = checkpoint.arguments()
    if preactivation is None:
        preactivation = inferred.get("preactivation", True)
    _checks.boolean("preactivation", preactivation)
    config_class = BiTConfig if preactivation else ResNetConfig
    config = resolve(config_class, architecture, inferred)
    if input_shape is None:
        size = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
        input_shape = (*size, inferred.get("channels", 3))
    classes = resolve_classes(include_top, classes, inferred, checkpoint)
    preprocessing = resolve_preprocessing(
        preprocessing, input_tensor, checkpoint
    )

    def forward(images):
        x = resnet(images, config, preactivation)  # (B, h, w, C)
        if preactivation:
            epsilon = config.group_norm_epsilon
            x = GroupNorm(GROUPS, epsilon=epsilon, name="final_norm")(x)
            x = keras.layers.ReLU(name="final_relu")(x)
        if pooling == "gap" or include_top:
            x = keras.layers.GlobalAveragePooling2D(
                data_format="channels_last", name="pooling"
            )(x)  # (B, C)
            x = keras.layers.Identity(name="pre_logits")(x)
        if include_top:
            head = classification_head(classes, classifier_activation, "head")
            x = head(x)  # (B, classes)
        return x

    return build_model(
        forward,
        input_tensor,
        input_shape,
        name or unique_name("bit"),
        checkpoint,
        preprocessing=preprocessing,
    )
