"""Export of models to SavedModel, ONNX, OpenVINO, LiteRT, PyTorch and a web page."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_vit.config import TextConfig
from keras_vit.exporting import web
from keras_vit.families import build
from keras_vit.inspection import tokens
from keras_vit.models import Model, inference_model, preprocessing_of
from keras_vit.models.features import patch_pixels
from keras_vit.models.graph import output_activation
from keras_vit.models.keras_file import load_keras_file
from keras_vit.utils import onnx
from keras_vit.utils.checks import one_of
from keras_vit.utils.logging import logger
from keras_vit.utils.onnx import quiet
from keras_vit.utils.optional import require
from keras_vit.utils.scaling import Mode
from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, Config, StrPath, Tensor
from keras_vit.weights import open_checkpoint
from keras_vit.weights.files import check_new, locate

__all__ = ["export"]


def __dir__() -> list[str]:
    return __all__  # without the names of imports


Outputs: TypeAlias = Array | dict[str, Array]
# Batch, height, width and channels of images, or batch and length of texts; None
# where dynamic.
Shape: TypeAlias = tuple[int | None, ...]
# A function that applies an exported model to images.
Run: TypeAlias = Callable[[Array], Outputs]

# Tolerances, of float or of int8 weights, are relative to the largest output or,
# for float, to 1 if that is larger.
LIMITS = {"float": 1e-4, "int8": 0.25}
_DEFAULT_SIZE = (224, 224)  # of the random images, if any size is possible
_MAX_BYTES = 2**31  # of the buffers of ONNX and LiteRT
_WRITERS = {"tensorflow": "tf2onnx", "jax": "jax2onnx", "torch": "onnxscript"}


def export(
    model: keras.Model | StrPath,
    path: StrPath,
    format: str | None = None,
    *,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int | None = None,
    int8_weights: bool = False,
    softmax: bool = False,
    check: bool = True,
    overwrite: bool = False,
) -> Path:
    """Exports a model to a file that runs without Keras, and checks it.

    The file is read back and run on random images, with two batch sizes if the batch
    size is dynamic. It is kept if its outputs equal those of Keras. A model in half
    precision, such as `mixed_bfloat16`, is exported in float32, as few runtimes compute
    in half precision on a CPU.

    Args:
        model: A `keras.Model` with one input, `(batch, height, width, channels)`, and
            one output or a dict of outputs, whose names are kept; or a
            `keras_vit.text.TextEncoder`, for texts of its `context_length`; or the path
            or URL of a checkpoint, of a `.keras` file, or of the folder of a recipe's
            run. If a checkpoint does not imply all arguments, pass the model that
            `converters.load` builds with them.
        path: String or path-like. File to write: `.onnx`, `.xml` (OpenVINO,
            with a second file `.bin`), `.tflite` or `.pt2`; without a suffix,
            the folder of a SavedModel. It is not changed if anything fails.
        format: String. `"saved_model"`, `"onnx"`, `"openvino"`, `"litert"`,
            `"torch"`, or `"web"` for a folder with a page that runs the model
            in the browser; None to choose it by the suffix of `path`. The page
            "Export and serve" lists the formats of each backend.
        image_size: Integer, or `(height, width)`, in pixels. Defaults to the
            model's, which may be dynamic. For another size, the position embeddings of
            a checkpoint are resampled.
        batch_size: Integer, or None for any batch size.
        int8_weights: Boolean. Whether to quantize dense weights to int8.
        softmax: Boolean. Whether to output probabilities instead of logits.
        check: Boolean. Whether to run the file and compare its outputs. They may differ
            by at most 1e-4, relative to the largest output if that exceeds 1; with
            `int8_weights`, by a quarter of the largest.
        overwrite: Boolean. Whether to replace an existing file or SavedModel.

    Returns:
        `path`, as a `pathlib.Path`.

    Raises:
        OSError: If `path` exists, or its folder does not.
        ValueError: If the backend cannot write the format, `path` is another
            kind of file, or the outputs differ.

    Example:

    >>> keras_vit.export("runs/digits", "digits.onnx", softmax=True)
    """
    path = Path(path).expanduser()
    form = check_target(path, format, overwrite, check, int8_weights)
    size = image_size
    if isinstance(size, int):
        size = size, size
    loaded: Any = model
    if not isinstance(model, keras.Model):
        loaded = read_model(model, None, {}, size, form)
    loaded = _in_float32(loaded)
    shape = _check_model(form, loaded, batch_size, size)
    names = getattr(loaded, "class_names", None)
    scaling = preprocessing_of(loaded), getattr(loaded, "preprocess_mode", None)
    if softmax:
        loaded = _with_softmax(loaded)
    logger.info(
        f"writing  {form.name} with {keras.config.backend()}, inputs "
        + " x ".join("any" if n is None else str(n) for n in shape)
    )
    if form.name == "web":
        fast: Any = web.Page(loaded, size)
        shape = (1, *fast.sizes[0], shape[3])
    else:
        fast = inference_model(loaded)
    source = fast
    if int8_weights and not form.converted:
        source = inference_model(_quantized(loaded))
    if names:
        source.class_names = tuple(names)
    precision = "int8" if int8_weights else "float"
    samples = list(_random_inputs(loaded, shape)) if check else []
    with _replacing(path, form) as temporary:
        with _explained(form):
            form.write(source, temporary, shape, int8_weights)
            outputs = []
            if check:
                outputs = [*map(form.read(temporary), samples)]
        for images, found in zip(samples, outputs, strict=True):
            expected = fast.predict_on_batch(images)
            _compare(found, expected, images.shape, precision)
    logger.info(f"wrote    {path}")
    if len(shape) == 4 and form.name != "web":
        logger.info(_described(loaded, names or (), *scaling))
    return path


def _described(
    model: keras.Model, names: Sequence[str], preprocessing: Any, mode: Mode | None
) -> str:
    """Returns two lines about what the exported model takes and returns."""
    values = f"of keras_vit.preprocess_input, mode={mode!r}" if mode else "as trained"
    if preprocessing or mode == "tf":
        values = "from 0 to 255" if preprocessing else "from -1 to 1"
    kind = "logits" if output_activation(model) == "linear" else "probabilities"
    shown = [*map(printable, names[:5]), *["..."][: len(names) > 5]]
    found = f"{kind} of {len(names)} classes: {', '.join(shown)}"
    if isinstance(model.output, dict):
        found = ", ".join(model.output)
    elif not names:
        found = "features"
    return f"takes    pixels {values}\nreturns  {found}"


def read_model(
    path: StrPath,
    format: str | None,
    settings: Config,
    size: tuple[int, int] | None,
    form: "Format",
) -> keras.Model:
    """Returns the model of a checkpoint or of any .keras file, for this image size if
    it is a model of this package."""
    local = locate(path)
    if form.name == "web":
        return web.model_of_pixels(local, format, settings, size)
    try:
        checkpoint = open_checkpoint(local, format, settings.get("num_heads"))
        model = build(checkpoint, **settings)
    except ValueError:
        if format or settings or not str(local).endswith(".keras"):
            raise
        return load_keras_file(local)  # of another package
    *sides, channels = model.inputs[0].shape[1:]
    if size and None not in sides and size != tuple(sides):
        model = build(checkpoint, **{**settings, "input_shape": (*size, channels)})
    return model


def check_target(
    path: Path,
    name: str | None,
    overwrite: bool,
    check: bool = True,
    int8_weights: bool = False,
) -> "Format":
    """Returns the format to write, which the suffix of the path decides if `name` is
    None, if the backend and the packages that are installed can write and, with
    `check`, read it, and nothing is lost by it."""
    if name is not None:
        one_of("format", name, FORMATS)
    by_suffix = {form.suffix: form for form in reversed(FORMATS.values())}
    implied = by_suffix.get(path.suffix)
    form = FORMATS[name] if name else implied
    # Keras and PyTorch also choose the format by the suffix.
    if (
        form is None
        or form.suffix not in ("", path.suffix)
        or (implied not in (None, form) and name != "web")
    ):
        raise ValueError(
            f"The name must end in {', '.join(filter(None, by_suffix))}, or have no "
            "suffix for a SavedModel, and must not contradict the format. Received: "
            f"{str(path)!r}, format={name!r}"
        )
    backend = keras.config.backend()
    if backend not in form.backends:
        other = form.backends[0]
        is_missing = importlib.util.find_spec(other) is None
        raise ValueError(
            f"{form.name} is not written with {backend}: run this with "
            f"KERAS_BACKEND={other}. "
            + (f"It is not installed: pip install {other}. " if is_missing else "")
            + "Models are the same under every backend."
        )
    for file in form.files(path):
        check_new(file, overwrite)
    existing = path if form.suffix else path / form.mark
    if path.exists() and not existing.is_file():
        raise ValueError(
            f"{str(path)!r} is not a {form.suffix or 'folder with ' + form.mark}, and "
            "would be deleted. Choose another name."
        )
    needed = form.needs
    if "onnx" in needed:
        needed += (_WRITERS[backend],)
        if int8_weights or (check and form.read is not read_openvino):
            needed += ("onnxruntime",)
    for module in needed:
        require(module, "export", needed)
    return form


def _check_model(
    form: "Format",
    model: keras.Model,
    batch_size: int | None,
    size: tuple[int, int] | None,
) -> Shape:
    """Returns the shape of images, None where it is dynamic, of a model that
    the backend can export in a format."""
    inputs = getattr(model, "inputs", None) or []  # a subclass may have none
    config = getattr(model, "config", None)
    if isinstance(config, TextConfig) and form.name != "web":
        return batch_size, config.context_length
    if [len(x.shape) for x in inputs] != [4] or not (
        len(model.outputs) == 1 or isinstance(model.output, dict)
    ):
        raise ValueError(
            "Only models with one input, (batch, height, width, channels), and one "
            f"output, or a dict of outputs, can be exported, and {model.name!r} is "
            "not one. For a model of keras_vit.pretraining or a `DualEncoder`, "
            "export its `encoder`."
        )
    _, height, width, channels = inputs[0].shape
    if size and None not in (height, width) and size != (height, width):
        raise ValueError(
            f"The model {model.name!r} takes only images of {height} x {width} "
            f"pixels. Received: image_size={size}. Only a checkpoint of "
            "keras_vit can be loaded for another size."
        )
    height, width = size or (height, width)
    backend = keras.config.backend()
    if None in (height, width) and backend not in form.any_size:
        able = " or ".join(f"KERAS_BACKEND={x}" for x in form.any_size)
        grid = getattr(getattr(model, "config", None), "grid_size", None)
        usual = ""
        if grid:  # at which the positions are not resampled
            sides = (n * p for n, p in zip(grid, patch_pixels(model), strict=True))
            usual = f", such as {' and '.join(map(str, sides))}"
        raise ValueError(
            f"With {backend}, {form.name} models have one image size: choose "
            f"it with `image_size`{usual}"
            + (f", or run this with {able}." if able else ".")
        )
    bytes_of_weights = 4 * model.count_params()
    if form.converted and bytes_of_weights >= _MAX_BYTES:
        raise ValueError(
            f"{form.name} files are limited to 2 GB, and the weights of "
            f"{model.name!r} take {bytes_of_weights / 1e9:.1f}. Write a "
            "SavedModel (a name without a suffix) or .pt2 instead."
        )
    return batch_size, height, width, channels


def _in_float32(model: keras.Model) -> keras.Model:
    """Returns a copy of a model of half precision in float32; `model` itself if
    it is of another precision."""
    config = json.dumps(model.get_config())
    # The names of Keras's policies and types of half precision.
    found = re.sub(r'"(mixed_)?b?float16"', '"float32"', config)
    if found == config:
        return model
    kinds = {type(layer).__name__: type(layer) for layer in model.layers}
    return _with_weights(type(model).from_config(json.loads(found), kinds), model)


def _with_weights(copy: keras.Model, model: keras.Model) -> keras.Model:
    """Gives a copy the weights of a model, into which Keras merges LoRA when it
    saves them, as configs of blocks do not have it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(f"{folder}/copy.weights.h5")
        copy.load_weights(f"{folder}/copy.weights.h5")
    return copy


