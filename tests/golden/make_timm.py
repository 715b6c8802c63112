"""Makes the cases `timm_bit`, `timm_hybrid_root` and `timm_hybrid_symmetric`.

    python tests/golden/make_timm.py

timm computes every number; this script samples the weights and writes the
files. timm is no dependency of the tests. As in the other cases of a ResNet,
filters reach down to a scale of 2**-12, the first norm to 2e-3 and the second
image to a contrast of 1/512, so that every epsilon affects the logits.
"""

import functools
import json
import pathlib

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from timm.layers import HybridEmbed, StdConv2d, StdConv2dSame
from timm.models.resnetv2 import ResNetV2, create_resnetv2_stem
from timm.models.vision_transformer import VisionTransformer

FOLDER = pathlib.Path(__file__).parent
RESNET = {"layers": (1,), "channels": (128,), "stem_chs": 32}
VIT = {
    "img_size": 32,
    "embed_dim": 48,
    "depth": 1,
    "num_heads": 3,
    "mlp_ratio": 2.0,
    "num_classes": 7,
}
FIXED = functools.partial(StdConv2d, eps=1e-8)
SAME = functools.partial(StdConv2dSame, eps=1e-8)


def bit():
    return ResNetV2(**RESNET, num_classes=7, stem_type="fixed", conv_layer=FIXED)


def hybrid_root():
    stem = create_resnetv2_stem(3, 64, stem_type="same", preact=False, conv_layer=SAME)
    embed = functools.partial(HybridEmbed, backbone=stem)
    return VisionTransformer(**VIT, patch_size=2, embed_layer=embed)


def hybrid_symmetric():
    root = ResNetV2(
        **RESNET, num_classes=0, global_pool="", preact=False, conv_layer=FIXED
    )
    embed = functools.partial(HybridEmbed, backbone=root)
    return VisionTransformer(**VIT, patch_size=1, embed_layer=embed)


def sample(model, rng):
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        value = rng.normal(size=shape)
        if len(shape) == 1 and name.endswith("weight"):
            value = 1 + 0.2 * value
        elif len(shape) == 4:
            value *= 2.0 ** -(np.arange(shape[0])[:, None, None, None] ** 0.5)
            if "conv3" in name or "downsample" in name:
                scale = np.exp2(-12 * np.arange(shape[0]) / (shape[0] - 1))
                value *= scale[:, None, None, None]
        elif len(shape) == 2:
            value /= shape[1] ** 0.5
        else:
            value *= 0.2
        if "stem.norm." in name or "stages.0.blocks.0.norm1." in name:
            value *= 2e-3
        if name.startswith(("patch_embed.proj", "cls_token", "pos_embed")):
            value *= 0.02
        parameter.data = torch.tensor(value, dtype=torch.float32)


@torch.no_grad()
def make(case, build, seed, layers):
    rng = np.random.default_rng(seed)
    model = build().eval()
    sample(model, rng)
    image = rng.uniform(-1, 1, size=(2, 32, 32, 3)).astype("float32")
    image[1] /= 512
    found = {}
    for name, layer in layers.items():
        model.get_submodule(layer).register_forward_hook(
            lambda module, inputs, output, name=name: found.update({name: output})
        )
    found["logits"] = model(torch.tensor(image).permute(0, 3, 1, 2))
    for name, value in found.items():
        if value.ndim == 4 and name != "pre_logits":
            found[name] = value.permute(0, 2, 3, 1)
    folder = FOLDER / case
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "weights.safetensors")
    arrays = {name: value.numpy() for name, value in found.items()}
    np.savez_compressed(folder / "io.npz", image=image, **arrays)
    config = {"case": case, "source": f"timm {timm.__version__}", "seed": seed}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    make("timm_bit", bit, 1, {"root": "stem", "stage_1": "stages.0"})
    tokens = {"block_0": "blocks.0", "encoded": "norm"}
    make(
        "timm_hybrid_root",
        hybrid_root,
        2,
        {"root": "patch_embed.backbone", **tokens},
    )
    make(
        "timm_hybrid_symmetric",
        hybrid_symmetric,
        3,
        {"stage_1": "patch_embed.backbone.stages.0", **tokens},
    )
