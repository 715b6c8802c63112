"""EoMT's files in the layout of transformers."""

import json
import pathlib

import keras
import numpy as np

from keras_vit import downloads
from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import StrPath
from keras_vit.config import ViTConfig
from keras_vit.layers import TransformerBlock
from keras_vit.layers.initializers import skip_init
from keras_vit.models import VisionTransformer
from keras_vit.models import config_of
from keras_vit.segmentation.eomt import EoMT
from keras_vit.segmentation.eomt import QueryMask
from keras_vit.weights.files import atomic_write
from keras_vit.weights.files import read
from keras_vit.weights.files import read_config
from keras_vit.weights.files import write
from keras_vit.weights.formats.eomt import CLASS_WEIGHTS
from keras_vit.weights.formats.eomt import EOMT
from keras_vit.weights.formats.eomt import EOMT_GATED
from keras_vit.weights.formats.eomt import PROBABILITIES
from keras_vit.weights.weight_map import assign_all
from keras_vit.weights.weight_map import from_checkpoint
from keras_vit.weights.weight_map import to_checkpoint

_FILES = ("model.safetensors", "config.json")
_REGISTERS = "embeddings.register_tokens"
# Arguments of `mask_loss`: their names and defaults in config.json.
_LOSS_OPTIONS = {
    "class_weight": ("class_weight", 2.0),
    "mask_weight": ("mask_weight", 5.0),
    "dice_weight": ("dice_weight", 5.0),
    "no_object_weight": ("no_object_weight", 0.1),
    "num_points": ("train_num_points", 12544),
    "oversampling": ("oversample_ratio", 3.0),
    "importance": ("importance_sample_ratio", 0.75),
}


def load(path: StrPath, masked: bool | None = None) -> keras.Model:
    """Builds the EoMT of a folder of transformers and loads its weights.

    Args:
        path: Path or `hf://` URL of a folder with `model.safetensors` and
            `config.json`, of transformers' `EomtForUniversalSegmentation`.
        masked: Boolean. Whether the model has masked attention, as for
            training; see `EoMT`. None if the file's probabilities of masked
            attention are not all 0.

    Returns:
        A `keras.Model`, as `EoMT` returns it, for images of any size. It trains
        with the weights of the loss that `config.json` has.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the files are of another model. One error lists all
            arrays that are missing, unknown or of the wrong shape.

    Example:

    >>> model = keras_vit.segmentation.load("hf://tue-mps/"
    ...     "ade20k_semantic_eomt_large_512")
    """
    path = downloads.fetch_if_remote(path)
    # transformers stores an array of no register tokens.
    arrays = read(path, empty=(_REGISTERS,))
    config = read_config(path)
    if config.get("model_type") != "eomt":
        raise ValueError(
            f"{str(path)!r} must be a folder of transformers whose config.json "
            "has the model type 'eomt'. Received: "
            f"{config.get('model_type')!r}"
        )
    num_blocks = config.get("num_blocks", 4)
    probabilities = arrays.pop(PROBABILITIES, np.ones(num_blocks, "float32"))
    class_weights = arrays.pop(CLASS_WEIGHTS, None)
    if _REGISTERS in arrays and not arrays[_REGISTERS].size:
        del arrays[_REGISTERS]
    gated = config.get("use_swiglu_ffn", False)
    weights = from_checkpoint(
        arrays,
        EOMT_GATED if gated else EOMT,
        config.get("num_attention_heads", 16),
    )
    model = _build(config, weights, _is_masked(masked, probabilities))
    assign_all(
        _variables(model),
        weights,
        lambda: f"{str(path)!r} is no EoMT of this package.",
    )
    for layer, value in zip(_query_masks(model), probabilities, strict=False):
        layer.probability.assign(value)
    if class_weights is not None and class_weights[-1] != np.float32(
        config.get("no_object_weight", 0.1)
    ):
        raise ValueError(
            f"The weight of 'no object' in {CLASS_WEIGHTS!r} of {str(path)!r} "
            f"is {class_weights[-1]}, and that in its config.json "
            f"{config.get('no_object_weight', 0.1)}. They must be the same."
        )
    return model


