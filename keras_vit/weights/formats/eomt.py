"""Hugging Face's EoMT (`EomtForUniversalSegmentation`).

https://github.com/huggingface/transformers
"""

import numpy as np

from keras_vit.utils.types import Array, Config
from keras_vit.weights.formats.dense import Dense
from keras_vit.weights.formats.format import (
    QKV,
    Values,
    block_layers,
    check_option,
    square,
)
from keras_vit.weights.formats.huggingface_config import mlp_ratio
from keras_vit.weights.weight_map import TORCH, Names, WeightMap

# Arrays of a file that are no weights of layers: the weights of the classes in the
# loss, and the annealed probability of masked attention in each block.
_CLASS_WEIGHTS, _PROBABILITIES = "criterion.empty_weight", "attn_mask_probs"
_REGISTERS = "embeddings.register_tokens"

_TYPES = {
    **TORCH,
    "deconv": {
        "kernel": ("weight", "i o y x -> y x o i"),
        "bias": ("bias", "o -> o"),
    },
    "depthwise": {"kernel": ("weight", "c 1 y x -> y x c 1")},
}


def _map(variant: str, mlp: tuple[Names, str]) -> WeightMap:
    head, up = "eomt_head", "upscale_block.block.{i}"
    embeddings = "embeddings."
    layers = (
        (
            "patch_embedding/*",
            f"{embeddings}patch_embeddings.projection.*",
            "conv",
        ),
        ("class_token/tokens", f"{embeddings}cls_token", "array"),
        ("register_tokens/tokens", _REGISTERS, "array"),
        (
            "position_embedding/embedding",
            f"{embeddings}position_embeddings.weight",
            "embedding",
        ),
        ("queries/tokens", "query.weight", "embedding"),
        *block_layers(
            "layers.{i}.",
            tuple(f"attention.{name[0]}_proj.*" for name in QKV),
            "attention.out_proj.*",
            mlp,
            scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
        ),
        ("encoder_norm/*", "layernorm.*", "norm"),
        (f"{head}/up_{{i}}/deconvolution/*", f"{up}.conv1.*", "deconv"),
        (f"{head}/up_{{i}}/convolution/*", f"{up}.conv2.*", "depthwise"),
        (f"{head}/up_{{i}}/norm/*", f"{up}.layernorm2d.*", "norm"),
        *((f"{head}/mask_{i}/*", f"mask_head.fc{i}.*", "linear") for i in (1, 2, 3)),
        (f"{head}/class/*", "class_predictor.*", "linear"),
        # `normalize` and `to_file` cut and glue the probabilities.
        ("query_mask_{i}/probability", f"{_PROBABILITIES}.{{i}}", "array"),
        ("class_weights", _CLASS_WEIGHTS, "array"),
    )
    return WeightMap(variant, _TYPES, layers)


