"""Readers of Keras files (`.keras` and `.weights.h5`) that do not import Keras.

Both contain the same HDF5 tree of arrays: one group per layer, named after the
layer's class, with the layer's name as an attribute and its arrays in "vars",
named by their number. A .keras file is a zip archive of such a tree and of the
configs of all layers. A .weights.h5 file that `converters.save` wrote also has
metadata in an attribute, which Keras ignores: `{"told": ..., "built": ...}`.
"told" is the architecture; "built" are the other arguments that the model was
built with.

HDF5 is read by h5py, as in Keras. It is imported inside functions, since other
files are converted without it.
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import StrPath
from keras_vit.weights.files import archives
from keras_vit.weights.files.arrays import check_arrays
from keras_vit.weights.files.hdf5 import check_tree
from keras_vit.weights.files.hdf5 import layer_datasets
from keras_vit.weights.files.hdf5 import mapped
from keras_vit.weights.files.hdf5 import read_dataset
from keras_vit.weights.files.paths import existing_path
from keras_vit.weights.infer import DECODER

SUFFIXES = (".keras", ".weights.h5")
METADATA_ATTRIBUTE = "keras_vit"
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


def read_keras(path: pathlib.Path, finite: bool = True) -> KerasFile:
    """Reads a .keras or .weights.h5 file."""
    _raise_if_folder(path)
    config, layers, content = {}, {}, path
    with archives.parsing(f"a {path.suffix} file of Keras's", path):
        if path.suffix == ".keras":
            config, stored = _read_archive(path)
            layers = _serialized_layers(config)
            content = io.BytesIO(stored)
        # What is used after DINO's training is the teacher.
        is_dino = config.get("class_name") == "DINO"
        encoder = "teacher" if is_dino else "encoder"
        arrays, problems, grid, metadata = _read_tree(content, encoder)
    _raise_if_of_another_package(path, arrays)
    check_arrays(path, arrays, problems, finite)
    weights = {_path_of(key, arrays): array for key, array in arrays.items()}
    return KerasFile(weights, grid, config, layers, metadata)


def _serialized_layers(config: Config) -> dict[str, Config]:
    """Returns `{layer name: its class and config}` of the config.json of a
    model, or of the encoder of a pre-training model."""
    try:
        model = config["config"].get("encoder", config)["config"]
        layers = model.get("layers", ())
        return {layer["config"]["name"]: layer for layer in layers}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its config.json is not that of a model") from error


def _raise_if_folder(path: pathlib.Path) -> None:
    """Raises a `ValueError` if a path is a folder's."""
    if path.is_dir():
        raise ValueError(
            f"{str(path)!r} is a folder, not a {path.suffix} file."
        )


def _raise_if_of_another_package(
    path: pathlib.Path, arrays: Collection[str]
) -> None:
    """Raises a `ValueError` that names the package, if the names are known."""
    for start, package in _OTHER_PACKAGES.items():
        if any(key.startswith(start) for key in arrays):
            raise ValueError(
                f"{str(path)!r} holds a model of {package}, whose .keras and "
                ".weights.h5 files are not read. Load it with that package, "
                "and write its arrays under the names of another layout, as "
                "docs/migrate.md shows."
            )


def write_metadata(path: StrPath, arguments: Config, built: Config) -> None:
    """Stores the arguments that describe a model's architecture, and the others
    that it was built with, as metadata in a .weights.h5 file."""
    import h5py

    with h5py.File(path, "r+") as file:
        metadata = {"told": arguments, "built": built}
        file.attrs[METADATA_ATTRIBUTE] = json.dumps(metadata)


def check_is_safe(
    path: StrPath, is_registered: Callable[[str], object]
) -> tuple[int, int]:
    """Checks a .keras file before Keras reads it.

    Keras imports the modules that a config names, calls any of its own
    functions, runs layers without an input at once, and follows the links of
    HDF5 files. A `ValueError` refuses a file that is damaged, or with which
    Keras would do more than to build a model and read its arrays. Returns the
    number of arrays and the most bytes that the variables may have.
    """
    import h5py

    path = existing_path(path)
    _raise_if_folder(path)
    with archives.parsing("a .keras file of Keras's", path):
        config, content = _read_archive(path)
        with h5py.File(io.BytesIO(content), "r") as root:
            arrays = check_tree(root, content)
    try:
        _check_config(config, is_registered)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is refused: {error}. If you made the file, import "
            "the package that registers its classes first; otherwise do not "
            "open it."
        ) from error
    return arrays, archives.size_limit(path.stat().st_size)


def _check_config(
    content: object, is_registered: Callable[[str], object]
) -> None:
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
    if not known:
        _check_class(content.get("module"), kind)
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


