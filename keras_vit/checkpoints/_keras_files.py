"""Keras's own files, `.keras` and `.weights.h5`, read without Keras.

Both hold the same tree of arrays, see `_keras_trees.py`. A .keras file is a
zip archive of such a tree and of all layers' configs.
"""

import io
import json
import pathlib

from keras_vit.checkpoints import _archives
from keras_vit.checkpoints import _keras_trees
from keras_vit.checkpoints._containers import naming_damage
from keras_vit.checkpoints._containers import unique
from keras_vit.checkpoints._files import raise_unless_usable
from keras_vit.checkpoints.infer import family as family_of
from keras_vit.checkpoints.infer import infer_architecture
from keras_vit.checkpoints.infer import infer_bit
from keras_vit.checkpoints.infer import is_position_layer
from keras_vit.checkpoints.infer import num_tokens_with_position
from keras_vit.checkpoints.infer import placement
from keras_vit.checkpoints.infer import resnet_constants

ENDINGS = (".keras", ".weights.h5")
# What no array tells; a file without notes needs it from elsewhere.
_OF_VIT = ("activation", "norm_epsilon", "resampling")
_OF_RESNET = (
    "group_norm_epsilon",
    "std_epsilon",
    "std_epsilon_place",
    "conv_padding",
    "pool_padding",
)
UNTOLD = {
    "vit": _OF_VIT,
    "hybrid": (*_OF_VIT, *_OF_RESNET),
    "bit": _OF_RESNET,
}
# What arrays alone decide.
_SIZES = (
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


def is_keras(path):
    """Whether a path is that of one of Keras's files."""
    return str(path).endswith(ENDINGS)


def is_pretraining(path):
    """Whether a .keras file holds a model of `keras_vit.pretraining`."""
    with _archives.opened(pathlib.Path(path)) as archive:
        config = json.loads(archive.read("config.json"))
    return "encoder" in config.get("config", ())


def settings_of(config):
    """Returns what a pre-training model's config tells beside its sizes."""
    names = ("mask_ratio", "norm_pixels")
    return {name: config[name] for name in names if name in config}


def read_keras(path, finite=True):
    """Returns `(weights, told, built)` of a .keras or .weights.h5 file.

    Args:
        path: A `pathlib.Path`.
        finite: Boolean. Whether every value must be finite.

    Returns:
        Dict of our paths to arrays; dict of the arguments of
        `VisionTransformer` that describe the architecture; dict of other
        arguments that the saved model was built with. The latter two lack
        what only a layer's config tells if a .weights.h5 file has no notes.

    Raises:
        ValueError: if it cannot be read, or is no model of this package.
    """
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, not a file of Keras's.")
    with naming_damage(f" {path.suffix} file of Keras's", path):
        if path.suffix == ".keras":
            configs, settings, file = _open_archive(path)
            weights, grid, _ = _keras_trees.read(file)
            told = built = None
        else:
            with open(path, "rb") as file:
                weights, grid, notes = _keras_trees.read(file)
            told, built = notes.get("told"), notes.get("built")
    raise_unless_usable(path, weights, finite=finite)
    weights = {
        _keras_trees.named(k, weights): array for k, array in weights.items()
    }
    shapes = {name: array.shape for name, array in weights.items()}
    try:
        if path.suffix == ".keras":
            told, built = told_by_layers(configs, shapes, grid)
            told |= settings
        else:
            told = _agreed(told, _facts(shapes, grid))
            built = {} if built is None else dict(built)
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
    return weights, _tuples(told), _tuples(built)


def _facts(shapes, grid):
    if family_of(shapes) == "bit":
        return infer_bit(shapes)
    return infer_architecture(shapes, grid)


def _agreed(notes, facts):
    """Returns what notes tell, which what arrays tell must not deny: a number
    of layers that is not there would be built."""
    if notes is None:
        return facts
    notes = _tuples(notes)
    wrong = [
        f"{name}={notes[name]!r}, its arrays {facts[name]!r}"
        for name in _SIZES
        if name in notes and name in facts and notes[name] != facts[name]
    ]
    if wrong:
        raise ValueError(f"Its notes tell {'; '.join(wrong)}.")
    return notes


def write_notes(path, told, built):
    """Writes into a .weights.h5 file what its arrays do not tell."""
    import h5py

    with h5py.File(path, "r+") as file:
        notes = {"told": told, "built": built}
        file.attrs[_keras_trees.NOTES] = json.dumps(notes)


def told_by_layers(configs, shapes, grid=None):
    """Returns `(told, built)`, as `read_keras` does, from layers' configs.

    Args:
        configs: Dict of layers' names to their configs.
        shapes: Dict of our paths to shapes.
        grid: `(rows, columns)` of learned positions.
    """
    family = family_of(shapes)
    if family == "bit":
        told = {**infer_bit(shapes), **resnet_constants(configs)}
        pooling = "gap" if "pooling" in configs else None
        return told, _built(configs, pooling)
    told = infer_architecture(shapes, grid)
    if family == "hybrid":
        told.update(resnet_constants(configs))
    block = configs["block_0"]
    layer = next(filter(is_position_layer, configs), "position_embedding")
    positions = configs[layer]
    told["activation"] = block["activation"]
    told["norm_epsilon"] = block["norm_epsilon"]
    told["position_embedding"] = kind = positions.get("kind", "relative")
    told["position_placement"] = placement(layer)
    told["resampling"] = positions["resampling"]
    if kind == "relative":
        told["grid_size"] = grid
    if kind in ("learned", "learned_2d"):
        count = positions["num_prefix_tokens"]
        told["grid_size"] = grid
        prefixes = [
            prefix
            for prefix in ("all", "class", "none")
            if num_tokens_with_position(prefix, told) == count
        ]
        if not prefixes:
            raise ValueError(f"{layer} has {count!r} positions of no patch")
        told["position_prefix"] = prefixes[0]
    pooling = configs.get("pooling")
    mode = pooling.get("mode", "map") if pooling else None
    told["pooling"] = mode or ("token" if told["class_token"] else "gap")
    return told, _built(configs, mode)


def _built(configs, pooling):
    """Arguments of a saved model that are not of its architecture."""
    built = {"pooling": pooling}
    if "batch_shape" in configs.get("images", {}):
        built["input_shape"] = tuple(configs["images"]["batch_shape"][1:])
    activation = configs.get("head", {}).get("activation")
    if isinstance(activation, str) and activation != "linear":
        built["classifier_activation"] = activation
    return built


def _open_archive(path):
    """Returns the layers' configs, `settings_of` them and the tree's file."""
    with _archives.opened(path) as archive:
        missing = {"config.json", "model.weights.h5"} - set(archive.namelist())
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        text = archive.read("config.json")
        config = json.loads(text, object_pairs_hook=unique)
        tree = io.BytesIO(archive.read("model.weights.h5"))
    try:
        # A pre-training model's config has its encoder's inside.
        inner = config["config"].get("encoder", config)["config"]
        layers = inner.get("layers", ())
        layers = {layer["config"]["name"]: layer["config"] for layer in layers}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its config.json is not that of a model") from error
    return layers, settings_of(config["config"]), tree


def _tuples(facts):
    """JSON has no tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in facts.items()
    }