def _with_softmax(model: keras.Model) -> keras.Model:
    """Returns a model with a softmax layer after a model's logits."""
    activation = output_activation(model)
    shapes = [x.shape for x in model.outputs]
    if activation != "linear" or len(shapes) > 1 or len(shapes[0]) != 2:
        raise ValueError(
            "Softmax needs a model that outputs logits of shape (batch, "
            f"classes). Received: outputs of shape {shapes} with the "
            f"activation {activation!r}"
        )
    layer = keras.layers.Softmax(name="probabilities")
    return Model(model.inputs[0], layer(model.outputs[0]), name=model.name)


def _quantized(model: keras.Model) -> keras.Model:
    """Returns a copy of a model with dense weights in int8."""
    copy = _with_weights(keras.models.clone_model(model), model)
    with quiet():  # warnings about layers that cannot be quantized
        copy.quantize("int8")
    return copy


@contextlib.contextmanager
def _explained(form: "Format") -> Iterator[None]:
    """Raises errors of other libraries with the other backends of a format."""
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as error:  # each library raises other types
        backend = keras.config.backend()
        first = str(error).strip().partition("\n")[0]
        message = (
            f"With {backend}, {form.name} could not be written and run: "
            f"{type(error).__name__}: {first}"
        )
        others = [f"KERAS_BACKEND={x}" for x in form.backends if x != backend]
        if others:
            message += (
                ". Other backends convert a .keras file in another way: try "
                f"{' or '.join(others)}."
            )
        raise ValueError(message) from error


