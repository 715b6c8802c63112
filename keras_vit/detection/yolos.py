"""YOLOS: detection tokens in a Vision Transformer."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.detection.loss import set_loss
from keras_vit.layers import AddPositionEmbs, ClassToken, TransformerBlock, initializers
from keras_vit.models import Model, with_any_size
from keras_vit.models.features import check_takes_images
from keras_vit.models.graph import Graph
from keras_vit.models.model import copy_attributes, unique_name
from keras_vit.segmentation.matching import SetModel
from keras_vit.utils import checks
from keras_vit.utils.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class YOLOSModel(SetModel):
    """The functional model that `YOLOS` returns; `fit` trains it with `set_loss`. The
    layer `detection_tokens` has the `loss_options`."""

    def set_loss(self, y: Any, y_pred: Any) -> Tensor:
        options = self.get_layer("detection_tokens").loss_options
        return set_loss(y_pred, y, **options)


def YOLOS(
    encoder: keras.Model,
    classes: int,
    queries: int = 100,
    mid_positions: bool = False,
    loss_options: Config | None = None,
    class_names: Sequence[str] | None = None,
    name: str | None = None,
) -> Model:
    """Builds an object detector on a Vision Transformer.

    Learned detection tokens, the queries, pass through all blocks with the
    patches. Two MLPs map the output of each to a class and a box. `set_loss` matches
    each object of an image with one query, so that duplicate boxes need not be
    suppressed.

    From "You Only Look at One Sequence" (https://arxiv.org/abs/2106.00666), as
    in transformers' `YolosForObjectDetection`; see `keras_vit.load` for its
    files.

    The model shares its weights with `encoder`. It takes images of any size that is a
    multiple of the patch size. `fit` trains it with the targets of `set_loss`, without
    a `loss` in `compile`.

    Args:
        encoder: A Vision Transformer with position embeddings in the stem and
            a norm of tokens, such as `ViTS16(include_top=False)`.
        classes: Integer. Number of classes.
        queries: Integer. Number of detection tokens, which is the maximum number of
            objects in an image.
        mid_positions: Boolean. Whether to add learned position embeddings
            after each block except the last, as in YOLOS's largest models.
        loss_options: Dict of arguments of `set_loss` with which `fit` trains,
            such as `{"no_object_weight": 0.2}`. None for its defaults.
        class_names: Names of the classes, which are saved with the model.
        name: String. Name of the model. None for "yolos", with a number from its second
            use on.

    Returns:
        A `keras.Model` that maps images to a dict: "classes", logits of shape
        `(batch, queries, classes + 1)`, the last one for no object; and
        "boxes" of shape `(batch, queries, 4)`: the center x, center y, width
        and height of each box, as fractions of the image's width and height.

    Raises:
        ValueError: if the encoder has other position embeddings or no norm of
            tokens, or the number of `class_names` is not `classes`.
        TypeError: if `set_loss` has no such option.

    Example:

    >>> encoder = keras_vit.ViTS16(weights="augreg-imagenet21k",
    ...     include_top=False)
    >>> model = keras_vit.detection.YOLOS(encoder, classes=20)
    >>> model.compile(keras.optimizers.AdamW(1e-4))
    >>> model.fit(images, {"classes": classes, "boxes": boxes})
    """
    classes = checks.positive_int("classes", classes)
    class_names = checks.class_names(class_names, classes)
    inspect.signature(set_loss).bind({}, {}, **(loss_options or {}))
    check_takes_images(encoder)
    blocks = [x for x in encoder.layers if isinstance(x, TransformerBlock)]
    names = [x.name for x in encoder.layers if "position_embedding" in x.name]
    if names != ["position_embedding"]:
        raise ValueError(
            "YOLOS needs a Vision Transformer with position embeddings in the "
            f"stem. Received: the encoder {encoder.name!r} with {names}"
        )
    prefix = sum(x.num_tokens for x in encoder.layers if isinstance(x, ClassToken))
    positions = encoder.get_layer("position_embedding")
    graph = Graph(encoder)
    grid = graph.output(encoder.get_layer("patch_embedding"))
    x = DetectionTokens(
        queries,
        loss_options=loss_options,
        initializer=initializers.Normal(0.02),
        name="detection_tokens",
    )(graph.input(blocks[0]))  # (B, Q + P + N, D)
    for i, block in enumerate(blocks[:-1]):
        x = block(x)
        if mid_positions:
            x = AddPositionEmbs(
                grid_size=positions.built_grid,
                num_prefix_tokens=queries + prefix,
                resampling=positions.resampling,
                name=f"mid_position_embedding_{i}",
            )(x, grid)
    x = blocks[-1](x, num_queries=queries)  # (B, Q, D)
    x = encoder.get_layer("encoder_norm")(x)
    outputs = {
        "classes": _mlp(x, "class", classes + 1, None),
        "boxes": _mlp(x, "box", 4, "sigmoid"),
    }
    name = name or unique_name("yolos")
    model = YOLOSModel(graph.inputs[0], outputs, name=name)
    copy_attributes(encoder, model, new_head=True)
    model.class_names = class_names
    return with_any_size(model)


def _mlp(x: Tensor, name: str, units: int, activation: str | None) -> Tensor:
    """Maps tokens by the layers NAME_1, NAME_2 and NAME_3."""
    for i in (1, 2):
        layer = keras.layers.Dense(x.shape[-1], activation="relu", name=f"{name}_{i}")
        x = layer(x)
    # Under mixed precision, outputs are float32 for the loss: half precision
    # would round a box to a pixel or two.
    policy = keras.config.dtype_policy()
    half = policy.compute_dtype in ("float16", "bfloat16")
    return keras.layers.Dense(
        units,
        activation=activation,
        dtype="float32" if half else policy,
        name=f"{name}_3",
    )(x)


@keras.saving.register_keras_serializable("keras_vit")
class DetectionTokens(ClassToken):
    """Inserts learned tokens with position embeddings at the front.

    It also keeps the `loss_options` of its model, because Keras saves the
    arguments of layers.
    """

    def __init__(
        self,
        num_tokens: int,
        loss_options: Config | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_tokens, **kwargs)
        self.loss_options = dict(loss_options or {})

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.positions = self.add_weight(
            shape=self.tokens.shape,
            initializer=initializers.Normal(0.02),
            name="positions",
        )

    def call(self, inputs: Tensor) -> Tensor:
        tokens = ops.cast(self.tokens + self.positions, inputs.dtype)
        shape = (ops.shape(inputs)[0], *self.tokens.shape[1:])
        tokens = ops.broadcast_to(tokens, shape)
        return ops.concatenate([tokens, inputs], axis=1)
