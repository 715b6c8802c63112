"""Image towers of open_clip and of OpenAI's CLIP (format "open_clip").

https://github.com/mlfoundations/open_clip and https://github.com/openai/CLIP,
whose names are the same. Files contain both towers; the text tower is left out.
An image tower may also be one of timm's models, with a projection.
"""

from collections.abc import Collection

import numpy as np

from keras_vit.utils.types import Array, Config
from keras_vit.utils.warnings import warn
from keras_vit.weights.formats import timm
from keras_vit.weights.formats.format import (
    Format,
    Values,
    block_layers,
    check_option,
    pair,
)
from keras_vit.weights.weight_map import TORCH, Layers, WeightMap

PREFIX, _BLOCK = "visual.", "transformer.resblocks.{i}."
_LAYERS: Layers = (
    ("patch_embedding/*", "conv1.*", "conv"),
    ("class_token/tokens", "class_embedding", "token"),
    ("position_embedding/embedding", "positional_embedding", "embedding"),
    ("pre_norm/*", "ln_pre.*", "norm"),
    *block_layers(
        _BLOCK,
        "attn.in_proj_*",
        "attn.out_proj.*",
        ("mlp.c_fc.*", "mlp.c_proj.*"),
        ("ln_1.*", "ln_2.*"),
        ("ls_1.gamma", "ls_2.gamma"),
    ),
    ("block_{i}/attention/query_norm/*", f"{_BLOCK}attn.ln_q.*", "norm"),
    ("block_{i}/attention/key_norm/*", f"{_BLOCK}attn.ln_k.*", "norm"),
    ("encoder_norm/*", "ln_post.*", "norm"),
    ("head/kernel", "proj", "array"),
    ("head/bias", "proj.bias", "array"),
)
# timm's models with a projection of open_clip's, and with their own head as it.
_TRUNK = tuple((path, f"trunk.{key}", kind) for path, key, kind in timm.encoder())
_PROJECTED = (
    *(layer for layer in _TRUNK if layer[0] != "head/*"),
    ("head/*", "head.proj.*", "linear"),
)
# An integer of OpenAI's files, by which its models are known.
_OPENAI_SIZE = "input_resolution"
_FIRST, _TRUNK_FIRST = _BLOCK.format(i=0), "trunk.blocks.0."
# Projections without a bias in the file, and the key of that of zeros.
_BIASES = {
    **{f"{p}proj": f"{p}proj.bias" for p in (PREFIX, "")},
    f"{PREFIX}head.proj.weight": f"{PREFIX}head.proj.bias",
}
# Entries of its config that change what is computed, the value of those that it
# lacks, and values here by theirs.
_OPTIONS = {
    "pool_type": ("tok", {"tok": "token", "avg": "gap"}),
    "act_kwargs": ({}, {"{}": "gelu", "{'approximate': 'tanh'}": "gelu_tanh"}),
}


def _poolings(has_pre_norm: bool) -> Config:
    """Returns the arguments about pooling, which files do not store, of a tower:
    of open_clip's configs, only CLIPA's have no norm before the blocks."""
    if has_pre_norm:
        return {"pooling": "token", "final_norm": "before_pooling"}
    return {"pooling": "gap", "final_norm": "after_pooling"}


