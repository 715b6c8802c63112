"""The table of released weights, which can be loaded by name.

Names and URLs are from the READMEs of google-research/vision_transformer and
big_vision, timm's tables, Meta's repositories, and faustomorales/vit-keras, a
release of which contains eight of the original files unchanged.
"""

import difflib
import itertools
import pathlib
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any
from typing import TypeAlias
from typing import TypeVar

import numpy as np

from keras_vit import downloads
from keras_vit._types import Config
from keras_vit.downloads import Source
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.formats import RESNET_CONSTANTS

Weights = TypeVar("Weights")
# A file, and its layout.
File: TypeAlias = tuple[Source, str]

ALIASES = {"imagenet": "imagenet21k+imagenet2012"}


@dataclass(frozen=True)
class ReleasedWeights:
    """One set of weights and the files that contain it.

    Attributes:
        files: Tuple of `(Source, layout)`, in the order in which they are
            tried.
        image_size: Integer. Side of the images in pixels.
        classes: Integer. Number of classes; None without a head.
        preprocess_mode: String. The `mode` of `preprocess_input`.
        arguments: Dict of model arguments that follow from the training, and
            are the same for all files.
        zero_init_head: Boolean. Whether the released head is all zeros. Some
            mirrors leave it out.
    """

    files: tuple[File, ...]
    image_size: int
    classes: int | None
    preprocess_mode: str
    arguments: Config = field(default_factory=dict)
    zero_init_head: bool = False


def resolve_weights(
    weights: Weights, variant: str | None = None, sizes: Config | None = None
) -> Weights | Checkpoint:
    """Returns the `Checkpoint` of released weights by their name, downloaded
    unless it is cached.

    Anything else than a name in the table (a path, a URL, a `Checkpoint`, None)
    is returned unchanged. `sizes` are arguments of the variant, with which the
    file must agree.
    """
    if not isinstance(weights, str):
        return weights
    tag = ALIASES.get(weights, weights)
    variants = [name for name, known in RELEASED if known == tag]
    if not variants:
        _raise_if_misspelt(weights, variant)
        return weights
    if variant is None:
        raise ValueError(
            f"The weights {weights!r} are of one of: {', '.join(variants)}. "
            f"Build it by name, keras_vit.{variants[0]}(weights={weights!r}), "
            "or in a recipe with `--model`."
        )
    if variant not in variants:
        raise ValueError(
            f"{variant} has no weights {weights!r}. It has: "
            f"{', '.join(map(repr, tags_of(variant))) or 'none'}. See "
            "keras_vit.list_weights()."
        )
    return _fetch_released(variant, tag, sizes or {})


def tags_of(variant: str | None) -> list[str]:
    """Lists the names (`weights=`) of the released weights of a variant."""
    return [tag for name, tag in RELEASED if name == variant]


_COLUMNS = ("model", "weights", "pixels", "classes", "mode", "from", "here")


def list_weights(
    model: str | None = None, print_fn: Callable[[str], object] = print
) -> None:
    """Prints the table of released weights, which can be loaded by name.

    The columns are: the model function; the value of its `weights` argument;
    the side of the images in pixels; the number of classes (`0-head`: the
    released head is all zeros); the `mode` of `preprocess_input`; the hosts
    that have the file, in the order in which they are tried; whether the file
    is in the local cache.

    Args:
        model: String. Name of a model function, to print only its weights;
            None for all.
        print_fn: Function that is called with each line. Defaults to `print`.

    Raises:
        ValueError: if there are no weights for such a model.

    Example:

    >>> keras_vit.list_weights("ViTH14")
    """
    if model is not None and not tags_of(model):
        models = dict.fromkeys(name for name, _ in RELEASED)
        raise ValueError(
            f"There are weights for {', '.join(models)}. Received: "
            f"model={model!r}"
        )
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for (variant, tag), released in RELEASED.items():
        if model in (None, variant):
            rows.append(_format_row(variant, tag, released))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        print_fn("  ".join(f"{cell:{w}}" for cell, w in cells).rstrip())
    print_fn("")
    for alias, tag in ALIASES.items():
        print_fn(f"{alias!r} is short for {tag!r}.")
    print_fn(
        "Also a path, 'https://...', 'hf://owner/name' or "
        "'hf://owner/name/file'."
    )


