"""Loading of a checkpoint's weights into a model: all of them or none."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit.layers.resampling import resample_patch_kernel
from keras_vit.utils.scaling import fits
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights import Checkpoint, open_checkpoint, resolve_weights
from keras_vit.weights.infer import channels, is_position_layer
from keras_vit.weights.weight_map import assign_all

_PATCH_KERNEL = "patch_embedding/kernel"
FUNCTIONS = {
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
    checkpoint = weights
    if not isinstance(weights, Checkpoint):
        checkpoint = resolve_weights(weights)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint, num_heads=explicit.get("num_heads"))
    checkpoint.raise_if_fixed()
    if checkpoint.encoder_family != family:
        raise ValueError(
            f"{checkpoint.path!r} holds a model that "
            f"`{FUNCTIONS[checkpoint.encoder_family]}` builds, not "
            f"`{FUNCTIONS[family]}`. Call that one, or `converters.load`."
        )
    checkpoint.raise_if_missing(explicit)
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
    all of them, and the model is unchanged. The model gets the preprocessing mode and,
    if it keeps the head, the class names.
    """
    variables = weights_by_path(model)
    shapes = {path: tuple(v.shape) for path, v in variables.items()}
    positions = {x.name: x for x in model.layers if is_position_layer(x.name)}
    if checkpoint.format == "keras":
        weights = _rename_numbered(checkpoint.weights, shapes)
        checkpoint = dataclasses.replace(checkpoint, weights=weights)
    weights, reinitialized, unresampled = adapt(
        checkpoint, shapes, positions, grid, reuse_head
    )
    # Keras writes kernels with LoRA merged, and makes LoRA's of zeros.
    reinitialized |= {path for path in shapes if is_lora(path)}
    assign_all(
        variables,
        weights,
        lambda: (
            f"{checkpoint.path!r} does not fit the model {model.name!r}. It "
            f"holds {_describe(checkpoint)}; `keras_vit.converters.load` "
            "builds what a file holds."
        ),
        checkpoint.key,
        reinitialized,
        unresampled,
    )
    labeled: Any = model
    if "head/kernel" in shapes.keys() - reinitialized:
        names = checkpoint.class_names(checkpoint.classes)
        labeled.class_names = names and tuple(names)
    labeled.resizing = checkpoint.resizing
    mode = checkpoint.preprocess_mode
    if mode is not None and fits(mode, channels(shapes)):
        labeled.preprocess_mode = mode
    elif mode is not None and channels(shapes) == 1:
        warn(
            f"The weights of {checkpoint.path!r} need another scaling of each channel, "
            f"mode={mode!r}, which images of one channel cannot have. Build the model "
            "with `preprocessing=True`, or for three channels: both repeat the channel."
        )


def warn_of_other_options(
    model: keras.Model, checkpoint: Checkpoint, overrides: Config
) -> None:
    """Warns of options of a .keras file's blocks and heads that are not arguments of
    the model, so that the new model lacks them."""
    known = {*overrides, "units", "trainable", "sublayer_trainable"}
    if "classifier_activation" in overrides:
        known.add("activation")
    built = {layer.name: layer.get_config() for layer in model.layers}
    lost = {}
    for name, layer in checkpoint.layers.items():
        saved = layer["config"]
        kind = name.partition("_")[0]
        if name not in built or kind not in ("block", "stage", "head"):
            continue
        for key in sorted(saved.keys() - known):
            value = _shown(saved[key])
            if value != _shown(built[name].get(key)):
                lost[f"{kind}s' {key}"] = value
    if lost:
        listed = ", ".join(f"{key} {value!r}" for key, value in lost.items())
        warn(
            f"{checkpoint.path!r} is rebuilt without the options of its layers that "
            f"are not arguments of the model: the {listed}. For a dtype, first call "
            "`keras.config.set_dtype_policy`; for others, pass `block` or "
            "`classifier_activation`."
        )


def _shown(value: Any) -> Any:
    """Returns a value of a config, or the name of a serialized object."""
    if not isinstance(value, dict) or "class_name" not in value:
        return value
    config = value.get("config")
    named = isinstance(config, dict) and config.get("name")
    return named or value["class_name"]


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


def is_lora(path: str) -> bool:
    """Returns whether a weight belongs to LoRA."""
    return path.rpartition("/")[2].startswith("lora_")


