"""DINOv3: Meta's code (format "dinov3"), and what timm and transformers add.

https://github.com/facebookresearch/dinov3. Variants of the formats "timm"
(timm/models/eva.py) and "huggingface" (models/dinov3_vit) are the same models.
Meta's weights are under the DINOv3 License (https://ai.meta.com/resources/
models-and-libraries/dinov3-license/), and are downloaded by those who have
accepted it.
"""

from collections.abc import Collection

import numpy as np

from keras_vit.utils.published import rotary_periods
from keras_vit.utils.types import Array, Config
from keras_vit.utils.warnings import warn
from keras_vit.weights.formats.format import (
    QKV,
    Format,
    Values,
    block_layers,
)
from keras_vit.weights.weight_map import TORCH, Layers, WeightMap

# In timm and in transformers: with an MLP of two layers, and with a gated one.
VARIANTS = ("dinov3", "dinov3-gated")
ARGUMENTS = {"norm_epsilon": 1e-5, "rope_base": 100.0}
# Path of the periods of rotary positions, which only Meta's files store.
PERIODS = "position_embedding_shared/periods"
_REGISTERS = "register_tokens/tokens"
_ATTENTION = "block_{i}/attention"


_TYPES = {
    **TORCH,
    "fused_kernel": {"kernel": ("weight", "(n h d) i -> n i h d")},
    "head_bias": {"": ("", "(h d) -> h d")},
}


def _map(variant: str, embeddings: tuple[str, str, str], *layers: Layers) -> WeightMap:
    """Returns a map, given the names of the patch embedding, class token and
    registers, and other layers."""
    patches, token, registers = embeddings
    return WeightMap(
        variant,
        _TYPES,
        (
            ("patch_embedding/*", patches, "conv"),
            ("class_token/tokens", token, "array"),
            (_REGISTERS, registers, "array"),
            *sum(layers, ()),
            ("encoder_norm/*", "norm.*", "norm"),
        ),
        published_heads={1280: 20, 4096: 32},  # others than in `infer.py`
    )


_META_MAPS = tuple(
    _map(
        variant,
        ("patch_embed.proj.*", "cls_token", "storage_tokens"),
        block_layers(
            "blocks.{i}.",
            "attn.qkv.*",
            "attn.proj.*",
            mlp,
            scales=("ls1.gamma", "ls2.gamma"),
        ),
        (
            ("mask_token/tokens", "mask_token", "vector"),
            (PERIODS, "rope_embed.periods", "array"),
            (
                f"{_ATTENTION}/bias_mask",
                "blocks.{i}.attn.qkv.bias_mask",
                "array",
            ),
            # Used in pre-training only, as a decoder is.
            ("decoder/local_norm/*", "local_cls_norm.*", "norm"),
            ("head/*", "head.*", "linear"),
        ),
    )
    for variant, mlp in (
        ("", ("mlp.fc1.*", "mlp.fc2.*")),
        ("gated", (("mlp.w1.*", "mlp.w2.*"), "mlp.w3.*")),
    )
)
TIMM_MAPS = tuple(
    _map(
        variant,
        ("patch_embed.proj.*", "cls_token", "reg_token"),
        block_layers(
            "blocks.{i}.",
            "attn.qkv.*",
            "attn.proj.*",
            (first, "mlp.fc2.*"),
            scales=("gamma_1", "gamma_2"),
            fused="fused_kernel",
        ),
        (
            *(
                (
                    f"{_ATTENTION}/{name}/bias",
                    f"blocks.{{i}}.attn.{name[0]}_bias",
                    "head_bias",
                )
                for name in ("query", "value")
            ),
            *(
                (
                    f"{_ATTENTION}/{name}_norm/*",
                    f"blocks.{{i}}.attn.{name[0]}_norm.*",
                    "norm",
                )
                for name in ("query", "key")
            ),
            ("head_norm/*", "fc_norm.*", "norm"),
            ("head/*", "head.*", "linear"),
        ),
    )
    for variant, first in zip(
        VARIANTS, ("mlp.fc1.*", ("mlp.fc1_g.*", "mlp.fc1_x.*")), strict=True
    )
)
TRANSFORMERS_MAPS = tuple(
    _map(
        variant,
        (
            "embeddings.patch_embeddings.*",
            "embeddings.cls_token",
            "embeddings.register_tokens",
        ),
        block_layers(
            "layer.{i}.",
            tuple(f"attention.{one[0]}_proj.*" for one in QKV),
            "attention.o_proj.*",
            (first, "mlp.down_proj.*"),
            scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
        ),
        (
            ("mask_token/tokens", "embeddings.mask_token", "array"),
            ("head/*", "classifier.*", "linear"),
        ),
    )
    for variant, first in zip(
        VARIANTS,
        ("mlp.up_proj.*", ("mlp.gate_proj.*", "mlp.up_proj.*")),
        strict=True,
    )
)