def _format_row(
    variant: str, tag: str, released: ReleasedWeights
) -> tuple[str, ...]:
    addresses = (
        urllib.parse.urlparse(source.address) for source, _ in released.files
    )
    hosts = ("hf" if a.scheme == "hf" else a.netloc for a in addresses)
    is_cached = any(
        (_folder(variant, tag) / source.name).is_file()
        for source, _ in released.files
    )
    classes = "-" if released.classes is None else str(released.classes)
    return (
        variant,
        tag,
        str(released.image_size),
        f"{classes} 0-head" if released.zero_init_head else classes,
        released.preprocess_mode,
        ", ".join(hosts),
        "yes" if is_cached else "",
    )


def _raise_if_misspelt(weights: str, variant: str | None) -> None:
    """Raises a `FileNotFoundError` unless `weights` may be a path."""
    path = pathlib.Path(weights)
    if weights and (path.suffix or path.name != weights or path.exists()):
        return
    tags = tags_of(variant) or dict.fromkeys(tag for _, tag in RELEASED)
    names, lower = [*tags, *ALIASES], weights.lower()
    close = difflib.get_close_matches(lower, names, 1 if lower in names else 2)
    hint = " or ".join(map(repr, close))
    hint = f" Did you mean {hint}?" if close else ""
    raise FileNotFoundError(
        f"There is no file {weights!r}, and no weights have that name.{hint} "
        f"Names: {', '.join(map(repr, tags))}; see keras_vit.list_weights()."
    )


def _folder(variant: str, tag: str) -> pathlib.Path:
    """Returns the cache folder of released weights."""
    return downloads.cache_dir() / "weights" / tag / variant


def _fetch_released(variant: str, tag: str, sizes: Config) -> Checkpoint:
    released = RELEASED[variant, tag]
    layouts = dict(released.files)

    sizes = {**sizes, **_same_names(released.arguments, sizes)}

    checked = {}  # a file is read once: to check it, and for its weights

    def check(path: pathlib.Path, source: Source) -> None:
        checkpoint = open_checkpoint(
            path, layouts[source], sizes.get("num_heads")
        )
        _check_complete(checkpoint, released, sizes)
        checked[source] = checkpoint

    path, source = downloads.fetch(
        _folder(variant, tag),
        tuple(layouts),
        check,
        label=f"{variant}(weights={tag!r})",
    )
    checkpoint = checked[source]
    weights = dict(checkpoint.weights)
    if released.zero_init_head and "head/kernel" not in weights:
        norm = weights["encoder_norm/beta"]
        width = len(weights.get("pre_logits/bias", norm))
        classes = released.classes or 0
        weights["head/kernel"] = np.zeros((width, classes), np.float32)
        weights["head/bias"] = np.zeros(classes, np.float32)
    return replace(
        checkpoint,
        path=str(path),  # a download is checked before it is moved here
        weights=weights,
        stored={**checkpoint.stored, **released.arguments},
        released_mode=released.preprocess_mode,
    )


def _same_names(arguments: Config, sizes: Config) -> Config:
    return {name: x for name, x in arguments.items() if name in sizes}


