"""Small models of timm, transformers and torchvision with random weights."""

import dataclasses
import functools

import numpy as np
import pytest


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str  # name of their class
    options: dict  # theirs
    # Arguments of `converters.load` that cannot be inferred from the file.
    given: dict
    format: str | None = None  # to which a model is written back
    output: str = "logits"  # None: with the projection of CLIP
    left_out: int = 0  # arrays that are no part of our model


def _timm(given=(), kind="VisionTransformer", **options):
    return Case(kind, options, dict(given), "timm")


TIMM = {
    "token": _timm(),
    "gap": _timm(global_pool="avg"),
    "gap-norm-first": _timm({"pooling": "gap"}, global_pool="avg", fc_norm=False),
    "gap-no-token": _timm(global_pool="avg", class_token=False),
    "registers-scale-qknorm": _timm(
        reg_tokens=4, init_values=0.1, qk_norm=True, no_embed_class=True
    ),
    "registers-positioned": _timm(reg_tokens=4),
    "map": _timm(global_pool="map", class_token=False),
    "map-token": _timm(global_pool="map"),
    "pre-norm": _timm(pre_norm=True),
    "no-qkv-bias": _timm(qkv_bias=False),
    "quick-gelu": _timm({"activation": "quick_gelu"}, act_layer="quick_gelu"),
    "deit3": _timm({"position_prefix": "none"}, "deit3_small_patch16_224"),
    "deit-distilled": _timm(kind="VisionTransformerDistilled"),
    "dinov3": _timm(kind="Eva"),
    "dinov3-gated": _timm(
        kind="Eva", qkv_bias=False, swiglu_mlp=True, swiglu_align_to=8
    ),
    "dinov3-head": _timm(
        {"pooling": "token"}, "Eva", num_classes=5, global_pool="token"
    ),
    "dinov3-head-norm": _timm(
        {"pooling": "gap"},
        "Eva",
        num_classes=5,
        use_fc_norm=True,
        num_reg_tokens=0,
    ),
}


def _huggingface(kind, output="logits", left_out=0, given=(), **options):
    return Case(kind, options, dict(given), None, output, left_out)


_classifier = _huggingface
_pooled = functools.partial(_huggingface, output="pooler_output")
# Their models without a head, also without their pooler.
_tokens = functools.partial(_huggingface, output="last_hidden_state")
_bare = functools.partial(_tokens, given={"pooling": None})
_GATED = {"use_gated_mlp": True, "hidden_act": "silu"}
HUGGINGFACE = {
    "vit": _classifier("ViTForImageClassification"),
    "vit-no-qkv-bias": _classifier(
        "ViTForImageClassification",
        qkv_bias=False,
        hidden_act="gelu_pytorch_tanh",
    ),
    "vit-model": _bare("ViTModel"),
    "vit-pooler": _pooled("ViTModel"),
    "vit-mim": _bare("ViTForMaskedImageModeling"),
    "msn": _classifier("ViTMSNForImageClassification"),
    "msn-model": _bare("ViTMSNModel"),
    "ijepa": _classifier("IJepaForImageClassification"),
    "ijepa-model": _tokens("IJepaModel", qkv_bias=False, layer_norm_eps=1e-3),
    "deit": _classifier("DeiTForImageClassification"),
    "deit-teacher": _classifier("DeiTForImageClassificationWithTeacher"),
    "deit-model": _bare("DeiTModel"),
    "deit-pooler": _pooled("DeiTModel"),
    "dinov2": _classifier("Dinov2ForImageClassification", mlp_ratio=2),
    "dinov2-swiglu": _classifier("Dinov2ForImageClassification", use_swiglu_ffn=True),
    "dinov2-registers": _classifier(
        "Dinov2WithRegistersForImageClassification", mlp_ratio=2
    ),
    "dinov2-registers-swiglu": _classifier(
        "Dinov2WithRegistersForImageClassification", use_swiglu_ffn=True
    ),
    "dinov2-bare": _tokens("Dinov2Model"),
    "dinov2-registers-bare": _tokens("Dinov2WithRegistersModel"),
    "dinov3": _tokens("DINOv3ViTModel", num_register_tokens=4),
    "dinov3-gated": _tokens("DINOv3ViTModel", num_register_tokens=4, **_GATED),
    "dinov3-options": _tokens(
        "DINOv3ViTModel",
        rope_theta=20.0,
        key_bias=True,
        hidden_act="gelu_pytorch_tanh",
    ),
    "dinov3-no-bias": _tokens(
        "DINOv3ViTModel",
        num_register_tokens=1,
        query_bias=False,
        value_bias=False,
    ),
    "siglip": _pooled("SiglipVisionModel"),
    "siglip-tokens": _tokens("SiglipVisionModel", vision_use_head=False),
    "siglip-classifier": _classifier(
        "SiglipForImageClassification", vision_use_head=False
    ),
    "siglip-unread-pooling": _classifier("SiglipForImageClassification", left_out=11),
    "siglip-two-towers": _pooled("SiglipModel", left_out=40),
    "clip": _pooled("CLIPVisionModel"),
    "clip-projection": _huggingface(
        "CLIPVisionModelWithProjection", "image_embeds", projection_dim=24
    ),
    "clip-two-towers": _huggingface("CLIPModel", None, left_out=38),
}
TORCHVISION = {
    "": Case("VisionTransformer", {}, {}, "torchvision"),
    "pre-logits": Case(
        "VisionTransformer", {"representation_size": 24}, {}, "torchvision"
    ),
}
CASES = {
    f"{library}-{name}": case
    for library, cases in (
        ("timm", TIMM),
        ("transformers", HUGGINGFACE),
        ("torchvision", TORCHVISION),
    )
    for name, case in cases.items()
}
_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_VISION = {**_TEXT, "image_size": 32, "patch_size": 8}


