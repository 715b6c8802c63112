"""A page that runs a model in the browser: a folder for any static server.

Each image size that the page offers has two ONNX graphs, which share a file of
weights with the other sizes:

- columns: resizes the columns of some rows of a picture, whose other rows are
  in further calls, so that memory does not depend on the picture's size;
- model: resizes the rows of the result, and computes probabilities or features,
  `inspection.attention_heads` of each block, and `inspection.relevance`.
  PyTorch's gradients are traced when the page is written, so that the graph
  consists of forward operations.
"""

import hashlib
import importlib.resources
import json
import tarfile
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import downloads
from keras_vit._program import require
from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import Tensor
from keras_vit.inspection import tokens
from keras_vit.inspection.attention import pooling_tensor
from keras_vit.inspection.relevance import Parts
from keras_vit.inspection.relevance import accumulated_products
from keras_vit.inspection.relevance import last_tokens
from keras_vit.layers import ImagePreprocessing
from keras_vit.models import patch_pixels
from keras_vit.preprocessing.labels import IMAGENET_CLASSES
from keras_vit.preprocessing.labels import imagenet_labels
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.files import read_config

RUNTIME = downloads.Source(
    "https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-1.30.0.tgz",
    "sha256:d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
)
RUNTIME_FILES = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
CONFIG = "model.json"
_WEIGHTS = "weights.bin"
_OUTPUTS = ["output", "attention", "relevance"]
_DEFAULT_SIZE = (224, 224)
_FACTORS = (1, 1.5, 2)  # of the sizes of a model that takes any
_LARGE = 1024  # values of an array that is in the file of weights


def load_settings(
    checkpoint: Checkpoint, size: tuple[int, int] | None
) -> Config:
    """Returns the arguments of a model from pixels to probabilities, of a size
    or of any."""
    shape = (*(size or (None, None)), checkpoint.channels)
    settings: Config = {"preprocessing": True, "input_shape": shape}
    if checkpoint.classes:
        config = read_config(checkpoint.path)
        several = (
            config.get("config", {}).get("loss") == "sigmoid"
            or config.get("problem_type") == "multi_label_classification"
        )
        settings["classifier_activation"] = "sigmoid" if several else "softmax"
    return settings