def adapt(
    checkpoint: Checkpoint,
    shapes: dict[str, tuple[int, ...]],
    positions: dict[str, keras.Layer],
    grid: tuple[int, int] | None,
    reuse_head: bool,
) -> tuple[dict[str, Array], set[str], dict[str, str]]:
    """Adapts weights to a model that differs in size.

    * A head is dropped if the model has none or another number of classes, if
      the model has no `pre_logits` layer but the head was trained with one, or
      if `reuse_head` is False.
    * `pre_logits`, attention pooling, the norm after pooling and the mask token
      are dropped if the model does not have them.
    * The first kernel, of the patch embedding or of a ResNet, is adapted to the
      model's number of channels.
    * The kernel of the patch embedding is resized to the model's patch size,
      with a warning.
    * Position embeddings are resampled from `grid` to the model's.

    All other weights are returned unchanged, even if they do not fit. The other
    results are the paths of heads that keep their initial values, and reasons
    why position embeddings cannot be resampled, by path.
    """
    stored, unresampled = checkpoint.weights, {}
    layers, found = (
        {path.partition("/")[0] for path in paths} for paths in (shapes, stored)
    )
    dropped = {"pooling", "head_norm", "mask_token"} - layers
    if {"pre_logits/kernel", "pre_logits/bias"} <= stored.keys():
        dropped |= {"pre_logits"} - layers
    reused = reuse_head and "pre_logits" not in dropped
    new = {
        head
        for head in ("head", "distillation_head")
        if not (reused and head in found) or _has_other_classes(head, stored, shapes)
    }
    weights = {
        path: array
        for path, array in stored.items()
        if path.partition("/")[0] not in dropped | new
    }
    reinitialized = {path for path in shapes if path.partition("/")[0] in new}
    # A hybrid's patch embedding is not that of the images.
    first = "root_conv" if "root_conv" in found else "patch_embedding"
    path = f"{first}/kernel"
    if path in shapes and path in weights and weights[path].ndim == 4:
        weights[path] = adapt_channels(weights[path], shapes[path][2])
    kernel = weights.get(_PATCH_KERNEL, np.zeros(1))
    size = shapes.get(_PATCH_KERNEL, ())[:2]
    if size and kernel.ndim == 4 and kernel.shape[:2] != size:
        method = checkpoint.code_base.patch_resampling
        weights[_PATCH_KERNEL] = resample_patch_kernel(kernel, size, method)
        warn(
            f"The patch embedding of {checkpoint.path!r} is resized from "
            f"{kernel.shape[0]} x {kernel.shape[1]} to {size[0]} x {size[1]} "
            f"pixels by the pseudo-inverse of {method!r} (FlexiViT)."
        )
    for name, layer in positions.items() if grid is not None else ():
        paths = {key: f"{name}/{key}" for key in layer.embedding_variables()}
        if not paths or not weights.keys() >= set(paths.values()):
            continue
        stored = {key: weights[path] for key, path in paths.items()}
        try:
            for key, array in layer.resample_arrays(stored, grid).items():
                weights[paths[key]] = array
        except ValueError as error:
            unresampled |= dict.fromkeys(paths.values(), str(error))
    return weights, reinitialized, unresampled


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


def _rename_numbered(
    weights: dict[str, Array], shapes: dict[str, tuple[int, ...]]
) -> dict[str, Array]:
    """Returns the weights of a Keras file under a model's paths.

    Keras numbers the arrays of each layer. The names of this package's layers
    are known when a file is read; those of a custom block's are the model's.
    """
    found, expected = {}, {}
    for groups, paths in ((found, weights), (expected, shapes)):
        for path in paths:
            groups.setdefault(path.rpartition("/")[0], []).append(path)
    renamed = {}
    for layer, paths in found.items():
        others = expected.get(layer, paths)
        known = not layer.startswith("block_") or {*others} == {*paths}
        if known or len(others) != len(paths):
            others = paths
        # "kernel" and "bias" are 0 and 1; HDF5 has 10 before 2.
        paths.sort(key=_number)
        renamed |= {
            other: weights[path] for path, other in zip(paths, others, strict=True)
        }
    return renamed


def _number(path: str) -> int:
    name = path.rpartition("/")[2]
    return int(name) if name.isdecimal() else 0


def _describe(checkpoint: Checkpoint) -> str:
    """Returns the sizes of a checkpoint's model for an error message."""
    names = ("patch_size", "hidden_size", "num_layers", "resnet_layers")
    try:
        found = vars(checkpoint.config)
    except ValueError:
        found = {}
    sizes = [f"{name}={found[name]}" for name in names if found.get(name)]
    return ", ".join(sizes) or "no complete model"
