"""EoMT: a mask transformer inside the last blocks of a Vision Transformer."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers import ClassToken, LayerNormalization, TransformerBlock
from keras_vit.layers.composite import CompositeLayer, Layer
from keras_vit.layers.resampling import resample_maps
from keras_vit.models import Model, with_any_size
from keras_vit.models.features import check_takes_images
from keras_vit.models.graph import Graph
from keras_vit.models.model import copy_attributes, unique_name
from keras_vit.segmentation.matching import SetModel, mask_loss
from keras_vit.utils import checks, replicas
from keras_vit.utils.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class EoMTModel(SetModel):
    """The functional model that `EoMT` returns; `fit` trains it with `mask_loss` and
    its targets. The layer `eomt_head` has the `loss_options`.
    """

    def __init__(
        self, inputs: Any, outputs: Any, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(inputs, outputs, name=name, **kwargs)
        self.seed_generator = replicas.SeedGenerator()

    def set_loss(self, y: Any, y_pred: Any) -> Tensor:
        def uniform(shape: tuple[int, ...]) -> Tensor:
            return keras.random.uniform(shape, seed=self.seed_generator)

        options = self.get_layer("eomt_head").loss_options
        return mask_loss(y_pred, y, uniform=uniform, **options)


def EoMT(
    encoder: keras.Model,
    classes: int,
    queries: int = 100,
    blocks: int = 4,
    masked: bool = True,
    num_upscales: int = 2,
    loss_options: Config | None = None,
    name: str | None = None,
) -> Model:
    """Builds an Encoder-only Mask Transformer on a Vision Transformer.

    Learned queries join the tokens of the last blocks. Each query predicts a mask, as
    its product with the enlarged feature map, and the class of this mask. In training,
    a query attends only to the patches in the mask that it predicted before a block.
    This masking is gradually reduced, so that a trained model needs only the blocks of
    the encoder.

    From "Your ViT is Secretly an Image Segmentation Model"
    (https://arxiv.org/abs/2503.19108), as in transformers'
    `EomtForUniversalSegmentation`; see `keras_vit.load` for its files.

    The model shares its weights with `encoder`. It takes images of any size
    that is a multiple of the patch size.

    The loss of masks is divided by the number of masks in the batch, and the loss of
    classes by the sum of the weights of the queries. Losses therefore depend on the
    batch size: a mask counts more in a batch with fewer objects.

    Args:
        encoder: A Vision Transformer with position embeddings in the stem,
            such as `ViTB14()`.
        classes: Integer. Number of classes.
        queries: Integer. Number of queries, which is the maximum number of objects in
            an image.
        blocks: Integer. Number of last blocks, in which the queries take part.
        masked: Boolean. Whether the blocks have masked attention. The model
            then outputs the predictions before each of these blocks too, and
            the layers `query_mask_0` ... have a weight `probability`, initially 1: the
            probability that a query's attention is masked. `AnnealMasks` lowers it to
            0; the model is then equivalent to one with `masked=False`.
        num_upscales: Integer. Number of times that the feature map is enlarged to twice
            its rows and columns for the masks.
        loss_options: Dict of arguments of `mask_loss` with which `fit` trains,
            such as `{"dice_weight": 2.0, "num_points": 4096}`. None for its
            defaults.
        name: String. Name of the model. None for "eomt", with a number from its second
            use on.

    Returns:
        A `keras.Model` that maps images to a dict: "masks", logits of shape
        `(batch, rows, columns, queries)`, 4 times as many rows and columns as
        patches; "classes", logits of shape `(batch, queries, classes + 1)`, the
        last one for no object. With `masked`, also "masks_0" and "classes_0",
        the predictions before the first block of the queries, and so on.

    Raises:
        ValueError: if an argument is wrong, or the encoder has other position
            embeddings or no norm of tokens.

    Example:

    >>> encoder = keras_vit.ViTB14(weights="dinov2", include_top=False)
    >>> model = keras_vit.segmentation.EoMT(encoder, classes=150)
    """
    classes = checks.positive_int("classes", classes)
    queries = checks.positive_int("queries", queries)
    blocks = checks.positive_int("blocks", blocks)
    num_upscales = checks.positive_int("num_upscales", num_upscales)
    check_takes_images(encoder)
    layers = [x for x in encoder.layers if isinstance(x, TransformerBlock)]
    names = [layer.name for layer in encoder.layers]
    most = f"at most {len(layers)}, the blocks of the encoder"
    checks.require(blocks <= len(layers), "blocks", blocks, most)
    layers = layers[-blocks:]
    graph = Graph(encoder)
    if any(isinstance(graph.input(block), list) for block in layers) or any(
        x.startswith("position_embedding_") for x in names
    ):
        raise ValueError(
            "EoMT needs an encoder with position embeddings in the stem. "
            f"Received: {', '.join(x for x in names if 'position' in x)}"
        )
    prefix = sum(x.num_tokens for x in encoder.layers if isinstance(x, ClassToken))
    norm = encoder.get_layer("encoder_norm")
    grid = graph.output(encoder.get_layer("patch_embedding"))
    head = EoMTHead(
        classes,
        queries,
        prefix + queries,
        num_upscales,
        loss_options,
        name="eomt_head",
    )
    x = ClassToken(
        queries,
        initializer=keras.initializers.RandomNormal(stddev=1.0),
        name="queries",
    )(graph.input(layers[0]))
    outputs = {}
    for i, block in enumerate(layers):
        mask = {}
        if masked:
            masks, logits = head(norm(x), grid)
            outputs[f"masks_{i}"], outputs[f"classes_{i}"] = masks, logits
            layer = QueryMask(prefix, name=f"query_mask_{i}")
            mask["mask"] = layer(masks, grid)
        x = block(x, **mask)
    masks, logits = head(norm(x), grid)
    outputs = {"masks": masks, "classes": logits, **outputs}
    name = name or unique_name("eomt")
    model = EoMTModel(graph.inputs[0], outputs, name=name)
    copy_attributes(encoder, model, new_head=True)
    return with_any_size(model)


@keras.saving.register_keras_serializable("keras_vit")
class EoMTHead(CompositeLayer):
    """Predicts a mask, `(batch, rows * 2**num_upscales, columns *
    2**num_upscales, queries)`, and a class, `(batch, queries, classes + 1)`,
    for each query; the queries are the first tokens.

    The feature map is enlarged several times by a deconvolution of stride 2,
    GELU, a depthwise 3 x 3 convolution and a layer norm. A mask is the product
    of the map and an MLP of the query. `num_prefix_tokens` is the number of
    tokens before the patches, queries included.
    """

    def __init__(
        self,
        classes: int,
        num_queries: int,
        num_prefix_tokens: int,
        num_upscales: int = 2,
        loss_options: Config | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.loss_options = dict(loss_options or {})
        self.classes = classes
        self.num_queries = num_queries
        self.num_prefix_tokens = num_prefix_tokens
        self.num_upscales = num_upscales

    def build(self, inputs_shape: Shape, grid_shape: Shape) -> None:
        width = inputs_shape[-1]
        options = {"dtype": self.dtype_policy}
        self.class_head = keras.layers.Dense(self.classes + 1, name="class", **options)
        self.class_head.build((*inputs_shape[:2], width))
        self.mask_layers = []
        for number in (1, 2, 3):
            layer = keras.layers.Dense(width, name=f"mask_{number}", **options)
            layer.build((*inputs_shape[:2], width))
            self.mask_layers.append(layer)
        self.upscales = []
        for number in range(self.num_upscales):
            layer = Upscale(name=f"up_{number}", **options)
            layer.build((*grid_shape[:3], width))
            self.upscales.append(layer)
        self.restore_sublayers()

    def call(self, inputs: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
        queries = inputs[:, : self.num_queries]
        x = inputs[:, self.num_prefix_tokens :]
        shape = ops.shape(grid)
        x = ops.reshape(x, (*shape[:3], inputs.shape[-1]))
        for layer in self.upscales:
            x = layer(x)
        masks = queries
        for number, layer in enumerate(self.mask_layers):
            masks = layer(masks)
            if number < 2:
                masks = ops.gelu(masks, approximate=False)
        masks = ops.einsum("bqc,bhwc->bhwq", masks, x)
        return masks, self.class_head(queries)

    def compute_output_shape(
        self, inputs_shape: Shape, grid_shape: Shape
    ) -> tuple[Shape, Shape]:
        factor = 2**self.num_upscales
        grid = (None if n is None else n * factor for n in grid_shape[1:3])
        return (
            (inputs_shape[0], *grid, self.num_queries),
            (inputs_shape[0], self.num_queries, self.classes + 1),
        )

    def get_config(self) -> Config:
        options = dict(self.loss_options)  # which Keras has wrapped
        return {**super().get_config(), "loss_options": options}


@keras.saving.register_keras_serializable("keras_vit")
class Upscale(CompositeLayer):
    """Enlarges a map to twice its rows and columns, as `EoMTHead` does."""

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        options = {"data_format": "channels_last", "dtype": self.dtype_policy}
        self.deconvolution = keras.layers.Conv2DTranspose(
            width, 2, 2, name="deconvolution", **options
        )
        self.convolution = keras.layers.DepthwiseConv2D(
            3, padding="same", use_bias=False, name="convolution", **options
        )
        self.norm = LayerNormalization(
            epsilon=1e-6, dtype=self.dtype_policy, name="norm"
        )
        for layer in (self.deconvolution, self.convolution, self.norm):
            layer.build(input_shape)
        self.restore_sublayers()

    def call(self, inputs: Tensor) -> Tensor:
        x = ops.gelu(self.deconvolution(inputs), approximate=False)
        return self.norm(self.convolution(x))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *grid, width = input_shape
        return (batch, *(None if n is None else 2 * n for n in grid), width)


@keras.saving.register_keras_serializable("keras_vit")
class QueryMask(Layer):
    """Makes an attention mask, `(batch, length, length)`, by which queries see
    only their own masks.

    Queries attend to all queries and the `num_prefix_tokens` tokens after them,
    and to the patches at which their mask, resampled to the grid, is above 0.
    Each query is masked with the probability that the weight `probability`
    holds; other tokens attend to all tokens.
    """

    def __init__(self, num_prefix_tokens: int, **kwargs: Any) -> None:
        kwargs["autocast"] = False
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens
        self.seed_generator = replicas.SeedGenerator()

    def build(self, inputs_shape: Shape, grid_shape: Shape) -> None:
        self.probability = self.add_weight(
            shape=(),
            initializer="ones",
            trainable=False,
            autocast=False,
            name="probability",
        )

    def call(self, inputs: Tensor, grid: Tensor) -> Tensor:
        batch, rows, columns = ops.shape(grid)[:3]
        queries = inputs.shape[-1]
        seen = resample_maps(ops.cast(inputs, "float32"), (rows, columns)) > 0
        seen = ops.reshape(seen, (batch, -1, queries))
        seen = ops.transpose(seen, (0, 2, 1))  # (B, Q, N)
        random = keras.random.uniform((batch, queries, 1), seed=self.seed_generator)
        is_free = random > ops.cast(self.probability, "float32")
        seen = ops.logical_or(seen, is_free)
        others = queries + self.num_prefix_tokens
        ones = ops.ones((batch, queries, others), "bool")
        seen = ops.concatenate([ones, seen], axis=2)  # (B, Q, T)
        rest = ops.ones_like(seen[:, :1])
        rest = ops.repeat(rest, ops.shape(seen)[2] - queries, axis=1)
        return ops.concatenate([seen, rest], axis=1)

    def compute_output_spec(self, inputs: Tensor, grid: Tensor) -> keras.KerasTensor:
        batch, rows, columns = grid.shape[:3]
        length = None
        if None not in (rows, columns):
            length = inputs.shape[-1] + self.num_prefix_tokens + rows * columns
        return keras.KerasTensor((batch, length, length), dtype="bool")


class AnnealMasks(keras.callbacks.Callback):
    """Lowers the probability of masked attention from 1 to 0, block by block.

    It falls as `(1 - t) ** power`, where t goes from 0 to 1 between the two
    steps of a block, earlier in earlier blocks.

    Args:
        steps: List of `(first, last)` steps, one for each masked block.
        power: Float. 0.9 in EoMT's code.
    """

    def __init__(self, steps: Sequence[tuple[int, int]], power: float = 0.9) -> None:
        super().__init__()
        self.steps, self.power = list(steps), power

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self._layers = [x for x in self.model.layers if isinstance(x, QueryMask)]
        self._assign()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, float] | None = None
    ) -> None:
        if hasattr(self.model, "jax_state_sync"):
            # Keras would overwrite the values by those of before the step.
            self.model.jax_state_sync()
        self._assign()

    def _assign(self) -> None:
        step = int(self.model.optimizer.iterations)
        for layer, (first, last) in zip(self._layers, self.steps, strict=True):
            left = min(1.0, max(0.0, (last - step) / max(1, last - first)))
            layer.probability.assign(left**self.power)


def semantic_scores(outputs: dict[str, Tensor]) -> Tensor:
    """Combines the masks of an EoMT into class scores of each pixel.

    Args:
        outputs: Dict of the model's outputs.

    Returns:
        Tensor of shape `(batch, rows, columns, classes)`: the sum over the queries of
        the product of the class's and the mask's probability.
    """
    classes = ops.softmax(outputs["classes"])[..., :-1]
    masks = ops.sigmoid(outputs["masks"])
    return ops.einsum("bqc,bhwq->bhwc", classes, masks)
