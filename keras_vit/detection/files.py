"""YOLOS's files in the layout of transformers."""

import dataclasses
import pathlib
from typing import Any

import keras
import numpy as np

from keras_vit.config import ViTConfig
from keras_vit.converters import merged_weights
from keras_vit.detection.yolos import YOLOS
from keras_vit.downloads import fetch_if_remote
from keras_vit.layers.initializers import skip_init
from keras_vit.models import VisionTransformer, config_of
from keras_vit.utils import checks
from keras_vit.utils.types import Config, StrPath
from keras_vit.weights.files import class_names_of, stored_mode
from keras_vit.weights.formats import yolos
from keras_vit.weights.formats.format import read_folder, write_folder
from keras_vit.weights.formats.huggingface import (
    JSON_FILES,
    label_entries,
    processor_of,
)
from keras_vit.weights.formats.huggingface_config import hidden_act, read_arguments
from keras_vit.weights.weight_map import assign_all, from_checkpoint, to_checkpoint

# Fields of `ViTConfig` and arguments of `set_loss` have these names and
# defaults in transformers' config.json, which may leave them out.
_FIELDS = {
    "hidden_size": ("hidden_size", 768),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "mlp_dim": ("intermediate_size", 3072),
    "norm_epsilon": ("layer_norm_eps", 1e-12),
    "qkv_bias": ("qkv_bias", True),
    "dropout": ("hidden_dropout_prob", 0.0),
    "attention_dropout": ("attention_probs_dropout_prob", 0.0),
}
_LOSS_OPTIONS = {
    "box_weight": ("bbox_loss_coefficient", 5),
    "giou_weight": ("giou_loss_coefficient", 2),
    "no_object_weight": ("eos_coefficient", 0.1),
    "class_cost": ("class_cost", 1),
    "box_cost": ("bbox_cost", 5),
    "giou_cost": ("giou_cost", 2),
}


def load_yolos(path: StrPath) -> keras.Model:
    """Builds the YOLOS of a folder of transformers and loads its weights.

    Args:
        path: Path or `hf://` URL of a folder with `model.safetensors` and
            `config.json`, of transformers' `YolosForObjectDetection`.

    Returns:
        A `keras.Model`, as `YOLOS` returns it, for images of any size that is a
        multiple of the patch size. Released weights take images normalized by
        `preprocess_input(images, mode="torch")`; `model.preprocess_mode` is that
        of the folder. It trains with the weights of the loss, and is saved with
        the names of classes, that `config.json` has.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the files are of another model. One error lists all
            arrays that are missing, unknown or of the wrong shape.

    Example:

    >>> model = keras_vit.load("hf://hustvl/yolos-small")
    """
    path = fetch_if_remote(path)
    # transformers stores an array of no layers for a model of one block.
    arrays, config = read_folder(path, yolos.MID_POSITIONS)
    c = _encoder_config(config)
    queries = config.get("num_detection_tokens", 100)
    weights = from_checkpoint(yolos.split(arrays, queries), yolos.YOLOS, c.num_heads)
    rows, columns = c.grid_size or (1, 1)
    # A model of any size would be built before its arrays are compared.
    for name, shape in {
        "position_embedding/embedding": (1, 1 + rows * columns, c.hidden_size),
        "detection_tokens/tokens": (1, queries, c.hidden_size),
        f"block_{c.num_layers - 1}/mlp/dense_1/bias": (c.mlp_dim,),
        "class_3/bias": (len(weights.get("class_3/bias", ())),),
    }.items():
        if name not in weights or weights[name].shape != shape:
            raise ValueError(
                f"The array of {name!r} must be of shape {shape} by the "
                f"config.json of {str(path)!r}. Received: "
                f"{np.shape(weights.get(name, ()))}"
            )
    classes = len(weights["class_3/bias"]) - 1
    shape = None, None, config.get("num_channels", 3)
    with skip_init():
        encoder = VisionTransformer(c, include_top=False, input_shape=shape)
        model: Any = YOLOS(
            encoder,
            classes,
            queries,
            config.get("use_mid_position_embeddings", True),
            _read(config, _LOSS_OPTIONS),
            class_names_of(config, classes),
        )
    assign_all(
        {variable.path: variable for variable in model.weights},
        weights,
        lambda: f"The arrays of {str(path)!r} do not fit its config.json.",
    )
    model.preprocess_mode = stored_mode(path) or "torch"
    return model


