"""Relevance maps: the patches on which a class score depends."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import keras
import numpy as np
from keras import ops

from keras_vit.inspection import tokens
from keras_vit.inspection.attention import pooling_weights, probabilities
from keras_vit.layers import (
    AddPositionEmbs,
    RelativePositionEmbs,
    RotaryPositionEmbs,
    TransformerBlock,
)
from keras_vit.layers.composite import with_arguments
from keras_vit.models.graph import Graph, heads_of
from keras_vit.utils import checks
from keras_vit.utils.types import Array, ArrayLike, Tensor

# The layers that may lie between two blocks: their gradient is the identity.
_BETWEEN_BLOCKS = (
    AddPositionEmbs,
    RelativePositionEmbs,
    RotaryPositionEmbs,
    TransformerBlock,
    keras.layers.Dropout,
)
_METHODS = ("legrad", "attention_gradients", "gradient_rollout")


@overload
def relevance(
    model: keras.Model,
    images: ArrayLike,
    classes: int | Sequence[int] | Array | None = None,
    method: str = "gradient_rollout",
    layers: int | Sequence[int] | None = None,
    return_outputs: Literal[False] = False,
) -> Array: ...


@overload
def relevance(
    model: keras.Model,
    images: ArrayLike,
    classes: int | Sequence[int] | Array | None = None,
    method: str = "gradient_rollout",
    layers: int | Sequence[int] | None = None,
    *,
    return_outputs: Literal[True],
) -> tuple[Array, Array]: ...


def relevance(
    model: keras.Model,
    images: ArrayLike,
    classes: int | Sequence[int] | Array | None = None,
    method: str = "gradient_rollout",
    layers: int | Sequence[int] | None = None,
    return_outputs: bool = False,
) -> Array | tuple[Array, Array]:
    """Returns how much each patch contributes to the score of a class.

    Methods:

    - "legrad": the positive gradients of the class score with respect to the
      attention probabilities, averaged over heads, queries and blocks. The
      score of a block is that of the model's head for the block's output.
      "LeGrad: An Explainability Method for Vision Transformers via Feature
      Formation Sensitivity" (https://arxiv.org/abs/2404.03214).
    - "attention_gradients": attention probabilities times their gradients,
      the positive part, averaged over heads and accumulated over the blocks.
      "Generic Attention-model Explainability for Interpreting Bi-Modal and
      Encoder-Decoder Transformers", Section 3 (https://arxiv.org/abs/2103.15679).
    - "gradient_rollout": `attention_rollout` of the same products, as in
      "Transformer Interpretability Beyond Attention Visualization"
      (https://arxiv.org/abs/2012.09838), with gradients times attention in
      place of layer-wise relevance.

    Images are explained one by one, so that memory does not depend on the number of
    images, and blocks one by one, so that it depends little on the number of blocks.
    The class score is a logit, even if the model ends in an activation.

    Args:
        model: A functional model with attention, made by this package or from its
            layers.
        images: Array or tensor of shape `(batch, height, width, channels)`,
            preprocessed for the model.
        classes: Integer, or a list of one integer per image. Class whose
            score is explained. An array of floats `(batch, outputs)` is the
            direction of the output that is explained, for example the
            embedding of another image. None for the class with the largest score or,
            for a model without a head, the image's own output.
        method: String. One of the methods above. The default is the method that marks
            objects best on photographs (docs/attention-measured.md has the table).
        layers: Integer or list of integers. Blocks whose attention is used,
            as in `attention_maps`; None for all.
        return_outputs: Boolean. Whether to also return the model's outputs, which are
            computed for the maps.

    Returns:
        Array of shape `(batch, rows, columns)`, one value per patch, which
        `plot_attention_heatmap` shows over the images. Values can only be compared
        within one image. With `return_outputs`, a tuple of this array and the outputs.

    Raises:
        ValueError: if the model has no attention or no such layer, the images
            do not have the shape of its inputs, or there is not one class per
            image.

    Example:

    >>> model = keras.saving.load_model("flowers.keras")
    >>> maps = keras_vit.inspection.relevance(model, images, classes=3)
    >>> keras_vit.inspection.plot_attention_heatmap(photos, maps)
    """
    checks.one_of("method", method, _METHODS)
    images = tokens.check_images(model, images).astype("float32")
    shapes = keras.tree.map_structure(lambda x: x.shape, model.output)
    if len(model.outputs) > 1 or len(model.outputs[0].shape) > 3:
        raise ValueError(
            "Scores belong to one output of shape (batch, outputs) or of tokens: "
            "explain the encoder of a detector or segmenter. Received: "
            f"{model.name!r} with the outputs {shapes}"
        )
    layout = tokens.token_layout(model, images.shape[1:3])
    parts = Parts(model, layers, layout)
    given = _directions(parts, len(images), classes)

    def forward(image: Tensor, *direction: Tensor) -> tuple[Any, ...]:
        inputs, tokens = parts.tokens(image)
        chosen = direction[0] if direction else _own_direction(parts, tokens[-1])
        chosen = ops.convert_to_tensor(chosen)  # PyTorch's are NumPy arrays here
        used = tokens if method == "legrad" else tokens[-1:]
        of_tokens = [parts.gradient(x, chosen) for x in used]
        weights = pooling_weights(model, image, layout)
        return inputs, of_tokens, weights, parts.with_activation(tokens[-1])

    run_forward = compiled(model.variables, forward)
    of_block, maps, outputs = _compiled_blocks(parts, method), [], []
    accumulate = compiled([], functools.partial(_accumulated, method=method))
    for index in range(len(images)):
        rows = slice(index, index + 1)
        arrays = (x[rows] for x in (images, *given))
        inputs, of_tokens, weights, output = run_forward(model.variables, *arrays)
        products = _products(parts, inputs, of_tokens, method, of_block)
        found = accumulate([], products, weights)
        maps.append(ops.convert_to_numpy(found)[layout.num_prefix :])
        outputs.append(ops.convert_to_numpy(output))
    maps = np.reshape(maps, (len(images), *layout.grid)).astype("float32")
    if not return_outputs:
        return maps
    return maps, np.concatenate(outputs).astype("float32")


def explain(
    model: keras.Model, image: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what a page shows for one image, with operations that PyTorch can trace:
    the output, `(1, outputs)`, `attention_heads` of each block, and the relevance for a
    direction of the output, `(1, outputs)`. If this is 0, it is the direction of the
    best class, or of the image's own features."""
    layout = tokens.token_layout(model, image.shape[1:3])
    parts = Parts(model, None, layout)
    inputs, (*_, last) = parts.tokens(image)
    y = ops.cast(parts.outputs(last), "float32")
    own = ops.cast(y == ops.max(y), y.dtype) if parts.heads else y
    direction = ops.where(ops.any(direction != 0), direction, own)
    direction = direction / ops.norm(direction)
    weights = ops.cast(pooling_weights(model, image, layout), "float32")
    of_block = functools.partial(_of_block, parts, "gradient_rollout")
    of_tokens = [parts.gradient(last, direction)]
    products = _products(parts, inputs, of_tokens, "gradient_rollout", of_block)
    relevant = _accumulated(products, weights)
    maps = [
        ops.einsum("bq,bhqk->hk", weights, probabilities(block, *values))
        for block, values in zip(parts.blocks, inputs, strict=True)
    ]
    maps = ops.stack(maps)[..., layout.num_prefix :]
    if parts.heads:  # with their activation
        y = parts.with_activation(last)
    return (
        y,
        ops.reshape(maps, (*maps.shape[:2], *layout.grid)),
        ops.reshape(relevant[layout.num_prefix :], layout.grid),
    )


class Parts:
    """A model as two functions: from images to the inputs of its blocks, and
    from the tokens of any block to the outputs."""

    def __init__(
        self,
        model: keras.Model,
        layers: int | Sequence[int] | None,
        layout: tokens.TokenLayout,
    ) -> None:
        self.model, self.layout = model, layout
        self.blocks = tokens.find_blocks(model)
        chosen = tokens.find_blocks(model, layers)
        self.chosen = [block in chosen for block in self.blocks]
        graph = Graph(model)
        inputs = [graph.input(block) for block in self.blocks]
        outputs = [graph.all_tokens(block) for block in self.blocks]
        self._forward = tokens.part_of_model(graph.inputs[0], [*inputs, *outputs])
        first, last = (model.layers.index(self.blocks[index]) for index in (0, -1))
        self.between = [
            layer.name
            for layer in model.layers[first:last]
            if not isinstance(layer, _BETWEEN_BLOCKS)
        ]
        self._last = graph.output(self.blocks[-1])
        self.heads = heads_of(model)
        if self.heads:
            self.num_outputs = self.heads[0].units
        else:
            self.num_outputs = model.outputs[0].shape[-1]
        self._tail = tokens.part_of_model(
            self._last,
            [graph.input(head) for head in self.heads] or [graph.outputs],
        )
        self._end = keras.Model(self._last, graph.outputs)

    def tokens(self, image: Tensor) -> tuple[list[Any], list[Tensor]]:
        """Returns the tensors that each block is called with, and its output for all
        tokens."""
        found, count = self._forward(image), len(self.blocks)
        inputs, outputs = (
            [found[str(index)] for index in range(start, start + count)]
            for start in (0, count)
        )
        inputs = [x if isinstance(x, (list, tuple)) else [x] for x in inputs]
        return inputs, outputs

    def _of_last(self, x: Tensor) -> Tensor:
        """Returns the tokens that the last block of a model for inference outputs."""
        return x[:, : self._last.shape[1]]

    def with_activation(self, x: Tensor) -> Tensor:
        """Returns the model's output for the last block's tokens."""
        return self._end(self._of_last(x))

    def outputs(self, x: Tensor) -> Tensor:
        """Returns logits or, without a head, features of a block's tokens."""
        found = list(self._tail(self._of_last(x)).values())
        if self.heads:
            logits = [
                _logits(head, y) for head, y in zip(self.heads, found, strict=True)
            ]
            return sum(logits) / len(logits)
        (y,) = found
        if len(y.shape) == 3:
            has_class_token = "class_token" in self.layout.prefix
            y = y[:, 0] if has_class_token else ops.mean(y, axis=1)
        return y

    def gradient(self, x: Tensor, direction: Tensor) -> Tensor:
        """Returns the gradient of the output in a direction with respect to a block's
        tokens."""

        def score(x: Tensor) -> Tensor:
            return ops.sum(ops.cast(self.outputs(x), "float32") * direction)

        return gradients(score, x)[0]


def _logits(head: keras.layers.Dense, x: Tensor) -> Tensor:
    """Computes the output of a dense layer before its activation."""
    if head.activation is keras.activations.linear:
        return head(x)
    if head.quantization_mode is not None:
        raise ValueError(
            "The logits of a quantized head that ends in an activation cannot "
            f"be computed. Received: the layer {head.name!r} with "
            f"{head.activation.__name__}; explain the float model."
        )
    x = ops.matmul(ops.cast(x, head.compute_dtype), head.kernel)
    return x if head.bias is None else x + head.bias


def _directions(
    parts: Parts, count: int, classes: int | Sequence[int] | Array | None
) -> list[Array]:
    """Returns an array of the direction of the output that is explained, for each
    image; an empty list if it is that of the image's own output."""
    if classes is None:
        return []
    given, outputs = np.asarray(classes), parts.num_outputs
    if given.dtype.kind == "f" and given.shape == (count, outputs):
        return [given.astype("float32")]
    fits = given.dtype.kind in "iu" and given.shape in ((), (count,))
    # NumPy would count numbers below 0 from the end.
    fits = fits and bool(np.all((given >= 0) & (given < outputs)))
    expected = (
        f"the number of a class, from 0 on, below {outputs}, or one for each image"
    )
    checks.require(fits, "classes", classes, expected)
    return [np.eye(outputs, dtype="float32")[np.broadcast_to(given, count)]]


def _own_direction(parts: Parts, last: Tensor) -> Tensor:
    """Returns the direction of the best class or, without a head, of the output."""
    y = ops.cast(parts.outputs(last), "float32")
    if parts.heads:
        return ops.one_hot(ops.argmax(y, axis=-1), y.shape[-1], dtype="float32")
    return y / ops.norm(y, axis=-1, keepdims=True)


def _attend(
    block: TransformerBlock, x: Tensor, change: Tensor, *relative: Tensor
) -> Tensor:
    """Returns a block's output if `change` is added to its attention
    probabilities."""
    value = block.attention.value(block.norm_1(x))
    weights = probabilities(block, x, *relative) + change
    y = ops.einsum("BHTS,BSHd->BTHd", ops.cast(weights, value.dtype), value)
    return block.after_attention(x, block.attention.attention_output(y))


def _of_block(
    parts: Parts, method: str, index: int, of_tokens: Tensor, *inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the positive part of the gradients with respect to a block's attention,
    averaged over heads, and those with respect to its input tokens, for the gradients
    `of_tokens` with respect to its output."""
    block = parts.blocks[index]
    x, *relative = inputs
    attention = probabilities(block, *inputs)
    product, of_inputs = gradients(
        lambda change, x: ops.sum(of_tokens * _attend(block, x, change, *relative)),
        ops.zeros_like(attention),
        x,
    )
    if method != "legrad":
        product = attention * product
    return ops.mean(ops.maximum(product, 0), axis=(0, 1)), of_inputs


def _compiled_blocks(parts: Parts, method: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns `_of_block`, compiled once for all blocks that differ in their weights
    alone: one program of all blocks takes several times as long to compile."""
    programs: dict[Any, Callable[..., tuple[Tensor, Tensor]]] = {}

    def run(index: int, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        block = parts.blocks[index]
        # Blocks may differ in their names and in `drop_path`, which is for training.
        kind = type(block), with_arguments(block, {"drop_path": None})
        arrays_of = [(x.name, x.shape, x.dtype) for x in block.variables]
        # No argument is the scale of LoRA.
        is_own = any("lora" in x.name for x in block.variables) and index
        key = str((*kind, block.dtype_policy.name, arrays_of)), is_own
        if key not in programs:
            function = functools.partial(_of_block, parts, method, index)
            programs[key] = compiled(block.variables, function)
        return programs[key](block.variables, *arrays)

    return run


def _products(
    parts: Parts,
    inputs: Sequence[Sequence[Tensor]],
    of_tokens: Sequence[Tensor],
    method: str,
    of_block: Callable[..., tuple[Tensor, Tensor]],
) -> list[Tensor]:
    """Returns the first output of `of_block` for each chosen block, the last first;
    `inputs` are those of all blocks, and `of_tokens` the gradients with respect to the
    output of the last one or, for "legrad", of all."""
    legrad = method == "legrad"
    if parts.between and not legrad:
        raise ValueError(
            "Gradients are followed from block to block, between which only "
            "position embeddings may be added. Received: a model with the "
            f"layers {parts.between}; use method='legrad'."
        )
    products, gradient = [], of_tokens[-1]
    for index in reversed(range(parts.chosen.index(True), len(inputs))):
        if legrad and not parts.chosen[index]:
            continue
        if legrad:  # whose score is always that of the model's head
            gradient = of_tokens[index]
        product, gradient = of_block(index, gradient, *inputs[index])
        if parts.chosen[index]:
            products.append(product)
    return products


def _accumulated(
    products: Sequence[Tensor], weights: Tensor, method: str = "gradient_rollout"
) -> Tensor:
    """Returns the relevance of all tokens of one image, of the products of its blocks
    and the weights with which the model pools tokens."""
    if method == "legrad":
        return ops.mean(ops.stack(products), axis=(0, 1))
    rolled = identity = ops.eye(products[0].shape[0])
    for product in reversed(products):
        if method == "gradient_rollout":
            step = product + identity
            step = step / ops.sum(step, axis=-1, keepdims=True)
            rolled = ops.matmul(step, rolled)
        else:
            rolled = rolled + ops.matmul(product, rolled)
    return ops.matmul(ops.cast(weights, rolled.dtype), rolled)[0]


def compiled(
    own: Sequence[keras.Variable], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a function of variables and arrays, in which the variables stand for
    the function's `own`, compiled if the backend compiles: without this, JAX compiles
    167 small programs, one per operation."""

    def run(values: Sequence[Tensor], *arrays: Any) -> Any:
        with keras.StatelessScope(list(zip(own, values, strict=True))):
            return function(*arrays)

    backend = keras.config.backend()
    if backend == "jax":
        import jax

        run = jax.jit(run)
    elif backend == "tensorflow":
        import tensorflow as tf

        run = tf.function(run, autograph=False)
    elif backend == "torch":
        import torch

        run = torch.no_grad()(run)  # `gradients` enables it for its own function

    def call(variables: Sequence[keras.Variable], *arrays: Any) -> Any:
        return run([ops.convert_to_tensor(x) for x in variables], *arrays)

    return call


def gradients(function: Callable[..., Tensor], *values: Tensor) -> Sequence[Tensor]:
    """Returns the gradients of a scalar function with respect to tensors."""
    backend = keras.config.backend()
    if backend == "jax":
        import jax

        return jax.grad(function, argnums=tuple(range(len(values))))(*values)
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            result = function(*values)
        return tape.gradient(result, values)
    import torch

    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in values]
        return torch.autograd.grad(function(*leaves), leaves)
