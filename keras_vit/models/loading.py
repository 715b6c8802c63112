"""Loading of a checkpoint's weights into a model: all of them or none."""

from collections.abc import Iterable

import keras
import numpy as np

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import StrPath
from keras_vit._warnings import warn
from keras_vit.layers import TransformerBlock
from keras_vit.layers.resampling import resample_patch_kernel
from keras_vit.weights import Checkpoint
from keras_vit.weights import open_checkpoint
from keras_vit.weights import resolve_weights
from keras_vit.weights.checkpoint import check_hyperparameters
from keras_vit.weights.infer import is_position_layer
from keras_vit.weights.weight_map import assign_all

_HEADS = ("head", "distillation_head")
_PATCH_KERNEL = "patch_embedding/kernel"
_INPUT_KERNELS = ("root_conv/kernel", _PATCH_KERNEL)
_FUNCTIONS = {
    "vit": "VisionTransformer",
    "hybrid": "HybridVisionTransformer",
    "bit": "BiT",
}


def open_for(
    family: str, weights: StrPath | Checkpoint, explicit: Config
) -> Checkpoint:
    """Opens a checkpoint for a function that builds models of a family.

    It raises a `ValueError` if another function builds the checkpoint's model,
    or if an architecture argument is neither stored nor in `explicit`.
    """
    checkpoint = resolve_weights(weights)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(
            checkpoint, num_heads=explicit.get("num_heads")
        )
    if checkpoint.family != family:
        needed = _FUNCTIONS[checkpoint.family]
        raise ValueError(
            f"{checkpoint.path!r} holds a model that `{needed}` builds, not "
            f"`{_FUNCTIONS[family]}`. Call that one, or `converters.load`, "
            "which finds it."
        )
    check_hyperparameters(checkpoint, explicit)
    return checkpoint


def load_weights(
    model: keras.Model,
    checkpoint: Checkpoint,
    grid: tuple[int, int] | None = None,
    reuse_head: bool = True,
) -> None:
    """Loads a checkpoint into a model, which may differ in size; see `adapt`.

    `grid` is that of the checkpoint's position embeddings, or None if unknown.
    If a weight is missing, unknown or of the wrong shape, a `ValueError` lists
    all of them, and the model is unchanged.
    """
    variables = weights_by_path(model)
    shapes = {path: tuple(v.shape) for path, v in variables.items()}
    positions = {x.name: x for x in model.layers if is_position_layer(x.name)}
    stored, block = checkpoint.weights, _block_class(model)
    if checkpoint.layout == "keras" and block is not TransformerBlock:
        stored = _rename_numbered(stored, shapes)
    weights, reinitialized, unresampled = adapt(
        stored, shapes, positions, grid, reuse_head, checkpoint.patch_resampling
    )

    def intro() -> str:
        blocks = ""
        if block is not TransformerBlock:
            blocks = f", whose blocks are {block.__name__}s"
        return (
            f"{checkpoint.path!r} does not fit the model {model.name!r}"
            f"{blocks}. It holds {_describe(checkpoint)}; "
            "`keras_vit.converters.load` builds what a file holds."
        )

    assign_all(
        variables, weights, intro, checkpoint.key, reinitialized, unresampled
    )
    _warn_of_patch_size(checkpoint, shapes)


