"""SigLIP's and CLIP's image towers in transformers (format "huggingface").

https://github.com/huggingface/transformers. SigLIP 2 with images of a fixed
size has the classes and names of SigLIP. That of images of any size (NaFlex)
has the same names, with `.linear` here, and a matrix of flat patches.
"""

import re
from collections.abc import Collection

import numpy as np

from keras_vit.utils.types import Array, Config
from keras_vit.weights.formats import naflex
from keras_vit.weights.formats.format import QKV, Values, block_layers, replace_prefix
from keras_vit.weights.formats.timm import mlp
from keras_vit.weights.weight_map import TORCH, Layers, WeightMap

_PREFIX = "vision_model."
_PROJECTION = "visual_projection"
_FIRST = "encoder.layers.0.layer_norm1.weight"
_PATCHES, _LINEAR = "embeddings.patch_embedding.", "linear."


def _encoder(prefix: str, flat: bool) -> Layers:
    embeddings = f"{prefix}embeddings"
    patches, kind = f"{prefix}{_PATCHES}", "conv"
    if flat:
        patches, kind = patches + _LINEAR, "linear"
    return (
        ("patch_embedding/*", f"{patches}*", kind),
        ("class_token/tokens", f"{embeddings}.class_embedding", "token"),
        (
            "position_embedding/embedding",
            f"{embeddings}.position_embedding.weight",
            "embedding",
        ),
        ("pre_norm/*", f"{prefix}pre_layrnorm.*", "norm"),
        *block_layers(
            f"{prefix}encoder.layers.{{i}}.",
            tuple(f"self_attn.{name[0]}_proj.*" for name in QKV),
            "self_attn.out_proj.*",
            norms=("layer_norm1.*", "layer_norm2.*"),
        ),
        ("encoder_norm/*", f"{prefix}post_layernorm.*", "norm"),
    )


_ATTENTION = "pooling/attention"
_POOLING = (
    ("pooling/probe", "head.probe", "array"),
    (
        tuple(f"{_ATTENTION}/{name}/*" for name in QKV),
        "head.attention.in_proj_*",
        "fused",
    ),
    (f"{_ATTENTION}/attention_output/*", "head.attention.out_proj.*", "merge"),
    ("pooling/norm/*", "head.layernorm.*", "norm"),
    *mlp("pooling/mlp", "head.mlp"),
)
TOWER, CLASSIFIER, PROJECTED = "tower", "siglip-classifier", "clip-projection"
# variant: prefix of the arrays, that of the head, and whether patches are flat
_TOWERS = {
    TOWER: ("", None, False),
    CLASSIFIER: (_PREFIX, "classifier", False),
    PROJECTED: (_PREFIX, _PROJECTION, False),
    naflex.TOWER: ("", None, True),
    naflex.CLASSIFIER: (_PREFIX, "classifier", True),
}
VARIANTS = tuple(_TOWERS)
MAPS = tuple(
    WeightMap(
        variant,
        TORCH,
        (
            *_encoder(prefix, flat),
            *((("head/*", f"{head}.*", "linear"),) if head else _POOLING),
        ),
        required=(prefix + (f"{_PATCHES}{_LINEAR}weight" if flat else _FIRST),),
    )
    for variant, (prefix, head, flat) in _TOWERS.items()
)
# Classes with a text tower, and those of their image towers.
TOWERS = {
    "SiglipModel": "SiglipVisionModel",
    "CLIPModel": "CLIPVisionModelWithProjection",
    "Siglip2Model": "Siglip2VisionModel",
}

_TEXT = re.compile(r"text_model\.|text_projection\.|logit_(scale|bias)$")


def left_out(arrays: dict[str, Array]) -> list[str]:
    """Lists the keys of a text tower, and of a pooling that is not used."""
    if _PREFIX + _FIRST not in arrays:
        return []
    # `SiglipForImageClassification` stores the attention pooling, and
    # `CLIPForImageClassification` the norm; both take the mean of the patches.
    unused = None
    if "classifier.weight" in arrays:
        clip = f"{_PREFIX}pre_layrnorm.weight" in arrays
        unused = _PREFIX + ("post_layernorm." if clip else "head.")
    return [
        key for key in arrays if _TEXT.match(key) or (unused and key.startswith(unused))
    ]


