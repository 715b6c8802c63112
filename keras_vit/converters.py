"""Loading of whole models from checkpoint files, and saving to them."""

import pathlib
import struct
import tempfile
import zipfile
from dataclasses import replace
from typing import Unpack

import keras

from keras_vit import models
from keras_vit.config import ModelArguments
from keras_vit.layers.composite import sublayers
from keras_vit.models.assigning import (
    FUNCTIONS,
    is_lora,
    load_weights,
    warn_of_other_options,
)
from keras_vit.models.description import describe as describe_model
from keras_vit.models.description import (
    family_of,
    inferred_from_arrays,
    variables_of,
)
from keras_vit.models.keras_file import build_of_config, load_keras_file
from keras_vit.models.model import described
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.files import atomic_write
from keras_vit.weights.files.keras import is_keras, write_metadata
from keras_vit.weights.formats import split
from keras_vit.weights.infer import DENSE, drop_pretraining
from keras_vit.weights.writing import write_checkpoint

__all__ = ["Checkpoint", "describe", "load", "open_checkpoint", "save"]


def __dir__() -> list[str]:
    return __all__  # without the names of imports


def load(
    path: StrPath | Checkpoint,
    format: str | None = None,
    num_heads: int | None = None,
    base: StrPath | None = None,
    **overrides: Unpack[ModelArguments],
) -> keras.Model:
    """Builds the model of a checkpoint and loads its weights.

    The architecture is inferred from the arrays, and from a config.json in
    the folder or next to the file. Options that neither contains (epsilons, the
    variant of GELU, the resampling of positions) follow from the format.

    Args:
        path: String or path: an .npz, .safetensors or PyTorch file of any ending (.pth,
            .pt, .bin, .ckpt), including a training program's checkpoint, from which
            only the model is read; the .index.json of a sharded checkpoint, a Hugging
            Face folder, the folder of a keras-hub preset, or a .keras or .weights.h5
            file of a model of this package. A .keras file without overrides is loaded
            by Keras, as it was saved. Also a URL (https://, hf://), or a `Checkpoint`
            from `open_checkpoint`.
        format: String. Format of the checkpoint, which is the way in which a
            code base names its arrays: `"vit_jax"`, `"big_vision"`, `"timm"`,
            `"huggingface"`, `"torchvision"`, `"dinov2"`, `"dinov3"`, `"mae"`,
            `"dino"`, `"mocov3"`, `"bit"`, `"keras_hub"` or `"open_clip"`. `None`
            infers it from the keys, if only one format fits. For a .weights.h5 file
            that was not written by `converters.save`, the format of the code base from
            which the weights originate, which the file does not store.
        num_heads: Integer. Number of attention heads. Required if the file does
            not store it and a head does not have 64 channels.
        base: String or path of the base weights, if `path` is the folder of a PEFT
            adapter, whose LoRA weights are merged into them. `None` for the path in its
            adapter_config.json, if that is a local path.
        **overrides: Arguments of `VisionTransformer`,
            `HybridVisionTransformer` or `BiT`, depending on the file, that take
            precedence over the file, such as `classes`, `input_shape` or
            `include_top`. With any of them, the model is rebuilt: all of its weights
            are trainable and use the dtype policy of this process. A warning lists
            other options of a .keras file that are lost.

    Returns:
        A `keras.Model`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, fits no format or several, or
            does not fit the overrides.

    Example:

    >>> model = keras_vit.converters.load("ViT-B_16.npz", classes=10)
    """
    if isinstance(path, Checkpoint):
        # Its decoder, or what else only pre-training uses, may have been read.
        checkpoint = replace(path, weights=drop_pretraining(path.weights))
    else:
        checkpoint = open_checkpoint(path, format, num_heads, base=base)
    if checkpoint.is_fixed:
        if overrides:
            checkpoint.raise_if_fixed()
        return load_keras_file(checkpoint.path)
    if overrides or checkpoint.is_pretraining_model or not checkpoint.saved:
        model = _build(checkpoint, {**overrides})
        mixed = "mixed_sizes" in checkpoint.layers
        return models.mixed_sizes(model) if mixed else model
    model = load_keras_file(checkpoint.path)
    # Keras ignores arrays that belong to no layer; this raises an error.
    load_weights(model, checkpoint, checkpoint.stored.get("grid_size"))
    return model


def load_for_images(
    checkpoint: Checkpoint, **overrides: Unpack[ModelArguments]
) -> keras.Model:
    """Like `load`, but without the state of an optimizer, and returns the model for
    images of one size if the file contains one of `mixed_sizes`."""
    if "mixed_sizes" in checkpoint.layers:
        return _build(checkpoint, {**overrides})
    others = checkpoint.is_fixed or checkpoint.is_pretraining_model
    if overrides or others or not checkpoint.saved:
        return load(checkpoint, **overrides)
    weights = drop_pretraining(checkpoint.weights)
    model = build_of_config(checkpoint.path, checkpoint.saved, len(weights))
    load_weights(
        model, replace(checkpoint, weights=weights), checkpoint.stored.get("grid_size")
    )
    return model


def _build(checkpoint: Checkpoint, given: Config) -> keras.Model:
    """Builds a model of the arguments of a checkpoint, and of those given."""
    build = getattr(models, FUNCTIONS[checkpoint.encoder_family])
    model = build(**checkpoint.build_arguments_with(given), weights=checkpoint)
    if checkpoint.saved and "block" not in given:
        warn_of_other_options(model, checkpoint, given)
    return model


