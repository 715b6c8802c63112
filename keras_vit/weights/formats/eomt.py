"""Hugging Face's EoMT (`EomtForUniversalSegmentation`).

https://github.com/huggingface/transformers. It is no layout of
`converters.load`, which reads classifiers and encoders: see
`keras_vit.segmentation.load`.
"""

from keras_vit.weights.weight_map import TORCH
from keras_vit.weights.weight_map import Layers
from keras_vit.weights.weight_map import WeightMap

_TYPES = {
    **TORCH,
    "embedding": {"": ("", "t d -> 1 t d")},
    # A gate and a projection, which are one layer of keras_vit.
    "gated": {
        "kernel": ("weight", "n o i -> i (n o)"),
        "bias": ("bias", "n o -> (n o)"),
    },
    "deconv": {
        "kernel": ("weight", "i o y x -> y x o i"),
        "bias": ("bias", "o -> o"),
    },
    "depthwise": {"kernel": ("weight", "c 1 y x -> y x c 1")},
}


def _layers(gated: bool) -> Layers:
    mlp = (
        (
            "block_{i}/mlp/dense_1/*",
            ("layers.{i}.mlp.gate_proj.*", "layers.{i}.mlp.up_proj.*"),
            "gated",
        ),
        ("block_{i}/mlp/dense_2/*", "layers.{i}.mlp.down_proj.*", "linear"),
    )
    if not gated:
        mlp = tuple(
            (
                f"block_{{i}}/mlp/dense_{number}/*",
                f"layers.{{i}}.mlp.fc{number}.*",
                "linear",
            )
            for number in (1, 2)
        )
    head, up = "eomt_head", "upscale_block.block.{i}"
    return (
        (
            "patch_embedding/*",
            "embeddings.patch_embeddings.projection.*",
            "conv",
        ),
        ("class_token/tokens", "embeddings.cls_token", "array"),
        ("register_tokens/tokens", "embeddings.register_tokens", "array"),
        (
            "position_embedding/embedding",
            "embeddings.position_embeddings.weight",
            "embedding",
        ),
        ("queries/tokens", "query.weight", "embedding"),
        ("block_{i}/norm_1/*", "layers.{i}.norm1.*", "norm"),
        *(
            (
                f"block_{{i}}/attention/{name}/*",
                f"layers.{{i}}.attention.{name[0]}_proj.*",
                "heads",
            )
            for name in ("query", "key", "value")
        ),
        (
            "block_{i}/attention/attention_output/*",
            "layers.{i}.attention.out_proj.*",
            "merge",
        ),
        ("block_{i}/scale_1/gamma", "layers.{i}.layer_scale1.lambda1", "array"),
        ("block_{i}/norm_2/*", "layers.{i}.norm2.*", "norm"),
        *mlp,
        ("block_{i}/scale_2/gamma", "layers.{i}.layer_scale2.lambda1", "array"),
        ("encoder_norm/*", "layernorm.*", "norm"),
        (f"{head}/up_{{i}}/deconvolution/*", f"{up}.conv1.*", "deconv"),
        (f"{head}/up_{{i}}/convolution/*", f"{up}.conv2.*", "depthwise"),
        (f"{head}/up_{{i}}/norm/*", f"{up}.layernorm2d.*", "norm"),
        *(
            (f"{head}/mask_{i}/*", f"mask_head.fc{i}.*", "linear")
            for i in (1, 2, 3)
        ),
        (f"{head}/class/*", "class_predictor.*", "linear"),
    )


EOMT = WeightMap("", _TYPES, _layers(gated=False))
EOMT_GATED = WeightMap("gated", _TYPES, _layers(gated=True))
# Arrays of its files that are no weights: the weights of the classes in its
# loss, and the annealed probability of masked attention in each block.
CLASS_WEIGHTS = "criterion.empty_weight"
PROBABILITIES = "attn_mask_probs"
