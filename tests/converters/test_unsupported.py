"""Models that this package does not have are refused by their name."""

import json
import re
import warnings

import numpy as np
import pytest

from keras_vit.converters import load
from keras_vit.weights.files import read, write
from tests import golden_data

pytestmark = pytest.mark.backends("torch")
TIMM = {
    "beit_base_patch16_224": "BEiT or Data2Vec",
    "swin_tiny_patch4_window7_224": "Swin",
    "swinv2_tiny_window8_256": "Swin",
    "eva02_tiny_patch14_224": "EVA, BEiT-3 or",
    "samvit_base_patch16": "SAM",
    "convnext_atto": "ConvNeXt",
    "cait_xxs24_224": "CaiT",
    "xcit_nano_12_p16_224": "XCiT",
    "pvt_v2_b0": "PVT",
    "hiera_tiny_224": "Hiera",
    "mvitv2_tiny": "MViT",
    "coatnet_0_224": "CoAtNet",
    "maxvit_tiny_tf_224": "CoAtNet or MaxViT",
    "vit_relpos_small_patch16_224": "a ViT with relative positions",
    "resnet18": "ResNet",
    "aimv2_large_patch14_224": "AIMv2",
    "beit3_base_patch16_224": "EVA, BEiT-3 or",
    "vit_pwee_patch16_reg1_gap_256": "a ViT with parallel blocks",
    "vit_base_patch16_xp_224": "a ViT with parallel blocks",
    "vit_dwee_patch16_reg1_gap_256": "a ViT with differential attention",
    "vit_srelpos_small_patch16_224": "a ViT with relative positions",
    "vit_base_patch16_rope_mixed_224": "a ViT with mixed rotary positions",
}
TRANSFORMERS = {
    "Aimv2VisionModel": "AIMv2",
    "BlipVisionModel": "BLIP",
    "TimesformerModel": "a model of videos",
    "VitDetModel": "ViTDet",
    "MobileViTModel": "ConvNeXt or another convolutional network",
    "LevitModel": "ConvNeXt or another convolutional network",
    "ResNetModel": "ConvNeXt or another convolutional network",
}
OTHERS = {
    "base_model.model.vit.layers.0.q.lora_A.default.weight": "a model with LoRA before",
    "visual.transformer.resblocks.0.attn.head_scale": "CLIP with other blocks",
    "block.0.layers.0.layers.window_attention.attn_layer.1.bias": "CoAtNet or MaxViT",
    "blocks.0.attn.qkv.zero_point": "a quantized model",
    "features.0.0.weight": "ConvNeXt or another",
}


def keys_of(name):
    if name in OTHERS:
        return [name, "visual.token_embedding.weight"]
    torch, timm = (pytest.importorskip(x) for x in ("torch", "timm"))
    with torch.device("meta"):
        if name in TIMM:
            return timm.create_model(name).state_dict()
        build = getattr(pytest.importorskip("transformers"), name)
        return build(build.config_class()).state_dict()


@pytest.mark.parametrize("name", [*TIMM, *TRANSFORMERS, *OTHERS])
def test_keys_of_a_bare_file_name_the_family(name, tmp_path):
    expected = {**TIMM, **TRANSFORMERS, **OTHERS}[name]
    write({key: np.ones(1, "float32") for key in keys_of(name)}, tmp_path / "a.npz")
    with pytest.raises(ValueError, match=f"It is {expected}.*does not have. Use"):
        load(tmp_path / "a.npz")


def no_biases(arrays):
    """Of norms, as in RMSNorm."""
    return {k: a for k, a in arrays.items() if not ("norm" in k and "bias" in k)}


def of_videos(arrays):
    patches = "vit.embeddings.patch_embeddings.projection.weight"
    return {**arrays, patches: arrays[patches][:, :, None]}


