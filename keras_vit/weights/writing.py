"""Writer of formats, used by `converters.save` and `tools/convert.py`."""

import math
import pathlib

import ml_dtypes
import numpy as np

from keras_vit.utils.scaling import Mode
from keras_vit.utils.types import Array, Config
from keras_vit.utils.warnings import warn
from keras_vit.weights.files import SUFFIXES, write
from keras_vit.weights.formats import (
    RESNET_CONSTANTS,
    check_representable,
    implied_arguments,
    split,
    text,
)
from keras_vit.weights.formats.format import Checkpoint, write_folder
from keras_vit.weights.infer import warn_if_heads_ambiguous
from keras_vit.weights.weight_map import WeightMap, to_checkpoint

DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def write_checkpoint(
    weights: dict[str, Array],
    arguments: Config,
    target: pathlib.Path,
    format: str,
    dtype: str | None = None,
    overwrite: bool = False,
    source: Checkpoint | None = None,
    preprocess_mode: Mode | None = None,
) -> WeightMap:
    """Writes weights in a format to a file, or to a folder if the target has no
    suffix, and returns the map that was used.

    A folder keeps the labels and the preprocessing of `source`, or stores
    `preprocess_mode`, "tf" by default. Nothing is written if the format or the
    file type cannot store the weights.
    """
    check_writable(target, format)
    code_base, variant = split(format)
    name, folder = code_base.name, target.suffix == ""
    texts = {path: x for path, x in weights.items() if path.startswith(text.PREFIX)}
    weights = {path: x for path, x in weights.items() if path not in texts}
    if not variant and "resnet_layers" not in arguments:
        variant = code_base.nearest_variant(arguments)
    check_representable(arguments, f"{name}:{variant}", folder)
    weights = code_base.before_writing(weights, arguments, variant)
    if folder:
        stored = str(next(iter(weights.values())).dtype)
        configs = code_base.folder_configs(
            arguments, variant, dtype or stored, source, preprocess_mode
        )
        if texts:
            config = text.whole_config(configs["config.json"], arguments["text"])
            configs["config.json"] = config
    rows, columns = arguments.get("grid_size") or (1, 1)
    side = math.isqrt(rows * columns)
    learned = arguments.get("position_embedding") == "learned"
    if not folder and learned and rows != columns and side**2 == rows * columns:
        warn(
            f"{str(target)!r} does not store that its {rows * columns} "
            f"positions are a grid of {rows} x {columns}; readers will take "
            f"{side} x {side}. Give grid_size=({rows}, {columns}) when it is "
            "read, or write a .keras file."
        )
    first_patch = arguments.get("pooling") == "first_patch"
    if first_patch and arguments["classes"] and not folder:
        warn(
            f"{str(target)!r} does not store that its head takes the first "
            "patch; readers will take the mean of the patches. Give "
            '`pooling="first_patch"` when it is read, or in big_vision '
            '`pool_type="0"`.'
        )
    if name != "keras_hub":  # its config.json stores it
        warn_of_activation(arguments, target)
    weights, weight_map = code_base.map_to_write(variant, weights)
    if not folder and "hidden_size" in arguments:
        warn_if_heads_ambiguous(arguments, weight_map, target)
    heads = (arguments["num_heads"], arguments.get("decoder_num_heads"))
    arrays = to_checkpoint(weights, weight_map, heads)
    arrays = code_base.to_file(arrays)
    if texts:
        arrays = code_base.with_text(arrays)
        arrays |= text.write(texts, arguments["text"], name)
    to = None if dtype is None else np.dtype(DTYPES[dtype])
    if folder:
        files, names = code_base.weight_files(arrays), code_base.folder_files
        write_folder(target, files, configs, overwrite, to, names)
    else:
        write(arrays, target, overwrite, to)
        _warn_of_constants(arguments, format, weight_map, weights, target)
    return weight_map


def _warn_of_constants(
    arguments: Config,
    format: str,
    weight_map: WeightMap,
    weights: dict[str, Array],
    target: pathlib.Path,
) -> None:
    """Warns of arguments that a file does not store and whose values are not those
    that its readers assume."""
    usual = implied_arguments(format, weight_map, weights)
    names = ("activation", "norm_epsilon", "rope_base", *RESNET_CONSTANTS["bit"])
    others = [x for x in names if x in usual and usual[x] != arguments[x]]
    if others:
        warn(
            f"{str(target)!r} does not store "
            f"{', '.join(f'{x}={arguments[x]!r}' for x in others)}; readers of the "
            f"format {format!r} use {', '.join(f'{x}={usual[x]!r}' for x in others)}. "
            "Pass these arguments when the file is read, or write a .keras file."
        )


def warn_of_activation(arguments: dict, target: str | pathlib.Path) -> None:
    """Warns that a file gives logits of a model that ends in an activation."""
    activation = arguments.get("classifier_activation")
    if activation:
        warn(
            f"The {activation} of the head is not stored in {str(target)!r}, "
            "whose outputs are logits. Load it with "
            f"`classifier_activation={activation!r}`, or apply it to them."
        )


def check_writable(target: pathlib.Path, format: str) -> None:
    """Raises a `ValueError` if a target's suffix is not supported, or a format
    cannot be a folder."""
    if target.suffix not in ("", *SUFFIXES):
        raise ValueError(
            f"The name of the file to write must end in {', '.join(SUFFIXES)}, .keras "
            f"or .weights.h5, or be that of a folder. Received: {str(target)!r}"
        )
    if target.suffix == "" and not split(format)[0].folder_files:
        raise ValueError(
            f"{str(target)!r} has no suffix, so that it is a folder, which "
            "only the formats huggingface, keras_hub, eomt and yolos are; "
            "`keras_vit.hub.save` writes one that timm opens. "
            f"Received: format={format!r}"
        )