def _check_class(module: object, kind: object) -> None:
    """Raises a `ValueError` if a class or function is not one of Keras's layers
    and the like."""
    if kind in _UNSAFE_CLASSES:
        raise ValueError(
            f"it holds a layer {kind!r}, which may run code or read other files"
        )
    if module in (None, "builtins"):
        return
    root, _, rest = str(module).partition(".")
    of_keras = rest.partition(".")[0] in _MODULES
    if not rest:
        of_keras = kind in _CLASSES_OF_KERAS
    if root != "keras_vit" and not (root == "keras" and of_keras):
        raise ValueError(
            f"it names {kind!r} of the module {module!r}, which is not "
            "registered with Keras"
        )


def _read_archive(path: pathlib.Path) -> tuple[Config, bytes]:
    """Returns the config and the bytes of the HDF5 file in a .keras file."""
    with archives.open_archive(path) as archive:
        missing = {"config.json", "model.weights.h5"} - set(archive.namelist())
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        config = json.loads(
            archive.read("config.json"),
            object_pairs_hook=archives.reject_duplicate_keys,
        )
        return config, archive.read("model.weights.h5")


def _read_tree(
    file: pathlib.Path | io.BytesIO, encoder: str = "encoder"
) -> tuple[dict[str, Array], list[str], tuple[int, ...] | None, Config]:
    """Reads the arrays of an HDF5 file that Keras wrote.

    Returns them by paths that end in their number; descriptions of the problems
    of other arrays; the grid of learned position embeddings; and the metadata.
    """
    import h5py

    if isinstance(file, pathlib.Path):
        content = mapped(file)
    else:
        content = file.getvalue()
    arrays, problems, grid = {}, [], None
    # Without a lock, since another process may have the file open.
    with h5py.File(file, "r", locking=False) as root:
        try:
            check_tree(root, content)
            metadata = json.loads(root.attrs.get(METADATA_ATTRIBUTE, "{}"))
            datasets = list(_model_datasets(root, encoder))
        except (KeyError, TypeError, NotImplementedError) as error:
            # Raised by h5py for damaged objects and unsupported types.
            raise ValueError(f"it holds damaged objects: {error}") from error
        if not isinstance(metadata, dict):
            raise ValueError(f"its attribute {METADATA_ATTRIBUTE!r} is no dict")
        for path, dataset, is_bfloat16 in datasets:
            array = read_dataset(path, dataset, is_bfloat16, problems)
            if array is None:
                continue
            if path.endswith("/grid_size"):
                grid = tuple(int(n) for n in array.ravel())
                if array.shape != (2,) or min(grid) < 1:
                    raise ValueError(f"a grid of {grid}")
            elif path in arrays:
                raise ValueError(f"{path} is there twice")
            else:
                arrays[path] = array
    return arrays, problems, grid, metadata


def _model_datasets(root: Any, encoder: str) -> Iterator[tuple[str, Any, bool]]:
    """Yields `(path, dataset, is_bfloat16)` of all weights of a model."""
    import h5py

    # A pre-training model has separate trees for its encoder and decoder.
    for prefix, place in (
        (DECODER, "decoder/layers"),
        ("", "layers"),
        ("", "encoder/layers"),
    ):
        group = root.get(place)
        if place == "encoder/layers" and encoder != "encoder":
            continue
        if isinstance(group, h5py.Group):
            for layer in group.values():
                if not isinstance(layer, h5py.Group):
                    raise ValueError(f"an array of no layer: {layer.name}")
                name = _name_of(layer)
                if name != "teacher" or "layers" not in layer:
                    yield from layer_datasets(layer, prefix + name)
                elif encoder == "teacher":
                    for inner in layer["layers"].values():
                        yield from layer_datasets(inner, _name_of(inner))
        elif place == "layers" and "encoder" not in root:
            raise ValueError("it has no layers")


def _name_of(layer: Any) -> str:
    """Returns the name of a layer, which Keras stores as an attribute."""
    name = layer.name.rpartition("/")[2]
    if "vars" in layer:
        name = layer["vars"].attrs.get("name") or name
    return str(name)


def _path_of(key: str, arrays: dict[str, Array]) -> str:
    """Returns the keras_vit path of an array, which in the file has a number,
    such as `"head/0"`."""
    parent, _, number = key.rpartition("/")
    if number not in ("0", "1", "2", "3"):
        return key
    name = _SINGLE_ARRAY_LAYERS.get(parent.rpartition("/")[2])
    if name is not None:
        return f"{parent}/{name}"
    first = arrays.get(f"{parent}/0", np.zeros(1))
    names = _NORM if first.ndim == 1 else ("kernel", "bias")
    return f"{parent}/{names[int(number)]}" if int(number) < len(names) else key
