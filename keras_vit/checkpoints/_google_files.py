"""What Google released: names and addresses are those of the READMEs of
google-research/vision_transformer and big_vision, of timm's tables, and of
faustomorales/vit-keras, whose release holds eight of the originals unchanged.
"""

from keras_vit.checkpoints._resnet import RULES
from keras_vit.checkpoints._row import Weights
from keras_vit.checkpoints._row import bucket
from keras_vit.checkpoints._row import hub
from keras_vit.downloads import Source

_ARGUMENTS = {
    "activation": "gelu_tanh",
    "norm_epsilon": 1e-6,
    "resampling": "bilinear_align_corners",
}


def _row(files, image_size, classes, zero_head=False, **arguments):
    # The last are a ResNet's, and mean nothing without one.
    arguments = {**_ARGUMENTS, **RULES["vit_jax"], **arguments}
    return Weights(
        tuple(files), image_size, classes, "tf", arguments, zero_head
    )


# variant, name in the bucket, name on the hub, fine-tuned at these sizes
_PAPER = (
    ("ViTB8", "ViT-B_8", None, ()),
    ("ViTB16", "ViT-B_16", "base-patch16", (384, 224)),
    ("ViTB32", "ViT-B_32", "base-patch32", (384,)),
    ("ViTL16", "ViT-L_16", "large-patch16", (384, 224)),
    ("ViTL32", "ViT-L_32", "large-patch32", (384,)),
    ("ViTH14", "ViT-H_14", "huge-patch14", ()),
    ("R50ViTB16", "R50+ViT-B_16", None, (384,)),
    ("R50ViTL32", "R50+ViT-L_32", None, ()),
)
_COPIED = ("ViT-B_16", "ViT-B_32", "ViT-L_16", "ViT-L_32")


def paper():
    """ "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929"""
    for variant, name, on_hub, sizes in _PAPER:
        yield (
            (variant, "imagenet21k"),
            _row(
                _paper_files("imagenet21k", name, on_hub, 224, "-in21k"),
                224,
                21843,
                zero_head=True,
            ),
        )
        for size in sizes:
            tag = "imagenet21k+imagenet2012"
            suffix = "" if size == 384 else f"-{size}"
            files = _paper_files(tag, name + suffix, on_hub, size, "")
            yield (variant, tag + suffix), _row(files, size, 1000)


def _paper_files(folder, name, on_hub, size, kind):
    yield bucket(f"vit_models/{folder}/{name}")
    if name in _COPIED:
        url = "https://github.com/faustomorales/vit-keras/releases/download/dl"
        file = f"{name}_{folder}.npz".replace("+", "%2B")
        yield Source(f"{url}/{file}"), "vit_jax"
    if on_hub:
        yield hub(f"google/vit-{on_hub}-{size}{kind}", "huggingface")
    if name == "R50+ViT-B_16":  # as timm has it, without `pre_logits`
        kind = "orig_in21k" + ("" if kind else "_ft_in1k")
        yield hub(f"timm/vit_base_r50_s16_{size}.{kind}", "timm")


