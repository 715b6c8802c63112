"""EoMT's files in the layout of transformers."""

import pathlib
from typing import Any

import keras
import numpy as np

from keras_vit.config import ViTConfig, resolve
from keras_vit.converters import merged_weights
from keras_vit.downloads import fetch_if_remote
from keras_vit.layers import TransformerBlock
from keras_vit.layers.initializers import skip_init
from keras_vit.models import VisionTransformer, config_of
from keras_vit.segmentation.eomt import EoMT, QueryMask
from keras_vit.utils import checks
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.weights.files import class_names_of, stored_mode
from keras_vit.weights.formats.eomt import (
    CLASS_WEIGHTS,
    EOMT,
    EOMT_GATED,
    PROBABILITIES,
)
from keras_vit.weights.formats.format import read_folder, write_folder
from keras_vit.weights.formats.huggingface import (
    JSON_FILES,
    label_entries,
    processor_of,
)
from keras_vit.weights.formats.huggingface_config import mlp_ratio
from keras_vit.weights.infer import infer_architecture
from keras_vit.weights.weight_map import assign_all, from_checkpoint, to_checkpoint

_REGISTERS = "embeddings.register_tokens"
_NO_OBJECT = ("no_object_weight", 0.1)
# What every encoder of transformers' EoMT has.
_ENCODER = {
    "block": None,
    "class_token": True,
    "position_embedding": "learned",
    "position_placement": "stem",
    "position_prefix": "none",
    "patch_bias": True,
    "pad_to_patch": False,
    "pre_norm": False,
    "qkv_bias": True,
    "key_bias": True,
    "qk_norm": False,
}
# Arguments of `mask_loss`: their names and defaults in config.json.
_LOSS_OPTIONS = {
    "class_weight": ("class_weight", 2.0),
    "mask_weight": ("mask_weight", 5.0),
    "dice_weight": ("dice_weight", 5.0),
    "no_object_weight": _NO_OBJECT,
    "num_points": ("train_num_points", 12544),
    "oversampling": ("oversample_ratio", 3.0),
    "importance": ("importance_sample_ratio", 0.75),
}


def load_eomt(path: StrPath, masked: bool | None = None) -> keras.Model:
    """Builds the EoMT of a folder of transformers and loads its weights.

    Args:
        path: Path or `hf://` URL of a folder with `model.safetensors` and
            `config.json`, of transformers' `EomtForUniversalSegmentation`.
        masked: Boolean. Whether the model has masked attention, as for
            training; see `EoMT`. None if the file's probabilities of masked
            attention are not all 0.

    Returns:
        A `keras.Model`, as `EoMT` returns it, for images of any size. It trains
        with the weights of the loss, and has the names of classes, of
        `config.json`; `model.preprocess_mode` is that of the folder.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the files are of another model. One error lists all
            arrays that are missing, unknown or of the wrong shape.

    Example:

    >>> model = keras_vit.load("hf://tue-mps/"
    ...     "ade20k_semantic_eomt_large_512")
    """
    path = fetch_if_remote(path)
    # transformers stores an array of no register tokens.
    arrays, config = read_folder(path, _REGISTERS)
    num_blocks = config.get("num_blocks", 4)
    probabilities = arrays.pop(PROBABILITIES, np.ones(num_blocks, "float32"))
    class_weights = arrays.pop(CLASS_WEIGHTS, [config.get(*_NO_OBJECT)])
    if np.float32(config.get(*_NO_OBJECT)) != np.float32(class_weights[-1]):
        raise ValueError(
            f"The weight of 'no object' in {CLASS_WEIGHTS!r} of {str(path)!r} "
            f"is {class_weights[-1]}, and that in its config.json "
            f"{config.get(*_NO_OBJECT)}. They must be the same."
        )
    if _REGISTERS in arrays and not arrays[_REGISTERS].size:
        del arrays[_REGISTERS]
    weights = from_checkpoint(
        arrays,
        EOMT_GATED if config.get("use_swiglu_ffn") else EOMT,
        config.get("num_attention_heads", 16),
    )
    if masked is None:
        masked = bool(probabilities.any())
    model: Any = _build(config, weights, masked)
    classes = model.get_layer("eomt_head").classes
    model.class_names = checks.class_names(class_names_of(config, classes), classes)
    model.preprocess_mode = stored_mode(path)
    assign_all(
        _variables(model),
        weights,
        lambda: f"{str(path)!r} is no EoMT of this package.",
    )
    for layer, value in zip(_query_masks(model), probabilities, strict=False):
        layer.probability.assign(value)
    return model