def _random_inputs(model: Any, shape: Any) -> Iterator[Array]:
    """Yields images in [-1, 1], of two batch sizes if that is dynamic, and of
    two widths if the width is, or ids of texts."""
    if isinstance(getattr(model, "config", None), TextConfig):
        rng, (batch, length) = np.random.default_rng(0), shape
        for count in (1, 3) if batch is None else (batch,):
            ids = rng.integers(0, model.config.vocabulary_size, (count, length))
            yield ids.astype("int32")
        return
    batch, height, width, channels = shape
    size = tokens.image_size(model) or _DEFAULT_SIZE
    sides = height or size[0], width or size[1]
    batches = (1, 3) if batch is None else (batch,)
    shapes = [(count, *sides, channels) for count in batches]
    if width is None:
        shapes.append((batches[0], sides[0], 2 * sides[1], channels))
    for shape in shapes:
        images = np.random.default_rng(0).uniform(-1, 1, shape)
        yield images.astype(model.inputs[0].dtype)


def _compare(
    found: Outputs, expected: Outputs, shape: Sequence[int], precision: str
) -> None:
    """Raises a `ValueError` if outputs differ from Keras's by more than
    `precision`, "float" or "int8", allows."""
    found, expected = _by_name(found), _by_name(expected)
    size = " x ".join(map(str, shape))
    shapes = [{k: x.shape for k, x in y.items()} for y in (found, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"On images of {size} the exported model gives outputs of shapes "
            f"{shapes[0]}, and Keras {shapes[1]}. Nothing was written."
        )
    largest = 0.0
    for name, array in expected.items():
        difference = np.abs(found[name] - array).max()
        limit = np.abs(array).max()
        if precision != "int8":
            limit = max(1.0, limit)
        limit *= LIMITS[precision]
        if not difference <= limit:  # also for NaN
            raise ValueError(
                f"On images of {size} the exported model differs from Keras "
                f"by {difference:.2g}{name and f' in {name!r}'}, and "
                f"{limit:.2g} is allowed. Nothing was written; `check=False` "
                "writes it without this comparison."
            )
        largest = max(largest, difference)
    logger.info(f"checked  difference {largest:.1e} at {size}")


def _by_name(outputs: Outputs) -> dict[str, Array]:
    """Returns a dict of float32 arrays, with the name "" if there is one."""
    if not isinstance(outputs, dict) or len(outputs) == 1:
        outputs = {"": keras.tree.flatten(outputs)[0]}
    return {name: np.asarray(x, "float32") for name, x in outputs.items()}


@contextlib.contextmanager
def _replacing(target: Path, form: "Format") -> Iterator[Path]:
    """Yields a path of the target's name in a temporary folder next to it. If
    the body succeeds, its files replace those of the target, the first last."""
    parent = target.absolute().parent
    with tempfile.TemporaryDirectory(dir=parent, prefix=".export-") as folder:
        temporary = Path(folder)
        new = temporary / target.name
        yield new
        if target.is_dir():  # a folder cannot replace another one
            os.replace(target, temporary / "old")
        for file in reversed(form.files(new)):
            os.replace(file, parent / file.name)


@dataclasses.dataclass(frozen=True)
class Format:
    """An export format.

    Attributes:
        suffix: Suffix of the file name; "" for a folder.
        backends: Backends that can write it.
        any_size: Backends that can export a dynamic height and width.
        write: Function of a model, a path, the shape of images (None where it is
            dynamic) and a boolean: whether the format's own converter, if it has one,
            quantizes the weights to int8.
        read: Function that returns the exported model as a function of images.
        converted: Whether a converter writes it, which quantizes weights itself
            and whose files have a limit; otherwise Keras quantizes the model.
        second: Suffix of a second file, which is next to the first one.
        mark: Name of the file that identifies a folder of this format.
        needs: Names of the packages that it needs; with "onnx", it also needs that
            which writes ONNX with the backend.
    """

    name: str
    suffix: str
    backends: tuple[str, ...]
    any_size: tuple[str, ...]
    write: Callable[..., None]
    read: Callable[[Path], Run]
    converted: bool = False
    second: str | None = None
    mark: str = "saved_model.pb"
    needs: tuple[str, ...] = ()

    def files(self, target: Path) -> list[Path]:
        """Returns the paths of the files or the folder of a target."""
        second = [target.with_suffix(self.second)] if self.second else []
        return [target, *second]


def _input_name(shape: Shape) -> str:
    return "ids" if len(shape) == 2 else "images"


def _write(
    model: keras.Model, path: Path, shape: Shape, format: str, **options: Any
) -> None:
    """Writes a format with `keras.Model.export`."""
    dtype = model.inputs[0].dtype
    spec = keras.InputSpec(shape=shape, dtype=dtype, name=_input_name(shape))
    options |= {"format": format, "input_signature": [spec]}
    with quiet():
        # For ONNX, Keras requires a previous call; a symbolic one is cheap.
        model(model.inputs)
        model.export(path, verbose=False, **options)


def write_saved_model(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes a SavedModel with TensorFlow or jax2tf."""
    require("tensorflow", "export")
    # Gradients are not needed, and would require static shapes.
    options = {"jax2tf_kwargs": {"with_gradient": False}}
    on_jax = keras.config.backend() == "jax"
    _write(model, path, shape, "tf_saved_model", **(options if on_jax else {}))


def write_onnx(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes ONNX with tf2onnx, jax2onnx or PyTorch's dynamo exporter.

    For any batch size, Keras would use PyTorch's former exporter, which cannot
    write float16.
    """
    backend = keras.config.backend()
    if backend == "torch":
        call, images = _traced(model, shape)
        axes = {0: "batch"} if shape[0] is None else None
        onnx.trace(call, {_input_name(shape): images}, (axes,)).save(path)
    else:
        if backend == "tensorflow":
            _register_erfc()
        _write(model, path, shape, "onnx")
    _finish_onnx(model, path, int8)


def _register_erfc() -> None:
    """Registers erfc, with which TensorFlow 2.21 computes exact GELU, in tf2onnx, whose
    newest version, 1.17.0, lacks it: it is written as 1 - erf."""
    handler = require("tf2onnx.handler", "export")
    utils = require("tf2onnx.utils", "export")

    @handler.tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx: Any, node: Any, **kwargs: Any) -> None:
            inputs, outputs = list(node.input), list(node.output)
            dtype = ctx.get_dtype(outputs[0])
            known = {"shapes": [ctx.get_shape(outputs[0])], "dtypes": [dtype]}
            ctx.remove_node(node.name)
            value = np.array(1, utils.map_onnx_to_numpy_type(dtype))
            one = ctx.make_const(utils.make_name("one"), value)
            erf = ctx.make_node("Erf", inputs, **known)
            terms = [one.output[0], erf.output[0]]
            ctx.make_node("Sub", terms, outputs=outputs, **known)


def write_openvino(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes OpenVINO's format with its reader of ONNX.

    `keras.Model.export(format="openvino")` traces a fixed batch size under
    PyTorch, and reports its use to OpenVINO's authors.
    """
    openvino = require("openvino", "export")
    onnx = path.with_suffix(".onnx")
    write_onnx(model, onnx, shape, int8)
    # `save_model` would round the weights to float16.
    openvino.serialize(openvino.Core().read_model(onnx), path)
    onnx.unlink()


def write_litert(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes LiteRT with TensorFlow's converter."""
    import tensorflow as tf

    options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if int8 else {}
    _write(model, path, shape, "litert", **options)


def write_torch_program(
    model: keras.Model, path: Path, shape: Shape, int8: bool = False
) -> None:
    """Writes an exported program of PyTorch.

    Keras's would store the weights twice: as weights and as constants.
    """
    torch = require("torch", "export")
    call, images = _traced(model, shape)

    class Module(torch.nn.Module):
        def forward(self, images: Tensor) -> Any:
            return call(images)

    axes = {0: torch.export.Dim.DYNAMIC} if shape[0] is None else None
    with quiet(), torch.no_grad():
        program = torch.export.export(
            Module().eval(), (images,), dynamic_shapes=(axes,), strict=False
        )
        torch.export.save(program, path)


def _traced(model: keras.Model, shape: Shape) -> tuple[Callable[[Tensor], Any], Tensor]:
    """Returns a function that calls a model, and images to trace it.

    A module that calls it has a fixed signature, as PyTorch's exporter needs,
    and does not own the model's weights, which would be stored twice.
    """

    def call(images: Tensor) -> Any:
        outputs = model(images, training=False)
        if isinstance(outputs, dict):
            outputs = {name: outputs[name] for name in sorted(outputs)}
        return outputs

    # Not 1, as PyTorch would treat an axis of length 1 as static.
    sizes = [2 if size is None else size for size in shape]
    return call, keras.ops.zeros(sizes, model.inputs[0].dtype)


def _finish_onnx(model: keras.Model, path: Path, int8: bool) -> None:
    """Puts the weights into an ONNX file, gives its outputs the names of the
    model's, and quantizes it.

    The name of a single output is "output". The converters choose names such
    as "add_2019", which change with the model and the version.
    """
    onnx = require("onnx", "export")
    file = onnx.load(path)  # with large weights, which have their own file
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    several = isinstance(model.output, dict)
    # PyTorch and JAX write the values of a dict in the order of its keys.
    names = sorted(model.output) if several else ["output"]
    old = [output.name for output in file.graph.output]
    new = {} if set(old) == set(names) else dict(zip(old, names, strict=True))
    for node in file.graph.node:
        for values in (node.input, node.output):
            values[:] = [new.get(value, value) for value in values]
    for output in file.graph.output:
        output.name = new.get(output.name, output.name)
    if names := getattr(model, "class_names", None):
        onnx.helper.set_model_props(file, {"class_names": json.dumps(names)})
    onnx.checker.check_model(file)
    onnx.save_model(file, path)
    if int8:
        _quantize_onnx(path)


def _quantize_onnx(path: Path) -> None:
    """Quantizes dense weights to int8, and activations at run time."""
    onnx = require("onnx", "export")
    quantization = require("onnxruntime.quantization", "export")
    shapes = require("onnxruntime.quantization.shape_inference", "export")
    full = path.with_name(f"{path.stem}-float{path.suffix}")
    with quiet():
        # Folds the transpositions of PyTorch's weights into constants, since
        # only constants are quantized.
        shapes.quant_pre_process(path, full, skip_symbolic_shape=True)
        # JAX's dense layers are written as `Gemm` with a third operand, which
        # is multiplied by 0. With it, their weights would stay in float32.
        file = onnx.load(full)
        for node in file.graph.node:
            for attribute in node.attribute if node.op_type == "Gemm" else ():
                if attribute.name == "beta" and attribute.f == 0:
                    del node.input[2:]
                    attribute.f = 1
        onnx.save_model(file, full)
        quantization.quantize_dynamic(
            full,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            # Weights have 7 bits. Products of 8 bits overflow on processors without
            # VNNI, where outputs differed by 0.97 and 0.32 is allowed.
            reduce_range=True,
        )
    full.unlink()


def _outputs(by_name: dict[str, Array]) -> Outputs:
    """Returns arrays by name, or the array if there is one."""
    return by_name if len(by_name) > 1 else next(iter(by_name.values()))


def read_saved_model(path: Path) -> Run:
    """Reads a SavedModel."""
    tf = require("tensorflow", "export")
    served = tf.saved_model.load(str(path))
    return lambda images: keras.tree.map_structure(
        np.asarray, served.serve(tf.constant(images))
    )


def read_onnx(path: Path) -> Run:
    """Reads an ONNX file."""
    run = onnx.read(path)
    return lambda images: _outputs(run(images))


def read_openvino(path: Path) -> Run:
    """Reads OpenVINO's format."""
    openvino = require("openvino", "export")
    # Otherwise, CPUs that have bfloat16 compute in it.
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", options)

    def run(images: Array) -> Outputs:
        found = compiled(images)
        return _outputs({x.get_any_name(): found[x] for x in found})

    return run


def read_litert(path: Path) -> Run:
    """Reads a LiteRT file."""
    try:
        litert = require("ai_edge_litert.interpreter", "export")
    except ImportError:  # older versions of TensorFlow include it
        litert = require("tensorflow", "export").lite
    with quiet():  # TensorFlow's interpreter warns that it is deprecated
        # By default it uses one core, whereas other libraries use all.
        interpreter = litert.Interpreter(str(path), num_threads=os.cpu_count())
    with _without_native_lines():
        interpreter.allocate_tensors()
    served = interpreter.get_signature_runner()
    (name,) = served.get_input_details()

    def run(images: Array) -> Outputs:
        return _outputs(served(**{name: images}))

    return run


@contextlib.contextmanager
def _without_native_lines() -> Iterator[None]:
    """Hides what C++ code prints on stderr: LiteRT names its delegate when it first
    allocates tensors, and has no setting for this."""
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def read_torch_program(path: Path) -> Run:
    """Reads an exported program of PyTorch."""
    torch = require("torch", "export")
    module = torch.export.load(path).module()

    def run(images: Array) -> Outputs:
        with torch.no_grad():
            outputs = module(keras.ops.convert_to_tensor(images))
            return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)

    return run


_TF = ("tensorflow",)
_ALL = ("tensorflow", "jax", "torch")
_TORCH = ("torch",)
FORMATS = {
    form.name: form
    for form in (
        Format(
            "saved_model",
            "",
            ("tensorflow", "jax"),
            ("tensorflow", "jax"),
            write_saved_model,
            read_saved_model,
            needs=("tensorflow",),
        ),
        Format(
            "onnx",
            ".onnx",
            _ALL,
            _TF,
            write_onnx,
            read_onnx,
            converted=True,
            needs=("onnx",),
        ),
        # OpenVINO's reader of ONNX finds different shapes of one dense layer in
        # models of any size ("Argument shapes are inconsistent", openvino
        # 2026.4).
        Format(
            "openvino",
            ".xml",
            _ALL,
            (),
            write_openvino,
            read_openvino,
            converted=True,
            second=".bin",
            needs=("onnx", "openvino"),
        ),
        Format(
            "litert",
            ".tflite",
            _TF,
            _TF,
            write_litert,
            read_litert,
            converted=True,
        ),
        Format("torch", ".pt2", _TORCH, (), write_torch_program, read_torch_program),
        Format(
            "web",
            "",
            _TORCH,
            _TORCH,
            web.write_page,
            web.read_page,
            converted=True,
            mark=web.CONFIG,
            needs=("onnx",),
        ),
    )
}
