"""Readers of Keras files (`.keras` and `.weights.h5`) that do not import Keras.

Both contain the same HDF5 tree of arrays: one group per layer, named after the
layer's class, with the layer's name as an attribute and its arrays in "vars",
named by their number. A .keras file is a zip archive of such a tree and of the
configs of all layers. A .weights.h5 file that `converters.save` wrote also has
metadata in an attribute, which Keras ignores: the "architecture", which is the
model's config, and "built", the other arguments that it was built with.

HDF5 is read by h5py, as in Keras. It is imported inside functions, since other
files are converted without it.
"""

import dataclasses
import functools
import io
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.weights.files import archives
from keras_vit.weights.files.arrays import check_arrays
from keras_vit.weights.files.hdf5 import check_tree, layer_datasets, read_tree
from keras_vit.weights.files.paths import existing_path

SUFFIXES = (".keras", ".weights.h5")
METADATA_ATTRIBUTE = "keras_vit"
_MEMBERS = ("config.json", "model.weights.h5")  # of a .keras file
# Arrays of a norm in their order in the file; batch norms have all four.
_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
# Layers with one array that are neither dense nor a norm: the array's name.
_SINGLE_ARRAY_LAYERS = {
    "class_token": "tokens",
    "distillation_token": "tokens",
    "register_tokens": "tokens",
    "mask_token": "tokens",
    "position_embedding_shared": "periods",  # rotary ones
    "pooling": "probe",
    "scale_1": "gamma",
    "scale_2": "gamma",
}
# Where the classes and functions of a config may come from. Other modules of
# Keras download, read and write files, or change Keras's settings.
_MODULES = {
    "activations",
    "constraints",
    "dtype_policies",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "mixed_precision",
    "models",
    "ops",
    "optimizers",
    "quantizers",
    "regularizers",
    "src",  # Keras takes only layers and other saved classes from it
}
_CLASSES_OF_KERAS = {"DTypePolicy", "Function", "Model", "Sequential"}
# Layers that run code, or read the files that their config names.
_UNSAFE_CLASSES = {
    "FlaxLayer",
    "IndexLookup",
    "IntegerLookup",
    "JaxLayer",
    "Lambda",
    "NnxLayer",
    "StringLookup",
    "TFSMLayer",
    "TextVectorization",
    "TorchModuleWrapper",
    "__lambda__",
    "__typespec__",
}
# Names of their layers: how they begin.
_OTHER_PACKAGES = {
    "Transformer_encoderblock_": "vit-keras",
    "blocks_0_": "zeromodels",
}


def is_keras(path: StrPath) -> bool:
    """Returns whether a path has the suffix of a Keras file."""
    return str(path).endswith(SUFFIXES)


@dataclasses.dataclass(frozen=True)
class KerasFile:
    """Contents of a Keras file.

    A .keras file has a config.json, and layers, by name, with their class and
    config; a .weights.h5 file that `converters.save` wrote has metadata.
    """

    weights: dict[str, Array]  # by keras_vit path
    grid: tuple[int, ...] | None
    config: Config
    layers: dict[str, Config]
    metadata: Config


def read_keras(path: StrPath, finite: bool = True) -> KerasFile:
    """Reads a .keras or .weights.h5 file."""
    path, config, layers = _existing_file(path), {}, {}
    with archives.parsing(f"a {path.suffix} file of Keras's", path):
        content = path
        if path.suffix == ".keras":
            text, stored = archives.read_members(path, _MEMBERS)
            config, content = archives.parse_json(text), io.BytesIO(stored)
            try:
                model = config["config"].get("encoder", config)["config"]
                listed = model.get("layers", ())
                layers = {layer["config"]["name"]: layer for layer in listed}
            except (KeyError, TypeError, AttributeError) as error:
                reason = "its config.json is not that of a model"
                raise ValueError(reason) from error
        kind = config.get("class_name")
        arrays, problems, metadata = read_tree(
            content,
            functools.partial(_model_datasets, kind=kind),
            METADATA_ATTRIBUTE,
        )
        metadata = json.loads("{}" if metadata is None else str(metadata))
        if not isinstance(metadata, dict):
            raise ValueError(f"its attribute {METADATA_ATTRIBUTE!r} is not a dict")
        grid = None
        for key in [key for key in arrays if key.endswith("/grid_size")]:
            stored = arrays.pop(key)
            grid = tuple(int(n) for n in stored.ravel())
            if stored.shape != (2,) or min(grid) < 1:
                raise ValueError(f"a grid of {grid}")
    for start, package in _OTHER_PACKAGES.items():
        if any(key.startswith(start) for key in arrays):
            raise ValueError(
                f"{str(path)!r} holds a model of {package}, whose .keras and "
                ".weights.h5 files are not read. Load it with that package, "
                "and write its arrays under the names of another format, as "
                "docs/convert-keras.md shows."
            )
    integers = is_quantized(layers)
    floats = {k: a for k, a in arrays.items() if not integers or a.dtype.kind != "i"}
    check_arrays(path, floats, problems, finite)
    weights = {}
    for key, array in arrays.items():
        layer, _, number = key.rpartition("/")
        first = arrays.get(f"{layer}/0", np.zeros(1))
        names = _NORM if first.ndim == 1 else ("kernel", "bias")
        one = _SINGLE_ARRAY_LAYERS.get(layer.rpartition("/")[2])
        if number in ("0", "1", "2", "3")[: 4 if one else len(names)]:
            key = f"{layer}/{one or names[int(number)]}"
        weights[key] = array
    return KerasFile(weights, grid, config, layers, metadata)


