"""The parts of a model that looking inside needs, found by their kind."""

import dataclasses
import re

import keras
import numpy as np

from keras_vit.checkpoints.infer import stride
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import ClassToken
from keras_vit.layers import PatchEmbedding
from keras_vit.layers import RelativePositionEmbs
from keras_vit.layers import TransformerBlock

_FIRST_UNIT = re.compile(r"stage_\d+_unit_1")


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """What the tokens of a model stand for; see `token_layout`."""

    prefix: tuple
    grid: tuple
    patch_size: tuple

    @property
    def num_prefix(self):
        return len(self.prefix)


def token_layout(model, image_size=None):
    """Tells what the tokens stand for, the axes of an attention map.

    Args:
        model: A model made by this package, or of its layers.
        image_size: `(height, width)` of the images; None for that of the
            model's input.

    Returns:
        An object with `prefix`, the names of the tokens before the patches,
        such as `("class_token", "register_tokens", "register_tokens")`;
        `num_prefix`, their number; `grid`, `(rows, columns)` of the patches,
        which follow row by row; and `patch_size`, `(rows, columns)` in pixels
        from one patch to the next, with a hybrid's ResNet counted in.

    Raises:
        ValueError: if the model cuts no patches, or takes images of any size
            and `image_size` is None.
    """
    embedding = part(model, PatchEmbedding)
    if embedding is None:
        raise _no_such(model, "cuts no patches", PatchEmbedding)
    shape = model.inputs[0].shape
    image_size = tuple(image_size or shape[1:3])
    if None in image_size:
        raise ValueError(
            f"The model {model.name!r} takes images of any size: give "
            "`image_size=(height, width)`."
        )
    # Followed by shape alone, through a hybrid's ResNet too.
    cut = keras.Model(model.inputs[0], embedding.output)
    grid = cut.compute_output_shape((1, *image_size, shape[-1]))[1:3]
    tokens = [layer for layer in model.layers if isinstance(layer, ClassToken)]
    prefix = [
        layer.name
        for layer in sorted(tokens, key=lambda layer: layer.index)
        for _ in range(layer.num_tokens)
    ]
    return TokenLayout(tuple(prefix), tuple(grid), patch_pixels(model))


def patch_pixels(model):
    """Returns `(rows, columns)` in pixels from one patch to the next."""
    rows, columns = part(model, PatchEmbedding).patch_size
    names = [layer.name for layer in model.layers]
    stages = [name for name in names if _FIRST_UNIT.fullmatch(name)]
    pixels = stride(stages) if "root_conv" in names else 1
    return rows * pixels, columns * pixels


def positions_of(model):
    """Returns the first layer of positions, of any kind, or None."""
    return part(model, (AddPositionEmbs, RelativePositionEmbs))


def image_size(model):
    """The size of image to show to a model: its own, or what its positions
    were learned for; None if nothing tells."""
    size = tuple(model.inputs[0].shape[1:3])
    if None not in size:
        return size
    positions = positions_of(model)
    if positions is None:
        return None
    pairs = zip(positions.built_grid, patch_pixels(model), strict=True)
    return tuple(count * pixels for count, pixels in pairs)


def part(model, kind):
    """Returns the model's layer of a kind, or None."""
    return next((x for x in model.layers if isinstance(x, kind)), None)


def blocks_of(model, layers=None):
    """Returns the encoder blocks, in order.

    Args:
        model: A functional model.
        layers: Which of them: an integer or several, negative ones from the
            end; None for all.

    Raises:
        ValueError: if the model has none, or not as many.
    """
    blocks = [x for x in model.layers if isinstance(x, TransformerBlock)]
    if not blocks:
        raise _no_such(model, "has no attention", TransformerBlock)
    if layers is None:
        return blocks
    wanted = [layers] if isinstance(layers, (int, np.integer)) else layers
    wanted = list(wanted)
    count = len(blocks)
    if not wanted or not all(-count <= index < count for index in wanted):
        raise ValueError(
            f"`layers` must be from 0 to {count - 1}, or from -{count} to -1: "
            f"the model {model.name!r} has {count} blocks. Received: "
            f"layers={layers!r}"
        )
    return [blocks[index] for index in wanted]


def _no_such(model, fault, kind):
    inner = [
        layer.name
        for layer in model.layers
        if isinstance(layer, keras.Model)
        and any(isinstance(x, kind) for x in layer._flatten_layers())
    ]
    hint = "It has no layer of that kind."
    if inner:
        hint = f"A model inside it has one: pass model.get_layer({inner[0]!r})."
    return ValueError(
        f"The model {model.name!r} {fault}: {kind.__name__} is missing. {hint}"
    )


def as_images(model, images):
    """Returns a batch of images as an array.

    Raises:
        ValueError: if it is none that the model takes.
    """
    shape = getattr(images, "shape", ())
    expected = model.inputs[0].shape
    if len(shape) != len(expected) or any(
        size not in (None, found)
        for size, found in zip(expected, shape, strict=True)
    ):
        raise ValueError(
            "`images` must be a batch of images as the model takes them, of "
            f"shape {tuple(expected)}; for a single image, `image[None]`. "
            f"Received: {tuple(shape) or type(images)}"
        )
    return keras.ops.convert_to_numpy(images)


def run(model, tensors, images):
    """Lists the values that some of a model's tensors, or lists of them, take,
    as arrays."""
    # By name: of a list of one, Keras would give the one.
    named = {str(index): tensor for index, tensor in enumerate(tensors)}
    extract = keras.Model(model.inputs[0], named)
    # Eagerly: compiling a model for a few images takes longer than they do.
    extract.compile(run_eagerly=True)
    values = extract.predict_on_batch(images)
    return [values[name] for name in named]