def build(case, **options):
    """Their model, none of whose weights is zero: that would hide mistakes."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    make = {"timm": _build_timm, "torchvision": _build_torchvision}
    with torch.device("cpu"):  # Keras may have set another
        make = make.get(case.format, _build_huggingface)
        model = make(case.kind, {**case.options, **options})
    shake(model)
    return model.cpu().eval()


def _build_timm(kind, options):
    timm = pytest.importorskip("timm")
    import torch

    sizes = {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "mlp_ratio": 2,
        "num_classes": 5,
        "dynamic_img_size": True,
    }
    module = timm.models.deit
    if kind.startswith(("VisionTransformer", "vit_")) and "Dist" not in kind:
        module = timm.models.vision_transformer
    if kind == "Eva":
        module = timm.models.eva
        sizes |= {
            "mlp_ratio": 1.5,
            "num_classes": 0,
            "init_values": 0.1,
            "num_reg_tokens": 4,
            "rope_type": "dinov3",
            "rope_temperature": 100,
            "rope_rotate_half": True,
            "use_rot_pos_emb": True,
            "use_abs_pos_emb": False,
            "use_fc_norm": False,
            "norm_layer": functools.partial(torch.nn.LayerNorm, eps=1e-5),
        }
    return getattr(module, kind)(**{**sizes, **options})


def _build_huggingface(kind, options):
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, kind)
    options = {**_VISION, "num_labels": 5, **options}
    if kind.startswith(("Dinov2", "Eomt")):
        del options["intermediate_size"]
    if cls.config_class.model_type in ("siglip", "clip"):
        text = {**_TEXT, "vocab_size": 10, "max_position_embeddings": 8}
        options = {
            "vision_config": options,
            "text_config": text,
            "num_labels": 5,
            "projection_dim": 24,
        }
    return cls(cls.config_class(**options))


def _build_torchvision(kind, options):
    torchvision = pytest.importorskip("torchvision")
    return getattr(torchvision.models, kind)(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        mlp_dim=64,
        num_classes=5,
        **options,
    )


def read(path):
    """The tensors of a .safetensors file."""
    from safetensors.torch import load_file

    return load_file(path)


def save(case, model, folder):
    """What their own library writes; a path for `converters.load`, and the
    arguments that it needs."""
    if case.format is None:
        model.save_pretrained(folder)
        return folder, dict(case.given)
    import torch

    torch.save(model.state_dict(), folder / "model.pth")
    return folder / "model.pth", {"num_heads": 2, **case.given}


def shake(model):
    """Moves every weight off its first value."""
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


def output(case, model, images):
    """The output that our model has, of images of any size."""
    import torch

    if case.format is not None:
        if getattr(model, "num_classes", 5) == 0:
            model = model.forward_features
        return run(model, images)
    options = {}
    if not case.kind.startswith(("Dinov2", "DINOv3")):  # which always do
        options["interpolate_pos_encoding"] = True
    tower = getattr(model, "vit", getattr(model, "vision_model", model))
    if case.output == "logits" or case.output == "image_embeds":
        tower = model
    found = run(tower, images, case.output or "pooler_output", **options)
    if case.output:
        return found
    with torch.no_grad(), torch.device("cpu"):
        return model.visual_projection(torch.from_numpy(found)).numpy()


def reload(original, theirs, ours):
    """Their model from a folder that we wrote, which has the bits of theirs
    and all that transformers expects."""
    before, after = (
        {key: x for key, x in read(path).items() if x.numel()}
        for path in (theirs / "model.safetensors", ours / "model.safetensors")
    )
    assert after.keys() == before.keys()
    for key, array in before.items():
        assert after[key].numpy().tobytes() == array.numpy().tobytes(), key
        assert after[key].shape == array.shape
    again, report = type(original).from_pretrained(ours, output_loading_info=True)
    assert not any(report.values()), report
    return again.cpu().eval()
