"""Read Keras's own files, `.keras` and `.weights.h5`, without Keras.

Both hold the same HDF5 tree of arrays: a group per layer, named after the
layer's class, with the layer's own name as an attribute and its arrays under
"vars", named by their number. A .keras file is a zip archive of such a tree
and of the configs of all layers. A .weights.h5 file that `converters.save`
wrote has metadata in an attribute, which Keras ignores: `{"told": ...,
"built": ...}`, the architecture and the other arguments that the model was
built with.

HDF5 is read by h5py, as in Keras. It is imported where it is needed, since
other files are converted without it.
"""

import io
import json
import pathlib

import ml_dtypes
import numpy as np

from keras_vit.checkpoints import _archives
from keras_vit.checkpoints import infer
from keras_vit.checkpoints.files import check_arrays
from keras_vit.checkpoints.infer import DECODER
from keras_vit.checkpoints.infer import infer_architecture
from keras_vit.checkpoints.infer import is_position_layer
from keras_vit.checkpoints.infer import num_tokens_with_position
from keras_vit.checkpoints.infer import placement

SUFFIXES = (".keras", ".weights.h5")
METADATA_ATTRIBUTE = "keras_vit"
PRETRAINING_OPTIONS = ("mask_ratio", "norm_pixels")
# A .weights.h5 file that Keras wrote does not store these.
_OF_VIT = ("activation", "norm_epsilon", "resampling")
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
# Arguments that the shapes of the arrays determine.
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
# Layers of a single array that are neither dense nor a norm: its name.
_SINGLE_ARRAY_LAYERS = {
    "class_token": "tokens",
    "distillation_token": "tokens",
    "register_tokens": "tokens",
    "mask_token": "tokens",
    "pooling": "probe",
    "scale_1": "gamma",
    "scale_2": "gamma",
}
# Arguments of layers that make their arrays large, and what they may be
# whatever the file holds: the tokens of a large image.
_SIZE_ARGUMENTS = (
    "units",
    "filters",
    "hidden_size",
    "mlp_dim",
    "num_heads",
    "head_size",
    "num_tokens",
    "shape",
    "input_shape",
    "grid_shape",
    "grid_size",
    "inputs_shape",
    "kernel_size",
    "groups",
)
_MIN_SIZE_LIMIT = 2**17


def is_keras(path):
    """Return whether a path ends as those of Keras's files do."""
    return str(path).endswith(SUFFIXES)


def is_pretraining(path):
    """Return whether a .keras file holds a `keras_vit.pretraining` model."""
    with _archives.open_archive(pathlib.Path(path)) as archive:
        config = json.loads(archive.read("config.json"))
    return "encoder" in config.get("config", ())


def pretraining_options(config):
    """Return the arguments of a pre-training model that are not sizes."""
    return {
        name: config[name] for name in PRETRAINING_OPTIONS if name in config
    }


def read_keras(path, finite=True):
    """Read the weights of a .keras or .weights.h5 file.

    Args:
        path: A `pathlib.Path`.
        finite: Boolean. Whether every value must be finite.

    Returns:
        Dict of keras_vit's paths to arrays; dict of the arguments of
        `VisionTransformer` that describe the architecture; dict of other
        arguments that the saved model was built with. Without metadata, those
        of a .weights.h5 file lack what only a layer's config contains.

    Raises:
        ValueError: if it cannot be read, or is not a model of keras_vit.
    """
    if path.is_dir():
        raise ValueError(
            f"{str(path)!r} is a folder, not a {path.suffix} file."
        )
    archived = path.suffix == ".keras"
    with _archives.parsing(f"a {path.suffix} file of Keras's", path):
        if archived:
            config, content = _read_archive(path)
            layers = _layer_configs(config)
            content = io.BytesIO(content)
        else:
            content = path
        arrays, problems, grid, metadata = _read_tree(content)
    check_arrays(path, arrays, problems, finite)
    weights = {_path_of(key, arrays): array for key, array in arrays.items()}
    shapes = {name: array.shape for name, array in weights.items()}
    try:
        if archived:
            arguments, built = arguments_from_layer_configs(
                layers, shapes, grid
            )
            arguments |= pretraining_options(config["config"])
        else:
            arguments = _check_metadata(
                metadata.get("told"), _arguments_from_shapes(shapes, grid)
            )
            built = dict(metadata.get("built") or {})
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} was not made by keras_vit. {error}"
        ) from error
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        # Configs and shapes of other layers; the cause shows which.
        raise ValueError(
            f"{str(path)!r} was not made by keras_vit, or its contents are not "
            f"what keras_vit writes ({type(error).__name__}: {error})."
        ) from error
    return weights, _as_tuples(arguments), _as_tuples(built)


