"""Models that this package does not have are refused by their name."""

import json

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
    "eva02_tiny_patch14_224": "EVA",
    "samvit_base_patch16": "SAM",
    "convnext_atto": "ConvNeXt",
    "cait_xxs24_224": "CaiT",
    "xcit_nano_12_p16_224": "XCiT",
    "pvt_v2_b0": "PVT",
    "hiera_tiny_224": "Hiera",
    "mvitv2_tiny": "MViT",
    "coatnet_0_224": "CoAtNet",
    "maxvit_tiny_tf_224": "CoAtNet or MaxViT",
    "vit_relpos_small_patch16_224": "ViT with relative positions",
    "resnet18": "ResNet",
}


@pytest.mark.parametrize("name", TIMM)
def test_keys_of_a_bare_file_name_the_family(name, tmp_path):
    torch, timm = (pytest.importorskip(x) for x in ("torch", "timm"))
    with torch.device("meta"):
        keys = timm.create_model(name).state_dict()
    write({key: np.ones(1, "float32") for key in keys}, tmp_path / "a.npz")
    with pytest.raises(ValueError, match=f"It is {TIMM[name]}.*does not have. Use"):
        load(tmp_path / "a.npz")


def test_model_type_is_refused_even_if_the_arrays_fit(tmp_path):
    """Such as those of Phi-4's image tower, which are SigLIP's."""
    write(read(golden_data.load_path("hf_vit")), tmp_path / "model.safetensors")
    config = {"model_type": "phi4_multimodal_vision", "num_attention_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'phi4_multimodal_vision' of transformers"):
        load(tmp_path)