class Eomt(Dense):
    """transformers' EoMT, a segmenter."""

    name = "eomt"
    maps = (
        _map("", ("mlp.fc1.*", "mlp.fc2.*")),
        _map("gated", (("mlp.gate_proj.*", "mlp.up_proj.*"), "mlp.down_proj.*")),
    )
    marker = "class_predictor.weight"
    arguments = {  # transformers does not resample positions
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic_antialias",
    }
    position_prefixes = {"": ("none",)}
    architecture = "EomtForUniversalSegmentation"
    processor = "EomtImageProcessor"
    defaults = {
        "num_attention_heads": 16,
        "image_size": 640,
        "patch_size": 16,
        "hidden_act": "gelu",
        "layerscale_value": 1.0,
        "num_blocks": 4,
        "num_queries": 200,
    }
    loss_options = {
        "class_weight": ("class_weight", 2.0),
        "mask_weight": ("mask_weight", 5.0),
        "dice_weight": ("dice_weight", 5.0),
        "no_object_weight": ("no_object_weight", 0.1),
        "num_points": ("train_num_points", 12544),
        "oversampling": ("oversample_ratio", 3.0),
        "importance": ("importance_sample_ratio", 0.75),
    }

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        arrays, probabilities = dict(arrays), arrays.get(_PROBABILITIES)
        if _REGISTERS in arrays and not arrays[_REGISTERS].size:
            del arrays[_REGISTERS]
        if probabilities is not None and probabilities.ndim == 1:
            del arrays[_PROBABILITIES]
            for i, probability in enumerate(probabilities):
                arrays[f"{_PROBABILITIES}.{i}"] = np.asarray(probability)
        return arrays

    @staticmethod
    def to_file(arrays: dict[str, Array]) -> dict[str, Array]:
        arrays, width = dict(arrays), arrays["layernorm.weight"].shape[0]
        arrays.setdefault(_REGISTERS, np.zeros((1, 0, width), "float32"))
        blocks = sum(key.startswith(f"{_PROBABILITIES}.") for key in arrays)
        keys = [f"{_PROBABILITIES}.{i}" for i in range(blocks)]
        arrays[_PROBABILITIES] = np.stack([arrays.pop(key) for key in keys])
        return arrays

    def read_config(self, config: Config) -> Config:
        arguments, config = super().read_config(config), {**self.defaults, **config}
        # The enlarging of the masks has the activation of the encoder.
        act, scale = config["hidden_act"], config["layerscale_value"]
        check_option(act == "gelu", "hidden_act", act, "'gelu'")
        rows, columns = arguments.get("grid_size", (0, 1))
        size = config["image_size"]
        check_option(rows == columns, "image_size", size, "that of a square")
        return {**arguments, "layer_scale": scale, "blocks": config["num_blocks"]}

    @staticmethod
    def in_arrays(config: Config, weights: dict[str, Array]) -> Config:
        blocks = sum(path.endswith("/probability") for path in weights)
        tokens = weights.get("queries/tokens")
        entries = {} if tokens is None else {"num_queries": tokens.shape[1]}
        return {**entries, "num_blocks": blocks} if blocks else entries

    @staticmethod
    def after_reading(
        weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        # The last is that of "no object", which config.json has, too.
        others = weights.pop("class_weights", None)
        options = stored.get("loss_options", {})
        found = options.get("no_object_weight", 0.1)
        if others is not None:
            # Files in bfloat16 or float16 have rounded it.
            fits = bool(np.isclose(others[-1], found, rtol=2**-8, atol=0))
            expected = f"{others[-1]}, as in {_CLASS_WEIGHTS!r}"
            check_option(fits, "no_object_weight", found, expected)
        return weights, stored

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        width, gated = arguments["hidden_size"], variant == "gated"
        whole = mlp_ratio(width, arguments["mlp_dim"], gated)
        return {
            "class_token": (True,),
            "distillation": (False,),
            "position_embedding": ("learned",),
            "pad_to_patch": (False,),
            "patch_bias": (True,),
            "qkv_bias": (True,),
            "layer_scale": (arguments["layer_scale"] or 1.0,),
            "activation": ("swiglu" if gated else "gelu",),
            "mlp_dim": (arguments["mlp_dim"] if whole else 4 * width,),
            **square(arguments),
        }

    def nearest_variant(self, arguments: Config) -> str:
        return "gated" if arguments["activation"] == "swiglu" else ""

    def before_writing(
        self, weights: dict[str, Array], arguments: Config, variant: str
    ) -> dict[str, Array]:
        blocks = range(arguments["blocks"])
        none = {f"query_mask_{i}/probability": np.zeros((), "float32") for i in blocks}
        class_weights = np.ones(len(arguments["class_names"]) + 1, "float32")
        class_weights[-1] = arguments["loss_options"].get("no_object_weight", 0.1)
        return {**none, **weights, "class_weights": class_weights}

    @staticmethod
    def head_config(arguments: Config) -> Config:
        return {
            "layerscale_value": arguments["layer_scale"],
            "num_upscale_blocks": arguments["num_upscales"],
            "num_blocks": arguments["blocks"],
            "num_queries": arguments["queries"],
        }