def weights_by_path(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the weights of a functional model as a dict `{path: variable}`.

    A path begins with the name of the layer, regardless of the name scope in
    which the model was built.
    """
    return {
        layer.name + variable.path.partition(layer.name)[2]: variable
        for layer in model.layers
        for variable in layer.weights
    }


def adapt(
    weights: dict[str, Array],
    shapes: dict[str, tuple[int, ...]],
    positions: dict[str, keras.Layer],
    grid: tuple[int, int] | None = None,
    reuse_head: bool = True,
    patch_resampling: str = "bicubic_antialias",
) -> tuple[dict[str, Array], set[str], dict[str, str]]:
    """Adapts weights to a model that differs in size.

    * A head is dropped if the model has none or another number of classes, if
      the model has no `pre_logits` layer but the head was trained with one, or
      if `reuse_head` is False.
    * `pre_logits`, attention pooling, the norm after pooling and the mask token
      are dropped if the model has none.
    * The first kernel, of the patch embedding or of a ResNet, is adapted to the
      model's number of channels.
    * The kernel of the patch embedding is resized to the model's patch size.
    * Position embeddings are resampled from `grid` to the model's.

    All other weights are returned unchanged, even if they do not fit. The other
    results are the paths of heads that keep their initial values, and reasons
    why position embeddings cannot be resampled, by path.
    """
    weights, reinitialized, unresampled = dict(weights), set(), {}
    has_pre_logits = {"pre_logits/kernel", "pre_logits/bias"} <= weights.keys()
    drops_pre_logits = has_pre_logits and "pre_logits/kernel" not in shapes
    if drops_pre_logits:
        _drop_layer(weights, "pre_logits")
    for layer in ("pooling", "head_norm", "mask_token"):
        if not any(path.startswith(f"{layer}/") for path in shapes):
            _drop_layer(weights, layer)
    for head in _HEADS:
        missing = not any(path.startswith(f"{head}/") for path in weights)
        unwanted = drops_pre_logits or not reuse_head
        if missing or unwanted or _has_other_classes(head, weights, shapes):
            _drop_layer(weights, head)
            reinitialized |= {p for p in shapes if p.startswith(f"{head}/")}
    path = next((p for p in _INPUT_KERNELS if p in weights), None)
    if path in shapes and weights[path].ndim == 4:
        weights[path] = adapt_channels(weights[path], shapes[path][2])
    if _patch_sizes(weights, shapes):
        weights[_PATCH_KERNEL] = resample_patch_kernel(
            weights[_PATCH_KERNEL], shapes[_PATCH_KERNEL][:2], patch_resampling
        )
    if grid is not None:
        for name, layer in dict(positions).items():
            try:
                _resample_positions(weights, name, layer, grid)
            except ValueError as error:
                paths = [f"{name}/{key}" for key in layer.embedding_variables()]
                unresampled |= dict.fromkeys(paths, str(error))
    return weights, reinitialized, unresampled


def _patch_sizes(
    weights: dict[str, Array], shapes: dict[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the patch size of weights and that of a model; None if they are
    equal, or one of them has no patch embedding."""
    kernel, shape = weights.get(_PATCH_KERNEL), shapes.get(_PATCH_KERNEL)
    if kernel is None or shape is None or kernel.ndim != 4:
        return None
    sizes = (tuple(kernel.shape[:2]), tuple(shape[:2]))
    return None if sizes[0] == sizes[1] else sizes


def _warn_of_patch_size(
    checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Warns if the patch embedding is resized."""
    sizes = _patch_sizes(checkpoint.weights, shapes)
    if sizes:
        old, new = (f"{rows} x {columns}" for rows, columns in sizes)
        warn(
            f"The patch embedding of {checkpoint.path!r} is resized from {old} "
            f"to {new} pixels by the pseudo-inverse of "
            f"{checkpoint.patch_resampling!r} (FlexiViT)."
        )


def adapt_channels(kernel: Array, channels: int) -> Array:
    """Adapts a kernel `(rows, columns, channels, filters)` to other channels.

    For one channel, the kernel is summed over its channels, so that a gray
    image has exactly the result of an image with equal channels. For another
    number, the kernel's channels are repeated in order (or cut off) and
    rescaled, so that the sum of the responses keeps its size.
    """
    old = kernel.shape[2]
    if channels == old:
        return kernel
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    index = np.arange(channels) % old
    return kernel[:, :, index] * np.asarray(old / channels, kernel.dtype)


def _resample_positions(
    weights: dict[str, Array],
    name: str,
    layer: keras.Layer,
    grid: tuple[int, int],
) -> None:
    """Resamples the position embeddings of one layer, in `weights`."""
    stored = {
        key: weights.get(f"{name}/{key}") for key in layer.embedding_variables()
    }
    if any(array is None for array in stored.values()):
        return
    for key, array in layer.resample_arrays(stored, grid).items():
        weights[f"{name}/{key}"] = array


def _has_other_classes(
    head: str,
    weights: dict[str, Array],
    shapes: dict[str, tuple[int, ...]],
) -> bool:
    """Returns whether the model has no such head, or the checkpoint's head is
    complete and differs only in the number of classes."""
    kernel, bias = weights.get(f"{head}/kernel"), weights.get(f"{head}/bias")
    if f"{head}/kernel" not in shapes:
        return True
    if kernel is None or bias is None or kernel.ndim != 2:
        return False
    width, classes = shapes[f"{head}/kernel"]
    complete = bias.shape == kernel.shape[1:]
    return complete and kernel.shape[0] == width and kernel.shape[1] != classes


def _drop_layer(weights: dict[str, Array], layer: str) -> None:
    """Removes the weights of a layer."""
    for path in [path for path in weights if path.startswith(f"{layer}/")]:
        del weights[path]


def _block_class(model: keras.Model) -> type[TransformerBlock]:
    """Returns the class of a model's blocks; a ResNet has none."""
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            return type(layer)
    return TransformerBlock


def _rename_numbered(
    weights: dict[str, Array], shapes: dict[str, tuple[int, ...]]
) -> dict[str, Array]:
    """Returns the weights of a Keras file under a model's paths.

    Keras numbers the arrays of each layer. The names of this package's layers
    are known when a file is read; those of other layers are the model's.
    """
    found, expected = _group_by_layer(weights), _group_by_layer(shapes)
    renamed = {}
    for layer, names in found.items():
        others = expected.get(layer, ())
        if len(others) != len(names) or {*others} == {*names}:
            others = names
        # "kernel" and "bias" are 0 and 1; HDF5 has 10 before 2.
        names.sort(key=lambda name: int(name) if name.isdecimal() else 0)
        for name, other in zip(names, others, strict=True):
            renamed[f"{layer}/{other}"] = weights[f"{layer}/{name}"]
    return renamed


def _group_by_layer(paths: Iterable[str]) -> dict[str, list[str]]:
    """Returns a dict of layers to lists of the names of their weights."""
    layers = {}
    for path in paths:
        layer, _, name = path.rpartition("/")
        layers.setdefault(layer, []).append(name)
    return layers


def _describe(checkpoint: Checkpoint) -> str:
    """Returns the sizes of a checkpoint's model for an error message."""
    names = ("patch_size", "hidden_size", "num_layers", "resnet_layers")
    try:
        found = vars(checkpoint.config)
    except ValueError:
        found = {}
    sizes = [f"{name}={found[name]}" for name in names if found.get(name)]
    return ", ".join(sizes) or "no complete model"
