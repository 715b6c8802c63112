"""Loading of the model to export, for the requested image size."""

from keras_vit import converters
from keras_vit import downloads
from keras_vit.checkpoints.files import resolve_run_folder
from keras_vit.inspection import tokens
from keras_vit.models import load_keras_file

DEFAULT_SIZE = 224  # pixels, if it cannot be inferred


def load(path, layout=None, settings=None, size=None):
    """Loads a model to export.

    Args:
        path: As in `converters.load`, or a .keras file of any model.
        layout: As in `converters.load`.
        settings: Dict of arguments that override the file's.
        size: `(height, width)` of the images; None for that of the model.

    Returns:
        The model, and the shape of an image `(height, width, channels)`, None
        where dynamic.

    Raises:
        ValueError: if the model cannot be loaded, does not support the size,
            or has several inputs, or several outputs without names.
    """
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
    shape = tuple(model.inputs[0].shape[1:])
    requested = (*(size or shape[:2]), shape[-1])
    if shape[:2] != requested[:2] and None not in shape[:2]:
        if checkpoint is None:
            raise ValueError(
                f"--image-size: {str(path)!r} was not made by keras_vit and "
                f"takes only images of {shape[0]} x {shape[1]} pixels."
            )
        settings = {**settings, "input_shape": requested}
        model = converters.load(checkpoint, layout, **settings)
    return model, requested


def image_size(model):
    """Returns the image size of a model, or a default if it is dynamic."""
    return tokens.image_size(model) or (DEFAULT_SIZE, DEFAULT_SIZE)


def check_exportable(model):
    """Checks that a model has one input, a batch of images, and one output or
    a dict of them.

    Raises:
        ValueError: if it has not.
    """
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