def _check_complete(
    checkpoint: Checkpoint, released: ReleasedWeights, sizes: Config
) -> None:
    """Checks that a file is complete and agrees with the table.

    This verifies downloads whose digest is not known, by every name and every
    shape. That values are finite was checked when the file was read.
    """
    found = checkpoint.arguments()
    expected = {name: sizes[name] for name in sizes if name in found}
    expected["classes"] = released.classes
    if "patch_size" in sizes:
        expected["patch_size"] = (sizes["patch_size"],) * 2
    if found.get("num_positions"):  # not those of fixed embeddings
        pixels = [size * checkpoint.stride for size in found["patch_size"]]
        grid = tuple(released.image_size // size for size in pixels)
        expected["grid_size"] = grid
    if released.zero_init_head and found["classes"] is None:
        del expected["classes"]  # mirrors omit the zeros
    problems = [
        f"{name} is {found[name]}, expected {value}"
        for name, value in expected.items()
        if found[name] != value
    ]
    shapes = {path: array.shape for path, array in checkpoint.weights.items()}
    first = _block(shapes, 0)
    problems += [
        f"block {i} is not like block 0"
        for i in range(1, found.get("num_layers", 1))
        if _block(shapes, i) != first
    ]
    if problems:
        raise ValueError(f"it is not the file expected: {'; '.join(problems)}")


def _block(
    shapes: dict[str, tuple[int, ...]], i: int
) -> dict[str, tuple[int, ...]]:
    start = f"block_{i}/"
    return {
        path.removeprefix(start): shape
        for path, shape in shapes.items()
        if path.startswith(start)
    }


# Hosts.


def _gcs_npz(path: str, layout: str = "vit_jax") -> File:
    """Returns `(Source, layout)` of an .npz file in Google's storage."""
    url = f"https://storage.googleapis.com/{path.replace('+', '%2B')}.npz"
    return Source(url), layout


def _hf_safetensors(repository: str, layout: str) -> File:
    """Returns `(Source, layout)` of a repository on the Hugging Face hub."""
    return Source(f"hf://{repository}/model.safetensors"), layout


def _meta_pth(path: str, layout: str, digest: str = "") -> File:
    """Returns `(Source, layout)` of a .pth file of Meta's."""
    url = f"https://dl.fbaipublicfiles.com/{path}.pth"
    return Source(url, digest), layout


# Names of the model and its weights, and a row of the table.
Rows: TypeAlias = Iterator[tuple[tuple[str, str], ReleasedWeights]]


# Weights released by Google.


def _google(
    files: Iterable[File],
    image_size: int,
    classes: int | None,
    zero_init_head: bool = False,
    **arguments: Any,
) -> ReleasedWeights:
    arguments = {
        "activation": "gelu_tanh",
        "norm_epsilon": 1e-6,
        "resampling": "bilinear_align_corners",
        **RESNET_CONSTANTS["vit_jax"],  # ignored without a ResNet
        **arguments,
    }
    files = tuple(files)
    return ReleasedWeights(
        files, image_size, classes, "tf", arguments, zero_init_head
    )


# variant, name in Google's bucket, name on the Hugging Face hub, image sizes of
# the fine-tuned files
_PAPER_CHECKPOINTS = (
    ("ViTB8", "ViT-B_8", None, ()),
    ("ViTB16", "ViT-B_16", "base-patch16", (384, 224)),
    ("ViTB32", "ViT-B_32", "base-patch32", (384,)),
    ("ViTL16", "ViT-L_16", "large-patch16", (384, 224)),
    ("ViTL32", "ViT-L_32", "large-patch32", (384,)),
    ("ViTH14", "ViT-H_14", "huge-patch14", ()),
    ("R50ViTB16", "R50+ViT-B_16", None, (384,)),
    ("R50ViTL32", "R50+ViT-L_32", None, ()),
)
_MIRRORED_ON_GITHUB = ("ViT-B_16", "ViT-B_32", "ViT-L_16", "ViT-L_32")


def _paper() -> Rows:
    """ "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929"""
    for variant, name, on_hub, sizes in _PAPER_CHECKPOINTS:
        yield (
            (variant, "imagenet21k"),
            _google(
                _paper_files("imagenet21k", name, on_hub, 224, "-in21k"),
                224,
                21843,
                zero_init_head=True,
            ),
        )
        for size in sizes:
            tag = "imagenet21k+imagenet2012"
            suffix = "" if size == 384 else f"-{size}"
            files = _paper_files(tag, name + suffix, on_hub, size, "")
            yield (variant, tag + suffix), _google(files, size, 1000)


def _paper_files(
    folder: str, name: str, on_hub: str | None, size: int, kind: str
) -> Iterator[File]:
    yield _gcs_npz(f"vit_models/{folder}/{name}")
    if name in _MIRRORED_ON_GITHUB:
        url = "https://github.com/faustomorales/vit-keras/releases/download/dl"
        file = f"{name}_{folder}.npz".replace("+", "%2B")
        yield Source(f"{url}/{file}"), "vit_jax"
    if on_hub:
        yield _hf_safetensors(
            f"google/vit-{on_hub}-{size}{kind}", "huggingface"
        )
    if name == "R50+ViT-B_16":  # timm's lacks `pre_logits`
        kind = "orig_in21k" + ("" if kind else "_ft_in1k")
        yield _hf_safetensors(f"timm/vit_base_r50_s16_{size}.{kind}", "timm")


# Google's README and timm differ in which of AugReg's files are the best. These
# are timm's choices, which are also on the Hugging Face hub.
# variant, timm's name, name in Google's bucket, augmentation, weight decay,
# dropout (also stochastic depth), learning rate of fine-tuning, image sizes
# (0: not fine-tuned)
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


def _augreg() -> Rows:
    """ "How to train your ViT?", https://arxiv.org/abs/2106.10270"""
    for variant, timm, code, aug, decay, dropout, lr, sizes in _AUGREG:
        pretrained = (
            f"vit_models/augreg/{code}-i21k-300ep-lr_0.001-aug_{aug}"
            f"-wd_{decay}-do_{dropout}-sd_{dropout}"
        )
        for size in sizes:
            name, kind = pretrained, "in21k"
            tag = "augreg-imagenet21k"
            if size:
                name += f"--imagenet2012-steps_20k-lr_{lr}-res_{size}"
                kind = "in21k_ft_in1k"
                tag += "+imagenet2012" + ("" if size == 384 else f"-{size}")
            repository = f"timm/vit_{timm}_{size or 224}.augreg_{kind}"
            files = (_gcs_npz(name), _hf_safetensors(repository, "timm"))
            yield (
                (variant, tag),
                _google(files, size or 224, 1000 if size else 21843),
            )


def _imagenet() -> Rows:
    """Trained on ImageNet only.

    SAM, https://arxiv.org/abs/2106.01548; GSAM,
    https://arxiv.org/abs/2203.08065; "Better plain ViT baselines for
    ImageNet-1k", https://arxiv.org/abs/2205.01580
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
        files = [_gcs_npz(f"vit_models/{tag}/ViT-{name}")]
        if timm:
            files.append(
                _hf_safetensors(f"timm/vit_{timm}_224.sam_in1k", "timm")
            )
        yield ("ViT" + name.replace("_", ""), tag), _google(files, 224, 1000)
    for epochs in (90, 150, 300):
        file = _gcs_npz(f"big_vision/vit_s16_i1k_{epochs}ep", "big_vision")
        yield (
            ("ViTS16", f"big_vision-imagenet2012-{epochs}ep"),
            _google([file], 224, 1000, pooling="gap"),
        )


def _bit() -> Rows:
    """BiT-S, BiT-M, and BiT-M fine-tuned, https://arxiv.org/abs/1912.11370"""
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
                _gcs_npz(f"bit_models/BiT-{name}", "bit"),
                *(_hf_safetensors(other, "timm") for other in others),
            )
            yield (
                (f"BiT_R{size}", tag),
                ReleasedWeights(
                    files, pixels, classes, "tf", RESNET_CONSTANTS["bit"]
                ),
            )


