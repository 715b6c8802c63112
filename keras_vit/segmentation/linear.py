"""A linear classifier of patches, as a model that classifies pixels."""

from collections.abc import Callable

import keras

from keras_vit.layers import UpsampleMap
from keras_vit.layers.replicated import BatchNormalization
from keras_vit.models import Model, dense_features
from keras_vit.models.features import check_takes_images, patch_pixels
from keras_vit.models.model import copy_attributes, unique_name
from keras_vit.utils import checks


def LinearSegmenter(
    encoder: keras.Model,
    classes: int,
    blocks: int | tuple[int, ...] = -1,
    dropout: float = 0.1,
    classifier_activation: str | Callable | None = None,
    name: str | None = None,
) -> keras.Model:
    """Builds a model that classifies each pixel by a linear head.

    The maps of one or several blocks of a Vision Transformer, normalized by
    its `encoder_norm` (if it has one) and concatenated from the first block to
    the last, pass through batch norm, dropout and a 1 x 1 convolution. The
    logits of patches are resampled bilinearly to the pixels. With a frozen
    encoder, this measures how well its features suit segmentation; it is the linear
    evaluation of "DINOv2: Learning Robust Visual Features without Supervision", Section
    7.4 (https://arxiv.org/abs/2304.07193), whose head has no dropout.

    The model shares its weights with `encoder`. Set `encoder.trainable = False`
    before `compile` to train the head alone. Images may have any size that is a
    multiple of the patch size, or any size at all if the encoder was built
    with `pad_to_patch=True`.

    A Keras loss with `ignore_class` is divided by the number of pixels in the batch
    that have a class, over all devices. Losses therefore depend on the batch size: a
    pixel counts more in a batch with more ignored pixels. `fit` rejects averages of the
    weights (`use_ema`) if the encoder is trained, as the batch norm's statistics would
    belong to other features.

    Args:
        encoder: A Vision Transformer or a hybrid, such as `ViTB16()`.
        classes: Integer. Number of classes.
        blocks: Integer or tuple of integers. Blocks whose maps are used; see
            `dense_features`. DINOv2 evaluates both the last block and the last four.
        dropout: Float in [0, 1). Dropout rate of the features.
        classifier_activation: Activation of the head; None for logits.
        name: String. Name of the model. None for "linear_segmenter", with a number from
            its second use on.

    Returns:
        A `keras.Model` that maps images `(batch, height, width, channels)` to
        logits `(batch, height, width, classes)` in float32.

    Raises:
        ValueError: if an argument is wrong, or the encoder has no blocks.

    Example:

    >>> encoder = keras_vit.ViTB16(weights="imagenet21k", include_top=False)
    >>> model = keras_vit.segmentation.LinearSegmenter(encoder, 21)
    >>> model(np.zeros((1, 480, 640, 3))).shape
    (1, 480, 640, 21)
    """
    classes = checks.positive_int("classes", classes)
    dropout = checks.rate("dropout", dropout)
    check_takes_images(encoder)
    names = [layer.name for layer in encoder.layers]
    maps = dense_features(encoder, blocks, norm="encoder_norm" in names)
    (images,) = maps.inputs
    outputs = maps.output
    if isinstance(outputs, dict):
        # Keras sorts them by name, "block_10" before "block_9".
        by_number = sorted(outputs, key=lambda name: int(name.split("_")[1]))
        outputs = [outputs[name] for name in by_number]
    else:
        outputs = [outputs]
    x = outputs[0]
    if len(outputs) > 1:
        x = keras.layers.Concatenate(name="concatenated_maps")(outputs)
    # The constants of PyTorch's batch norm.
    x = BatchNormalization(momentum=0.9, epsilon=1e-5, name="head_norm")(x)
    x = keras.layers.Dropout(dropout, name="head_dropout")(x)
    x = keras.layers.Conv2D(
        classes,
        1,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        data_format="channels_last",
        dtype="float32",
        name="head",
    )(x)
    x = UpsampleMap(patch_pixels(encoder), dtype="float32", name="pixels")(x, images)
    if classifier_activation is not None:
        x = keras.layers.Activation(
            classifier_activation, dtype="float32", name="probabilities"
        )(x)
    model = Model(images, x, name=name or unique_name("linear_segmenter"))
    copy_attributes(maps, model, new_head=True)
    return model
