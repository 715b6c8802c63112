"""Hugging Face's YOLOS (`YolosForObjectDetection`).

https://github.com/huggingface/transformers. Its encoder has the names of format
"huggingface", with detection tokens after the patches, which are first here.
"""

import numpy as np

from keras_vit.utils.types import Array, Config
from keras_vit.weights.formats.dense import Dense
from keras_vit.weights.formats.format import Values
from keras_vit.weights.formats.huggingface import HuggingFace
from keras_vit.weights.formats.huggingface_config import ACTIVATIONS
from keras_vit.weights.weight_map import TORCH, WeightMap

_TOKENS = "vit.embeddings.detection_tokens"
_POSITIONS = "vit.embeddings.position_embeddings"
_MID_POSITIONS = "vit.encoder.mid_position_embeddings"
_MLPS = (("class", "class_labels_classifier"), ("box", "bbox_predictor"))
_DROPOUT = {
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
_LAYERS = (
    *HuggingFace.maps[0].layers,
    ("detection_tokens/tokens", _TOKENS, "array"),
    # These are parts of arrays, which `normalize` and `to_file` cut and glue.
    ("detection_tokens/positions", f"{_POSITIONS}.detection", "array"),
    ("mid_position_embedding_{i}/embedding", f"{_MID_POSITIONS}.{{i}}", "array"),
    *(
        (f"{ours}_{i}/*", f"{theirs}.layers.{i - 1}.*", "linear")
        for ours, theirs in _MLPS
        for i in (1, 2, 3)
    ),
)


class Yolos(Dense):
    """transformers' YOLOS, a detector."""

    name = "yolos"
    maps = (WeightMap("", TORCH, _LAYERS),)
    marker = _TOKENS
    arguments = HuggingFace.arguments
    position_prefixes = {"": ("class",)}
    preprocess_mode = "torch"
    architecture = "YolosForObjectDetection"
    processor = "YolosImageProcessor"
    defaults = {
        "num_attention_heads": 12,
        "image_size": [512, 864],
        "patch_size": 16,
        "num_detection_tokens": 100,
        "use_mid_position_embeddings": True,
    }
    loss_options = {
        "box_weight": ("bbox_loss_coefficient", 5),
        "giou_weight": ("giou_loss_coefficient", 2),
        "no_object_weight": ("eos_coefficient", 0.1),
        "class_cost": ("class_cost", 1),
        "box_cost": ("bbox_cost", 5),
        "giou_cost": ("giou_cost", 2),
    }

    def read_config(self, config: Config) -> Config:
        rates = {ours: config.get(theirs, 0.0) for ours, theirs in _DROPOUT.items()}
        return {**super().read_config(config), **rates}

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        arrays, none = dict(arrays), np.zeros(())
        queries, positions = (arrays.get(key, none) for key in (_TOKENS, _POSITIONS))
        if queries.ndim != 3 or positions.ndim != 3:
            return arrays
        count = queries.shape[1]
        arrays[_POSITIONS] = positions[:, :-count]
        arrays[f"{_POSITIONS}.detection"] = positions[:, -count:]
        for i, array in enumerate(arrays.pop(_MID_POSITIONS, ())):
            arrays[f"{_MID_POSITIONS}.{i}"] = np.roll(array, count, axis=1)
        return arrays

    @staticmethod
    def to_file(arrays: dict[str, Array]) -> dict[str, Array]:
        count, arrays = arrays[_TOKENS].shape[1], dict(arrays)
        parts = [arrays[_POSITIONS], arrays.pop(f"{_POSITIONS}.detection")]
        arrays[_POSITIONS] = np.concatenate(parts, axis=1)
        mid = [key for key in arrays if key.startswith(f"{_MID_POSITIONS}.")]
        if mid:
            keys = [f"{_MID_POSITIONS}.{i}" for i in range(len(mid))]
            array = np.stack([arrays.pop(key) for key in keys])
            arrays[_MID_POSITIONS] = np.roll(array, -count, axis=2)
        return arrays

    @staticmethod
    def in_arrays(config: Config, weights: dict[str, Array]) -> Config:
        tokens = weights.get("detection_tokens/tokens")
        entries = {} if tokens is None else {"num_detection_tokens": tokens.shape[1]}
        if "block_1/norm_1/gamma" in weights:  # else there are none in any case
            mid_positions = "mid_position_embedding_0/embedding" in weights
            entries["use_mid_position_embeddings"] = mid_positions
        return entries

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        rows, _ = arguments["patch_size"]
        return {
            "class_token": (True,),
            "num_registers": (0,),
            "distillation": (False,),
            "layer_scale": (None,),
            "activation": tuple(dict.fromkeys(ACTIVATIONS.values())),
            "position_embedding": ("learned",),
            "patch_bias": (True,),
            "pad_to_patch": (False,),
            "resampling": ("bicubic",),
            "patch_size": ((rows, rows),),
        }

    @staticmethod
    def head_config(arguments: Config) -> Config:
        grid, patch_size = arguments["grid_size"], arguments["patch_size"]
        return {
            "image_size": [n * size for n, size in zip(grid, patch_size, strict=True)],
            "num_detection_tokens": arguments["queries"],
            "use_mid_position_embeddings": arguments["mid_positions"],
            **{theirs: arguments[ours] for ours, theirs in _DROPOUT.items()},
        }
