"""The ResNets of the hybrids (post-activation) and of BiT (pre-activation).

Functions over tensors: layers are `root_conv`, `root_norm`, `root` (after the
pooling), a layer a unit, `stage_1_unit_1` ..., and `stage_1` ... after each
stage.
"""

import keras

from keras_vit import _checks
from keras_vit.checkpoints.infer import stride
from keras_vit.layers import GroupNorm
from keras_vit.layers import MaxPool2D
from keras_vit.layers import ResidualUnit
from keras_vit.layers import StdConv2D

GROUPS = 32


def resolve(s, told, rules):
    """Settles the arguments of a ResNet in a namespace, and its stride.

    Args:
        s: Namespace of arguments; None stands for what is not said.
        told: Dict of arguments that the weights tell.
        rules: Dict of a code's constants, for what is neither.

    Raises:
        ValueError: if an argument is wrong.
    """
    if s.resnet_layers is None:
        s.resnet_layers = told.get("resnet_layers")
    for name, value in {"width_factor": 1, **rules}.items():
        if getattr(s, name) is None:
            setattr(s, name, told.get(name, value))
    s.resnet_layers = _layers(s.resnet_layers)
    width = int(64 * _checks.positive_float("width_factor", s.width_factor))
    if not width or width % GROUPS:
        raise ValueError(
            "`width_factor` must make the root's 64 channels a multiple of "
            f"the {GROUPS} groups of its norms: 0.5, 1, 1.5, 2 ... "
            f"Received: width_factor={s.width_factor!r}"
        )
    s.resnet_width = width
    s.stride = stride(s.resnet_layers)


def _layers(layers):
    if isinstance(layers, list):
        layers = tuple(layers)
    if not isinstance(layers, tuple):
        raise ValueError(
            "`resnet_layers` must be a tuple of the number of units of each "
            "stage, such as (3, 4, 9), or () for the root alone. "
            f"Received: resnet_layers={layers!r}"
        )
    return tuple(_checks.positive_int("resnet_layers", n) for n in layers)


def resnet(x, s, preactivation=False):
    """Returns the feature map (B, h, w, C) of images (B, H, W, 3).

    Args:
        x: Keras tensor.
        s: Namespace that `resolve` has settled.
        preactivation: Boolean. Whether units are those of BiT.
    """
    constants = {
        "std_epsilon": s.std_epsilon,
        "std_epsilon_place": s.std_epsilon_place,
        "conv_padding": s.conv_padding,
    }
    # B batch, H W image, C width of the root
    x = StdConv2D(
        s.resnet_width,
        7,
        2,
        padding=s.conv_padding,
        epsilon=s.std_epsilon,
        epsilon_place=s.std_epsilon_place,
        name="root_conv",
    )(x)
    if not preactivation:
        x = GroupNorm(GROUPS, epsilon=s.group_norm_epsilon, name="root_norm")(x)
        x = keras.layers.ReLU(name="root_relu")(x)
    x = MaxPool2D(3, 2, s.pool_padding, name="root")(x)  # (B, H/4, W/4, C)
    for stage, units in enumerate(s.resnet_layers, start=1):
        for number in range(1, units + 1):
            first = number == 1
            x = ResidualUnit(
                s.resnet_width * 2 ** (stage - 1),
                strides=2 if first and stage > 1 else 1,
                projects=first,
                preactivation=preactivation,
                groups=GROUPS,
                group_norm_epsilon=s.group_norm_epsilon,
                **constants,
                name=f"stage_{stage}_unit_{number}",
            )(x)
        x = keras.layers.Identity(name=f"stage_{stage}")(x)
    return x
