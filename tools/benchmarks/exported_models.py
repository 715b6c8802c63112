"""Exported models of keras_vit, run without Keras by their runtimes."""

import pathlib
import tempfile

from benchmarks import keras_models

import keras_vit
from keras_vit import exporting


def runs(written, size, images, what):
    """Returns a function that runs the exported model once.

    Args:
        written: Name of a format, followed by " int8" for such weights.
        size: The sizes of the model.
        images: Array of images.
        what: "inference".
    """
    name, _, int8 = written.partition(" ")
    form = exporting.FORMATS[name]
    # The file must stay open: some runtimes read it lazily.
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / f"model{form.suffix}"
    keras_vit.export(
        keras_models.keras_vit(size),
        path,
        name,
        batch_size=len(images),
        int8_weights=bool(int8),
        check=False,
    )
    run = form.read(path)
    return lambda _=folder: run(images)
