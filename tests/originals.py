"""Small models of timm, transformers and torchvision, and ours that are the
same."""

import dataclasses

import numpy as np
import pytest


@dataclasses.dataclass(frozen=True)
class Case:
    layout: str  # with the variant where it is not the first one
    arguments: dict  # of our `VisionTransformer`
    options: dict  # theirs
    kind: str = ""  # name of their class
    # Arguments of `converters.load` that cannot be inferred from the file.
    load_arguments: dict = dataclasses.field(default_factory=dict)


_LATE = {"pooling": "gap", "final_norm": "after_pooling"}
_EXACT = {"activation": "gelu"}


def _timm(ours, theirs, load_arguments=(), kind="VisionTransformer"):
    return Case("timm", {**_EXACT, **ours}, theirs, kind, dict(load_arguments))


TIMM = {
    "token": _timm({}, {}),
    "gap": _timm({**_LATE, "class_token": True}, {"global_pool": "avg"}),
    "gap-norm-first": _timm(
        {"pooling": "gap", "class_token": True},
        {"global_pool": "avg", "fc_norm": False},
        {"pooling": "gap"},
    ),
    "gap-no-token": _timm(
        {**_LATE, "class_token": False},
        {"global_pool": "avg", "class_token": False},
    ),
    "registers-scale-qknorm": _timm(
        {
            "num_registers": 4,
            "layer_scale": 0.1,
            "qk_norm": True,
            "position_prefix": "none",
        },
        {
            "reg_tokens": 4,
            "init_values": 0.1,
            "qk_norm": True,
            "no_embed_class": True,
        },
    ),
    "registers-positioned": _timm({"num_registers": 4}, {"reg_tokens": 4}),
    "map": _timm(
        {"pooling": "map", "class_token": False},
        {"global_pool": "map", "class_token": False},
    ),
    "map-token": _timm(
        {"pooling": "map", "class_token": True}, {"global_pool": "map"}
    ),
    "pre-norm": _timm(
        {"pre_norm": True, "patch_bias": False}, {"pre_norm": True}
    ),
    "no-qkv-bias": _timm({"qkv_bias": False}, {"qkv_bias": False}),
    "quick-gelu": _timm(
        {"activation": "quick_gelu"},
        {"act_layer": "quick_gelu"},
        {"activation": "quick_gelu"},
    ),
    "deit3": _timm(
        {"layer_scale": 1e-6, "position_prefix": "none"},
        {},
        {"position_prefix": "none"},
        kind="deit3_small_patch16_224",
    ),
    "deit-distilled": _timm(
        {"distillation": True}, {}, kind="VisionTransformerDistilled"
    ),
}

_HF = {"activation": "gelu", "norm_epsilon": 1e-12}
_POOLER = {
    **_HF,
    "include_top": False,
    "pooling": "token",
    "representation_size": 32,
}
_DINOV2 = {
    "activation": "gelu",
    "pooling": "token_gap",
    "layer_scale": 1.0,
    "position_prefix": "class",
    "mask_token": True,
}
_REGISTERS = {**_DINOV2, "num_registers": 4}
# Their width is fixed by the hidden size: 8 * ceil(2/3 * 4 * 32 / 8).
_SWIGLU = {"activation": "swiglu", "mlp_dim": 88}


def _huggingface(kind, variant, ours, theirs=()):
    return Case(f"huggingface:{variant}", ours, dict(theirs), kind)


