"""The arguments of `VisionTransformer`, checked and with nothing left open."""

import dataclasses

import keras

from keras_vit.layers import _checks
from keras_vit.layers import _patch_grid
from keras_vit.weights import Checkpoint
from keras_vit.weights import open_checkpoint

DEFAULT_IMAGE_SIZE = 224
POOLINGS = ("token", "gap", "map", None)
FINAL_NORMS = ("before_pooling", "after_pooling", None)


@dataclasses.dataclass(frozen=True)
class Settings:
    mlp_dim: int
    input_shape: tuple
    classes: int
    pooling: str
    grid_size: tuple
    prefix_tokens: tuple  # (layer name, number of tokens, initializer)
    num_positioned: int  # how many of them have a position embedding
    checkpoint: Checkpoint
    checkpoint_grid: tuple

    @property
    def num_prefix_tokens(self):
        return sum(count for _, count, _ in self.prefix_tokens)

    def images(self, input_tensor):
        if input_tensor is not None:
            return input_tensor
        return keras.Input(self.input_shape, name="images")


def resolve(
    *,
    patch_size,
    hidden_size,
    num_layers,
    mlp_dim,
    include_top,
    weights,
    input_tensor,
    input_shape,
    pooling,
    classes,
    representation_size,
    class_token,
    num_registers,
    distillation,
    position_prefix,
    grid_size,
    final_norm,
    drop_path,
    pad_to_patch,
):
    """Returns `Settings`; the arguments are those of `VisionTransformer`."""
    patch_size = _checks.positive_pair("patch_size", patch_size)
    _checks.positive_int("hidden_size", hidden_size)
    _checks.positive_int("num_layers", num_layers)
    mlp_dim = 4 * hidden_size if mlp_dim is None else mlp_dim
    _checks.positive_int("mlp_dim", mlp_dim)
    _checks.natural_int("num_registers", num_registers)
    _checks.rate("drop_path", drop_path)
    _checks.one_of("pooling", pooling, POOLINGS)
    _checks.one_of("final_norm", final_norm, FINAL_NORMS)
    _checks.one_of("position_prefix", position_prefix, ("all", "class", "none"))
    for name, size in (
        ("classes", classes),
        ("representation_size", representation_size),
    ):
        if size is not None:
            _checks.positive_int(name, size)
    if grid_size is not None:
        grid_size = _checks.positive_pair("grid_size", grid_size)
    input_shape = _input_shape(input_shape, input_tensor)

    def grid_of(shape):
        return _patch_grid.grid_size(shape[:2], patch_size, pad_to_patch)

    checkpoint, facts = None, {}
    if weights is not None:
        checkpoint = weights
        if not isinstance(weights, Checkpoint):
            checkpoint = open_checkpoint(weights)
        grid = grid_of(input_shape) if input_shape else None
        facts = checkpoint.architecture(grid_size or grid, class_token)
        _raise_unless_grid_is_known(facts, checkpoint.path)
    if input_shape is None:
        input_shape = _default_input_shape(facts, patch_size)
    grid = grid_of(input_shape)
    if grid_size is None:
        grid_size = grid
        if None in grid:
            size = (DEFAULT_IMAGE_SIZE,) * 2
            grid_size = facts.get("grid_size") or _patch_grid.grid_size(
                size, patch_size, pad_to_patch=True
            )

    if class_token is None:
        class_token = facts.get("class_token", pooling in (None, "token"))
    if include_top and pooling is None:
        pooling = "token" if class_token else "gap"
    if pooling == "token" and not class_token:
        raise ValueError(
            "`pooling='token'` reads the class token, and this model has "
            "none. Set `class_token=True`, or choose `pooling='gap'` or "
            "'map'."
        )
    if pooling is None and final_norm == "after_pooling":
        raise ValueError(
            "`final_norm='after_pooling'` needs a `pooling`. Received: "
            "pooling=None with include_top=False."
        )
    if distillation and (not class_token or representation_size):
        raise ValueError(
            "`distillation=True` needs a class token and no "
            f"`representation_size`. Received: class_token={class_token}, "
            f"pooling={pooling!r}, representation_size={representation_size}"
        )
    if representation_size and pooling is None:
        raise ValueError(
            "`representation_size` needs a `pooling`, whose vector it reads. "
            f"Received: representation_size={representation_size} with "
            "pooling=None and include_top=False."
        )
    if include_top and classes is None:
        classes = facts.get("classes", 1000)
        if classes is None:
            raise ValueError(
                f"{checkpoint.path!r} has no classification head. Give "
                "`classes` for a new one, or set `include_top=False`."
            )

    tokens, positioned = [], 0
    if class_token:
        tokens.append(("class_token", 1, "zeros"))
    if distillation:
        tokens.append(("distillation_token", 1, _small()))
    if position_prefix == "class":
        positioned = len(tokens)
    if num_registers:
        tokens.append(("register_tokens", num_registers, _small()))
    if position_prefix == "all":
        positioned = sum(count for _, count, _ in tokens)
    return Settings(
        mlp_dim=mlp_dim,
        input_shape=input_shape,
        classes=classes,
        pooling=pooling,
        grid_size=grid_size,
        prefix_tokens=tuple(tokens),
        num_positioned=positioned,
        checkpoint=checkpoint,
        checkpoint_grid=facts.get("grid_size"),
    )


def _small():
    return keras.initializers.RandomNormal(stddev=0.02)


def _input_shape(input_shape, input_tensor):
    if input_tensor is not None:
        if not keras.utils.is_keras_tensor(input_tensor):
            raise ValueError(
                "`input_tensor` must be a Keras tensor, such as the output of "
                f"`keras.Input`. Received: {type(input_tensor).__name__}"
            )
        return _input_shape(tuple(input_tensor.shape[1:]), None)
    if input_shape is None:
        return None
    shape = tuple(input_shape)
    if (
        len(shape) != 3
        or shape[2] is None
        or any(
            n is not None and (not isinstance(n, int) or n <= 0) for n in shape
        )
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels), where height "
            "and width may be None for any size; channels come last. "
            f"Received: input_shape={input_shape!r}"
        )
    return shape


def _raise_unless_grid_is_known(facts, path):
    count = facts["num_positions"]
    if count is not None and facts["grid_size"] is None:
        raise ValueError(
            f"{path!r} has {count} positions, which are no square grid and "
            "not that of the image. Give `grid_size=(rows, columns)` of the "
            f"file, with rows * columns = {count}."
        )


def _default_input_shape(facts, patch_size):
    """The images that the weights were made for, else the paper's."""
    size = (DEFAULT_IMAGE_SIZE,) * 2
    if facts.get("grid_size"):
        pairs = zip(facts["grid_size"], patch_size, strict=True)
        size = tuple(count * patch for count, patch in pairs)
    return (*size, facts.get("channels", 3))
