"""Functions that find, describe and compute layers and tokens of a model."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    PatchEmbedding,
    RelativePositionEmbs,
    RotaryPositionEmbs,
    TransformerBlock,
)
from keras_vit.models.features import check_takes_images, patch_pixels, size_of_images
from keras_vit.models.graph import Graph
from keras_vit.utils import checks
from keras_vit.utils.types import Array, ArrayLike, Tensor


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """The tokens of a model; see `token_layout`."""

    prefix: tuple[str, ...]
    grid: tuple[int, int]
    patch_size: tuple[int, int]

    @property
    def num_prefix(self) -> int:
        return len(self.prefix)


def token_layout(
    model: keras.Model, image_size: Sequence[int] | None = None
) -> TokenLayout:
    """Describes the tokens of a model, which index the axes of attention maps.

    Args:
        model: A functional model made by this package or from its layers.
        image_size: `(height, width)` of the images; None for the size of the model's
            input.

    Returns:
        An object with the attributes

        - `prefix`: names of the tokens before the patches, such as
          `("class_token", "register_tokens", "register_tokens")`;
        - `num_prefix`: their number;
        - `grid`: `(rows, columns)` of the patches, whose tokens are in
          row-major order;
        - `patch_size`: `(rows, columns)` in pixels from one patch to the
          next, including the stride of a hybrid's ResNet.

    Raises:
        ValueError: if the model has no patches, or if it takes images of any
            size and `image_size` is None.
    """
    embedding = find_layer(model, PatchEmbedding)
    check_has(embedding, model, "has no patches", PatchEmbedding)
    if image_size is not None:
        image_size = checks.positive_pair("image_size", image_size)
        own = tuple(model.inputs[0].shape[1:3])
        fits = all(n in (None, x) for n, x in zip(own, image_size, strict=True))
        checks.require(fits, "image_size", image_size, f"{own}, as the model's input")
    image_size = size_of_images(model, image_size)
    # By shape inference, which includes a hybrid's ResNet.
    graph = Graph(model)
    stem = keras.Model(graph.inputs[0], graph.output(embedding))
    grid = stem.compute_output_shape((1, *image_size, model.inputs[0].shape[-1]))[1:3]
    tokens = [layer for layer in model.layers if isinstance(layer, ClassToken)]
    prefix = [
        layer.name
        for layer in sorted(tokens, key=lambda layer: layer.index)
        for _ in range(layer.num_tokens)
    ]
    return TokenLayout(tuple(prefix), tuple(grid), patch_pixels(model))


def find_positions(model: keras.Model) -> Any:
    """Returns the first layer of position embeddings, or None."""
    classes = (AddPositionEmbs, RelativePositionEmbs, RotaryPositionEmbs)
    return find_layer(model, classes)


def image_size(model: keras.Model) -> tuple[int, int] | None:
    """Returns the image size of a model, `(height, width)`.

    If the model takes images of any size, it is the size for which its position
    embeddings were learned, or None if it has no position embeddings.
    """
    size = tuple(model.inputs[0].shape[1:3])
    if None not in size:
        return size
    positions = find_positions(model)
    if positions is None or isinstance(positions, RotaryPositionEmbs):
        return None
    pairs = zip(positions.built_grid, patch_pixels(model), strict=True)
    return tuple(count * pixels for count, pixels in pairs)


def check_is(name: str, value: object, kind: Any, expected: str) -> None:
    """Raises a `ValueError` with a description of what is expected, unless an argument
    is of a class, or an array with a number of axes."""
    shape = getattr(value, "shape", None)
    if isinstance(kind, int):
        fits = shape is not None and len(shape) == kind
    else:
        fits = isinstance(value, kind)
    if not fits:
        received = f"{type(value).__name__}"
        if shape is not None:
            received += f" of shape {tuple(shape)}"
        raise ValueError(f"`{name}` must be {expected}. Received: {received}")


def check_is_model(model: object) -> None:
    """Raises a `ValueError` if an argument is not a model."""
    check_is("model", model, keras.Model, "a Keras model, the first argument")


def check_is_layout(layout: object) -> None:
    """Raises a `ValueError` if an argument is not a `TokenLayout`."""
    check_is("layout", layout, TokenLayout, "the output of `token_layout`")


def find_layer(model: keras.Model, layer_class: type | tuple) -> Any:
    """Returns the model's first layer of a class, or None."""
    check_is_model(model)
    return next((x for x in model.layers if isinstance(x, layer_class)), None)


