"""A page that runs a model in the browser, as a folder for any static server.

Each image size that the page offers has two ONNX graphs, which share a file of
weights with the other sizes:

- columns: resizes the columns of some rows of a picture; the other rows are processed
  in further calls, so that memory does not depend on the picture's size;
- model: resizes the rows of the result, and computes probabilities or features,
  `inspection.attention_heads` of each block, and `inspection.relevance`.
  PyTorch's gradients are traced when the page is written, so that the graph
  consists of forward operations.
"""

import functools
import hashlib
import importlib.resources
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_vit import converters
from keras_vit.inspection import tokens
from keras_vit.inspection.relevance import explain
from keras_vit.layers import ImagePreprocessing
from keras_vit.layers.resampling import resampling_matrix
from keras_vit.models.features import patch_pixels
from keras_vit.models.graph import heads_of
from keras_vit.preprocessing.labels import default_names
from keras_vit.utils import downloads, onnx
from keras_vit.utils.images import size_with_aspect
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, Config, StrPath, Tensor
from keras_vit.weights.files import read_config
from keras_vit.weights.formats.huggingface import MULTI_LABEL

__all__ = ["model_of_pixels", "Page", "read_page", "write_page"]


def __dir__() -> list[str]:
    return __all__  # without the names of imports


RUNTIME = downloads.Source(
    "https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-1.30.0.tgz",
    "sha256:d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
)
RUNTIME_FILES = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
CONFIG = "model.json"
_WEIGHTS = "weights.bin"
_OUTPUTS = ["output", "attention", "relevance"]
_LARGE = 1024  # values of an array that is in the file of weights

Size: TypeAlias = tuple[int, int] | None


def model_of_pixels(
    path: StrPath, format: str | None, settings: Config, size: Size
) -> keras.Model:
    """Returns the model of a checkpoint as a model from pixels to probabilities, for
    one image size or any, with its class names."""
    heads = settings.get("num_heads")
    checkpoint = converters.open_checkpoint(path, format, heads)
    shape = (*(size or (None, None)), checkpoint.channels)
    implied: Config = {"preprocessing": True, "input_shape": shape}
    if checkpoint.classes:
        config = read_config(checkpoint.path)
        several = (
            config.get("config", {}).get("loss") == "sigmoid"
            or config.get("problem_type") == MULTI_LABEL
        )
        implied["classifier_activation"] = "sigmoid" if several else "softmax"
    return converters.load_for_images(checkpoint, **{**implied, **settings})


class Page:
    """The computation of a page for one image; `size` is the size of its images."""

    def __init__(self, model: keras.Model, size: Size) -> None:
        self.model, self.count = model, model.output.shape[-1]
        *shape, self.channels = model.inputs[0].shape[1:]
        layer = tokens.find_layer(model, ImagePreprocessing)
        if layer is None or self.channels not in (1, 3):
            raise ValueError(
                "A page needs a model of pixels of 1 or 3 channels: build it "
                "with `preprocessing=`, or export its checkpoint. Received: "
                f"{model.name!r} of {self.channels} channels"
            )
        self.sizes = [tuple(size or layer.image_size or shape)]
        if None in self.sizes[0]:
            height, width = tokens.image_size(model) or (224, 224)
            self.sizes = [
                size_with_aspect(
                    (height, width), times * height * width, patch_pixels(model)
                )
                for times in (1, 1.5**2, 2**2)
            ]
        self.class_names = getattr(model, "class_names", None)
        if not self.class_names and heads_of(model):
            self.class_names = default_names(self.count)

    def predict_on_batch(self, images: Array) -> dict[str, Array]:
        """Returns the outputs for one image and a direction of 0, by name."""
        image = ops.convert_to_tensor(images)
        found = explain(self.model, image, ops.zeros((1, self.count)))
        return dict(zip(_OUTPUTS, map(ops.convert_to_numpy, found), strict=True))


