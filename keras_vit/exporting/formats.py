"""Export formats, with a writer for each backend and a reader.

A writer is a function of `(model, path, shape, int8)`: `shape` is the shape of
the images, None where dynamic, and `int8` requests the quantization of the
format's own converter, if it has one. A reader loads an exported model and
returns a function that maps an array of images to an array, or to a dict of
arrays by name if the model has several outputs.
"""

import contextlib
import dataclasses
import io
import logging
import os
import pathlib
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import TypeAlias

import keras
import numpy as np

from keras_vit._program import require
from keras_vit._types import Array
from keras_vit._types import Tensor
from keras_vit.exporting.checking import Outputs
from keras_vit.exporting.checking import Run
from keras_vit.exporting.checking import Shape

Path: TypeAlias = pathlib.Path

_MAX_FLATBUFFER_BYTES = 2**31  # also the limit of ONNX (protocol buffers)


@dataclasses.dataclass(frozen=True)
class Format:
    """An export format.

    Attributes:
        suffix: Suffix of the file name; "" for a folder.
        writers: The writer of each backend.
        reader: The reader.
        program: Name of the library that runs the exported model.
        any_size: Backends that can export dynamic height and width.
        quantizes: Whether the writer quantizes weights; otherwise Keras
            quantizes the model before.
        max_bytes: Size limit of a file.
        second: Suffix of a second file, which the format writes next to the
            first one.
    """

    suffix: str
    writers: dict[str, Callable[..., None]]
    reader: Callable[[Path], Run]
    program: str
    any_size: tuple[str, ...] = ()
    quantizes: bool = False
    max_bytes: int | None = None
    second: str | None = None

    def files(self, target: Path) -> list[Path]:
        """Returns the paths of the files or the folder of a target."""
        second = [target.with_suffix(self.second)] if self.second else []
        return [target, *second]


def format_of(name: str | None, target: Path) -> str:
    """Returns the format to write, a key of `FORMATS`, which the suffix of the
    target decides if `name` is None."""
    by_suffix = {form.suffix: key for key, form in FORMATS.items()}
    suffix = target.suffix
    known = f"{', '.join(filter(None, by_suffix))} or none for a SavedModel"
    if name is None and suffix not in by_suffix:
        raise ValueError(
            f"TARGET's name must end in {known}, or --format must be given. "
            f"Received: {str(target)!r}"
        )
    name = name or by_suffix[suffix]
    if suffix in by_suffix and suffix and by_suffix[suffix] != name:
        raise ValueError(
            f"--format {name} and the name {target.name!r} contradict each "
            f"other: {suffix} is {by_suffix[suffix]}."
        )
    # Keras and PyTorch also choose the format by the suffix.
    if FORMATS[name].suffix != suffix and FORMATS[name].suffix:
        raise ValueError(
            f"The name of a {name} file must end in {FORMATS[name].suffix}. "
            f"Received: {str(target)!r}"
        )
    return name


def writer_of(name: str) -> Callable[..., None]:
    """Returns the writer of a format for the current backend."""
    backend = keras.config.backend()
    writers = FORMATS[name].writers
    if backend not in writers:
        others = " or ".join(sorted(writers))
        raise ValueError(
            f"{name} is written with {others}, not with {backend}: run this "
            f"with KERAS_BACKEND={sorted(writers)[-1]}. Models are the same "
            "under every backend."
        )
    return writers[backend]


def check_representable(name: str, model: keras.Model, shape: Shape) -> None:
    """Raises a `ValueError` if the backend cannot export images of any size in
    a format, or if the weights exceed its size limit."""
    form, backend = FORMATS[name], keras.config.backend()
    if None in shape[1:3] and backend not in form.any_size:
        able = " or ".join(f"KERAS_BACKEND={x}" for x in form.any_size)
        raise ValueError(
            f"With {backend}, {name} models have one image size: choose it "
            "with --image-size"
            + (f", or run this with {able}." if able else ".")
        )
    size = 4 * model.count_params()
    if form.max_bytes and size >= form.max_bytes:
        raise ValueError(
            f"{name} files are limited to 2 GB, and the weights of "
            f"{model.name!r} take {size / 1e9:.1f}. Write a "
            "SavedModel (TARGET without a suffix) or .pt2 instead."
        )


