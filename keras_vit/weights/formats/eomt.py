"""Hugging Face's EoMT (`EomtForUniversalSegmentation`).

https://github.com/huggingface/transformers. It is no layout of
`converters.load`, which reads classifiers and encoders: see
`keras_vit.load`.
"""

from keras_vit.weights.formats.format import QKV, block_layers
from keras_vit.weights.weight_map import TORCH, Names, WeightMap

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
        ("register_tokens/tokens", f"{embeddings}register_tokens", "array"),
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
    )
    return WeightMap(variant, _TYPES, layers)


EOMT = _map("", ("mlp.fc1.*", "mlp.fc2.*"))
EOMT_GATED = _map("gated", (("mlp.gate_proj.*", "mlp.up_proj.*"), "mlp.down_proj.*"))
# Arrays of its files that are no weights: the weights of the classes in its
# loss, and the annealed probability of masked attention in each block.
CLASS_WEIGHTS = "criterion.empty_weight"
PROBABILITIES = "attn_mask_probs"