def save(model: keras.Model, folder: StrPath, overwrite: bool = False) -> None:
    """Writes an EoMT as a folder that transformers reads.

    The weights of the loss (`loss_options` of `EoMT`) are written, too.

    Args:
        model: `keras.Model` of `EoMT` or `load`.
        folder: Path of the folder to write.
        overwrite: Boolean. Whether files in it may be replaced.

    Raises:
        FileExistsError: if there are files and `overwrite` is False.
        ValueError: if transformers' EoMT cannot be this model.
    """
    folder = pathlib.Path(folder)
    for name in _FILES:
        if (folder / name).exists() and not overwrite:
            raise FileExistsError(
                f"{str(folder / name)!r} exists. Choose another folder, or "
                "give `overwrite=True`."
            )
    config = _config(model)
    weights = {
        path: keras.ops.convert_to_numpy(variable)
        for path, variable in _variables(model).items()
    }
    weight_map = EOMT_GATED if config["use_swiglu_ffn"] else EOMT
    arrays = to_checkpoint(weights, weight_map, config["num_attention_heads"])
    width = config["hidden_size"]
    arrays.setdefault(_REGISTERS, np.zeros((1, 0, width), "float32"))
    layers = _query_masks(model)
    arrays[PROBABILITIES] = np.array(
        [float(layer.probability) for layer in layers]
        or [0.0] * config["num_blocks"],
        "float32",
    )
    classes = len(config["id2label"])
    class_weights = np.ones(classes + 1, "float32")
    class_weights[-1] = config["no_object_weight"]
    arrays[CLASS_WEIGHTS] = class_weights
    folder.mkdir(parents=True, exist_ok=True)
    write(arrays, folder / _FILES[0], overwrite)
    with atomic_write(folder / _FILES[1], overwrite) as temporary:
        pathlib.Path(temporary).write_text(json.dumps(config, indent=2))


def _is_masked(masked: bool | None, probabilities: Array) -> bool:
    return bool(probabilities.any()) if masked is None else masked


def _build(
    config: Config, weights: dict[str, Array], masked: bool
) -> keras.Model:
    def shape(path: str) -> tuple[int, ...]:
        if path not in weights:
            raise ValueError(f"The file has no array for {path!r}.")
        return weights[path].shape

    rows, columns, channels, width = shape("patch_embedding/kernel")
    positions = shape("position_embedding/embedding")[1]
    side = round(positions**0.5)
    depth = sum(path.endswith("/norm_1/gamma") for path in weights)
    registers = weights.get("register_tokens/tokens")
    gated = config.get("use_swiglu_ffn", False)
    hidden = shape("block_0/mlp/dense_1/kernel")[1]
    activation = config.get("hidden_act", "gelu")
    if activation != "gelu" or side**2 != positions:
        raise ValueError(
            "An EoMT of transformers has square images and the activation "
            f"'gelu'. Received: {positions} positions, {activation!r}"
        )
    with skip_init():
        encoder = VisionTransformer(
            include_top=False,
            pooling=None,
            input_shape=(side * rows, side * columns, channels),
            patch_size=(rows, columns),
            hidden_size=width,
            num_layers=depth,
            num_heads=config.get("num_attention_heads", 16),
            mlp_dim=hidden // 2 if gated else hidden,
            activation="swiglu" if gated else "gelu",
            norm_epsilon=config.get("layer_norm_eps", 1e-6),
            class_token=True,
            num_registers=0 if registers is None else registers.shape[1],
            position_prefix="none",
            layer_scale=1.0,
            resampling="bicubic_antialias",
        )
        return EoMT(
            encoder,
            classes=shape("eomt_head/class/kernel")[1] - 1,
            queries=shape("queries/tokens")[1],
            blocks=config.get("num_blocks", 4),
            masked=masked,
            num_upscales=sum(
                path.endswith("/deconvolution/kernel") for path in weights
            ),
            loss_options={
                name: config.get(theirs, default)
                for name, (theirs, default) in _LOSS_OPTIONS.items()
            },
        )


