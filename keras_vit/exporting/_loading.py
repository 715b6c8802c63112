"""The model to export, at the size of images that was asked for."""

import zipfile

import keras

from keras_vit import converters
from keras_vit import downloads
from keras_vit.checkpoints.files import resolve_run_folder
from keras_vit.inspection import _parts

SIZE = 224  # pixels, where nothing tells


def load(path, layout=None, settings=None, size=None):
    """Loads a model.

    Args:
        path: What `converters.load` reads, or a .keras file of any model.
        layout: String or None, see `converters.load`.
        settings: Dict of arguments that win over what the file tells.
        size: `(height, width)` of the images; None for the model's own.

    Returns:
        The model, and the shape of one image, None where it is left open.

    Raises:
        ValueError: if it cannot be loaded, does not fit the size, or has
            several inputs or outputs.
    """
    settings = settings or {}
    checkpoint = None
    try:
        checkpoint = converters.open_checkpoint(
            path, layout, settings.get("num_heads")
        )
        model = converters.load(checkpoint, layout, **settings)
    except ValueError as error:
        if checkpoint or layout or settings or not _is_whole(path):
            raise
        model = _any_model(path, error)
    raise_unless_plain(model)
    shape = tuple(model.inputs[0].shape[1:])
    wanted = (*(size or shape[:2]), shape[-1])
    if shape[:2] != wanted[:2] and None not in shape[:2]:
        if checkpoint is None:
            raise ValueError(
                f"--image-size: {str(path)!r} takes images of {shape[0]} x "
                f"{shape[1]} pixels alone, and was not made by keras_vit."
            )
        settings = {**settings, "input_shape": wanted}
        model = converters.load(checkpoint, layout, **settings)
    return model, wanted


def image_size(model):
    """The size of images to run a model with: its own, or what its positions
    were learned for."""
    return _parts.image_size(model) or (SIZE, SIZE)


def raise_unless_plain(model):
    """Says what of a model cannot be exported here.

    Raises:
        ValueError: if it is no function of one batch of images.
    """
    try:
        count = (len(model.inputs), len(model.outputs))
        rank = len(model.inputs[0].shape)
    except (AttributeError, TypeError, ValueError, IndexError):
        count, rank = None, None
    if count != (1, 1) or rank != 4:
        raise ValueError(
            "Exported is a model of one input, (batch, height, width, "
            f"channels), and one output. {model.name!r} has other ones; of a "
            "model of keras_vit.pretraining, export its `encoder`."
        )


def _is_whole(path):
    path = resolve_run_folder(downloads.fetch_if_remote(path))
    return str(path).endswith(".keras") and zipfile.is_zipfile(path)


def _any_model(path, error):
    path = resolve_run_folder(downloads.fetch_if_remote(path))
    try:
        return keras.models.load_model(path, safe_mode=True)
    except (ValueError, TypeError, KeyError) as other:
        raise ValueError(f"{error}\nNor does Keras load it: {other}") from other