def write_page(page: Page, path: Path, shape: Sequence[int | None], int8: bool) -> None:
    """Writes the folder of a page."""
    archive, _ = downloads.fetch(
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
            _save(graph.model_proto, file, places, int8)
    for name in ("index.html", "page.js"):
        source = importlib.resources.files(__name__) / name
        (path / name).write_bytes(source.read_bytes())
    with tarfile.open(archive) as runtime:
        for name in RUNTIME_FILES:
            source = runtime.extractfile(f"package/dist/{name}")
            (path / name).write_bytes(source.read() if source else b"")


def read_page(path: Path) -> Callable[[Array], dict[str, Array]]:
    """Reads the model of a page for its first image size."""
    config = json.loads((path / CONFIG).read_text())
    run = onnx.read(path / "model-{}x{}.onnx".format(*config["sizes"][0]))
    direction = np.zeros((1, config["outputs"]), "float32")
    return lambda images: run(images[0], direction)


def _graphs(page: Page, size: tuple[int, ...]) -> dict[str, Any]:
    """Returns the ONNX programs of one image size, by name."""
    torch = require("torch", "export")
    from torch._decomp import get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    zeros = ops.zeros((1, *size, page.channels)), ops.zeros((1, page.count))
    # ONNX has no operations for the gradients of fused attention and of SwiGLU.
    backward: Any = get_decompositions([torch.ops.aten.silu_backward])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compute = make_fx(lambda *x: explain(page.model, *x), backward)(*zeros)

    matrix = functools.partial(resampling_matrix, method="bilinear_antialias")

    def columns(part: Tensor) -> Tensor:
        x = part[..., :3].to(torch.float32)  # without alpha
        if page.channels == 1:  # Pillow's integers, exact below 2^24
            x = (x * torch.tensor([19595.0, 38470, 7471])).sum(-1, keepdim=True)
            x = torch.floor((x + 32768) / 65536)
        return torch.einsum("nw,hwc->hnc", matrix(part.shape[1], size[1]), x)

    def model(picture: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        rows = matrix(picture.shape[0], size[0])
        image = torch.einsum("nh,hwc->nwc", rows, picture)
        return compute(image[None], direction)

    part = torch.zeros((3, 5, 4), dtype=torch.uint8)
    picture = torch.zeros((3, size[1], page.channels))
    inputs = {"picture": picture, "direction": zeros[1]}
    # The optimizer would store each weight twice, as it is and transposed for the
    # gradients, and ONNX Runtime optimizes the graph when the page loads it.
    trace = functools.partial(onnx.trace, optimize=False)
    return {
        "columns": trace(
            columns,
            {"part": part},
            ({0: "rows", 1: "width"},),
            output_names=["picture"],
        ),
        "model": trace(model, inputs, ({0: "height"}, None), output_names=_OUTPUTS),
    }


def _save(
    model: Any, file: Path, places: dict[bytes, tuple[int, int]], int8: bool
) -> None:
    """Writes a graph, and its large arrays to the file of weights, unless
    `places`, their offsets and lengths by digest, has them already.

    With `int8`, matrices are stored with one scale for each column, and
    computation is in float32.
    """
    onnx = require("onnx", "export")
    nodes, arrays = model.graph.node, []
    for node in nodes:
        node.ClearField("metadata_props")  # of PyTorch, nine tenths of the file
    for array in model.graph.initializer:
        values, name = onnx.numpy_helper.to_array(array), array.name
        # Kernels of attention have three axes, and convolutions four.
        is_matrix = values.dtype == np.float32 and values.ndim in (2, 3)
        parts = {name: values}
        if int8 and is_matrix and values.size >= _LARGE:
            axes = tuple(range(values.ndim - 1))
            scale = np.maximum(np.abs(values).max(axes), 1e-30) / 127
            rounded = np.round(values / scale).astype("int8")
            parts = {f"{name}_int8": rounded, f"{name}_scale": scale}
            restored = onnx.helper.make_node(
                "DequantizeLinear", [*parts], [name], axis=len(axes)
            )
            nodes.insert(0, restored)
        for name, values in parts.items():
            arrays.append(onnx.numpy_helper.from_array(values, name))
            if values.size < _LARGE:
                continue
            digest = hashlib.sha256(arrays[-1].raw_data).digest()
            if digest not in places:
                with open(file.with_name(_WEIGHTS), "ab") as weights:
                    places[digest] = weights.tell(), values.nbytes
                    weights.write(arrays[-1].raw_data)
            onnx.external_data_helper.set_external_data(
                arrays[-1], _WEIGHTS, *places[digest]
            )
            arrays[-1].ClearField("raw_data")
    del model.graph.initializer[:]
    model.graph.initializer.extend(arrays)
    file.write_bytes(model.SerializeToString())
