"""What Meta released. Files that need no PyTorch come first."""

from keras_vit.checkpoints._row import Weights
from keras_vit.checkpoints._row import hub
from keras_vit.checkpoints._row import meta


def _row(files, image_size, classes, resampling, **arguments):
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": resampling,
        **arguments,
    }
    # Images with ImageNet's mean and standard deviation.
    return Weights(files, image_size, classes, "torch", arguments)


# variant, name, size, beginning of the file's sha256, which its name ends in
_DEIT = (
    ("ViTTi16", "tiny", 224, "a1311bcf"),
    ("ViTS16", "small", 224, "cd65a155"),
    ("ViTB16", "base", 224, "b5f2ef4d"),
    ("ViTB16", "base", 384, "8de9b5d1"),
    ("ViTTi16", "tiny_distilled", 224, "b40b3cf7"),
    ("ViTS16", "small_distilled", 224, "649709d9"),
    ("ViTB16", "base_distilled", 224, "df68dfff"),
    ("ViTB16", "base_distilled", 384, "d0272ac0"),
)


def deit():
    """https://arxiv.org/abs/2012.12877"""
    for variant, name, size, digest in _DEIT:
        tag = "deit" + ("-distilled" if "distilled" in name else "")
        tag += "" if size == 224 else f"-{size}"
        name = f"deit_{name}_patch16_{size}"
        files = (
            hub(f"timm/{name}.fb_in1k", "timm"),
            meta(f"deit/{name}-{digest}", "timm", f"sha256:{digest}"),
        )
        yield (variant, tag), _row(files, size, 1000, "bicubic_antialias")


def dinov2():
    """https://arxiv.org/abs/2304.07193 and, with registers,
    https://arxiv.org/abs/2309.16588"""
    for size in ("small", "base", "large"):
        letter = size[0]
        for tag, on_hub, suffix, resampling in (
            ("dinov2", "dinov2", "", "bicubic_offset"),
            (
                "dinov2-registers",
                "dinov2-with-registers",
                "_reg4",
                "bicubic_antialias",
            ),
        ):
            name = f"dinov2_vit{letter}14"
            files = (
                hub(f"facebook/{on_hub}-{size}", "huggingface"),
                meta(f"dinov2/{name}/{name}{suffix}_pretrain", "dinov2"),
            )
            yield (
                (f"ViT{letter.upper()}14", tag),
                _row(files, 518, None, resampling),
            )


def mae():
    """https://arxiv.org/abs/2111.06377; of the first, the encoder."""
    for variant, name, timm in (
        ("ViTB16", "base", "base_patch16"),
        ("ViTL16", "large", "large_patch16"),
        ("ViTH14", "huge", "huge_patch14"),
    ):
        files = (
            hub(f"timm/vit_{timm}_224.mae", "mae"),
            meta(f"mae/pretrain/mae_pretrain_vit_{name}", "mae"),
        )
        yield (variant, "mae"), _row(files, 224, None, "bicubic")
        files = (meta(f"mae/finetune/mae_finetuned_vit_{name}", "timm"),)
        yield (
            (variant, "mae+imagenet2012"),
            _row(files, 224, 1000, "bicubic", pooling="gap"),
        )
