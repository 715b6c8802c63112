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
from keras_vit.weights import infer
from keras_vit.weights.files import archives
from keras_vit.weights.files.arrays import check_arrays
from keras_vit.weights.files.hdf5 import check_tree
from keras_vit.weights.files.hdf5 import layer_datasets
from keras_vit.weights.files.hdf5 import read_dataset
from keras_vit.weights.files.paths import existing_path
from keras_vit.weights.infer import DECODER
from keras_vit.weights.infer import Grid
from keras_vit.weights.infer import Shapes
from keras_vit.weights.infer import infer_architecture
from keras_vit.weights.infer import is_position_layer
from keras_vit.weights.infer import num_tokens_with_position
from keras_vit.weights.infer import placement

SUFFIXES = (".keras", ".weights.h5")
METADATA_ATTRIBUTE = "keras_vit"
_ANY_RESAMPLING = "bilinear_align_corners"
_BLOCK_CLASS = "keras_vit>TransformerBlock"
PRETRAINING_OPTIONS = ("mask_ratio", "norm_pixels")
# Arguments that a .weights.h5 file written by Keras does not store. Without
# arrays of position embeddings, there may be fixed ones or none.
_OF_VIT = ("activation", "norm_epsilon", "resampling", "position_embedding")
_OF_RESNET = (
    "group_norm_epsilon",
    "std_epsilon",
    "std_epsilon_place",
    "conv_padding",
    "pool_padding",
)
HYPERPARAMETERS_NOT_IN_SHAPES = {
    "vit": _OF_VIT,
    "hybrid": (*_OF_VIT, *_OF_RESNET),
    "bit": _OF_RESNET,
}
# Arguments that can be inferred from the shapes of the arrays.
_ARGUMENTS_IN_SHAPES = (
    "patch_size",
    "channels",
    "hidden_size",
    "num_layers",
    "num_heads",
    "mlp_dim",
    "classes",
    "representation_size",
    "num_registers",
    "resnet_layers",
    "width_factor",
)
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
# Arguments of the model that all of its blocks have.
_OF_BLOCKS = (
    *("activation", "norm_epsilon", "layer_scale"),
    *("dropout", "attention_dropout", "remat"),
)
# Names of their layers: how they begin.
_OTHER_PACKAGES = {
    "Transformer_encoderblock_": "vit-keras",
    "blocks_0_": "zeromodels",
}


def is_keras(path: StrPath) -> bool:
    """Returns whether a path has the suffix of a Keras file."""
    return str(path).endswith(SUFFIXES)


def is_pretraining(path: StrPath) -> bool:
    """Returns whether a .keras file holds a `keras_vit.pretraining` model."""
    with archives.open_archive(pathlib.Path(path)) as archive:
        config = json.loads(archive.read("config.json"))
    return "encoder" in config.get("config", ())


def is_momentum_model(path: StrPath) -> bool:
    """Returns whether a .keras file holds a `DINO` or a `MoCoV3`."""
    with archives.open_archive(pathlib.Path(path)) as archive:
        config = json.loads(archive.read("config.json"))
    return "teacher_momentum" in config.get("config", ())


def pretraining_options(config: Config) -> Config:
    """Returns the arguments of a pre-training model, in its config, that are no
    sizes."""
    return {
        name: config[name] for name in PRETRAINING_OPTIONS if name in config
    }


def read_keras(
    path: pathlib.Path, finite: bool = True
) -> tuple[dict[str, Array], Config, Config]:
    """Reads a .keras or .weights.h5 file.

    Returns the arrays by their keras_vit paths; the arguments that describe the
    architecture, without those that only layer configs contain if the file has
    no metadata; and the other arguments that the model was built with.
    """
    _raise_if_folder(path)
    archived, encoder = path.suffix == ".keras", "encoder"
    with archives.parsing(f"a {path.suffix} file of Keras's", path):
        if archived:
            config, content = _read_archive(path)
            layers = _serialized_layers(config)
            if config.get("class_name") == "DINO":
                encoder = "teacher"  # what is used after training
            content = io.BytesIO(content)
        else:
            content = path
        arrays, problems, grid, metadata = _read_tree(content, encoder)
    _raise_if_of_another_package(path, arrays)
    check_arrays(path, arrays, problems, finite)
    weights = {_path_of(key, arrays): array for key, array in arrays.items()}
    shapes = {name: array.shape for name, array in weights.items()}
    try:
        if archived:
            arguments, built = arguments_from_layer_configs(
                {name: layer["config"] for name, layer in layers.items()},
                shapes,
                grid,
                layers.get("block_0", {}).get("registered_name"),
            )
            arguments |= pretraining_options(config["config"])
            if "encoder" not in config["config"]:
                built["name"] = config["config"]["name"]
        else:
            arguments = _check_metadata(
                metadata.get("told"), _arguments_from_shapes(shapes, grid)
            )
            built = _as_tuples(metadata.get("built") or {})
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} was not made by keras_vit. {error}"
        ) from error
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        # Unexpected configs or shapes; the error's cause shows where.
        raise ValueError(
            f"{str(path)!r} was not made by keras_vit, or its contents are not "
            f"what keras_vit writes ({type(error).__name__}: {error})."
        ) from error
    return weights, arguments, built


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