def write_metadata(path, arguments, built):
    """Add to a .weights.h5 file what its arrays do not contain.

    Args:
        path: Path of the file.
        arguments: Dict of the arguments that describe the architecture.
        built: Dict of other arguments that the model was built with.
    """
    import h5py

    with h5py.File(path, "r+") as file:
        metadata = {"told": arguments, "built": built}
        file.attrs[METADATA_ATTRIBUTE] = json.dumps(metadata)


def arguments_from_layer_configs(configs, shapes, grid=None):
    """Return `(arguments, built)` of a model, as `read_keras` does.

    Args:
        configs: Dict of layer names to their configs.
        shapes: Dict of keras_vit's paths to shapes.
        grid: `(rows, columns)` of learned position embeddings.
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
    block = configs["block_0"]
    layer = next(filter(is_position_layer, configs), "position_embedding")
    positions = configs[layer]
    arguments["activation"] = block["activation"]
    arguments["norm_epsilon"] = block["norm_epsilon"]
    arguments["position_embedding"] = kind = positions.get("kind", "relative")
    arguments["position_placement"] = placement(layer)
    arguments["resampling"] = positions["resampling"]
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


def check_config_is_safe(path, is_registered, largest):
    """Check the config of a .keras file before Keras builds its layers.

    Keras imports the classes that a config names, and makes layers as large
    as it says.

    Args:
        path: Path of the file.
        is_registered: Function that takes a registered name and returns
            whether Keras knows it.
        largest: Integer. The largest axis of the file's arrays.

    Raises:
        ValueError: if the config names classes of other packages that are not
            registered, or layers that are larger than the arrays.
    """
    with _archives.open_archive(pathlib.Path(path)) as archive:
        config = json.loads(archive.read("config.json"))
    limit = max(largest, _MIN_SIZE_LIMIT)
    for name, value in _named_values(config):
        if name == "module" and value is not None:
            root = str(value).partition(".")[0]
            if root not in ("keras", "keras_vit", "builtins"):
                raise ValueError(f"it names the module {value!r}")
        elif name == "registered_name" and isinstance(value, str):
            package, _, rest = value.partition(">")
            if rest and package != "keras_vit" and not is_registered(value):
                raise ValueError(f"it names {value!r}, which is not registered")
        elif name in _SIZE_ARGUMENTS and type(value) is int and value > limit:
            raise ValueError(f"{name}={value}, of arrays up to {largest}")


def _named_values(content, name=None):
    """Yield `(name, value)` of all values in JSON; a list names its items."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _named_values(value, key)
    elif isinstance(content, list):
        for value in content:
            yield from _named_values(value, name)
    else:
        yield name, content


def _read_archive(path):
    """Return the config and the HDF5 file in a .keras file."""
    with _archives.open_archive(path) as archive:
        missing = {"config.json", "model.weights.h5"} - set(archive.namelist())
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        config = json.loads(
            archive.read("config.json"),
            object_pairs_hook=_archives.reject_duplicate_keys,
        )
        return config, archive.read("model.weights.h5")


def _layer_configs(config):
    """Return `{layer name: its config}` of a model's config."""
    try:
        # The config of a pre-training model contains that of its encoder.
        model = config["config"].get("encoder", config)["config"]
        layers = model.get("layers", ())
        return {layer["config"]["name"]: layer["config"] for layer in layers}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its config.json is not that of a model") from error


def _read_tree(file):
    """Read the arrays of an HDF5 file that Keras wrote.

    Args:
        file: `pathlib.Path` or file object.

    Returns:
        Dict of paths, which end in the array's number, to arrays; list of
        strings: what is wrong with others; `(rows, columns)` of learned
        position embeddings or None; dict of metadata.
    """
    import h5py

    if isinstance(file, pathlib.Path):
        size = file.stat().st_size
    else:
        size = file.getbuffer().nbytes
    arrays, problems, grid = {}, [], None
    with h5py.File(file, "r") as root:
        try:
            _check_tree(root, size)
            metadata = json.loads(root.attrs.get(METADATA_ATTRIBUTE, "{}"))
            datasets = list(_model_datasets(root))
        except (KeyError, TypeError, NotImplementedError) as error:
            # h5py, of objects that are damaged or of unusual types.
            raise ValueError(f"it holds damaged objects: {error}") from error
        if not isinstance(metadata, dict):
            raise ValueError(f"its attribute {METADATA_ATTRIBUTE!r} is no dict")
        for path, dataset, is_bfloat16 in datasets:
            if dataset.dtype.kind not in "fiubcV":  # text, references
                problems.append(
                    f"{path}: type {dataset.dtype}, expected floats"
                )
                continue
            array = _read_dataset(dataset)
            if is_bfloat16:
                array = array.view(ml_dtypes.bfloat16)
            if path.endswith("/grid_size"):
                grid = tuple(int(n) for n in array.ravel())
                if array.shape != (2,) or min(grid) < 1:
                    raise ValueError(f"a grid of {grid}")
            elif path in arrays:
                raise ValueError(f"{path} is there twice")
            else:
                arrays[path] = array
    return arrays, problems, grid, metadata


