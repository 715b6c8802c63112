"""Exported models of keras_vit, run without Keras by their runtimes."""

import pathlib
import tempfile

import numpy as np
from benchmarks import keras_models

import keras_vit
from keras_vit import exporting

# A format, and whether its weights are int8.
saved_model = "saved_model", False
onnx, onnx_int8 = ("onnx", False), ("onnx", True)
openvino, openvino_int8 = ("openvino", False), ("openvino", True)
litert, litert_int8 = ("litert", False), ("litert", True)
torch_program = "torch", False


def runs(written, size, batch, what, dtype):
    """Returns a function that runs the exported model a number of times."""
    if what != "inference" or dtype != "float32":
        raise ValueError(f"exported models have no {what} in {dtype} here")
    name, int8 = written
    form = exporting.FORMATS[name]
    shape = (batch, size.image_size, size.image_size, 3)
    # The file must stay open: some runtimes read it lazily.
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / f"model{form.suffix}"
    keras_vit.export(
        keras_models.keras_vit(size),
        path,
        name,
        batch_size=batch,
        int8_weights=int8,
        check=False,
    )
    run = form.read(path)
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")

    def repeat(times, _=folder):
        for _ in range(times):
            run(images)

    return repeat