def _query_masks(model: keras.Model) -> list[QueryMask]:
    return [x for x in model.layers if isinstance(x, QueryMask)]


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the variables that a file has, by path."""
    return {
        variable.path: variable
        for variable in model.weights
        if not variable.path.endswith("/probability")
    }


def _config(model: keras.Model) -> Config:
    """Returns the content of config.json, or raises a `ValueError`."""
    c = config_of(model)
    if type(c) is not ViTConfig:
        raise ValueError(
            f"transformers' EoMT has no ResNet. Received: {model.name!r}, a "
            "hybrid. Build the encoder with `VisionTransformer`."
        )
    head, queries = model.get_layer("eomt_head"), model.get_layer("queries")
    rows, columns = c.grid_size or (1, 1)
    problems = {
        f"activation {c.activation!r}": c.activation not in ("gelu", "swiglu"),
        f"positions of kind {c.position_embedding!r}": c.position_embedding
        != "learned",
        "position embeddings of the class token": c.position_prefix != "none",
        "no class token": not c.class_token,
        "no layer scale": c.layer_scale is None,
        "norms of queries and keys": c.qk_norm,
        "no biases of queries and keys": not c.qkv_bias or not c.key_bias,
        f"a grid of {rows} x {columns}": rows != columns,
        "patches that are not square": len(set(c.patch_size)) > 1,
        "a norm before the blocks": c.pre_norm,
        "patches without a bias": not c.patch_bias,
        "padding of images to whole patches": c.pad_to_patch,
    }
    found = [text for text, is_problem in problems.items() if is_problem]
    if found:
        raise ValueError(
            f"transformers' EoMT cannot have {', '.join(found)}. Build the "
            "encoder with `class_token=True, layer_scale=1.0, "
            "position_prefix='none', activation='gelu'` and square images."
        )
    width = c.hidden_size
    config = {
        "model_type": "eomt",
        "architectures": ["EomtForUniversalSegmentation"],
        "hidden_size": width,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "hidden_act": "gelu",
        "layer_norm_eps": c.norm_epsilon,
        "image_size": rows * c.patch_size[0],
        "patch_size": c.patch_size[0],
        "num_channels": model.inputs[0].shape[-1],
        "mlp_ratio": c.mlp_dim // width,
        "layerscale_value": c.layer_scale,
        "num_upscale_blocks": head.num_upscales,
        "use_swiglu_ffn": c.activation == "swiglu",
        "num_blocks": _blocks_after(model, queries),
        "num_queries": queries.num_tokens,
        "num_register_tokens": c.num_registers,
        **{
            theirs: head.loss_options.get(name, default)
            for name, (theirs, default) in _LOSS_OPTIONS.items()
        },
        "id2label": {str(i): f"LABEL_{i}" for i in range(head.classes)},
        "label2id": {f"LABEL_{i}": i for i in range(head.classes)},
        "dtype": "float32",
    }
    if config["use_swiglu_ffn"]:
        config["mlp_ratio"] = _gated_ratio(c.mlp_dim, width)
    elif c.mlp_dim % width:
        raise ValueError(
            "transformers' EoMT has MLPs of a multiple of the hidden size "
            f"{width}. Received: mlp_dim={c.mlp_dim}"
        )
    return config


def _gated_ratio(mlp_dim: int, width: int) -> int:
    """Returns the ratio that gives a gated MLP its width in transformers."""
    for ratio in range(1, 17):
        if (int(width * ratio * 2 / 3) + 7) // 8 * 8 == mlp_dim:
            return ratio
    raise ValueError(
        "transformers' EoMT has gated MLPs of two thirds of a multiple of the "
        f"hidden size {width}, rounded up to a multiple of 8. Received: "
        f"mlp_dim={mlp_dim}"
    )


def _blocks_after(model: keras.Model, queries: keras.Layer) -> int:
    """Returns the number of blocks after the queries in the layers' order."""
    layers = model.layers
    first = layers.index(queries)
    return sum(isinstance(x, TransformerBlock) for x in layers[first:])
