"""torchvision (format "torchvision"): https://github.com/pytorch/vision"""

import re

from keras_vit.utils.types import Array, Config
from keras_vit.weights.formats.format import (
    Format,
    Values,
    block_layers,
)
from keras_vit.weights.weight_map import TORCH, WeightMap, rename_keys

_LAYERS = (
    ("patch_embedding/*", "conv_proj.*", "conv"),
    ("class_token/tokens", "class_token", "array"),
    ("position_embedding/embedding", "encoder.pos_embedding", "array"),
    *block_layers(
        "encoder.layers.encoder_layer_{i}.",
        "self_attention.in_proj_*",
        "self_attention.out_proj.*",
        ("mlp.0.*", "mlp.3.*"),
        ("ln_1.*", "ln_2.*"),
    ),
    ("encoder_norm/*", "encoder.ln.*", "norm"),
    ("pre_logits/*", "heads.pre_logits.*", "linear"),
    ("head/*", "heads.head.*", "linear"),
)


class Torchvision(Format):
    """pytorch/vision."""

    name = "torchvision"
    maps = (WeightMap("", TORCH, _LAYERS),)
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic_align_corners",
    }
    position_prefixes = {"": ("all",)}
    poolings = ("token", "token_gap")
    preprocess_mode = "torch"

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Renames the MLP layers of files written before torchvision 0.14."""
        names = {"linear_1": "0", "linear_2": "3"}
        return rename_keys(
            arrays,
            lambda key: re.sub(
                r"(?<=\.mlp\.)linear_[12](?=\.)", lambda m: names[m[0]], key
            ),
        )

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        return {"class_token": (True,)}
