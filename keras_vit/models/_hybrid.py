import inspect

from keras_vit.models import _arguments
from keras_vit.models import _trunk
from keras_vit.models._vit import VisionTransformer

_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(
        VisionTransformer
    ).parameters.items()
}


def HybridVisionTransformer(
    *,
    resnet_layers=None,
    move_stage_4=False,
    width_factor=None,
    group_norm_epsilon=None,
    std_epsilon=None,
    std_epsilon_place=None,
    conv_padding=None,
    pool_padding=None,
    name="hybrid_vision_transformer",
    **architecture,
):
    """Builds a Vision Transformer over the feature map of a ResNet.

    From "An Image is Worth 16x16 Words", Section 3.1, Hybrid Architecture
    (https://arxiv.org/abs/2010.11929). The ResNet normalises groups of
    channels and standardises its kernels, as BiT does, and its units are those
    of ResNet v1: convolution, norm, ReLU. Where one may choose, its constants
    are those of google-research/vision_transformer, or what the layout of
    `weights` implies.

    The patches are cut from the feature map: `patch_size` counts its
    positions. An image may have any size whose feature map the patch divides.
    The layers before `patch_embedding` are `root_conv`, `root_norm`, `root`
    (after the pooling) and, counted from 1, `stage_1_unit_1` ..., `stage_1`
    ...; `feature_extractor` reads any of them.

    Args:
        resnet_layers: Tuple of the number of units of each stage: (3, 4, 6, 3)
            is a ResNet-50; () the root alone. The first stage keeps the
            root's size, a fourth of the image, each other one halves it.
        move_stage_4: Boolean. What the paper does with the fourth of four
            stages: False takes its output (option i); True moves its units
            into the third stage, whose output has four times the positions
            (option ii).
        width_factor: Float. How many times 64 channels the root has: 1. The
            root's channels must be a multiple of 32, the groups of a norm.
        group_norm_epsilon: Float. Epsilon of the ResNet's norms: 1e-6.
        std_epsilon: Float. Epsilon of the kernels' standardisation: 1e-5.
        std_epsilon_place: "std" or "variance"; see `StdConv2D`.
        conv_padding: "same", or "symmetric" (timm's `padding_same=False`).
        pool_padding: "same", "symmetric" or "zeros"; see `MaxPool2D`.
        name: String. Name of the model.
        **architecture: Any argument of `VisionTransformer`, such as
            `hidden_size`, `input_shape` or `weights`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if an argument is wrong, the patch does not divide the
            feature map, or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.

    Example:

    >>> model = keras_vit.HybridVisionTransformer(
    ...     input_shape=(64, 64, 3), resnet_layers=(1, 1), width_factor=0.5,
    ...     patch_size=1, hidden_size=192, num_layers=4, num_heads=3,
    ...     classes=10)
    """
    said = dict(locals())
    unknown = said.pop("architecture").keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(
            "HybridVisionTransformer has no argument "
            f"{', '.join(map(repr, sorted(unknown)))}."
        )
    said["resnet_layers"] = _moved(said.pop("move_stage_4"), resnet_layers)
    return _trunk.build(
        _arguments.resolve({**_DEFAULTS, **architecture, **said})
    )


def _moved(move_stage_4, layers):
    if not move_stage_4:
        return layers
    if not isinstance(layers, (tuple, list)) or len(layers) != 4:
        raise ValueError(
            "`move_stage_4=True` moves the units of the fourth of four "
            "stages, such as `resnet_layers=(3, 4, 6, 3)`. "
            f"Received: resnet_layers={layers!r}"
        )
    return (*layers[:2], layers[2] + layers[3])