def save(
    model: keras.Model,
    path: StrPath,
    format: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the weights of a model to a checkpoint file.

    Args:
        model: A model made by this package.
        path: String or path, whose suffix chooses the file type: .npz,
            .safetensors, .pth, .pt, .bin, or no suffix for a Hugging Face
            folder. A .keras file contains the whole model, a .weights.h5 file
            its weights and the metadata that `load` needs to build it again.
        format: String. Name of the format to write; `None` for `"vit_jax"`, or for
            `"huggingface"` if `path` is a folder; a folder may also be a preset of
            `"keras_hub"`. A variant of a format follows a colon: `"vit_jax:current"`,
            `"big_vision:scan"`. Files in Keras's own file types take no format.
        overwrite: Boolean. Whether an existing file may be replaced.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
        ValueError: if the format cannot store one of the weights. Nothing is
            written then.
    """
    write_model(model, path, format, overwrite, {})


def write_model(
    model: keras.Model,
    path: StrPath,
    format: str | None,
    overwrite: bool,
    head: Config,
) -> None:
    """Like `save`, for a model whose head has the arguments `head`."""
    path = pathlib.Path(path).expanduser()
    if is_keras(path):
        if format is not None:
            raise ValueError(
                f"{path.suffix} files have no format. Received: format={format!r}"
            )
        encoder = getattr(model, "encoder", model)
        metadata: tuple[Config, ...] = ()
        if getattr(encoder, "config", None) is None:  # layers that somebody assembled
            inferred_from_arrays(model)
        else:
            metadata = described(encoder), describe_model(model)[1]
        modes = [getattr(x, "quantization_mode", None) for _, x, _ in sublayers(model)]
        whole = (*DENSE, "dual_encoder")
        if path.suffix != ".keras" and (family_of(model) in whole or any(modes)):
            raise ValueError(
                "A .weights.h5 file does not store the kind of the model "
                f"{model.name!r}: a detector, a segmenter, a dual encoder or a model "
                "with quantized weights. Write a .keras file."
            )
        with atomic_write(path, overwrite) as temporary:
            if path.suffix == ".keras":
                write_keras(model, temporary)
            else:
                model.save_weights(temporary)
                if metadata:
                    write_metadata(temporary, *metadata)
        return
    format = format or ("vit_jax" if path.suffix else "huggingface")
    split(format)  # an unknown name is no limit of the model
    if format.partition(":")[0] in DENSE and not head:
        raise ValueError(
            f"The format {format!r} is for detectors and segmenters, which "
            f"`keras_vit.save` writes. Received: the model {model.name!r}"
        )
    weights, arguments, built = describe(model)
    mode = built.get("preprocessing")
    activation = built.get("classifier_activation")
    if activation:
        arguments["classifier_activation"] = activation
    names, classes = getattr(model, "class_names", None) or (), arguments["classes"]
    if names and classes and len(names) != classes:
        raise ValueError(
            f"The model {model.name!r} has {classes} classes and {len(names)} "
            "`class_names`. Set `model.class_names` to one name for each class, or to "
            "None."
        )
    if len(names) == classes:
        arguments["class_names"] = list(names)
    arguments["resizing"] = getattr(model, "resizing", None)
    arguments |= head
    if mode:
        warn(
            f"{str(path)!r} does not contain the preprocessing inside the "
            f"model {model.name!r}. Images must be resized and scaled by "
            f"keras_vit.preprocess_input(images, mode={mode!r})."
        )
    try:
        write_checkpoint(
            weights,
            arguments,
            path,
            format,
            overwrite=overwrite,
            preprocess_mode=mode or getattr(model, "preprocess_mode", None),
        )
    except ValueError as error:
        raise ValueError(
            f"The model {model.name!r} cannot be written in the format "
            f"{format!r}. {error}\nA .keras file can hold it."
        ) from error


def describe(model: keras.Model) -> tuple[dict[str, Array], Config, Config]:
    """Returns the weights of a model by path, with those of LoRA merged, the
    arguments that describe its architecture, and the others that it was built
    with."""
    return merged_weights(model), *describe_model(model)


def merged_weights(model: keras.Model) -> dict[str, Array]:
    """Returns the weights of a model by path, with those of LoRA merged."""
    merged = {
        id(variable): layer.kernel
        for _, layer, _ in sublayers(model)
        if getattr(layer, "lora_enabled", False)
        for variable in layer.weights
        if variable.name == "kernel"
    }
    return {
        path: keras.ops.convert_to_numpy(merged.get(id(variable), variable))
        for path, variable in variables_of(model).items()
        if not is_lora(path)
    }


def write_keras(model: keras.Model, path: StrPath) -> None:
    """Writes a .keras file, even if the system's clock is wrong.

    Keras stores the time of writing in the file, a zip archive, which cannot
    represent years before 1980 or after 2107.
    """
    try:
        model.save(path)
        return
    except (ValueError, struct.error):  # zipfile's; others are raised again
        parent = pathlib.Path(path).parent
    with (
        tempfile.TemporaryDirectory(dir=parent) as folder,
        zipfile.ZipFile(path, "w", strict_timestamps=False) as archive,
    ):
        model.save(folder, zipped=False)
        for part in sorted(pathlib.Path(folder).rglob("*")):
            if part.is_file():
                archive.write(part, part.relative_to(folder))
