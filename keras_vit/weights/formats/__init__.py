"""The supported code bases, one class each."""

from collections.abc import Collection

from keras_vit.utils.types import Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights import infer
from keras_vit.weights.files import read_config
from keras_vit.weights.formats import google, meta
from keras_vit.weights.formats.dinov3 import Dinov3
from keras_vit.weights.formats.eomt import Eomt
from keras_vit.weights.formats.format import Format as Format
from keras_vit.weights.formats.huggingface import HuggingFace
from keras_vit.weights.formats.keras_hub import KerasHub
from keras_vit.weights.formats.open_clip import OpenClip
from keras_vit.weights.formats.timm import Timm
from keras_vit.weights.formats.torchvision import Torchvision
from keras_vit.weights.formats.yolos import Yolos
from keras_vit.weights.weight_map import WeightMap

FORMATS: dict[str, Format] = {
    code_base.name: code_base()
    for code_base in (
        google.VitJax,
        google.BigVision,
        Timm,
        HuggingFace,
        Torchvision,
        meta.Dinov2,
        Dinov3,
        meta.Mae,
        meta.Dino,
        meta.Mocov3,
        google.Bit,
        KerasHub,
        OpenClip,
        Eomt,
        Yolos,
    )
}
# Constants of ResNets that cannot be inferred from arrays, by code base.
RESNET_CONSTANTS = {
    "vit_jax": google.VIT_JAX_CONSTANTS,
    "bit": google.BIT_CONSTANTS,
}


_HINTS = {
    "transformers": " That of transformers is 'huggingface'.",
    "hub": " For a folder for the hub, call `keras_vit.hub.save`.",
}


def split(format: str, argument: str = "format") -> tuple[Format, str]:
    """Returns the code base and the variant of a format, "name" or "name:variant",
    or raises a `ValueError` with the name of the argument if it is unknown."""
    name, _, variant = format.partition(":")
    if name not in FORMATS:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(map(repr, FORMATS))}."
            f"{_HINTS.get(name, '')} Received: {argument}={format!r}"
        )
    return FORMATS[name], variant


def get_weight_map(format: str, weights: Collection[str] = ()) -> WeightMap:
    """Returns the `WeightMap` of a format, `"name"` or `"name:variant"`, as
    `Format.weight_map`."""
    code_base, variant = split(format)
    return code_base.weight_map(variant, weights)


def implied_arguments(
    format: str, weight_map: WeightMap, paths: Collection[str]
) -> Config:
    """Returns the model arguments that are constants of a code base."""
    code_base, _ = split(format)
    variant, family = weight_map.variant, infer.encoder_family(paths)
    if family == "bit":
        default = google.Bit.resnets[""]
        _, constants = code_base.resnets.get(variant, default)
        return dict(constants)
    stem = code_base.stem if family == "hybrid" else {}
    return {**code_base.implied(variant, paths), **stem}


def find_config(code_base: Format, path: StrPath) -> Config:
    """Returns the JSON file with the config of a checkpoint's model; {} if
    there is none, or, with a warning, if it is of another code base."""
    if not code_base.config_key:
        return {}
    found = (read_config(path, name) for name in code_base.config_files)
    config = next(filter(None, found), {})
    if is_config_of(config, code_base.name):
        return config
    for other in FORMATS:
        if is_config_of(config, other):
            warn(
                "The config.json in the checkpoint's folder is ignored: it is "
                f"one of {other}, and the arrays are in the format "
                f"{code_base.name!r}. Move it elsewhere, or give what it holds "
                "as arguments."
            )
    return code_base.training_config(path)


def is_config_of(config: Config, format: str) -> bool:
    """Returns whether a config.json was written by a format's code base."""
    return format in FORMATS and FORMATS[format].config_key in config


def check_representable(arguments: Config, format: str, folder: bool = False) -> None:
    """Raises a `ValueError` if a format cannot represent a model.

    This checks arguments that do not show in the arrays: the format's code
    would load the weights and compute other outputs. Weights that the format
    has no key for are reported when they are converted.
    """
    code_base, variant = split(format)
    reasons = []
    if "hidden_size" not in arguments:
        versions = [version for version, _ in code_base.resnets.values()]
        if arguments["preactivation"] not in versions:
            reasons = ["a ResNet alone, which 'bit' can hold"]
    elif "resnet_layers" in arguments and not code_base.stem:
        able = [repr(name) for name, x in FORMATS.items() if x.stem]
        reasons = [f"it has no hybrids, which {' and '.join(able)} have"]
    else:
        variant = variant or code_base.nearest_variant(arguments)
        reasons = code_base.refusals(arguments, variant, folder)
    if reasons:
        raise ValueError(
            f"The format {code_base.name!r} cannot hold the model: "
            f"{'; '.join(reasons)}."
        )
