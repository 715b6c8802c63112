import types

import keras

from keras_vit import _checks
from keras_vit.checkpoints.formats import RESNET_CONSTANTS
from keras_vit.layers import GroupNorm
from keras_vit.models import _arguments
from keras_vit.models import _resnet
from keras_vit.models import _trunk
from keras_vit.models._input_shape import shape_of


def BiT(
    *,
    resnet_layers=None,
    width_factor=None,
    include_top=True,
    weights=None,
    input_tensor=None,
    input_shape=None,
    pooling=None,
    classes=None,
    classifier_activation=None,
    preactivation=None,
    group_norm_epsilon=None,
    std_epsilon=None,
    std_epsilon_place=None,
    conv_padding=None,
    pool_padding=None,
    name="bit",
):
    """Builds a BiT ResNet of any size as a functional Keras model.

    From "Big Transfer (BiT): General Visual Representation Learning",
    Section 3.3 (https://arxiv.org/abs/1912.11370): a ResNet v2 with group
    norm and weight standardisation. The defaults are those of
    google-research/big_transfer. With `preactivation=False` it is the ResNet
    v1 of the hybrids (big_vision's `bit.py`), with that code's constants.

    Images go in as `(batch, height, width, channels)` floats in [-1, 1] (see
    `preprocess_input`), of any size. Layers are named `root_conv`, `root`
    (after the pooling), `stage_1_unit_1` ..., `stage_1` ..., `final_norm`,
    `pooling`, `pre_logits` and `head`; `feature_extractor` reads any of them.

    Args:
        resnet_layers: Tuple of the number of units of each stage, such as
            (3, 4, 6, 3) for R50. It must be given where there are no weights.
        width_factor: Float. How many times 64 channels the root has: 1. The
            root's channels must be a multiple of 32, the groups of a norm.
        include_top: Boolean. Whether to end in a classification head, which
            is zero at first.
        weights: None for random weights, or the path of a checkpoint: an
            official BiT .npz, one of big_vision's `bit.py` or `bit_paper.py`,
            or timm's `resnetv2_*_bit`.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size. None is `(224, 224, 3)`.
        pooling: "gap" (mean over the positions), or None: "gap" if
            `include_top`, else no pooling, which gives the feature map.
        classes: Integer. None takes the number in `weights`, else 1000.
        classifier_activation: Activation of the head; None for logits.
        preactivation: Boolean. Whether norm and ReLU come before each
            convolution (ResNet v2). None takes what `weights` have; True.
        group_norm_epsilon: Float. Epsilon of the norms: 1e-5.
        std_epsilon: Float. Epsilon of the kernels' standardisation: 1e-10.
        std_epsilon_place: "variance" (default) or "std"; see `StdConv2D`.
        conv_padding: "symmetric" (default) or "same"; see `StdConv2D`.
        pool_padding: "zeros" (default), "symmetric" or "same"; see
            `MaxPool2D`.
        name: String. Name of the model.

    Loading `weights` is exact and strict, as in `VisionTransformer`. Another
    number of `classes` starts a zero head, and other channels sum (for one)
    or repeat and rescale the root's kernel.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if an argument is wrong or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.

    Example:

    >>> model = keras_vit.BiT(resnet_layers=(3, 4, 6, 3), classes=10)
    """
    s = _resolve(types.SimpleNamespace(**locals()))

    def layers(images):
        x = _resnet.resnet(images, s, s.preactivation)  # (B, h, w, C)
        if s.preactivation:
            x = GroupNorm(
                _resnet.GROUPS, epsilon=s.group_norm_epsilon, name="final_norm"
            )(x)
            x = keras.layers.ReLU(name="final_relu")(x)
        if s.pooling == "gap":
            x = keras.layers.GlobalAveragePooling2D(
                data_format="channels_last", name="pooling"
            )(x)  # (B, C)
            x = keras.layers.Identity(name="pre_logits")(x)
        if s.include_top:
            x = _trunk.head_layer(s.classes, s.classifier_activation, "head")(x)
        return x

    return _trunk.model_of(layers, s)


def _resolve(s):
    """Returns the namespace of arguments with nothing left open."""
    _checks.one_of("pooling", s.pooling, ("gap", None))
    s.input_shape = shape_of(s.input_shape, s.input_tensor)
    s.checkpoint, told = None, {}
    if s.weights is not None:
        s.checkpoint = _arguments.opened(s.weights, "bit")
        told = s.checkpoint.arguments()
    s.checkpoint_grid, s.keeps_head = None, True
    if s.resnet_layers is None and s.checkpoint is None:
        raise ValueError(
            "resnet_layers must be given where there are no `weights` to tell."
        )
    if s.preactivation is None:
        s.preactivation = told.get("preactivation", True)
    _resnet.resolve(
        s, told, RESNET_CONSTANTS["bit" if s.preactivation else "vit_jax"]
    )
    if s.input_shape is None:
        size = (_arguments.DEFAULT_IMAGE_SIZE,) * 2
        s.input_shape = (*size, told.get("channels", 3))
    if s.include_top:
        s.pooling = "gap"
        _arguments.resolve_classes(s, told)
    return s
