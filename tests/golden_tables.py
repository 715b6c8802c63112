"""Tables of golden cases that need no code of `golden_data.py`."""

# Pre-training models: (layout, variant, arguments that the file lacks).
PRETRAINING = {
    "hf_vit_mim": ("huggingface", "mim", {}),
    "hf_vit_mae": ("huggingface", "mae", {}),
    "hf_vit_mae_saved_by_v5": ("huggingface", "mae", {}),
    "facebook_mae": (
        "mae",
        "",
        {"num_heads": 3, "decoder_num_heads": 4, "norm_pixels": False},
    ),
}

# Presets of keras-hub: `tests/converters/test_keras_hub.py`.
KERAS_HUB = ("keras_hub_vit", "keras_hub_deit", "keras_hub_dinov2")

# Cases that differ from another in names or container alone: the tests make
# them of its arrays where the original's file is not there.
# case: (the other, suffix, names to write otherwise)
DERIVED = {
    "timm_base_pth": ("timm_base", ".pth", ()),
    "torchvision_vit_old_names": (
        "torchvision_vit",
        ".pth",
        ((r"mlp\.0\.", "mlp.linear_1."), (r"mlp\.3\.", "mlp.linear_2.")),
    ),
    "vit_jax_token_linen": (
        "vit_jax_token",
        ".npz",
        (
            ("LayerNorm_2/", "LayerNorm_1/"),
            ("MlpBlock_3/", "MlpBlock_0/"),
            ("Attention_1/", "Attention_0/"),
        ),
    ),
    "hf_vit_mae_saved_by_v5": (
        "hf_vit_mae",
        ".safetensors",
        ((r"\.decoder_layers\.", ".decoder_encoder.layer."),),
    ),
}