def find_blocks(
    model: keras.Model, layers: int | Sequence[int] | None = None, name: str = "layers"
) -> list[TransformerBlock]:
    """Returns the encoder blocks of a model.

    Args:
        model: A functional model made by this package or from its layers.
        layers: Integer, or list of integers. Indices of blocks; None for all.
        name: String. Name of the argument `layers` in messages. With another name,
            `layers` must be one integer.

    Returns:
        List of `TransformerBlock`, in the order of the indices.

    Raises:
        ValueError: if the model has no block with one of the indices, or no blocks at
            all.
    """
    check_is_model(model)
    blocks = [x for x in model.layers if isinstance(x, TransformerBlock)]
    check_has(blocks, model, "has no attention", TransformerBlock)
    several = name == "layers"
    if layers is None and several:
        return blocks
    indices, count = _listed(layers, several), len(blocks)
    possible = range(-count, count)
    fits = indices and all(type(x) is not bool and x in possible for x in indices)
    expected = f"from {-count} to {count - 1}, the number of a block" + (
        ", or a list of these" * several
    )
    checks.require(bool(fits), name, layers, expected)
    return [blocks[int(index)] for index in indices]


def _listed(value: Any, several: bool) -> list[Any]:
    """Returns the items of a value if it may have several, or it in a list."""
    is_list = several and isinstance(value, Iterable) and not isinstance(value, str)
    return list(value) if is_list else [value]


def check_has(
    found: object, model: keras.Model, problem: str, layer_class: type
) -> None:
    """Raises a `ValueError` if a layer was not found in a model; the message names the
    nested model that has it."""
    if found:
        return
    nested = [
        layer.name
        for layer in model.layers
        if isinstance(layer, keras.Model)
        and any(isinstance(x, layer_class) for x in _flatten(layer))
    ]
    hint = "It has no layer of this class."
    if nested:
        hint = f"A model inside it has: pass model.get_layer({nested[0]!r})."
    raise ValueError(
        f"The model {model.name!r} {problem}: {layer_class.__name__} is missing. {hint}"
    )


def check_images(model: keras.Model, images: ArrayLike) -> Array:
    """Returns a batch of images of the model's shape as a NumPy array."""
    check_is_model(model)
    check_takes_images(model)
    shape = getattr(images, "shape", ())
    expected = model.inputs[0].shape
    if len(shape) != len(expected) or any(
        size not in (None, found) for size, found in zip(expected, shape, strict=True)
    ):
        raise ValueError(
            "`images` must be a batch of images as the model takes them, of "
            f"shape {tuple(expected)}; for a single image, `image[None]`. "
            f"Received: {tuple(shape) or type(images)}"
        )
    return keras.ops.convert_to_numpy(images)


def part_of_model(
    inputs: Tensor, tensors: Sequence[Tensor | list[Tensor]]
) -> keras.Model:
    """Returns a model from one symbolic tensor to others, by number."""
    # A dict, since Keras would unpack a list of one tensor.
    return keras.Model(inputs, {str(i): x for i, x in enumerate(tensors)})


def compute_tensors(
    graph: Graph, tensors: Sequence[Tensor], images: Array
) -> list[Any]:
    """Computes symbolic tensors of a model, or lists of them, for a batch."""
    extract = part_of_model(graph.inputs[0], tensors)
    # Eagerly, as compiling takes longer than computing a few images.
    extract.compile(run_eagerly=True)
    values = extract.predict_on_batch(images)
    return [values[str(index)] for index in range(len(tensors))]


def _flatten(model: keras.Model) -> Iterator[keras.Layer]:
    """Yields the layers of a model and of the models in it."""
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from _flatten(layer)