# Weights released by Meta. Sources of safetensors files come first.


def _meta(
    files: tuple[File, ...],
    image_size: int,
    classes: int | None,
    resampling: str,
    **arguments: Any,
) -> ReleasedWeights:
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": resampling,
        **arguments,
    }
    return ReleasedWeights(files, image_size, classes, "torch", arguments)


# variant, name, image size, beginning of the file's SHA-256 (part of its name)
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


def _deit() -> Rows:
    """DeiT, https://arxiv.org/abs/2012.12877"""
    for variant, name, size, digest in _DEIT:
        tag = "deit" + ("-distilled" if "distilled" in name else "")
        tag += "" if size == 224 else f"-{size}"
        name = f"deit_{name}_patch16_{size}"
        files = (
            _hf_safetensors(f"timm/{name}.fb_in1k", "timm"),
            _meta_pth(f"deit/{name}-{digest}", "timm", f"sha256:{digest}"),
        )
        yield (variant, tag), _meta(files, size, 1000, "bicubic_antialias")


def _dinov2() -> Rows:
    """DINOv2, https://arxiv.org/abs/2304.07193, and with registers,
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
                _hf_safetensors(f"facebook/{on_hub}-{size}", "huggingface"),
                _meta_pth(f"dinov2/{name}/{name}{suffix}_pretrain", "dinov2"),
            )
            yield (
                (f"ViT{letter.upper()}14", tag),
                _meta(files, 518, None, resampling),
            )


def _mae() -> Rows:
    """MAE's pre-trained encoders and its fine-tuned models.

    https://arxiv.org/abs/2111.06377
    """
    for variant, name, timm in (
        ("ViTB16", "base", "base_patch16"),
        ("ViTL16", "large", "large_patch16"),
        ("ViTH14", "huge", "huge_patch14"),
    ):
        files = (
            _hf_safetensors(f"timm/vit_{timm}_224.mae", "mae"),
            _meta_pth(f"mae/pretrain/mae_pretrain_vit_{name}", "mae"),
        )
        yield (variant, "mae"), _meta(files, 224, None, "bicubic")
        files = (_meta_pth(f"mae/finetune/mae_finetuned_vit_{name}", "timm"),)
        yield (
            (variant, "mae+imagenet2012"),
            _meta(files, 224, 1000, "bicubic", pooling="gap"),
        )


def _dino() -> Rows:
    """DINO, https://arxiv.org/abs/2104.14294: the teacher's encoder"""
    for variant, name, timm in (
        ("ViTS16", "deitsmall16", "small_patch16"),
        ("ViTB16", "vitbase16", "base_patch16"),
        ("ViTB8", "vitbase8", "base_patch8"),
    ):
        name = f"dino_{name}_pretrain"
        files = (
            _hf_safetensors(f"timm/vit_{timm}_224.dino", "timm"),
            _meta_pth(f"dino/{name}/{name}", "timm"),
        )
        yield (variant, "dino"), _meta(files, 224, None, "bicubic_offset")


def _mocov3() -> Rows:
    """MoCo v3, https://arxiv.org/abs/2104.02057: the encoder that is trained

    Its ViT-S/16 has 12 heads of 32 channels.
    """
    for variant, size in (("ViTS16", "s"), ("ViTB16", "b")):
        name = f"vit-{size}-300ep"
        url = f"https://dl.fbaipublicfiles.com/moco-v3/{name}/{name}.pth.tar"
        files = ((Source(url), "mocov3"),)
        row = _meta(files, 224, None, "bicubic", num_heads=12)
        yield (variant, "mocov3"), row


# (name of the model function, name of the weights): ReleasedWeights
RELEASED = dict(
    itertools.chain(
        _paper(),
        _augreg(),
        _imagenet(),
        _bit(),
        _deit(),
        _dinov2(),
        _mae(),
        _dino(),
        _mocov3(),
    )
)
