"""One function a format: opens a file and returns what runs it, from an array
of images to an array."""

import os

import keras
import numpy as np

from keras_vit._program import require


def _cores():
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def saved_model(path):
    tf = require("tensorflow", "export")
    served = tf.saved_model.load(str(path))

    def run(images):
        return np.asarray(served.serve(tf.constant(images)))

    return run


def onnx(path):
    runtime = require("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name

    def run(images):
        return session.run(None, {name: images})[0]

    return run


def litert(path):
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:  # until TensorFlow leaves its own out
        Interpreter = require("tensorflow", "export").lite.Interpreter
    # Of itself it takes one core; the others take all.
    interpreter = Interpreter(str(path), num_threads=_cores())
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    result = interpreter.get_output_details()[0]["index"]
    shape = tuple(interpreter.get_input_details()[0]["shape"])

    def run(images):
        nonlocal shape
        if images.shape != shape:
            interpreter.resize_tensor_input(source, images.shape)
            interpreter.allocate_tensors()
            shape = images.shape
        interpreter.set_tensor(source, images)
        interpreter.invoke()
        return interpreter.get_tensor(result)

    return run


def torch_program(path):
    import torch

    module = torch.export.load(path).module()

    def run(images):
        with torch.no_grad():
            return keras.ops.convert_to_numpy(
                module(keras.ops.convert_to_tensor(images))
            )

    return run