def write_saved_model(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes a SavedModel with TensorFlow or jax2tf."""
    require("tensorflow", "export")
    options = {}
    if keras.config.backend() == "jax":
        # Gradients are not needed, and would require static shapes.
        options["jax2tf_kwargs"] = {"with_gradient": False}
    with quiet():
        model.export(
            path,
            verbose=False,
            input_signature=[_spec(model, shape)],
            **options,
        )


def write_onnx(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes ONNX with tf2onnx or jax2onnx."""
    prefix = "tf" if keras.config.backend() == "tensorflow" else "jax"
    require(f"{prefix}2onnx", "export")
    signature = [_spec(model, shape)]
    with quiet():
        # Keras requires a previous call; a symbolic one costs nothing.
        model(model.inputs)
        model.export(
            path, format="onnx", verbose=False, input_signature=signature
        )
    _embed_external_data(path)
    _name_outputs(path, model)
    if int8:
        _quantize_onnx(path)


def write_onnx_with_torch(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes ONNX with PyTorch's dynamo exporter."""
    torch = require("torch", "export")

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
    _embed_external_data(path)
    _name_outputs(path, model)
    if int8:
        _quantize_onnx(path)


def write_openvino(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes OpenVINO's format with its reader of ONNX.

    `keras.Model.export(format="openvino")` traces a fixed batch size under
    PyTorch, and reports its use to OpenVINO's authors.
    """
    openvino = require("openvino", "export")
    onnx = path.with_suffix(".onnx")
    try:
        writer_of("onnx")(model, onnx, shape, int8)
        # `save_model` would round the weights to float16.
        openvino.serialize(openvino.Core().read_model(onnx), path)
    finally:
        onnx.unlink(missing_ok=True)


def write_litert(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes LiteRT with TensorFlow's converter."""
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


def write_torch_program(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes an exported program of PyTorch."""
    torch = require("torch", "export")

    axes = {0: torch.export.Dim.DYNAMIC} if shape[0] is None else None
    with quiet(), torch.no_grad():
        program = torch.export.export(
            _module(model),
            (_sample(model, shape),),
            dynamic_shapes=(axes,),
            strict=False,
        )
        torch.export.save(program, path)


def _embed_external_data(path: Path) -> None:
    """Moves large weights from the external data file into the ONNX file."""
    external = path.with_name(f"{path.name}.data")
    if not external.exists():
        return
    onnx = require("onnx", "export")
    try:
        onnx.save_model(onnx.load(path), path)
    finally:
        external.unlink()


def _name_outputs(path: Path, model: keras.Model) -> None:
    """Gives the outputs of an ONNX file the names of a model's outputs.

    The name of a single output is "output". The converters choose names such
    as "add_2019", which change with the model and the version.
    """
    onnx = require("onnx", "export")
    file = onnx.load(path)
    several = isinstance(model.output, dict)
    # PyTorch and JAX write the values of a dict in the order of its keys.
    names = sorted(model.output) if several else ["output"]
    old = [output.name for output in file.graph.output]
    if set(old) == set(names):  # written by tf2onnx
        return
    new = dict(zip(old, names, strict=True))
    for node in file.graph.node:
        for values in (node.input, node.output):
            values[:] = [new.get(value, value) for value in values]
    for output in file.graph.output:
        output.name = new[output.name]
    onnx.checker.check_model(file)
    onnx.save_model(file, path)


def _quantize_onnx(path: Path) -> None:
    """Quantizes dense weights to int8, and activations at run time."""
    quantization = require("onnxruntime.quantization", "export")
    shapes = require("onnxruntime.quantization.shape_inference", "export")
    full = path.with_name(f"{path.stem}-float{path.suffix}")
    os.replace(path, full)
    try:
        with quiet():
            # Folds the transpositions of PyTorch's weights into constants,
            # since only constants are quantized.
            shapes.quant_pre_process(full, full, skip_symbolic_shape=True)
            quantization.quantize_dynamic(
                full,
                path,
                op_types_to_quantize=["MatMul", "Gemm"],
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                # Products of 8 bits overflow on processors without VNNI.
                reduce_range=True,
            )
    finally:
        full.unlink()


def _module(model: keras.Model) -> Any:
    """Wraps a Keras model as a PyTorch module with a single argument.

    PyTorch's exporter needs a fixed signature, and that of a Keras model is
    `(*args, **kwargs)`.
    """
    torch = require("torch", "export")

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # The list keeps PyTorch from registering the model's weights,
            # which would be stored twice: as weights and as constants.
            self.models = [model]

        def forward(self, images: Tensor) -> Any:
            outputs = self.models[0](images, training=False)
            if isinstance(outputs, dict):
                outputs = {name: outputs[name] for name in sorted(outputs)}
            return outputs

    return Module().eval()


def _sample(model: keras.Model, shape: Shape) -> Tensor:
    """Returns images of a shape, which is traced."""
    # Not 1, as PyTorch would treat an axis of length 1 as static.
    return keras.ops.zeros(
        [2 if n is None else n for n in shape], model.inputs[0].dtype
    )


def _spec(model: keras.Model, shape: Shape) -> keras.InputSpec:
    """Returns the signature of the exported model."""
    return keras.InputSpec(
        shape=shape, dtype=model.inputs[0].dtype, name="images"
    )


def _num_cores() -> int | None:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def read_saved_model(path: Path) -> Run:
    """Reads a SavedModel."""
    tf = require("tensorflow", "export")
    served = tf.saved_model.load(str(path))

    def run(images: Array) -> Outputs:
        outputs = served.serve(tf.constant(images))
        return keras.tree.map_structure(np.asarray, outputs)

    return run


def read_onnx(path: Path) -> Run:
    """Reads an ONNX file."""
    runtime = require("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name

    names = [output.name for output in session.get_outputs()]

    def run(images: Array) -> Outputs:
        arrays = session.run(None, {name: images})
        return (
            arrays[0]
            if len(arrays) == 1
            else dict(zip(names, arrays, strict=True))
        )

    return run


def read_openvino(path: Path) -> Run:
    """Reads OpenVINO's format."""
    openvino = require("openvino", "export")
    # Otherwise, CPUs that have bfloat16 compute in it.
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", options)

    def run(images: Array) -> Outputs:
        found = compiled(images)
        if len(compiled.outputs) == 1:
            return found[0]
        return {output.get_any_name(): found[output] for output in found}

    return run


def read_litert(path: Path) -> Run:
    """Reads a LiteRT file."""
    try:
        litert = require("ai_edge_litert.interpreter", "export")
    except ImportError:  # older versions of TensorFlow include it
        litert = require("tensorflow", "export").lite
    # By default it uses one core, whereas other libraries use all.
    with quiet():  # TensorFlow's interpreter warns that it is deprecated
        interpreter = litert.Interpreter(str(path), num_threads=_num_cores())
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    results = {
        name: output["index"]
        for name, output in interpreter.get_signature_runner()
        .get_output_details()
        .items()
    }
    shape = tuple(interpreter.get_input_details()[0]["shape"])

    def run(images: Array) -> Outputs:
        nonlocal shape
        if images.shape != shape:
            interpreter.resize_tensor_input(source, images.shape)
            interpreter.allocate_tensors()
            shape = images.shape
        interpreter.set_tensor(source, images)
        interpreter.invoke()
        arrays = {
            name: interpreter.get_tensor(index)
            for name, index in results.items()
        }
        return arrays if len(arrays) > 1 else next(iter(arrays.values()))

    return run


def read_torch_program(path: Path) -> Run:
    """Reads an exported program of PyTorch."""
    torch = require("torch", "export")

    module = torch.export.load(path).module()

    def run(images: Array) -> Outputs:
        with torch.no_grad():
            outputs = module(keras.ops.convert_to_tensor(images))
            return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)

    return run


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the logs, warnings and printed output of converters."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


FORMATS = {
    "saved_model": Format(
        "",
        dict.fromkeys(("tensorflow", "jax"), write_saved_model),
        read_saved_model,
        "TensorFlow",
        any_size=("tensorflow", "jax"),
    ),
    "onnx": Format(
        ".onnx",
        {
            "tensorflow": write_onnx,
            "jax": write_onnx,
            "torch": write_onnx_with_torch,
        },
        read_onnx,
        "onnxruntime",
        any_size=("tensorflow",),
        quantizes=True,
        max_bytes=_MAX_FLATBUFFER_BYTES,
    ),
    "openvino": Format(
        ".xml",
        dict.fromkeys(("tensorflow", "jax", "torch"), write_openvino),
        read_openvino,
        "OpenVINO",
        # Its reader of ONNX finds different shapes of one dense layer in models
        # of any size ("Argument shapes are inconsistent", openvino 2026.4).
        any_size=(),
        quantizes=True,
        max_bytes=_MAX_FLATBUFFER_BYTES,
        second=".bin",
    ),
    "litert": Format(
        ".tflite",
        {"tensorflow": write_litert},
        read_litert,
        "LiteRT",
        any_size=("tensorflow",),
        quantizes=True,
        max_bytes=_MAX_FLATBUFFER_BYTES,
    ),
    "torch": Format(
        ".pt2",
        {"torch": write_torch_program},
        read_torch_program,
        "torch.export",
    ),
}
