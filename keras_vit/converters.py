"""Load whole models from checkpoint files and save them to files."""

import pathlib
import struct
import tempfile
import zipfile

import keras

from keras_vit import models
from keras_vit.checkpoints import Checkpoint
from keras_vit.checkpoints import open_checkpoint as open_checkpoint
from keras_vit.checkpoints._files import replacing
from keras_vit.checkpoints._keras_configs import raise_unless_ours
from keras_vit.checkpoints._keras_files import is_keras
from keras_vit.checkpoints._keras_files import is_pretraining
from keras_vit.checkpoints._keras_files import settings_of
from keras_vit.checkpoints._keras_files import told_by_layers
from keras_vit.checkpoints._keras_files import write_notes
from keras_vit.checkpoints._writing import raise_unless_writable
from keras_vit.checkpoints._writing import write_checkpoint
from keras_vit.checkpoints.checkpoint import check_hyperparameters
from keras_vit.checkpoints.formats import check_layout
from keras_vit.checkpoints.formats import get_weight_map
from keras_vit.checkpoints.infer import infer_pretraining
from keras_vit.checkpoints.infer import is_position_layer
from keras_vit.models import load_weights
from keras_vit.models import weights_by_path


def load(path, layout=None, num_heads=None, **overrides):
    """Builds the model that a checkpoint holds and loads its weights.

    The architecture is read from the arrays, and from a config.json in the
    folder or beside the file. What arrays cannot tell (epsilons, the kind of
    GELU, how positions are resampled) follows from the layout.

    Args:
        path: String or path: an .npz, .safetensors, .pth, .pt or .bin file,
            the .index.json of a sharded one, a Hugging Face folder, or a
            .keras or .weights.h5 file of a model of this package. A .keras
            file without overrides is the model as it was saved. Also an
            address (https://, hf://), or what `open_checkpoint` returned.
        layout: "vit_jax", "big_vision", "timm", "huggingface",
            "torchvision", "dinov2", "mae" or "bit"; None finds it by the
            keys, if only one fits. For a .weights.h5 file that another
            program than `converters.save` wrote, the layout whose code the
            weights were made for: the file does not tell.
        num_heads: Integer. Needed where the layout does not store it and the
            hidden size is unusual.
        **overrides: Arguments that win over what the file tells, such as
            `classes`, `input_shape` or `include_top`: those of
            `VisionTransformer`, `HybridVisionTransformer` or `BiT`, by what
            the file holds.

    Returns:
        A `keras.Model`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, fits no layout or several, or
            does not fit the overrides.

    Example:

    >>> model = keras_vit.converters.load("ViT-B_16.npz", classes=10)
    """
    check_layout(layout)
    checkpoint = path
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(path, layout, num_heads)
    check_hyperparameters(checkpoint, overrides)
    whole = checkpoint.path.endswith(".keras") and not overrides
    if whole and not is_pretraining(checkpoint.path):
        return _load_whole(checkpoint)
    build = {
        "vit": models.VisionTransformer,
        "hybrid": models.HybridVisionTransformer,
        "bit": models.BiT,
    }[checkpoint.family]
    arguments = {**defaults_of(checkpoint), **overrides}
    representation = checkpoint.weights.get("pre_logits/bias")
    pools = arguments["include_top"] or arguments.get("pooling")
    if representation is not None and pools:
        arguments.setdefault("representation_size", len(representation))
    return build(**arguments, weights=checkpoint)


def _load_whole(checkpoint):
    shapes = [array.shape for array in checkpoint.weights.values()]
    try:
        raise_unless_ours(
            checkpoint.path,
            keras.saving.get_registered_object,
            max(map(max, filter(None, shapes)), default=0),
        )
        model = keras.models.load_model(checkpoint.path, safe_mode=True)
    except MemoryError:
        raise
    except Exception as error:  # Keras's kinds differ by what is broken
        raise ValueError(
            f"{checkpoint.path!r} cannot be loaded. {error}"
        ) from error
    # Keras does not mind arrays that no layer asks for.
    load_weights(model, checkpoint, checkpoint.stored.get("grid_size"))
    return model