# Which of its files is the best differs between Google's README and timm.
# These are timm's, which are on the hub too.
# variant, timm's name, the bucket's, augmentation, weight decay, dropout and
# stochastic depth, learning rate of fine-tuning, sizes (0: not fine-tuned)
_ALL, _MOST, _SMALL = (0, 224, 384), (0, 384), (224,)
_AUGREG = (
    ("ViTTi16", "tiny_patch16", "Ti_16", "none", 0.03, 0.0, 0.03, _ALL),
    ("ViTS32", "small_patch32", "S_32", "light1", 0.03, 0.0, 0.03, _ALL),
    ("ViTS16", "small_patch16", "S_16", "light1", 0.03, 0.0, 0.03, _ALL),
    ("ViTB32", "base_patch32", "B_32", "medium1", 0.03, 0.0, 0.03, (0, 224)),
    ("ViTB32", "base_patch32", "B_32", "light1", 0.1, 0.0, 0.03, (384,)),
    ("ViTB16", "base_patch16", "B_16", "medium1", 0.1, 0.0, 0.01, _ALL),
    ("ViTB8", "base_patch8", "B_8", "medium1", 0.1, 0.0, 0.01, (0, 224)),
    ("ViTL16", "large_patch16", "L_16", "medium1", 0.1, 0.1, 0.01, _ALL),
    ("R_ViTTi16", "tiny_r_s16_p8", "R_Ti_16", "none", 0.03, 0.0, 0.03, _ALL),
    (
        "R26ViTS32",
        "small_r26_s32",
        "R26_S_32",
        "medium2",
        0.03,
        0.0,
        0.03,
        _MOST,
    ),
    (
        "R26ViTS32",
        "small_r26_s32",
        "R26_S_32",
        "light0",
        0.03,
        0.1,
        0.03,
        _SMALL,
    ),
    (
        "R50ViTL32",
        "large_r50_s32",
        "R50_L_32",
        "medium2",
        0.1,
        0.0,
        0.01,
        _MOST,
    ),
    (
        "R50ViTL32",
        "large_r50_s32",
        "R50_L_32",
        "medium1",
        0.1,
        0.1,
        0.01,
        _SMALL,
    ),
)


def augreg():
    """ "How to train your ViT?", https://arxiv.org/abs/2106.10270"""
    for variant, timm, code, aug, decay, rate, lr, sizes in _AUGREG:
        pretrained = (
            f"vit_models/augreg/{code}-i21k-300ep-lr_0.001-aug_{aug}"
            f"-wd_{decay}-do_{rate}-sd_{rate}"
        )
        for size in sizes:
            name, kind = pretrained, "in21k"
            tag = "augreg-imagenet21k"
            if size:
                name += f"--imagenet2012-steps_20k-lr_{lr}-res_{size}"
                kind = "in21k_ft_in1k"
                tag += "+imagenet2012" + ("" if size == 384 else f"-{size}")
            repository = f"timm/vit_{timm}_{size or 224}.augreg_{kind}"
            files = (bucket(name), hub(repository, "timm"))
            yield (
                (variant, tag),
                _row(files, size or 224, 1000 if size else 21843),
            )


def imagenet():
    """Trained on ImageNet alone: sharpness-aware, and with a good recipe.

    https://arxiv.org/abs/2106.01548, https://arxiv.org/abs/2203.08065 and
    https://arxiv.org/abs/2205.01580
    """
    for tag, name, timm in (
        ("sam", "B_16", "base_patch16"),
        ("sam", "B_32", "base_patch32"),
        ("sam", "L_16", None),
        ("sam", "L_32", None),
        ("gsam", "S_16", None),
        ("gsam", "S_32", None),
        ("gsam", "B_16", None),
        ("gsam", "B_32", None),
    ):
        files = [bucket(f"vit_models/{tag}/ViT-{name}")]
        if timm:
            files.append(hub(f"timm/vit_{timm}_224.sam_in1k", "timm"))
        yield ("ViT" + name.replace("_", ""), tag), _row(files, 224, 1000)
    for epochs in (90, 150, 300):
        file = bucket(f"big_vision/vit_s16_i1k_{epochs}ep", "big_vision")
        yield (
            ("ViTS16", f"big_vision-imagenet2012-{epochs}ep"),
            _row([file], 224, 1000, pooling="gap"),
        )


def bit():
    """https://arxiv.org/abs/1912.11370: BiT-S, BiT-M, and BiT-M fine-tuned."""
    for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4"):
        timm = f"timm/resnetv2_{size}_bit.goog_in21k"
        for tag, name, pixels, classes, others in (
            ("imagenet2012", f"S-R{size}", 224, 1000, ()),
            ("imagenet21k", f"M-R{size}", 224, 21843, (timm,)),
            (
                "imagenet21k+imagenet2012",
                f"M-R{size}-ILSVRC2012",
                480,
                1000,
                (f"{timm}_ft_in1k",),
            ),
        ):
            files = (
                bucket(f"bit_models/BiT-{name}", "bit"),
                *(hub(other, "timm") for other in others),
            )
            yield (
                (f"BiT_R{size}", tag),
                Weights(files, pixels, classes, "tf", RULES["bit"]),
            )
