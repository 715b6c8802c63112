"""FCOS: a detector without anchors on a simple feature pyramid."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.detection.loss import fcos_loss
from keras_vit.layers import SimpleFeaturePyramid
from keras_vit.layers.composite import Layer
from keras_vit.models import Model, dense_features
from keras_vit.models.features import check_takes_images, patch_pixels
from keras_vit.models.model import copy_attributes, unique_name
from keras_vit.segmentation.matching import SetModel
from keras_vit.utils import checks
from keras_vit.utils.types import Tensor

# Pixels from one point to the next, by those of the encoder's map.
_SCALES = {"P2": 0.25, "P3": 0.5, "P4": 1, "P5": 2}
_PRIOR = -4.595  # the logit of the probability 0.01
_MOST_LOG_DISTANCE = 7  # so that exponentials of large steps are finite


@keras.saving.register_keras_serializable("keras_vit")
class FCOSModel(SetModel):
    """The functional model that `FCOS` returns; `fit` trains it with `fcos_loss`."""

    def set_loss(self, y: Any, y_pred: Any) -> Tensor:
        return fcos_loss(y_pred, y)


def FCOS(
    encoder: keras.Model,
    classes: int,
    levels: Sequence[str] = ("P3", "P4", "P5"),
    filters: int = 128,
    depth: int = 2,
    class_names: Sequence[str] | None = None,
    name: str | None = None,
) -> Model:
    """Builds an object detector without anchors on a Vision Transformer.

    The last map of the encoder becomes a `SimpleFeaturePyramid`. At each point
    of each level, convolutions that the levels share predict the classes and
    the distances to the four sides of a box. An FCOS needs fewer training steps than a
    `YOLOS`; `decode` leaves out duplicates of a box.

    From "FCOS: Fully Convolutional One-Stage Object Detection"
    (https://arxiv.org/abs/1904.01355), with the quality focal loss of
    "Generalized Focal Loss" (https://arxiv.org/abs/2006.04388) instead of center-ness,
    with layer norms, and with defaults of `filters` and `depth` for small datasets;
    both papers use 256 filters and 4 convolutions.

    The model shares its weights with `encoder`: set `encoder.trainable = False` first
    to train the detector alone. It takes images of any size of two patches or more.
    `fit` trains it with the targets of `set_loss`, without a `loss` in `compile`.

    Args:
        encoder: A Vision Transformer or a hybrid, such as
            `ViTS16(include_top=False)`, whose width is a multiple of 4.
        classes: Integer. Number of classes.
        levels: Levels of the pyramid, from "P2" to "P5", whose points are 1/4 to 2
            patches apart. An object is learned at the level at which the largest
            distance of a point to its sides is 4 to 8 of these steps.
        filters: Integer. Number of channels of the maps.
        depth: Integer. Number of 3 x 3 convolutions before each output.
        class_names: Names of the classes, which are saved with the model.
        name: String. Name of the model. None for "fcos", with a number from its second
            use on.

    Returns:
        A `keras.Model` that maps images to a dict: "classes", logits of shape
        `(batch, points, classes)`; "boxes" of shape `(batch, points, 4)`: the
        center x, center y, width and height of each box, as fractions of the
        image's width and height; and "points" of the same shape: the x and y of each
        point, and the horizontal and vertical distances of the points of its level, as
        such fractions.

    Raises:
        ValueError: if an argument is wrong, the number of `class_names` is not
            `classes`, or the encoder has no blocks.

    Example:

    >>> encoder = keras_vit.ViTS16(weights="augreg-imagenet21k",
    ...     include_top=False)
    >>> model = keras_vit.detection.FCOS(encoder, classes=20)
    >>> model.compile(keras.optimizers.AdamW(1e-4))
    >>> model.fit(images, {"classes": classes, "boxes": boxes})
    """
    classes = checks.positive_int("classes", classes)
    class_names = checks.class_names(class_names, classes)
    check_takes_images(encoder)
    norm = any(layer.name == "encoder_norm" for layer in encoder.layers)
    maps = dense_features(encoder, -1, norm=norm)
    (images,) = maps.inputs
    pyramid = SimpleFeaturePyramid(filters, levels=levels, name="pyramid")
    pyramid = pyramid(maps.output)
    convolution = functools.partial(
        keras.layers.Conv2D,
        kernel_size=3,
        padding="same",
        data_format="channels_last",
    )
    found = {}
    for kind, units, bias in (("class", classes, _PRIOR), ("box", 4, 0.0)):
        layers = []
        for i in range(1, checks.positive_int("depth", depth) + 1):
            layers += [
                convolution(filters, use_bias=False, name=f"{kind}_conv_{i}"),
                keras.layers.LayerNormalization(epsilon=1e-6, name=f"{kind}_norm_{i}"),
                keras.layers.ReLU(name=f"{kind}_relu_{i}"),
            ]
        output = convolution(
            units,
            name=f"{kind}_output",
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
            bias_initializer=keras.initializers.Constant(bias),
            dtype="float32",
        )
        found[kind] = []
        for x in pyramid.values():
            for layer in (*layers, output):
                x = layer(x)
            found[kind].append(x)
    pixels = patch_pixels(encoder)
    outputs = PointBoxes(
        tuple(tuple(n * _SCALES[x] for n in pixels) for x in pyramid),
        dtype="float32",
        name="point_boxes",
    )(found["box"], found["class"], images)
    model = FCOSModel(images, outputs, name=name or unique_name("fcos"))
    copy_attributes(encoder, model, new_head=True)
    model.class_names = class_names
    return model


@keras.saving.register_keras_serializable("keras_vit")
class PointBoxes(Layer):
    """Returns the outputs of an `FCOS`, given two maps per level: the logarithms of the
    distances to the left, top, right and bottom side, in steps of `strides` (rows and
    columns, in pixels), and the classes."""

    def __init__(self, strides: Sequence[tuple[float, float]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strides = tuple(map(tuple, strides))

    def call(
        self, distances: list[Tensor], classes: list[Tensor], images: Tensor
    ) -> dict[str, Tensor]:
        batch, *size, _ = ops.shape(images)
        points = []
        for level, stride in zip(distances, self.strides, strict=True):
            rows, columns = grid = ops.shape(level)[1:3]
            # Height and width of a step, as fractions of those of the image.
            y, x = (
                ops.broadcast_to(step / ops.cast(n, "float32"), grid)
                for step, n in zip(stride, size, strict=True)
            )
            row = ops.cast(ops.arange(rows), "float32")[:, None] + 0.5
            column = ops.cast(ops.arange(columns), "float32") + 0.5
            found = ops.stack([column * x, row * y, x, y], axis=-1)
            points.append(ops.reshape(found, (-1, 4)))
        points = ops.concatenate(points, axis=0)  # (N, 4)
        sides, classes = (
            ops.concatenate(
                [ops.reshape(x, (batch, -1, x.shape[-1])) for x in maps], axis=1
            )
            for maps in (distances, classes)
        )
        sides = ops.exp(ops.minimum(sides, _MOST_LOG_DISTANCE))
        center, step = points[:, :2], points[:, 2:]
        first, last = sides[..., :2] * step, sides[..., 2:] * step
        middle = center + (last - first) / 2
        boxes = ops.concatenate([middle, first + last], axis=-1)
        points = ops.broadcast_to(points, ops.shape(boxes))
        return {"classes": classes, "boxes": boxes, "points": points}