def save_eomt(model: keras.Model, folder: StrPath, overwrite: bool = False) -> None:
    """Writes an EoMT as a folder that transformers reads.

    The weights of the loss (`loss_options` of `EoMT`), the names of classes
    (`model.class_names`) and the scaling of pixels (`model.preprocess_mode`) are
    written, too.

    Args:
        model: `keras.Model` of `EoMT` or `keras_vit.load`.
        folder: Path of the folder to write.
        overwrite: Boolean. Whether files in it may be replaced.

    Raises:
        FileExistsError: if there are files and `overwrite` is False.
        ValueError: if transformers' EoMT cannot be this model.
    """
    config = _config(model)
    kept = _variables(model)
    weights = {k: x for k, x in merged_weights(model).items() if k in kept}
    weight_map = EOMT_GATED if config["use_swiglu_ffn"] else EOMT
    arrays = to_checkpoint(weights, weight_map, config["num_attention_heads"])
    width = config["hidden_size"]
    arrays.setdefault(_REGISTERS, np.zeros((1, 0, width), "float32"))
    probabilities = [float(x.probability) for x in _query_masks(model)]
    arrays[PROBABILITIES] = np.array(
        probabilities or [0.0] * config["num_blocks"], "float32"
    )
    arrays[CLASS_WEIGHTS] = np.ones(len(config["id2label"]) + 1, "float32")
    arrays[CLASS_WEIGHTS][-1] = config["no_object_weight"]
    write_folder(
        pathlib.Path(folder),
        {"model.safetensors": arrays},
        {"config.json": config, **processor_of(model, "EomtImageProcessor")},
        overwrite,
        names=JSON_FILES,
    )


def _build(config: Config, weights: dict[str, Array], masked: bool) -> keras.Model:
    shapes = {path: array.shape for path, array in weights.items()}
    inferred = infer_architecture(shapes, prefixes=("none",))
    activation = config.get("hidden_act", "gelu")
    if activation != "gelu" or inferred["grid_size"] is None:
        raise ValueError(
            "An EoMT of transformers has square images and the activation "
            f"'gelu'. Received: {inferred['num_positions']} positions, "
            f"{activation!r}"
        )
    arguments = {
        "activation": activation,
        "norm_epsilon": config.get("layer_norm_eps", 1e-6),
        **inferred,
        **_ENCODER,
        "layer_scale": 1.0,
        "resampling": "bicubic_antialias",
        "pooling": None,
    }
    sides = zip(inferred["grid_size"], inferred["patch_size"], strict=True)
    size = (rows * pixels for rows, pixels in sides)
    with skip_init():
        encoder = VisionTransformer(
            resolve(ViTConfig, arguments),
            include_top=False,
            input_shape=(*size, inferred["channels"]),
        )
        return EoMT(
            encoder,
            classes=shapes.get("eomt_head/class/kernel", (0, 2))[1] - 1,
            queries=shapes.get("queries/tokens", (1, 1))[1],
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


def _config(model: Any) -> Config:
    """Returns the content of config.json, or raises a `ValueError`."""
    c = config_of(model)
    if type(c) is not ViTConfig:
        raise ValueError(
            f"transformers' EoMT has no ResNet. Received: {model.name!r}, a "
            "hybrid. Build the encoder with `VisionTransformer`."
        )
    head, queries = model.get_layer("eomt_head"), model.get_layer("queries")
    names = checks.class_names(model.class_names, head.classes)
    rows, columns = c.grid_size or (1, 1)
    width, gated = c.hidden_size, c.activation == "swiglu"
    ratio = mlp_ratio(width, c.mlp_dim, gated)
    problems = {name: getattr(c, name) != value for name, value in _ENCODER.items()} | {
        "activation": not gated and c.activation != "gelu",
        "layer_scale": c.layer_scale is None,
        "grid_size": rows != columns,
        "patch_size": len(set(c.patch_size)) > 1,
        "mlp_dim": ratio is None,
    }
    found = [f"{x}={getattr(c, x)!r}" for x in problems if problems[x]]
    if found:
        raise ValueError(
            f"transformers' EoMT cannot have {', '.join(found)}. Build the "
            "encoder with `class_token=True, layer_scale=1.0, "
            "position_prefix='none', activation='gelu'` and square images."
        )
    blocks = model.layers[model.layers.index(queries) :]
    return {
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
        "mlp_ratio": ratio,
        "layerscale_value": c.layer_scale,
        "num_upscale_blocks": head.num_upscales,
        "use_swiglu_ffn": gated,
        "num_blocks": sum(isinstance(x, TransformerBlock) for x in blocks),
        "num_queries": queries.num_tokens,
        "num_register_tokens": c.num_registers,
        **{
            theirs: head.loss_options.get(name, default)
            for name, (theirs, default) in _LOSS_OPTIONS.items()
        },
        **label_entries(names or [f"LABEL_{i}" for i in range(head.classes)]),
        "dtype": "float32",
    }