def defaults_of(checkpoint):
    """Returns the arguments of `VisionTransformer` that build the model that
    a checkpoint was written from."""
    has_head = "head/kernel" in checkpoint.weights
    defaults = {"include_top": has_head, **checkpoint.build_arguments}
    if has_head:
        defaults.pop("pooling", None)  # it is of the architecture
    else:
        defaults.setdefault("pooling", _pooling(checkpoint.weights))
    return defaults


def save(model, path, layout=None, overwrite=False):
    """Writes a model's weights as a checkpoint, exactly.

    Args:
        model: A model made by this package.
        path: String or path; its ending chooses the container: .npz,
            .safetensors, .pth, .pt, .bin, or no ending for a folder of
            Hugging Face's. `.keras` is the whole model, `.weights.h5` its
            weights and what `load` needs to build it again.
        layout: Name of the layout to write; None for "vit_jax", and
            "huggingface" in a folder. A spelling other than its usual one
            follows a colon: "vit_jax:current", "big_vision:scan". Keras's own
            files have none.
        overwrite: Boolean. Whether an existing file may be replaced.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
        ValueError: if the layout has no place for one of the weights.
    """
    path = pathlib.Path(path).expanduser()
    if is_keras(path):
        if layout is not None:
            raise ValueError(
                f"{path.suffix} files have no layout. Received: "
                f"layout={layout!r}"
            )
        save_keras(model, path, overwrite)
        return
    layout = layout or ("vit_jax" if path.suffix else "huggingface")
    get_weight_map(layout)
    raise_unless_writable(path, layout)
    weights, told, _ = describe(model)
    lora = any("lora_" in path for path in weights)
    try:
        write_checkpoint(weights, told, path, layout, overwrite=overwrite)
    except ValueError as error:
        hint = ""
        if lora:
            hint = (
                "\nKeras merges LoRA weights when it saves: write the model as "
                "a .keras file, load that, and convert the result."
            )
        raise ValueError(
            f"The model {model.name!r} cannot be written in the layout "
            f"{layout!r}. {error}{hint}"
        ) from error


def save_keras(model, path, overwrite=False):
    """Writes a .keras file, or a .weights.h5 file with what it cannot tell."""
    weights, told, built = describe(model)
    del weights
    with replacing(path, overwrite) as temporary:
        if path.suffix == ".keras":
            write_keras(model, temporary)
        else:
            model.save_weights(temporary)
            write_notes(temporary, told, built)


def write_keras(model, path):
    """Writes a .keras file, whatever the clock says.

    Keras stamps the weights with the time, and a zip archive knows none before
    1980 or after 2107.
    """
    try:
        model.save(path)
    except (ValueError, struct.error):  # zipfile's; any other comes again
        _write_undated(model, pathlib.Path(path))


def _write_undated(model, path):
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
        zipfile.ZipFile(path, "w", strict_timestamps=False) as archive,
    ):
        model.save(folder, zipped=False)
        for part in sorted(pathlib.Path(folder).rglob("*")):
            if part.is_file():
                archive.write(part, part.relative_to(folder))


def _pooling(weights):
    """The pooling of a model without a head: None if it gives all tokens."""
    if "pooling/probe" in weights:
        return "map"
    if "head_norm/gamma" in weights:
        return "gap"
    if "pre_logits/kernel" in weights:
        return "token" if "class_token/tokens" in weights else "gap"
    return None


def describe(model):
    """Returns `(weights, told, built)` of a model made by this package, as
    `read_keras` does of a file.

    Raises:
        ValueError: if it is another model.
    """
    whole, model = model, getattr(model, "encoder", model)
    variables = weights_by_path(model)
    if whole is not model:
        variables = whole.variables_by_path()
    weights = {
        path: keras.ops.convert_to_numpy(variable.value)
        for path, variable in variables.items()
    }
    configs = {layer.name: layer.get_config() for layer in model.layers}
    positions = next(
        (layer for layer in model.layers if is_position_layer(layer.name)), None
    )
    shapes = {path: array.shape for path, array in weights.items()}
    try:
        grid = getattr(positions, "built_grid", None)
        told, built = told_by_layers(configs, shapes, grid)
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"The model {model.name!r} was not made by keras_vit. {error}"
        ) from error
    told |= infer_pretraining(shapes)
    if whole is not model:
        told |= settings_of(whole.get_config())
    return weights, told, built