HUGGINGFACE = {
    "vit": _huggingface("ViTForImageClassification", "", _HF),
    "vit-no-qkv-bias": _huggingface(
        "ViTForImageClassification",
        "",
        {**_HF, "qkv_bias": False, "activation": "gelu_tanh"},
        {"qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "vit-pooler": _huggingface("ViTModel", "vit", _POOLER),
    "deit": _huggingface(
        "DeiTForImageClassification", "deit", {**_HF, "num_registers": 1}
    ),
    "deit-teacher": _huggingface(
        "DeiTForImageClassificationWithTeacher",
        "deit-teacher",
        {**_HF, "distillation": True},
    ),
    "dinov2": _huggingface(
        "Dinov2ForImageClassification", "dinov2", _DINOV2, {"mlp_ratio": 2}
    ),
    "dinov2-swiglu": _huggingface(
        "Dinov2ForImageClassification",
        "dinov2-swiglu",
        {**_DINOV2, **_SWIGLU},
        {"use_swiglu_ffn": True},
    ),
    "dinov2-registers": _huggingface(
        "Dinov2WithRegistersForImageClassification",
        "dinov2-reg",
        _REGISTERS,
        {"mlp_ratio": 2},
    ),
    "dinov2-registers-swiglu": _huggingface(
        "Dinov2WithRegistersForImageClassification",
        "dinov2-reg-swiglu",
        {**_REGISTERS, **_SWIGLU},
        {"use_swiglu_ffn": True},
    ),
}

# Their models without a head; of those with a pooler, its output.
_TOKENS = {**_HF, "include_top": False}
_BARE = {**_DINOV2, "include_top": False, "pooling": None, "mlp_dim": 128}
ENCODERS = {
    "vit-model": _huggingface("ViTModel", "vit", _TOKENS),
    "deit-model": _huggingface(
        "DeiTModel", "vit", {**_TOKENS, "distillation": True}
    ),
    "deit-pooler": _huggingface(
        "DeiTModel", "vit", {**_POOLER, "num_registers": 1}
    ),
    "vit-mim": _huggingface("ViTForMaskedImageModeling", "mim", {}),
    "dinov2-bare": _huggingface("Dinov2Model", "dinov2-bare", _BARE),
    "dinov2-registers-bare": _huggingface(
        "Dinov2WithRegistersModel",
        "dinov2-bare",
        {**_BARE, "num_registers": 4},
    ),
}

TORCHVISION = {
    "torchvision": Case("torchvision", _EXACT, {}),
    "torchvision-pre-logits": Case(
        "torchvision",
        {**_EXACT, "representation_size": 24},
        {"representation_size": 24},
    ),
}
CASES = {
    **{f"timm-{name}": case for name, case in TIMM.items()},
    **{f"transformers-{name}": case for name, case in HUGGINGFACE.items()},
    **TORCHVISION,
}


def build(case):
    """Their model, with random weights."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    with torch.device("cpu"):  # Keras may have set another
        model = _BUILD[case.layout.partition(":")[0]](case)
    return model.cpu().eval()


def _build_timm(case):
    timm = pytest.importorskip("timm")
    module = timm.models.deit
    if case.kind == "VisionTransformer":
        module = timm.models.vision_transformer
    return getattr(module, case.kind)(
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=2,
        mlp_ratio=2,
        num_classes=5,
        **case.options,
    )


def _build_huggingface(case):
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, case.kind)
    options = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "num_labels": 5,
        **case.options,
    }
    if not case.kind.startswith("Dinov2"):
        options["intermediate_size"] = 64
    return kind(kind.config_class(**options))


def _build_torchvision(case):
    torchvision = pytest.importorskip("torchvision")
    return torchvision.models.VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        mlp_dim=64,
        num_classes=5,
        **case.options,
    )


_BUILD = {
    "timm": _build_timm,
    "huggingface": _build_huggingface,
    "torchvision": _build_torchvision,
}


def load(case, model, path):
    """Their model with the weights of a file, all of them and no others."""
    if not case.layout.startswith("huggingface"):
        model.load_state_dict(read(path), strict=True)
        return model
    model.config.save_pretrained(path.parent)
    loaded, report = type(model).from_pretrained(
        path.parent, output_loading_info=True
    )
    problems = {name: found for name, found in report.items() if found}
    assert not problems, problems
    return loaded.cpu().eval()


def read(path):
    """The tensors of a .safetensors file."""
    from safetensors.torch import load_file

    return load_file(path)


def save(case, model, folder):
    """What their own library writes; a path for `converters.load`."""
    if case.layout.startswith("huggingface"):
        model.save_pretrained(folder)
        return folder
    import torch

    torch.save(model.state_dict(), folder / "model.pth")
    return folder / "model.pth"


def shake(model):
    """Moves every weight off its first value: zeros would hide mistakes."""
    import torch

    generator = torch.Generator("cpu").manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, device="cpu")
            weight.add_(0.1 * noise)


def images(height, width):
    sample = np.random.default_rng(0).normal
    return sample(size=(2, height, width, 3)).astype("float32")


def run(model, images, field="logits", **options):
    """Their output for our images."""
    import torch

    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad(), torch.device("cpu"):
        found = model(x, **options)
    return getattr(found, field, found).numpy()


def has_head(model):
    """Whether a model of transformers classifies."""
    return hasattr(model, "classifier") or hasattr(model, "cls_classifier")
