"""The arguments of a model, from its layers' configs, metadata or shapes."""

from keras_vit._types import Config
from keras_vit.config import POSITION_PREFIXES
from keras_vit.weights import infer
from keras_vit.weights.files.keras import KerasFile
from keras_vit.weights.infer import Grid
from keras_vit.weights.infer import Shapes
from keras_vit.weights.infer import infer_architecture
from keras_vit.weights.infer import is_position_layer
from keras_vit.weights.infer import num_positioned
from keras_vit.weights.infer import placement

_ANY_RESAMPLING = "bilinear_align_corners"
_BLOCK_CLASS = "keras_vit>TransformerBlock"
_PREFIXES = POSITION_PREFIXES[::-1]  # the first of equal ones is the last
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
# Arguments of the model that all of its blocks have.
_OF_BLOCKS = (
    *("activation", "norm_epsilon", "layer_scale"),
    *("dropout", "attention_dropout", "remat"),
)


def arguments_of(file: KerasFile) -> tuple[Config, Config]:
    """Returns `(arguments, built)` of the model in a file.

    The first describe its architecture, without those that only layer configs
    contain if the file has none and no metadata; the second are the others that
    it was built with.
    """
    shapes = {name: array.shape for name, array in file.weights.items()}
    try:
        if not file.config:
            inferred = _infer(shapes, file.grid)
            # The arrays would be the same with fixed position embeddings, and
            # with `pooling="first_patch"`.
            for name, value in (
                ("position_embedding", "none"),
                ("pooling", "gap"),
            ):
                if inferred.get(name) == value:
                    del inferred[name]
            # Lists are tuples in JSON.
            told, built = (
                {
                    k: tuple(v) if isinstance(v, list) else v
                    for k, v in x.items()
                }
                for x in (file.metadata.get(k, {}) for k in ("told", "built"))
            )
            if told:  # arrays decide on sizes, of which metadata may lie
                inferred = {x: inferred[x] for x in _SIZES if x in inferred}
            return {**told, **inferred}, built
        arguments, built = arguments_from_layer_configs(
            {name: layer["config"] for name, layer in file.layers.items()},
            shapes,
            file.grid,
            file.layers.get("block_0", {}).get("registered_name"),
        )
        config = file.config["config"]
        if "encoder" not in config:
            built["name"] = config["name"]
        return arguments | pretraining_options(config), built
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        # Unexpected configs or shapes; the error's cause shows where.
        raise ValueError(
            "Its contents are not what keras_vit writes "
            f"({type(error).__name__}: {error})."
        ) from error


def arguments_from_layer_configs(
    configs: dict[str, Config],
    shapes: Shapes,
    grid: Grid = None,
    block: str | None = None,
) -> tuple[Config, Config]:
    """Returns `(arguments, built)` of a model, as `arguments_of`.

    `grid` is that of learned position embeddings, and `block` the registered
    name of the class of the blocks, which is an argument of the model unless it
    is `TransformerBlock`. Configs of another model raise a ValueError, KeyError
    or another error of a lookup.
    """
    arguments, family = _infer(shapes, grid), infer.family(shapes)
    if family != "vit":
        root, unit = configs["root_conv"], configs.get("stage_1_unit_1", {})
        arguments |= {
            "group_norm_epsilon": configs["root_norm"]["epsilon"]
            if "root_norm" in configs
            else unit["group_norm_epsilon"],
            "std_epsilon": root["epsilon"],
            "std_epsilon_place": root["epsilon_place"],
            "conv_padding": root["padding"],
            "pool_padding": configs["root"]["padding"],
        }
    if family == "bit":
        pooling = "gap" if "pooling" in configs else None
        return arguments, _built_arguments(configs, pooling)
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
    # Layers of rotary positions have no `resampling`, and any would do.
    arguments["resampling"] = positions.get("resampling", _ANY_RESAMPLING)
    if kind == "rope":
        for name in ("base", "shift", "jitter", "rescale"):
            arguments[f"rope_{name}"] = positions[name]
    if kind in ("relative", "learned", "learned_2d"):
        arguments["grid_size"] = grid
    if kind in ("learned", "learned_2d"):
        counts = {num_positioned(x, arguments): x for x in _PREFIXES}
        arguments["position_prefix"] = counts[positions["num_prefix_tokens"]]
    pooling = configs.get("pooling")
    mode = pooling.get("mode", "map") if pooling else None
    arguments["pooling"] = mode or (
        "token" if arguments["class_token"] else "gap"
    )
    return arguments, _built_arguments(configs, mode)


def pretraining_options(config: Config) -> Config:
    """Returns the arguments of a pre-training model, in its config, that are no
    sizes."""
    return {x: config[x] for x in ("mask_ratio", "norm_pixels") if x in config}


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


def _infer(shapes: Shapes, grid: Grid) -> Config:
    if infer.family(shapes) == "bit":
        return infer.infer_bit(shapes)
    return infer_architecture(shapes, grid)