def is_quantized(layers: dict[str, Config]) -> bool:
    """Returns whether the configs of layers are those of a quantized model."""
    names = ("quantization_config", "sublayer_quantization")
    return any(layer["config"].get(name) for layer in layers.values() for name in names)


def _existing_file(path: StrPath) -> pathlib.Path:
    """Returns the path of a file, or raises an error if there is none."""
    path = existing_path(path)
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, not a {path.suffix} file.")
    return path


def write_metadata(path: StrPath, architecture: Config, built: Config) -> None:
    """Stores the config of a model, and the other arguments that it was built
    with, as metadata in a .weights.h5 file."""
    import h5py

    with h5py.File(path, "r+") as file:
        metadata = {"architecture": architecture, "built": built}
        file.attrs[METADATA_ATTRIBUTE] = json.dumps(metadata)


def check_is_safe(
    path: StrPath, is_registered: Callable[[str], object]
) -> tuple[int, int]:
    """Checks a .keras file before Keras reads it.

    Keras imports the modules that a config names, calls any of its own
    functions, runs layers without an input at once, and follows the links of
    HDF5 files. A `ValueError` refuses a file that is damaged, or with which
    Keras would do more than to build a model and read its arrays. Returns the
    limits of `limits_of`.
    """
    import h5py

    path = _existing_file(path)
    with archives.parsing("a .keras file of Keras's", path):
        text, stored = archives.read_members(path, _MEMBERS)
        config = archives.parse_json(text)
        with h5py.File(io.BytesIO(stored), "r") as root:
            arrays = check_tree(root, stored)
    check_config(path, config, is_registered)
    return limits_of(path, arrays)


def limits_of(path: StrPath, arrays: int) -> tuple[int, int]:
    """Returns the number of arrays of a file and the most bytes that the variables of
    its model may have."""
    return arrays, archives.size_limit(pathlib.Path(path).stat().st_size)


def check_config(
    path: StrPath, config: object, is_registered: Callable[[str], object]
) -> None:
    """Raises a `ValueError` if the config of a file is not safe."""
    try:
        _check_config(config, is_registered)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is refused: {error}. If you made the file, import "
            "the package that registers its classes first; otherwise do not "
            "open it."
        ) from error


def _check_config(content: object, is_registered: Callable[[str], object]) -> None:
    """Raises a `ValueError` if a part of a config is not safe."""
    if isinstance(content, list):
        for value in content:
            _check_config(value, is_registered)
    if not isinstance(content, dict):
        return
    name, kind = content.get("registered_name"), content.get("class_name")
    # Keras looks up functions by another name than the registered one.
    known = kind != "function" and name and is_registered(str(name))
    if isinstance(name, str) and ">" in name and not known:
        package = name.partition(">")[0]
        if package != "keras_vit":
            raise ValueError(f"it names {name!r}, which is not registered")
    if kind in _UNSAFE_CLASSES and not known:
        raise ValueError(
            f"it holds a layer {kind!r}, which may run code or read other files"
        )
    module = content.get("module")
    root, _, rest = str(module).partition(".")
    of_keras = rest.partition(".")[0] in _MODULES
    if not rest:
        of_keras = kind in _CLASSES_OF_KERAS
    if not (
        known
        or module in (None, "builtins")
        or root == "keras_vit"
        or (root == "keras" and of_keras)
    ):
        raise ValueError(
            f"it names {kind!r} of the module {module!r}, which is not "
            "registered with Keras"
        )
    name = content.get("name")
    if isinstance(name, str) and not (
        name.isprintable() and ".." not in name.replace("\\", "/").split("/")
    ):
        raise ValueError(f"it holds the name {name!r}, which may be a path")
    nodes = content.get("inbound_nodes")
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict) and "__keras_tensor__" not in str(node):
            raise ValueError("it calls a layer without an input")
    for value in content.values():
        _check_config(value, is_registered)


def _model_datasets(root: Any, kind: object) -> Iterator[tuple[str, Any]]:
    """Yields the path and the dataset of all weights of a model of a class."""
    import h5py

    if not isinstance(root.get("layers"), h5py.Group) and "encoder" not in root:
        raise ValueError("it has no layers")
    # A pre-training model has separate trees for its encoder and decoder.
    trees = [("decoder/layers", "decoder/"), ("layers", "")]
    # What is used after DINO's training is the teacher.
    is_dino = kind == "DINO"
    for place, prefix in trees + [("encoder/layers", "")] * (not is_dino):
        group = root.get(place)
        for layer in group.values() if isinstance(group, h5py.Group) else ():
            if not isinstance(layer, h5py.Group):
                raise ValueError(f"an array of no layer: {layer.name}")
            name = _name_of(layer)
            if kind == "DualEncoder" and "layers" in layer:
                for inner in layer["layers"].values():
                    yield from layer_datasets(inner, f"text/{_name_of(inner)}/")
            elif name != "teacher" or "layers" not in layer:
                yield from layer_datasets(layer, f"{prefix}{name}/")
            elif is_dino:
                for inner in layer["layers"].values():
                    yield from layer_datasets(inner, f"{_name_of(inner)}/")


def _name_of(layer: Any) -> str:
    """Returns the name of a layer, which Keras stores as an attribute."""
    name = layer.name.rpartition("/")[2]
    if "vars" in layer:
        name = layer["vars"].attrs.get("name") or name
    return str(name)
