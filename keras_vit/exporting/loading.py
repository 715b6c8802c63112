"""Loading of the model to export, for the requested image size."""

from typing import Any

import keras

from keras_vit import converters
from keras_vit import downloads
from keras_vit._types import Config
from keras_vit.inspection import tokens
from keras_vit.models import load_keras_file
from keras_vit.weights.files import resolve_run_folder

DEFAULT_SIZE = 224  # pixels, if it cannot be inferred


def load(
    path: str,
    layout: str | None = None,
    settings: Config | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[keras.Model, tuple[int | None, int | None, int]]:
    """Returns the model of a checkpoint, or of any .keras file, and the shape
    of its images, `(height, width, channels)`, None where dynamic."""
    settings = settings or {}
    checkpoint = None
    try:
        checkpoint = converters.open_checkpoint(
            path, layout, settings.get("num_heads")
        )
        model = converters.load(checkpoint, layout, **settings)
    except ValueError:
        local = resolve_run_folder(downloads.fetch_if_remote(path))
        of_keras = str(local).endswith(".keras")
        if checkpoint or layout or settings or not of_keras:
            raise
        model = load_keras_file(local)
    check_exportable(model)
    sides, channels = (
        tuple(model.inputs[0].shape[1:3]),
        model.inputs[0].shape[3],
    )
    height, width = size or sides
    if sides != (height, width) and None not in sides:
        if checkpoint is None:
            raise ValueError(
                f"--image-size: {str(path)!r} was not made by keras_vit and "
                f"takes only images of {sides[0]} x {sides[1]} pixels."
            )
        settings = {**settings, "input_shape": (height, width, channels)}
        model = converters.load(checkpoint, layout, **settings)
    return model, (height, width, channels)


def image_size(model: keras.Model) -> tuple[int, int]:
    """Returns the image size of a model, or a default if it is dynamic."""
    return tokens.image_size(model) or (DEFAULT_SIZE, DEFAULT_SIZE)


def check_exportable(model: Any) -> None:
    """Raises a `ValueError` unless a model has one input, a batch of images,
    and one output or a dict of them."""
    try:
        shapes = [tuple(x.shape) for x in model.inputs]
        named = len(model.outputs) == 1 or isinstance(model.output, dict)
    except (AttributeError, TypeError, ValueError, IndexError):
        shapes, named = [], False
    if len(shapes) != 1 or len(shapes[0]) != 4 or not named:
        raise ValueError(
            "Only models of one input, (batch, height, width, channels), and "
            "one output, or a dict of outputs, can be exported, and "
            f"{model.name!r} is not one. Of a model of keras_vit.pretraining, "
            "export its `encoder`."
        )