def save_yolos(
    model: keras.Model,
    folder: StrPath,
    overwrite: bool = False,
) -> None:
    """Writes a YOLOS as a folder that transformers reads.

    The weights of the loss (`loss_options` of `YOLOS`), the names of classes
    (`model.class_names`) and the scaling of pixels (`model.preprocess_mode`) are
    written, too.

    Args:
        model: `keras.Model` of `YOLOS` or `keras_vit.load`.
        folder: Path of the folder to write.
        overwrite: Boolean. Whether files in it may be replaced.

    Raises:
        FileExistsError: if there are files and `overwrite` is False.
        ValueError: if transformers' YOLOS cannot be this model.
    """
    config = _config(model)
    weights = merged_weights(model)
    arrays = to_checkpoint(weights, yolos.YOLOS, config["num_attention_heads"])
    arrays = yolos.join(arrays, config["num_detection_tokens"])
    write_folder(
        pathlib.Path(folder),
        {"model.safetensors": arrays},
        {"config.json": config, **processor_of(model, "YolosImageProcessor")},
        overwrite,
        names=JSON_FILES,
    )


def _read(config: Config, entries: dict[str, tuple[str, Any]]) -> Config:
    """Returns the entries of a config.json by their names here."""
    return {name: config.get(*theirs) for name, theirs in entries.items()}


def _encoder_config(config: Config) -> ViTConfig:
    """Returns the encoder that transformers builds from a config.json."""
    patch_size, image_size = (
        checks.positive_pair(name, config.get(name, default))
        for name, default in (("patch_size", 16), ("image_size", (512, 864)))
    )
    return ViTConfig(
        **_read(config, _FIELDS),
        patch_size=patch_size,
        class_token=True,
        grid_size=(
            image_size[0] // patch_size[0],
            image_size[1] // patch_size[1],
        ),
        resampling="bicubic",
        activation=read_arguments({"hidden_act": "gelu", **config})["activation"],
    )


def _config(model: Any) -> Config:
    """Returns the content of config.json, or raises a `ValueError`."""
    c = config_of(model)
    if type(c) is not ViTConfig or c.grid_size is None:
        raise ValueError(
            "transformers' YOLOS is a Vision Transformer with learned position "
            f"embeddings. Received: {model.name!r} with {c}"
        )
    tokens = model.get_layer("detection_tokens")
    rows, columns = c.grid_size
    classes = model.output["classes"].shape[-1] - 1
    names = checks.class_names(model.class_names, classes)
    config = {
        "model_type": "yolos",
        "architectures": ["YolosForObjectDetection"],
        **{theirs: getattr(c, name) for name, (theirs, _) in _FIELDS.items()},
        "hidden_act": hidden_act(c.activation),
        "image_size": [rows * c.patch_size[0], columns * c.patch_size[1]],
        "patch_size": c.patch_size[0],
        "num_channels": model.inputs[0].shape[-1],
        "num_detection_tokens": tokens.num_tokens,
        "use_mid_position_embeddings": any(
            layer.name == "mid_position_embedding_0" for layer in model.layers
        ),
        **{
            theirs: tokens.loss_options.get(name, default)
            for name, (theirs, default) in _LOSS_OPTIONS.items()
        },
        **label_entries(names or [f"LABEL_{i}" for i in range(classes)]),
        "dtype": "float32",
    }
    theirs = _encoder_config(config)
    # What changes only the training is of no account.
    ours = dataclasses.replace(c, drop_path=0.0, remat=False)
    different = [
        f"{field.name}={getattr(ours, field.name)!r} ({getattr(theirs, field.name)!r})"
        for field in dataclasses.fields(theirs)
        if getattr(ours, field.name) != getattr(theirs, field.name)
    ]
    if different:
        raise ValueError(
            f"transformers' YOLOS cannot be {model.name!r}. Build its encoder "
            f"with the values in parentheses: {', '.join(different)}"
        )
    return config
