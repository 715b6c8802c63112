"""`keras_vit.load` and `keras_vit.save`, for files of all models."""

import pathlib
from typing import Any

import keras

from keras_vit import converters
from keras_vit import detection
from keras_vit import downloads
from keras_vit import models
from keras_vit import pretraining
from keras_vit import segmentation
from keras_vit._types import StrPath
from keras_vit.weights.files import read_config
from keras_vit.weights.files import resolve_run_folder
from keras_vit.weights.released import ALIASES
from keras_vit.weights.released import RELEASED


def load(name_or_path: StrPath, **arguments: Any) -> keras.Model:
    """Builds the whole model of a file, folder or name, with its weights.

    Args:
        name_or_path: String or path: released weights, as a model and a name of
            `keras_vit.list_weights()`, such as "ViTB16/imagenet21k"; or a file
            or URL of `keras_vit.converters.load`, `keras_vit.pretraining.load`
            (whose decoder is part of the model),
            `keras_vit.segmentation.load` or `keras_vit.detection.load`.
        **arguments: Those of the function that reads the file, such as
            `layout` or `input_shape`.

    Returns:
        A `keras.Model`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, or an argument does not fit it.
        OSError: if the weights cannot be downloaded.

    Example:

    >>> model = keras_vit.load("runs/digits")
    """
    variant, _, tag = str(name_or_path).partition("/")
    if (variant, ALIASES.get(tag, tag)) in RELEASED:
        return getattr(models, variant)(weights=tag, **arguments)
    path = resolve_run_folder(downloads.fetch_if_remote(name_or_path))
    dense = {"eomt": segmentation, "yolos": detection}
    package = dense.get(str(read_config(path).get("model_type")))
    if package is not None:
        return package.load(path, **arguments)
    options = ("layout", "num_heads", "decoder_num_heads")
    opening = {name: arguments.pop(name, None) for name in options}
    checkpoint = converters.open_checkpoint(path, **opening, decoder=True)
    # `converters.load` knows no arrays of these heads.
    is_dense = checkpoint.is_detector or "eomt_head" in checkpoint.layers
    if is_dense and not arguments:
        return models.load_keras_file(path)
    if checkpoint.pretraining:
        return pretraining.load(checkpoint, **arguments)
    return converters.load(checkpoint, **arguments)


def save(
    model: keras.Model,
    path: StrPath,
    format: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a whole model to a file or a folder.

    Args:
        model: A model made by this package.
        path: String or path, whose suffix chooses the kind of file, as in
            `keras_vit.converters.save`; an EoMT or a YOLOS is written to a
            folder without a suffix as in `keras_vit.segmentation.save` or
            `keras_vit.detection.save`.
        format: String. The code base that reads the file, the `layout` of
            `keras_vit.converters.save`; None for its default.
        overwrite: Boolean. Whether existing files may be replaced.

    Raises:
        FileExistsError: if a file exists and `overwrite` is False.
        ValueError: if the file cannot hold the model.

    Example:

    >>> keras_vit.save(model, "vit_b16.keras")
    """
    is_folder = pathlib.Path(path).suffix == ""
    layers = {layer.name for layer in model.layers}
    for_transformers = is_folder and format in (None, "huggingface")
    if "eomt_head" in layers and for_transformers:
        segmentation.save(model, path, overwrite)
    elif "detection_tokens" in layers and for_transformers:
        detection.save(model, path, overwrite)
    else:
        converters.save(model, path, format, overwrite)
