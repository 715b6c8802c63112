"""The golden cases: their contents and their models."""

import atexit
import functools
import json
import os
import pathlib
import re
import shutil
import tempfile

import numpy as np

from keras_vit.converters import open_checkpoint
from keras_vit.weights.detect import detect_format
from keras_vit.weights.files import read
from tests import containers

FOLDER = pathlib.Path(__file__).parent / "golden"
# Where more cases are, or those here untrimmed: CONTRIBUTING.md.
MORE = os.environ.get("KERAS_VIT_GOLDEN")
FOLDERS = (*([pathlib.Path(MORE)] if MORE else []), FOLDER)
if not FOLDERS[0].is_dir():
    raise ValueError(f"KERAS_VIT_GOLDEN is no folder: {MORE!r}")

# The README of the golden data: float32 ports of models without a ResNet.
TOLERANCE = 3e-5

# Cases of which every named array is compared, by format.
_COMPARED = {
    "vit_jax": "token token_linen token_prelogits gap",
    "big_vision": "gap map tok siglip_img",
    "timm": ("base avg deit_distilled dynamic map pre_norm reg_ls_qknorm"),
    "hf": "vit vit_interpolate vit_model_pooler",
    "torchvision": "vit",
}
MODELS = {
    f"{start}_{name}": {"hf": "huggingface"}.get(start, start)
    for start, names in _COMPARED.items()
    for name in names.split()
}

# Cases that `converters.load` must read alone, and the format it must find.
LOADED = {
    "big_vision_bf16": "big_vision",
    "big_vision_gap_scan": "big_vision",
    "big_vision_old_map_layout": "big_vision",
    "big_vision_very_old_layout": "big_vision",
    "facebook_dinov2": "dinov2",
    "facebook_dinov2_reg": "dinov2",
    "facebook_mae_finetuned_gap": "timm",
    "hf_vit_bf16": "huggingface",
    "hf_deit_teacher": "huggingface",
    "hf_dinov2_reg": "huggingface",
    "hf_dinov2_reg_cls": "huggingface",
    "timm_base_pth": "timm",
    "torchvision_vit_old_names": "torchvision",
    **MODELS,
}
# vit_jax's current names with their class row are old big_vision names too.
SAME = {"vit_jax", "big_vision"}

# Those with a ResNet: (format, variant, arguments that cannot be inferred).
_NO_HEADS = {"num_heads": 3}
RESNETS = {
    "vit_jax_hybrid_small": ("vit_jax", "", {}),
    "vit_jax_hybrid_small_stem": ("vit_jax", "", {}),
    "vit_jax_hybrid_stem": ("vit_jax", "", {}),
    "vit_jax_hybrid_3stage": ("vit_jax", "", {}),
    "vit_jax_hybrid_4stage": ("vit_jax", "", {"grid_size": (2, 3)}),
    "bit_paper": ("bit", "", {}),
    "bit_v1_groupnorm": ("bit", "v1", {}),
    "timm_hybrid": ("timm", "hybrid", _NO_HEADS),
    "timm_hybrid_root": ("timm", "root", _NO_HEADS),
    "timm_hybrid_symmetric": (
        "timm",
        "hybrid",
        {
            **_NO_HEADS,
            "conv_padding": "symmetric",
            "pool_padding": "symmetric",
        },
    ),
    "timm_bit": ("timm", "bit", {}),
}
# Too large to be kept here.
LARGE = (
    "timm_hybrid",
    *(f"vit_jax_hybrid_{kind}" for kind in ("stem", "3stage", "4stage")),
)
for _case in LARGE:
    if not any((folder / _case).exists() for folder in FOLDERS):
        del RESNETS[_case]


# Pre-training models: (format, variant, arguments that the file lacks).
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

# Image towers beside a text tower: `tests/converters/test_open_clip.py`.
OPEN_CLIP = ("open_clip_quick", "open_clip_clipa")

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


@functools.cache
def _derived(case):
    other, suffix, names = DERIVED[case]
    target = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for kept in ("io.npz", "config.json"):
        shutil.copyfile(folder(other) / kept, target / kept)
    renamed = {}
    for key, array in arrays(other).items():
        for pattern, replacement in names:
            key = re.sub(pattern, replacement, key)
        renamed[key] = array
    path = containers.put(f"a{suffix}", renamed, None, target)
    name = "model" if suffix == ".safetensors" else "weights"
    path.rename(target / f"{name}{suffix}")
    return target


# The golden data's README: float32 noise of the originals is larger with a
# ResNet. Theirs grows with the values, which no norm bounds inside BiT.
RESNET_TOLERANCE = 1.5e-4


def tolerance(case, name):
    if case not in RESNETS:
        return TOLERANCE
    return max(RESNET_TOLERANCE, 1e-5 * np.abs(io(case)[name]).max())


# golden array: our layer, where the names differ
LAYERS = {
    "root_gn": "root_norm",
    "stem": "root",
    "embedding": "patch_embedding",
    "patch_embed": "patch_embedding",
    "with_posemb": "position_embedding",
    "encoded": "encoder_norm",
    "last_hidden_state": "encoder_norm",
    "head_input": "pooling",
    "logits_cls": "head",
    "logits_dist": "distillation_head",
    "hidden_0": "position_embedding",
    "hidden_1": "block_0",
    "hidden_2": "block_1",
    "hidden_3": "block_2",
}


def folder(case):
    for there in FOLDERS:
        if (there / case).is_dir():
            return there / case
    return _derived(case) if case in DERIVED else FOLDER / case


def io(case):
    with np.load(folder(case) / "io.npz", allow_pickle=False) as archive:
        return {k: archive[k] for k in archive if not k.endswith("_f64")}


def config(case):
    return json.loads((folder(case) / "config.json").read_text())


def weights_path(case):
    """The case's weights in the project's own format."""
    names = ("weights.*", "model.safetensors")
    return next(path for name in names for path in folder(case).glob(name))


def load_path(case):
    """What `converters.load` is given: a folder for Hugging Face."""
    return folder(case) if case.startswith("hf_") else weights_path(case)


def arrays(case):
    return read(weights_path(case))


# Cases whose image is of another size than their file's positions.
RESIZED = (
    "facebook_dinov2",
    "facebook_dinov2_reg",
    "hf_dinov2_reg_cls",
    "hf_vit_interpolate",
    "timm_dynamic",
    "vit_jax_load_resized",
)
# Cases of a part of a model.
NO_MODEL = (
    "clip_tokens",
    "posemb_resample",
    "timm_posemb_resample",
    "torchvision_posemb_resample",
)


def load_arguments(case):
    """Arguments that cannot be inferred from the file: heads, image size."""
    arguments = {"input_shape": io(case)["image"].shape[1:]}
    if case in RESNETS:
        return {**arguments, **RESNETS[case][2]}
    if case.startswith(("timm", "torchvision", "facebook")):
        arguments["num_heads"] = 3
    return arguments


def normalized(case):
    """The case's arrays under the names that are written today."""
    return detect_format(arrays(case), open_format(case).partition(":")[0]).arrays


def open_format(case):
    """`format:variant` of the case's file, as `--to` takes it."""
    checkpoint = open_checkpoint(load_path(case), num_heads=3)
    return f"{checkpoint.format}:{checkpoint.weight_map.variant}"


def assert_same(found, expected):
    """Checks keys, types, shapes and bits."""
    assert set(found) == set(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        assert found[key].shape == array.shape, key
        assert found[key].tobytes() == array.tobytes(), key