@pytest.mark.parametrize(
    "change, message",
    [
        (no_biases, "whose norms have no biases.*does not have. Use the library"),
        (of_videos, "a model of videos.*does not have. Use the library"),
        (
            lambda x: {**x, "vit.gate": np.ones(3, "float32")},
            "nearest.*Use the library",
        ),
        (lambda x: {"gate": np.ones(3, "float32")}, "no format. Use the library"),
    ],
)
def test_arrays_of_other_models_are_refused(change, message, tmp_path):
    write(change(read(golden_data.load_path("hf_vit"))), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.safetensors", num_heads=3)


def test_model_type_is_refused_even_if_the_arrays_fit(tmp_path):
    """Such as those of Phi-4's image tower, which are SigLIP's."""
    write(read(golden_data.load_path("hf_vit")), tmp_path / "model.safetensors")
    config = {"model_type": "phi4_multimodal_vision", "num_attention_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'phi4_multimodal_vision' of transformers"):
        load(tmp_path)
    # The type of all of timm's models says nothing of the model.
    (tmp_path / "config.json").write_text('{"model_type": "timm_wrapper"}')
    key = "timm_model.blocks.0.attn.q_bias"
    write({key: np.ones(1, "float32")}, tmp_path / "model.safetensors", overwrite=True)
    with pytest.raises(ValueError, match="It is EVA"):
        load(tmp_path)


# Architectures whose arrays are those of others, and words of what is said.
SAME_ARRAYS = {
    "vit_pe_core_tiny_patch16_384": "'vit_pe_*'",
    "vit_pe_spatial_tiny_patch16_512": "'vit_pe_*'",
    "vit_small_patch16_rope_ape_224": "'vit_*_rope_ape_*'",
    "vit_medium_patch16_rope_reg1_gap_256": "'vit_*_rope_reg*'",
    "vit_base_patch16_rpn_224": "'vit_*_rpn_*'",
    "test_vit3": "'test_vit3'",
    "vit_base_patch16_clip_quickgelu_224": "`activation` 'quick_gelu' `norm_epsilon`",
    "vit_base_patch32_siglip_256": "`activation` 'gelu_tanh'",
    "vit_small_patch16_dinov3": "",
    "vit_base_patch32_siglip_gap_256": "`activation` 'gelu_tanh'",
    "naflexvit_base_patch16_siglip": "`activation` `resampling`",
    "naflexvit_base_patch16_radio_v3": "`resampling`",
    "vit_giant_patch14_reg4_dinov2": "`activation` 'swiglu' GluMlp",
    "vit_base_patch16_224 avg": "`pooling` 'gap'",
    "Phi4MultimodalVision": "Phi-4 and PaddleOCR-VL",
    "CLIPVision": "`activation` 'quick_gelu'",
}


@pytest.mark.parametrize("name", SAME_ARRAYS)
@pytest.mark.filterwarnings("ignore:The number of heads")
def test_a_bare_file_of_arrays_that_others_have_is_warned_of(name, tmp_path):
    torch, words = pytest.importorskip("torch"), SAME_ARRAYS[name]
    if name.endswith("Vision"):
        library = pytest.importorskip("transformers")
        names = "hidden_size intermediate_size num_hidden_layers num_attention_heads"
        sizes = dict(zip(names.split(), (64, 64, 1, 1), strict=True))
        config = getattr(library, f"{name}Config")(image_size=64, **sizes)
        model = getattr(library, f"{name}Model")(config)
    else:
        patch = re.search(r"patch(\d+)", name)
        sizes = {"img_size": 4 * int(patch[1]) if patch else 64}
        sizes |= {"embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 3}
        name, _, pool = name.partition(" ")
        sizes |= {"global_pool": pool} if pool else {}
        sizes |= {"mlp_ratio": 4} if "giant" in name else {}
        model = pytest.importorskip("timm").create_model(name, **sizes)
    torch.save(model.state_dict(), tmp_path / "a.pth")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(tmp_path / "a.pth", num_heads=1)
    said = "\n".join(str(warning.message) for warning in caught)
    for word in words.split():
        assert word in said
    if "dinov3" in name:
        shape = (64, 64, 3)
        x = np.random.default_rng(0).normal(size=(1, *shape)).astype("float32")
        built = load(tmp_path / "a.pth", input_shape=shape)
        expected = model.eval()(torch.tensor(x.transpose(0, 3, 1, 2))).detach()
        np.testing.assert_allclose(built.predict(x, verbose=0), expected, atol=1e-5)
        encoder = load(tmp_path / "a.pth", include_top=False, input_shape=shape)
        assert encoder.output_shape == (None, 21, 64)


@pytest.mark.parametrize("case", ["timm_base", "hf_vit", "hf_dinov2_reg"])
def test_blocks_without_patches_are_refused(case, tmp_path):
    arrays = golden_data.arrays(case)
    rest = {key: x for key, x in arrays.items() if "patch_embed" not in key}
    write(rest, tmp_path / "a.npz")
    with pytest.raises(ValueError, match="which has patch_embedding/kernel with 4"):
        load(tmp_path / "a.npz")