class Page:
    """What a page computes for one image; `size` is that of its images."""

    def __init__(
        self, model: keras.Model, size: tuple[int, int] | None
    ) -> None:
        self.model, self.inputs, self.layers = model, model.inputs, model.layers
        self.count = model.output.shape[-1]
        self.channels = model.inputs[0].shape[-1]
        layer = tokens.find_layer(model, ImagePreprocessing)
        if layer is None or self.channels not in (1, 3):
            raise ValueError(
                "A page needs a model of pixels of 1 or 3 channels: build it "
                "with `preprocessing=`, or export its checkpoint. Received: "
                f"{model.name!r} of {self.channels} channels"
            )
        shape: Any = size or layer.image_size or model.inputs[0].shape[1:3]
        self.sizes = [tuple(shape)]
        if None in shape:
            patch = patch_pixels(model)
            base = tokens.image_size(model) or _DEFAULT_SIZE
            self.sizes = [
                tuple(
                    max(1, round(n * factor / pixels)) * pixels
                    for n, pixels in zip(base, patch, strict=True)
                )
                for factor in _FACTORS
            ]
        self._blocks = tokens.find_blocks(model)
        self._tail = keras.Model(self._blocks[-1].output, model.output)
        self.class_names: Sequence[str] | None = None
        if self._parts(self.sizes[0]).heads:
            self.class_names = [f"class {i}" for i in range(self.count)]
            if self.count == IMAGENET_CLASSES:
                self.class_names = [name for _, name in imagenet_labels()]

    def _parts(self, size: Sequence[int]) -> Parts:
        return Parts(self.model, None, tokens.token_layout(self.model, size))

    def compute(
        self, image: Tensor, direction: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the output, `(1, count)`, the attention of the output to the
        patches, `(blocks, heads, rows, columns)`, and the relevance of patches
        `(rows, columns)` for a direction of the output, `(1, count)`. If it is
        0, the direction is the best class, or the output of an encoder."""
        parts = self._parts(image.shape[1:3])
        prefix, grid = parts.layout.num_prefix, parts.layout.grid
        inputs = parts.block_inputs(image)
        last = last_tokens(parts, inputs)
        y = ops.cast(parts.outputs(last), "float32")
        own = ops.cast(y == ops.max(y), y.dtype) if parts.heads else y
        direction = ops.where(ops.any(direction != 0), direction, own)
        direction = direction / ops.norm(direction)
        pooling = pooling_tensor(self.model, image, parts.layout)
        pooling = ops.cast(pooling, "float32")
        products = accumulated_products(parts, inputs, direction)
        relevance = ops.matmul(pooling, products)[0, prefix:]
        maps = []
        for block, (x, *relative) in zip(parts.blocks, inputs, strict=True):
            x = block.attention.probabilities(block.norm_1(x), None, *relative)
            x = ops.einsum("bq,bhqk->hk", pooling, x)
            maps.append(ops.reshape(x[:, prefix:], (-1, *grid)))
        if parts.heads:
            y = self._tail(last)
        return y, ops.stack(maps), ops.reshape(relevance, grid)

    def predict_on_batch(self, images: Array) -> dict[str, Array]:
        """Returns the outputs for one image and the direction 0, by name."""
        image = ops.convert_to_tensor(images)
        found = self.compute(image, ops.zeros((1, self.count)))
        arrays = map(ops.convert_to_numpy, found)
        return dict(zip(_OUTPUTS, arrays, strict=True))


def write_page(
    page: Page, path: Path, shape: Sequence[int | None], int8: bool
) -> None:
    """Writes the folder of a page."""
    runtime, _ = downloads.fetch(
        downloads.cache_dir() / "npm", (RUNTIME,), label=RUNTIME.name
    )
    path.mkdir()
    config = {"sizes": page.sizes, "channels": page.channels}
    config |= {"outputs": page.count, "labels": page.class_names}
    (path / CONFIG).write_text(json.dumps(config))
    places: dict[bytes, tuple[int, int]] = {}
    for size in page.sizes:
        for name, graph in _graphs(page, size).items():
            file = path / "{}-{}x{}.onnx".format(name, *size)
            _save(graph, file, places, int8)
    for name in ("index.html", "page.js"):
        source = importlib.resources.files(__name__) / name
        (path / name).write_bytes(source.read_bytes())
    with tarfile.open(runtime) as archive:
        for name in RUNTIME_FILES:
            file = archive.extractfile(f"package/dist/{name}")
            (path / name).write_bytes(file.read() if file else b"")


def read_page(path: Path) -> Callable[[Array], dict[str, Array]]:
    """Reads the model of a page for its first image size."""
    runtime = require("onnxruntime", "export")
    config = json.loads((path / CONFIG).read_text())
    file = path / "model-{}x{}.onnx".format(*config["sizes"][0])
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # no warnings of operations not folded
    session = runtime.InferenceSession(str(file), options)
    direction = np.zeros((1, config["outputs"]), "float32")

    def run(images: Array) -> dict[str, Array]:
        feeds = {"picture": images[0], "direction": direction}
        return dict(zip(_OUTPUTS, session.run(None, feeds), strict=True))

    return run


def _graphs(page: Page, size: tuple[int, ...]) -> dict[str, Any]:
    """Returns the ONNX models of one image size, by name."""
    torch = require("torch", "export")
    from torch.fx.experimental.proxy_tensor import make_fx

    zeros = ops.zeros((1, *size, page.channels)), ops.zeros((1, page.count))
    # ONNX has no operation for the gradients of fused attention.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compute = make_fx(lambda *x: page.compute(*x))(*zeros)

    def columns(part: Tensor) -> Tensor:
        x = part[..., :3].to(torch.float32)  # without alpha
        if page.channels == 1:  # Pillow's integers, exact below 2^24
            x = (x * torch.tensor([19595.0, 38470, 7471])).sum(-1, keepdim=True)
            x = torch.floor((x + 32768) / 65536)
        return torch.einsum("nw,hwc->hnc", _resampling(x, 1, size[1]), x)

    def model(picture: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        matrix = _resampling(picture, 0, size[0])
        image = torch.einsum("nh,hwc->nwc", matrix, picture)
        return compute(image[None], direction)

    part = torch.zeros((3, 5, 4), dtype=torch.uint8)
    picture = torch.zeros((3, size[1], page.channels))
    return {
        "columns": _traced(
            columns, {"part": part}, ["picture"], ({0: "rows", 1: "width"},)
        ),
        "model": _traced(
            model,
            {"picture": picture, "direction": zeros[1]},
            _OUTPUTS,
            ({0: "height"}, None),
        ),
    }


def _resampling(x: Tensor, axis: int, new: int) -> Tensor:
    """Returns the matrix by which `ImagePreprocessing` resizes an axis, whose
    size is known only when the graph runs."""
    torch = require("torch", "export")
    taps = torch.arange(x.shape[axis]) + 0.5
    scale = (taps[-1] + 0.5) / new
    centers = (torch.arange(new) + 0.5)[:, None] * scale
    weights = 1 - (centers - taps).abs() / scale.clamp(min=1)
    weights = weights.clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


def _traced(
    function: Callable[..., Any],
    inputs: dict[str, Tensor],
    output_names: list[str],
    dynamic: tuple[dict[int, str] | None, ...],
) -> Any:
    """Returns the ONNX model of a function of tensors; `dynamic` has the names
    of axes of any length."""
    torch = require("torch", "export")
    require("onnxscript", "export")

    class Graph(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Any:
            return function(*inputs)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(
            Graph().eval(),
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            output_names=output_names,
            dynamic_shapes=(dynamic,),
            optimize=False,  # it would store weights twice, also transposed
            verbose=False,
        ).model_proto


def _save(
    model: Any, file: Path, places: dict[bytes, tuple[int, int]], int8: bool
) -> None:
    """Writes a graph, and its large arrays to the file of weights, unless
    `places`, their offsets and lengths by digest, has them already.

    With `int8`, matrices are stored with one scale for each column, and
    computation is in float32.
    """
    onnx = require("onnx", "export")
    arrays, nodes = model.graph.initializer, model.graph.node
    for node in nodes:
        node.ClearField("metadata_props")  # of PyTorch, nine tenths of the file
    for array in list(arrays):
        values = onnx.numpy_helper.to_array(array)
        # Kernels of attention have three axes, and convolutions four.
        is_matrix = values.dtype == np.float32 and values.ndim in (2, 3)
        if int8 and is_matrix and values.size >= _LARGE:
            axes = tuple(range(values.ndim - 1))
            scale = np.maximum(np.abs(values).max(axes), 1e-30) / 127
            parts = {
                f"{array.name}_int8": np.round(values / scale).astype("int8"),
                f"{array.name}_scale": scale,
            }
            restored = onnx.helper.make_node(
                "DequantizeLinear", [*parts], [array.name], axis=len(axes)
            )
            nodes.insert(0, restored)
            arrays.remove(array)
            for name, values in parts.items():
                arrays.append(onnx.numpy_helper.from_array(values, name))
    for array in arrays:
        values = onnx.numpy_helper.to_array(array)
        if values.size < _LARGE:
            continue
        array.raw_data = values.tobytes()
        digest = hashlib.sha256(array.raw_data).digest()
        if digest not in places:
            with open(file.with_name(_WEIGHTS), "ab") as weights:
                places[digest] = weights.tell(), len(array.raw_data)
                weights.write(array.raw_data)
        onnx.external_data_helper.set_external_data(
            array, _WEIGHTS, *places[digest]
        )
        array.ClearField("raw_data")
    file.write_bytes(model.SerializeToString())