def _check_tree(group, size):
    """Raise a `ValueError` for a tree that points elsewhere or is too large.

    Links to other files are refused in the whole file, since Keras would
    follow them; an object with two paths is refused since it could contain
    itself.
    """
    import h5py

    seen, groups, claimed = {group}, [group], 0
    while groups:
        group = groups.pop()
        for name in group:
            path = f"{group.name}/{name}".replace("//", "/")
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"it holds a link, {path}")
            item = group[name]
            if item in seen:
                raise ValueError(f"{path} is in it twice")
            seen.add(item)
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif not isinstance(item, h5py.Dataset):
                raise ValueError(f"{path} is not an array")
            elif item.external or item.is_virtual:
                raise ValueError(f"{path} is stored in another file")
            else:
                claimed += item.nbytes
    _archives.check_size(claimed, size)


def _model_datasets(root):
    """Yield `(path, dataset, is_bfloat16)` of all weights of a model."""
    import h5py

    # A pre-training model has one tree of its encoder and one of its decoder.
    for prefix, place in (
        (DECODER, "decoder/layers"),
        ("", "layers"),
        ("", "encoder/layers"),
    ):
        group = root.get(place)
        if isinstance(group, h5py.Group):
            for layer in group.values():
                if isinstance(layer, h5py.Group):
                    start = prefix + _name_of(layer)
                    yield from _layer_datasets(layer, start)
        elif place == "layers" and "encoder" not in root:
            raise ValueError("it has no layers")


def _name_of(layer):
    """Return the name of a layer, which Keras stores as an attribute."""
    name = layer.name.rpartition("/")[2]
    if "vars" in layer:
        name = layer["vars"].attrs.get("name") or name
    return str(name)


def _layer_datasets(group, path):
    import h5py

    for key, item in group.items():
        if key.startswith("seed_generator"):
            continue  # the state of a dropout layer, not a weight
        if isinstance(item, h5py.Dataset):
            # HDF5 has no such type: Keras stores the bytes and its name.
            is_bfloat16 = item.attrs.get("dtype") == "bfloat16"
            yield f"{path}/{key}", item, is_bfloat16
        else:
            inner = path if key == "vars" else f"{path}/{key}"
            yield from _layer_datasets(item, inner)


def _read_dataset(dataset):
    return np.asarray(dataset[()])


def _path_of(key, arrays):
    """Return keras_vit's path of an array that Keras numbers."""
    parent, _, number = key.rpartition("/")
    if number not in ("0", "1"):
        return key
    name = _SINGLE_ARRAY_LAYERS.get(parent.rpartition("/")[2])
    if name is not None:
        return f"{parent}/{name}"
    first = arrays.get(f"{parent}/0", np.zeros(1))
    names = ("gamma", "beta") if first.ndim == 1 else ("kernel", "bias")
    return f"{parent}/{names[int(number)]}"


def _arguments_from_shapes(shapes, grid):
    if infer.family(shapes) == "bit":
        return infer.infer_bit(shapes)
    return infer_architecture(shapes, grid)


def _check_metadata(metadata, inferred):
    """Return the stored arguments after checking them against the arrays.

    Otherwise a model of any number of layers would be built before its weights
    turn out to be missing.
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


def _built_arguments(configs, pooling):
    """Return arguments of a saved model beyond its architecture."""
    built = {"pooling": pooling}
    if "batch_shape" in configs.get("images", {}):
        built["input_shape"] = tuple(configs["images"]["batch_shape"][1:])
    activation = configs.get("head", {}).get("activation")
    if isinstance(activation, str) and activation != "linear":
        built["classifier_activation"] = activation
    return built


def _as_tuples(arguments):
    """Return arguments with tuples, which JSON turns into lists."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
    }
