"""Meta's code bases DINOv2, MAE, DINO and MoCo v3.

https://github.com/facebookresearch/dinov2 (format "dinov2"),
https://github.com/facebookresearch/mae ("mae"),
https://github.com/facebookresearch/dino ("dino", checkpoints of its training)
and https://github.com/facebookresearch/moco-v3 ("mocov3"). Files of DeiT, and
those of DINO that hold an encoder only, have the format "timm".
"""

import re
from collections.abc import Collection, Iterable, Iterator

from keras_vit.utils.types import Array, Config
from keras_vit.weights.formats import timm
from keras_vit.weights.formats.format import Format, Values
from keras_vit.weights.weight_map import (
    TORCH,
    Layer,
    Layers,
    Names,
    WeightMap,
    rename_keys,
)

_ARGUMENTS = {"activation": "gelu", "norm_epsilon": 1e-6}
# Layers of timm's ViT that Meta's does not have.
_TIMM_ONLY = (
    "distillation",
    "pooling/",
    "pre_norm",
    "block_{i}/attention/query_norm",
    "block_{i}/attention/key_norm",
)


def _without(layers: Layers, *starts: str) -> Layers:
    """Returns the layers of a `WeightMap` but those whose path begins so."""
    return tuple(x for x in layers if not "".join(x[0]).startswith(starts))


def _with_prefixes(
    layers: Iterable[Layer], path: str, key: str, old: str = ""
) -> Layers:
    """Returns layers of a `WeightMap` with prefixes of their names; that of the
    keys replaces `old`."""

    def add(names: Names, new: str, old: str) -> Names:
        if isinstance(names, tuple):
            return tuple(new + name.removeprefix(old) for name in names)
        return new + names.removeprefix(old)

    return tuple(
        (add(paths, path, ""), add(keys, key, old), parameter_type)
        for paths, keys, parameter_type in layers
    )


def mae_decoder(
    encoder: Layers, blocks: str, decoder_blocks: str, prefix: str = ""
) -> Layers:
    """Returns the layers of MAE's decoder, as in `WeightMap`.

    Its blocks have the same names as the encoder's, with another prefix.
    """
    inner = [x for x in encoder if "".join(x[0]).startswith("block_")]
    return (
        ("decoder/embedding/*", f"{prefix}decoder_embed.*", "linear"),
        ("decoder/mask_token/tokens", f"{prefix}mask_token", "array"),
        (
            "decoder/position_embedding/embedding",
            f"{prefix}decoder_pos_embed",
            "array",
        ),
        *_with_prefixes(inner, "decoder/", decoder_blocks, blocks),
        ("decoder/norm/*", f"{prefix}decoder_norm.*", "norm"),
        ("decoder/prediction/*", f"{prefix}decoder_pred.*", "linear"),
    )


_MAE = _without(timm.encoder(), *_TIMM_ONLY, "register", "block_{i}/scale")
# The encoder of MAE, DINO and MoCo v3 without a classification head.
_ENCODER = _without(_MAE, "head")
_DINO_HEAD = (
    *((f"dense_{i + 1}/*", f"mlp.{2 * i}.*", "linear") for i in range(3)),
    ("last_layer/*", "last_layer.*", "weight_norm"),
)


def _moco_head(num_layers: int) -> Iterator[Layer]:
    """Returns the layers of a head: linear, batch norm and ReLU in turn."""
    for i in range(num_layers):
        yield f"dense_{i + 1}/*", f"{3 * i}.*", "linear"
        yield f"norm_{i + 1}/*", f"{3 * i + 1}.*", "batch_norm"


class _Meta(Format):
    """What Meta's code bases share."""

    position_prefixes = {"": ("all",)}
    preprocess_mode = "torch"

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        return {"class_token": (True,)}


class Dinov2(_Meta):
    """facebookresearch/dinov2."""

    name = "dinov2"
    maps = tuple(
        WeightMap(
            variant,
            TORCH,
            (
                *_without(
                    timm.encoder(mlp_names, registers="register_tokens"),
                    *_TIMM_ONLY,
                    "head_norm",
                ),
                ("mask_token/tokens", "mask_token", "vector"),
            ),
        )
        for variant, mlp_names in (
            ("", ("fc1", "fc2")),
            ("swiglu", ("w12", "w3")),
        )
    )
    arguments = {**_ARGUMENTS, "resampling": "bicubic_offset"}
    marker = "mask_token"
    position_prefixes = {"": ("class",)}

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Renames the blocks of its training, which are in chunks: the first
        number of `blocks.0.3.` is that of the chunk."""
        chunk = re.compile(r"blocks\.\d+\.(?=\d+\.)")
        return rename_keys(arrays, lambda key: chunk.sub("blocks.", key))

    def implied(self, variant: str, paths: Collection[str]) -> Config:
        if "register_tokens/tokens" in paths:
            return {**self.arguments, "resampling": "bicubic_antialias"}
        return self.arguments

    def nearest_variant(self, arguments: Config) -> str:
        return "swiglu" if arguments["activation"] == "swiglu" else ""

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        fitting = arguments["activation"]
        if variant != self.nearest_variant(arguments):
            fitting = "swiglu" if variant else "gelu"
        return {"class_token": (True,), "activation": (fitting,), "classes": (None,)}


class Mae(_Meta):
    """facebookresearch/mae."""

    name = "mae"
    maps = (
        WeightMap(
            "",
            TORCH,
            (*_MAE, *mae_decoder(_MAE, "blocks.", "decoder_blocks.")),
        ),
    )
    arguments = {**_ARGUMENTS, "resampling": "bicubic"}
    marker = "decoder_embed.weight"  # without it, the format is "timm"


class Dino(_Meta):
    """The training of facebookresearch/dino.

    The teacher is the encoder to use, and has no prefix in keras_vit's paths.
    """

    name = "dino"
    maps = (
        WeightMap(
            "",
            TORCH,
            (
                *_with_prefixes(_ENCODER, "", "teacher.backbone."),
                *_with_prefixes(_DINO_HEAD, "teacher_projection/", "teacher.head."),
                *_with_prefixes(_ENCODER, "student/", "student.module.backbone."),
                *_with_prefixes(_DINO_HEAD, "projection/", "student.module.head."),
                ("center", "dino_loss.center", "row"),
            ),
            required=("student.module.backbone.cls_token",),
        ),
    )
    arguments = {**_ARGUMENTS, "resampling": "bicubic_offset"}
    marker = "teacher.backbone.cls_token"


class Mocov3(_Meta):
    """facebookresearch/moco-v3."""

    name = "mocov3"
    maps = (
        WeightMap(
            "",
            TORCH,
            (
                *_with_prefixes(_ENCODER, "", "base_encoder."),
                *_with_prefixes(_moco_head(3), "projection/", "base_encoder.head."),
                *_with_prefixes(_ENCODER, "teacher/", "momentum_encoder."),
                *_with_prefixes(
                    _moco_head(3),
                    "teacher_projection/",
                    "momentum_encoder.head.",
                ),
                *_with_prefixes(_moco_head(2), "prediction/", "predictor."),
            ),
        ),
    )
    arguments = {**_ARGUMENTS, "resampling": "bicubic"}
    marker = "base_encoder.cls_token"
    # ViT-S/16 has heads of 32 channels, ViT-B/16 of 64.
    num_heads = 12