def arguments_from_layer_configs(
    configs: dict[str, Config],
    shapes: Shapes,
    grid: Grid = None,
    block: str | None = None,
) -> tuple[Config, Config]:
    """Returns `(arguments, built)` of a model, as `read_keras` does.

    `grid` is that of learned position embeddings, and `block` the registered
    name of the class of the blocks, which is an argument of the model unless it
    is `TransformerBlock`. Configs of another model raise a ValueError, KeyError
    or another error of a lookup.
    """
    family = infer.family(shapes)
    if family == "bit":
        arguments = {
            **infer.infer_bit(shapes),
            **infer.resnet_constants(configs),
        }
        pooling = "gap" if "pooling" in configs else None
        return arguments, _built_arguments(configs, pooling)
    arguments = infer_architecture(shapes, grid)
    if family == "hybrid":
        arguments.update(infer.resnet_constants(configs))
    if block != _BLOCK_CLASS:
        arguments["block"] = block
    layer = next(filter(is_position_layer, configs), "position_embedding")
    positions = configs[layer]
    first = configs["block_0"]
    last = configs[f"block_{arguments['num_layers'] - 1}"]
    arguments |= {name: first[name] for name in _OF_BLOCKS if name in first}
    # The rates of stochastic depth grow up to that of the last block.
    arguments["drop_path"] = last.get("drop_path", 0.0)
    padding = configs["patch_embedding"].get("pad_to_patch", False)
    arguments["pad_to_patch"] = padding
    # Layers of relative and rotary positions have no `kind`.
    inferred_kind = arguments["position_embedding"]
    kind = positions.get("kind", inferred_kind)
    arguments["position_embedding"] = kind
    arguments["position_placement"] = placement(layer)
    # Those of rotary positions have no `resampling`, and any would do.
    arguments["resampling"] = positions.get("resampling", _ANY_RESAMPLING)
    if kind == "rope":
        for name in ("base", "shift", "jitter", "rescale"):
            arguments[f"rope_{name}"] = positions[name]
    if kind == "relative":
        arguments["grid_size"] = grid
    if kind in ("learned", "learned_2d"):
        count = positions["num_prefix_tokens"]
        arguments["grid_size"] = grid
        prefixes = [
            prefix
            for prefix in ("all", "class", "none")
            if num_tokens_with_position(prefix, arguments) == count
        ]
        if not prefixes:
            raise ValueError(
                f"{layer} has {count!r} prefix tokens, which the model has not"
            )
        arguments["position_prefix"] = prefixes[0]
    pooling = configs.get("pooling")
    mode = pooling.get("mode", "map") if pooling else None
    arguments["pooling"] = mode or (
        "token" if arguments["class_token"] else "gap"
    )
    return arguments, _built_arguments(configs, mode)


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
            arrays = check_tree(root, len(content))
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


def layer_configs(path: StrPath) -> dict[str, Config]:
    """Returns `{layer name: its config}` of the model in a .keras file."""
    with archives.open_archive(pathlib.Path(path)) as archive:
        config = json.loads(archive.read("config.json"))
    layers = _serialized_layers(config)
    return {name: layer["config"] for name, layer in layers.items()}


def _serialized_layers(config: Config) -> dict[str, Config]:
    """Returns `{layer name: its class and config}` of a model's config."""
    try:
        # The config of a pre-training model contains that of its encoder.
        model = config["config"].get("encoder", config)["config"]
        layers = model.get("layers", ())
        return {layer["config"]["name"]: layer for layer in layers}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its config.json is not that of a model") from error


def _read_tree(
    file: pathlib.Path | io.BytesIO, encoder: str = "encoder"
) -> tuple[dict[str, Array], list[str], Grid, Config]:
    """Reads the arrays of an HDF5 file that Keras wrote.

    Returns them by paths that end in their number; descriptions of the problems
    of other arrays; the grid of learned position embeddings; and the metadata.
    """
    import h5py

    if isinstance(file, pathlib.Path):
        size = file.stat().st_size
    else:
        size = file.getbuffer().nbytes
    arrays, problems, grid = {}, [], None
    # Without a lock, since another process may have the file open.
    with h5py.File(file, "r", locking=False) as root:
        try:
            check_tree(root, size)
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


def _arguments_from_shapes(shapes: Shapes, grid: Grid) -> Config:
    """Returns the arguments that shapes determine without a doubt."""
    if infer.family(shapes) == "bit":
        return infer.infer_bit(shapes)
    arguments = infer_architecture(shapes, grid)
    # The arrays would be the same with fixed position embeddings, and with
    # `pooling="first_patch"`.
    ambiguous = {"position_embedding": "none", "pooling": "gap"}
    return {
        name: value
        for name, value in arguments.items()
        if ambiguous.get(name) != value
    }


def _check_metadata(metadata: Config | None, inferred: Config) -> Config:
    """Returns the stored arguments after checking them against the arrays.

    Without the check, a model with any number of layers would be built before
    its weights are found to be missing.
    """
    if metadata is None:
        return inferred
    metadata = _as_tuples(metadata)
    wrong = [
        f"{name}={metadata[name]!r}, its arrays {inferred[name]!r}"
        for name in _ARGUMENTS_IN_SHAPES
        if name in metadata
        and name in inferred
        and metadata[name] != inferred[name]
    ]
    if wrong:
        raise ValueError(f"Its metadata contains {'; '.join(wrong)}.")
    return metadata


def _built_arguments(configs: dict[str, Config], pooling: str | None) -> Config:
    """Returns the arguments of a saved model beyond its architecture."""
    built: Config = {"pooling": pooling}
    if "batch_shape" in configs.get("images", {}):
        built["input_shape"] = tuple(configs["images"]["batch_shape"][1:])
        preprocessing = configs.get("preprocessing")
        if preprocessing is not None:
            built["preprocessing"] = preprocessing["mode"]
            size = preprocessing["image_size"] or (None, None)
            built["input_shape"] = (*size, built["input_shape"][-1])
    activation = configs.get("head", {}).get("activation")
    if isinstance(activation, str) and activation != "linear":
        built["classifier_activation"] = activation
    return built


def _as_tuples(arguments: Config) -> Config:
    """Returns arguments with lists, which JSON has for tuples, as tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
    }
