"""One function a format: `(model, path, shape, int8)`.

`shape` is that of the images, None where it is left open. `int8` asks for the
format's own quantised weights, where it has any.
"""

import os

import keras

from keras_vit._program import require
from keras_vit.exporting._quiet import quiet


def saved_model(model, path, shape, int8=False):
    """By TensorFlow, or by jax2tf."""
    require("tensorflow", "export")
    options = {}
    if keras.config.backend() == "jax":
        # What is served does not learn, and JAX wants sizes for gradients.
        options["jax2tf_kwargs"] = {"with_gradient": False}
    with quiet():
        model.export(
            path,
            verbose=False,
            input_signature=[_spec(model, shape)],
            **options,
        )


def onnx_of_keras(model, path, shape, int8=False):
    """By tf2onnx or jax2onnx."""
    require(f"{'tf' if _backend() == 'tensorflow' else 'jax'}2onnx", "export")
    signature = [_spec(model, shape)]
    with quiet():
        # Keras asks for a call first; a symbolic one costs nothing.
        model(model.inputs)
        model.export(
            path, format="onnx", verbose=False, input_signature=signature
        )
    _into_one_file(path)
    if int8:
        _quantise_onnx(path)


def onnx_of_torch(model, path, shape, int8=False):
    """By PyTorch's newer exporter, which leaves the batch size open too."""
    import torch

    require("onnxscript", "export")
    axes = {0: "batch"} if shape[0] is None else None
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            _module(model),
            (_sample(model, shape),),
            dynamo=True,
            dynamic_shapes=(axes,),
            input_names=["images"],
            verbose=False,
        )
        program.save(path)
    _into_one_file(path)
    if int8:
        _quantise_onnx(path)


def litert(model, path, shape, int8=False):
    """By TensorFlow Lite's converter."""
    import tensorflow as tf

    options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if int8 else {}
    with quiet():
        model.export(
            path,
            format="litert",
            verbose=False,
            input_signature=[_spec(model, shape)],
            **options,
        )


def torch_program(model, path, shape, int8=False):
    """By torch.export."""
    import torch

    axes = {0: torch.export.Dim.DYNAMIC} if shape[0] is None else None
    with quiet(), torch.no_grad():
        program = torch.export.export(
            _module(model),
            (_sample(model, shape),),
            dynamic_shapes=(axes,),
            strict=False,
        )
        torch.export.save(program, path)


def _into_one_file(path):
    """Takes in the large weights that were written to a file beside it.

    Raises:
        ValueError: from 2 GB up, which no ONNX file holds.
    """
    beside = path.with_name(f"{path.name}.data")
    if not beside.exists():
        return
    onnx = require("onnx", "export")
    try:
        onnx.save_model(onnx.load(path), path)
    finally:
        beside.unlink()


def _quantise_onnx(path):
    """Dense weights become int8, and what they meet, when it runs."""
    quantization = require("onnxruntime.quantization", "export")
    shapes = require("onnxruntime.quantization.shape_inference", "export")
    full = path.with_name(f"{path.stem}-float{path.suffix}")
    os.replace(path, full)
    try:
        with quiet():
            # PyTorch's weights are turned when it runs; only constants are
            # made int8.
            shapes.quant_pre_process(full, full, skip_symbolic_shape=True)
            quantization.quantize_dynamic(
                full,
                path,
                op_types_to_quantize=["MatMul", "Gemm"],
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
            )
    finally:
        full.unlink()


def _module(model):
    """A module of one argument: a Keras model takes any, and PyTorch could
    not tell which of them is meant."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # Hidden from PyTorch: what it finds as a module's weights and
            # again in the graph, it stores twice.
            self.hidden = [model]

        def forward(self, images):
            return self.hidden[0](images, training=False)

    return Module().eval()


def _sample(model, shape):
    # PyTorch takes an axis of 1 for a constant.
    return keras.ops.zeros(
        [2 if n is None else n for n in shape], model.inputs[0].dtype
    )


def _spec(model, shape):
    return keras.InputSpec(
        shape=shape, dtype=model.inputs[0].dtype, name="images"
    )


def _backend():
    return keras.config.backend()
