"""Names of models that this package does not have, for messages."""

import re
from collections.abc import Collection

from keras_vit.utils.types import Config

# The model types of transformers that are read. Others may have the same arrays and
# compute something else.
MODEL_TYPES = (
    *("vit", "vit_mae", "vit_msn", "ijepa", "deit", "dinov2", "dinov2_with_registers"),
    *("dinov3_vit", "clip", "clip_vision_model", "siglip", "siglip_vision_model"),
    *("siglip2", "siglip2_vision_model", "chinese_clip_vision_model"),
)
# Models, and what a key of their files has: the first that fits is named.
_FAMILIES = {
    "a model with LoRA before PEFT's `merge_and_unload`": r"\.lora_[AB]\.",
    "a quantized model": r"_packed_params|\.(zero_point|SCB|absmax|quant_map)$",
    "DPT": r"reassemble_stage|scratch\.refinenet",
    "Mask2Former or MaskFormer": r"pixel_level_module|transformer_module\.",
    "SAM": r"prompt_encoder\.|mask_decoder\.|(^|(vision|image)_encoder\.)neck\.",
    "Swin": r"layers\.\d+\.blocks\.\d+\.att|patch_merging|cpb_mlp",
    "CoAtNet or MaxViT": r"(attn|window)_(block|grid|attention)\.|"
    r"stages\..*attn\.rel_pos\.",
    "PVT": r"\.sr\.weight|sequence_reduction",
    "MViT": r"attn\.pool_[qkv]",
    "CaiT": r"blocks_token_only|proj_l\.",
    "XCiT": r"cls_attn_blocks|local_mp\.",
    "ViTDet, or SAM's encoder": r"rel_pos_h$|encoder\.layer\.\d+\.attention\.qkv\.",
    "a ViT with relative positions": r"attn\.rel_pos\.|shared_rel_pos\.",
    "a ViT with mixed rotary positions": r"rope\.freqs$",
    "a ViT with parallel blocks": r"blocks\.\d+\.(in_proj|attns)\.",
    "a ViT with differential attention": r"\.lambda_q1$",
    "AIMv2": r"rms_norm1\.|(^|\.)patch_embed\.norm\.",
    "BLIP": r"layers\.\d+\.self_attn\.(qkv|projection)\.",
    "CLIP with other blocks": r"resblocks\.\d+\.(ln_attn|attn\.(ln_|head_|lo)|mlp\.ln)",
    "a model of videos": r"temporal_|attention\.[qv]_bias$",
    "BEiT or Data2Vec": r"relative_position_bias|\.lambda_1$|^(beit|data2vec_vision)\.",
    "EVA, BEiT-3 or a ViT with other norms": r"blocks\.\d+\."
    r"(attn\.([qv]_bias|q_proj|norm)|mlp\.(w1|fc1_g|norm))\.?",
    "Hiera": r"^hiera\.|blocks\.\d+\.proj\.weight|pos_embed_(win|spatial)",
    "PiT": r"^transformers\.\d+\.blocks",
    "CoCa": r"attn_pool\.ln_k\.",
    "CLIP's ResNet": r"visual\.attnpool\.",
    "DETR, or another detector": r"bbox_(predictor|embed)|"
    r"class_labels_classifier",
    "ConvNeXt or another convolutional network": r"(conv_dw|dwconv|depthwise_conv|"
    r"normalization|batch_norm)\.|^features\.\d+\.",
    "ResNet": r"layer[1-4]\.\d+\.(conv|bn)\d\.",
    "a model of text": r"word_embeddings\.weight|^token_embedding\.weight",
}


def family(arrays: Collection[str], config: Config) -> str | None:
    """Returns the name of a model that this package does not have, by the config.json
    or the keys of its file; None if it is not known."""
    kind = config.get("model_type")
    # Those of `keras_vit.detection` and `keras_vit.segmentation`, and models of timm
    others = ("yolos", "eomt", "timm_wrapper")
    if isinstance(kind, str) and kind not in (*MODEL_TYPES, *others):
        return f"{kind!r:.60} of transformers"
    for name, pattern in _FAMILIES.items():
        if any(re.search(pattern, key) for key in arrays):
            return name
    return None


REMEDY = (
    "Use the library that wrote it; the pages Formats and Convert models of the "
    "documentation list the models that are read."
)


def refusal(name: str) -> str:
    """Returns the sentences that refuse a model."""
    return f"It is {name}, which this package does not have. {REMEDY}"