def after_reading(
    weights: dict[str, Array], stored: Config, variant: str
) -> tuple[dict[str, Array], Config]:
    """Adds the periods, which timm and transformers compute; removes empty
    registers, also DINOv2's."""
    kernel = weights.get("block_0/attention/query/kernel")
    if variant in VARIANTS and kernel is not None and kernel.ndim == 3:
        base = stored.get("rope_base", ARGUMENTS["rope_base"])
        weights = {**weights, PERIODS: rotary_periods(base, kernel.shape[2])}
    if _REGISTERS in weights and not weights[_REGISTERS].size:
        weights = {k: a for k, a in weights.items() if k != _REGISTERS}
    return weights, stored


def before_writing(
    weights: dict[str, Array], arguments: Config, variant: str, name: str
) -> dict[str, Array]:
    """Returns weights without periods for code that computes them, with a
    warning if the code's would be others."""
    if variant not in VARIANTS:
        return weights
    weights, base = dict(weights), arguments["rope_base"]
    periods = weights.pop(PERIODS)
    error = np.abs(periods / rotary_periods(base, 4 * periods.size) - 1).max()
    if error > 1e-6:
        warn(
            f"{name} computes the periods of rotary positions from rope_base="
            f"{base:g}; those of the model differ from them by up to "
            f"{error:.1%}, so that its outputs will differ."
        )
    if name == "timm":
        return weights
    empty = np.zeros_like(weights["class_token/tokens"][:, :0])
    return {_REGISTERS: empty, **_add_mask_token(weights)}


def _add_mask_token(weights: dict[str, Array]) -> dict[str, Array]:
    token = np.zeros_like(weights["class_token/tokens"][:, :1])
    return {"mask_token/tokens": token, **weights}


def timm_values(arguments: Config) -> Values:
    """Returns the values of arguments in timm, as `Format.values`."""
    biases = (False,) if arguments["qkv_bias"] else (True, False)
    return {"activation": ("gelu", "swiglu"), "key_bias": biases}


def _base(periods: Array) -> float:
    """Returns the base of periods, which may be rounded to bfloat16."""
    count = periods.size
    base = float(periods[-1]) ** (count / (count - 1))
    for tolerance in (1e-5, 2**-7):
        for digits in range(2, 7):
            rounded = float(f"{base:.{digits}g}")
            computed = rotary_periods(rounded, 4 * count)
            if np.allclose(periods, computed, rtol=tolerance):
                return rounded
    return ARGUMENTS["rope_base"]  # other periods, which are kept


def _mask(bias: Array) -> Array:
    return np.repeat(np.array([1, 0, 1], bias.dtype), bias.size)


class Dinov3(Format):
    """facebookresearch/dinov3."""

    name = "dinov3"
    maps = _META_MAPS
    # Its models were trained with random scales, as its hub builds them.
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-5,
        "rope_rescale": 2.0,
    }
    preprocess_mode = "torch"
    marker = "rope_embed.periods"
    rotary_variants = ("", "gated")

    def assumptions(self, variant: str, keys: Collection[str]) -> dict[str, str]:
        if not any("teacher." in key or "model_ema." in key for key in keys):
            return {}  # no checkpoint of a training
        return {
            "norm_epsilon": "1e-5, as in the released models; that of a training with "
            "`norm_layer: layernorm` is 1e-6"
        }

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        activations = ("gelu", "swiglu")
        return {"class_token": (True,), "activation": activations, "classes": (None,)}

    @staticmethod
    def after_reading(
        weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        """Removes the biases of keys that a mask of zeros switches off."""
        weights, stored = dict(weights), dict(stored)
        for path in [path for path in weights if path.endswith("bias_mask")]:
            key = path.replace("bias_mask", "key/bias")
            mask, bias = weights.pop(path), weights.pop(key, None)
            if bias is None or not np.array_equal(mask, _mask(bias)):
                raise ValueError(
                    "`attn.qkv.bias_mask` must be ones for queries and values, "
                    f"zeros for keys. Received: {mask} for {path}"
                )
            if np.any(bias):
                warn(
                    f"{key} is not zero, and has no effect since `attn.qkv."
                    "bias_mask` is: it is left out."
                )
        periods = weights.get(PERIODS)
        if periods is not None and periods.ndim == 1 and periods.size > 1:
            stored["rope_base"] = _base(periods)
        return weights, stored

    def before_writing(
        self, weights: dict[str, Array], arguments: Config, variant: str
    ) -> dict[str, Array]:
        """Adds what Meta's files have in addition, which has no effect."""
        weights = _add_mask_token(weights)
        for path in [path for path in weights if path.endswith("query/bias")]:
            key = path.replace("query/", "key/")
            if key not in weights:
                weights[key] = np.zeros_like(weights[path])
                mask_path = path.replace("query/bias", "bias_mask")
                weights[mask_path] = _mask(weights[path])
        return weights