class OpenClip(Format):
    """mlfoundations/open_clip and openai/CLIP."""

    name = "open_clip"
    maps = tuple(
        WeightMap(variant, TORCH, layers, prefix, required=(prefix + first,))
        for variant, layers, prefix, first in (
            ("", _LAYERS, PREFIX, f"{_FIRST}ln_1.weight"),
            ("tower", _LAYERS, "", f"{_FIRST}ln_1.weight"),
            ("trunk", _PROJECTED, PREFIX, f"{_TRUNK_FIRST}norm1.weight"),
            ("trunk-head", _TRUNK, PREFIX, "trunk.head.weight"),
        )
    )
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-5,
        "resampling": "bicubic_antialias",
    }
    position_prefixes = {
        "": ("all",),
        **dict.fromkeys(("trunk", "trunk-head"), ("all", "class", "none")),
    }
    preprocess_mode = "clip"
    config_files = ("open_clip_config.json",)
    config_key = "model_cfg"

    def implied(self, variant: str, paths: Collection[str]) -> Config:
        return timm.Timm.arguments if "trunk" in variant else self.arguments

    @staticmethod
    def look_alikes(variant: str, paths: Collection[str]) -> str | None:
        return timm.Timm.look_alikes("", paths) if "trunk" in variant else None

    @staticmethod
    def unstored(variant: str, weights: dict[str, Array]) -> dict[str, str]:
        return timm.Timm.unstored("", weights) if "trunk" in variant else {}

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Returns the arrays of the image tower, with a bias of zeros for its
        projection."""
        dropped = set(self.left_out(arrays))
        arrays = {key: a for key, a in arrays.items() if key not in dropped}
        for weight, bias in _BIASES.items():
            array = arrays.get(weight)
            if array is not None and array.ndim == 2 and bias not in arrays:
                width = array.shape[weight.endswith("proj")]
                arrays[bias] = np.zeros(width, array.dtype)
        return arrays

    @staticmethod
    def left_out(arrays: dict[str, Array]) -> list[str]:
        """Lists the keys of a text tower, and what OpenAI stores of it."""
        towers = tuple(PREFIX + first for first in (_FIRST, _TRUNK_FIRST))
        if not any(key.startswith(towers) for key in arrays):
            return []
        return [key for key in arrays if not key.startswith(PREFIX)]

    @staticmethod
    def to_file(arrays: dict[str, Array]) -> dict[str, Array]:
        """Returns arrays without biases of zeros of projections."""
        for weight, bias in _BIASES.items():
            if bias in arrays and weight.endswith("proj") and np.any(arrays[bias]):
                raise ValueError(
                    "The projection of an image tower has no bias in open_clip, and "
                    "the bias of the model's head is not zero (its largest value is "
                    f"{np.abs(arrays[bias]).max():.2g}). Write another format, such "
                    "as 'timm'."
                )
        zeros = {x for x in _BIASES.values() if x in arrays and not np.any(arrays[x])}
        return {key: array for key, array in arrays.items() if key not in zeros}

    @staticmethod
    def read_keys(arrays: Collection[str]) -> Config:
        found = {"activation": "quick_gelu"} if _OPENAI_SIZE in arrays else {}
        if not any(key.endswith("ln_post.weight") for key in arrays):
            return found  # a model of timm's
        has_norm = any(key.endswith("ln_pre.weight") for key in arrays)
        return {**found, **_poolings(has_norm)}

    @staticmethod
    def read_config(config: Config) -> Config:
        """Returns the arguments that an open_clip_config.json contains."""
        model = config["model_cfg"]
        vision = model.get("vision_cfg") if isinstance(model, dict) else None
        if not isinstance(vision, dict):
            raise ValueError("Its open_clip_config.json has no 'vision_cfg'.")
        if vision.get("timm_model_name"):
            entries = {
                "architecture": vision["timm_model_name"],
                "global_pool": vision.get("timm_pool"),
                "model_args": {"img_size": vision.get("image_size")},
            }
            return timm.Timm.read_config(entries)
        found = {}
        for name, (default, values) in _OPTIONS.items():
            value = str(vision.get(name) or default)
            expected = f"one of {', '.join(values)}"
            file = "open_clip_config.json"
            check_option(value in values, name, value, expected, file)
            found[name] = values[value]
        pooling, quick = found["pool_type"], model.get("quick_gelu")
        after = pooling == "gap" and vision.get("final_ln_after_pool")
        arguments: Config = {
            "activation": "quick_gelu" if quick else found["act_kwargs"],
            "pooling": pooling,
            "final_norm": "after_pooling" if after else "before_pooling",
        }
        norm = vision.get("norm_kwargs")
        if isinstance(norm, dict) and isinstance(norm.get("eps"), float):
            arguments["norm_epsilon"] = norm["eps"]
        width, head = vision.get("width", 768), vision.get("head_width", 64)
        if type(width) is type(head) is int and 0 < head <= width:
            arguments["num_heads"] = width // head
        image, patch = (
            pair(vision.get(f"{name}_size", usual))
            for name, usual in (("image", 224), ("patch", 16))
        )
        if image and patch:
            arguments["grid_size"] = (image[0] // patch[0], image[1] // patch[1])
        return arguments

    @staticmethod
    def after_reading(
        weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        if stored.get("final_norm") == "after_pooling":
            weights = _replace(weights, "encoder_norm/", "head_norm/")
        return weights, stored

    def assumptions(self, variant: str, keys: Collection[str]) -> dict[str, str]:
        if "trunk" in variant:
            return {}
        return {
            "activation": "'gelu', open_clip's default; 'quick_gelu' is that of the "
            "models of OpenAI, MetaCLIP and DFN"
        }

    def nearest_variant(self, arguments: Config) -> str:
        return "trunk" if arguments["pooling"] == "map" else ""

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        if "trunk" in variant:
            return {}
        return {
            "class_token": (True,),
            "position_embedding": ("learned",),
            "patch_bias": (False,),
            "qkv_bias": (True,),
            "channels": (3,),
            "pooling": ("token", "gap"),
            "final_norm": ("before_pooling", "after_pooling"),
            "activation": ("gelu", "quick_gelu", "gelu_tanh"),
        }

    def before_writing(
        self, weights: dict[str, Array], arguments: Config, variant: str
    ) -> dict[str, Array]:
        if "trunk" in variant:
            return weights
        read = _poolings(arguments["pre_norm"])
        if any(arguments[name] != value for name, value in read.items()):
            warn(
                f"A file of open_clip does not store pooling={arguments['pooling']!r} "
                f"and final_norm={arguments['final_norm']!r}, instead of which "
                f"readers assume {', '.join(map(repr, read.values()))}. Put an "
                "open_clip_config.json with 'pool_type' and 'final_ln_after_pool' "
                "next to it."
            )
        return _replace(weights, "head_norm/", "encoder_norm/")


def _replace(weights: dict[str, Array], old: str, new: str) -> dict[str, Array]:
    """Returns weights with another name of a layer."""
    return {
        new + path.removeprefix(old) if path.startswith(old) else path: array
        for path, array in weights.items()
    }