def normalize(arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns the arrays of an image tower, as `Format.normalize`.

    The projection of CLIP gets the bias that it has in other code bases.
    """
    if any(np.ndim(a) == 2 for k, a in arrays.items() if _PATCHES in k):
        linear = _PATCHES + _LINEAR
        arrays = {k.replace(_PATCHES, linear): a for k, a in arrays.items()}
    if _PREFIX + _FIRST not in arrays:
        return arrays
    dropped = set(left_out(arrays))
    arrays = {key: a for key, a in arrays.items() if key not in dropped}
    projection = arrays.get(f"{_PROJECTION}.weight")
    if projection is not None and np.ndim(projection) == 2:
        bias = np.zeros(len(projection), projection.dtype)
        return {f"{_PROJECTION}.bias": bias, **arrays}
    # Before transformers 5, towers without a head had the prefix, too.
    return replace_prefix(arrays, _PREFIX)


def to_file(arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns arrays without the bias of CLIP's projection, and with the names
    of SigLIP 2."""
    linear = _PATCHES + _LINEAR
    arrays = {k.replace(linear, _PATCHES): a for k, a in arrays.items()}
    bias = arrays.get(f"{_PROJECTION}.bias")
    if bias is not None and np.any(bias):
        raise ValueError(
            "CLIP's projection has no bias in transformers, and the bias of "
            "the model's head is not zero (its largest value is "
            f"{np.abs(bias).max():.2g}). Write another format, such as 'timm'."
        )
    return {k: a for k, a in arrays.items() if k != f"{_PROJECTION}.bias"}


def with_text(arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns the arrays of an image tower as a file of both towers has them."""
    own = (_PREFIX, _PROJECTION)
    return {k if k.startswith(own) else _PREFIX + k: a for k, a in arrays.items()}


def implied(variant: str, paths: Collection[str]) -> Config:
    """Returns the arguments of SigLIP's towers or of CLIP's, by their paths."""
    if "pre_norm/gamma" in paths:
        return {"activation": "quick_gelu", "norm_epsilon": 1e-5}
    implied = {"activation": "gelu_tanh", "norm_epsilon": 1e-6}
    if variant in naflex.VARIANTS:
        implied["resampling"] = "bilinear_antialias"
    return implied


def look_alikes(variant: str, paths: Collection[str]) -> str | None:
    """Does what `Format.look_alikes` does."""
    if variant in (TOWER, naflex.TOWER) and "pre_norm/gamma" not in paths:
        return "the image towers of Phi-4 and PaddleOCR-VL"
    return None


def unstored(variant: str, weights: dict[str, Array]) -> dict[str, str]:
    """Does what `Format.unstored` does."""
    if variant in VARIANTS and "pre_norm/gamma" in weights:
        return {"activation": "'quick_gelu', as in OpenAI's CLIP; others have 'gelu'"}
    return {}


def nearest_variant(arguments: Config) -> str | None:
    """Returns the variant for a model, or None if it is not such a tower."""
    if arguments["pre_norm"]:
        return PROJECTED if arguments["classes"] else TOWER
    if arguments["class_token"]:
        return None
    if arguments["resampling"] == "bilinear_antialias":
        return naflex.CLASSIFIER if arguments["classes"] else naflex.TOWER
    return CLASSIFIER if arguments["classes"] else TOWER


def values(arguments: Config, variant: str) -> Values:
    """Returns the values of arguments of CLIP's tower (with a norm before the
    blocks) or of SigLIP's, as `Format.values`."""
    a, clip = arguments, arguments["pre_norm"]
    values: Values = {
        "class_token": (clip,),
        "patch_bias": (not clip,),
        "qkv_bias": (True,),
        "final_norm": ("before_pooling",),
    }
    if variant in naflex.VARIANTS:
        values["resampling"] = ("bilinear_antialias",)
    if a["classes"]:
        values["pooling"] = ("token",) if clip else ("gap",)
    return values
