"""Meta's DINOv3 (layout "dinov3"), and what its three code bases share.

https://github.com/facebookresearch/dinov3. The same models are in timm
(`eva.py`) and in transformers (`huggingface_dinov3.py`). Meta's weights are
under the DINOv3 License (https://ai.meta.com/resources/models-and-libraries/
dinov3-license/), and are downloaded by those who have accepted it.
"""

import numpy as np

from keras_vit._published import rotary_periods
from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._warnings import warn
from keras_vit.weights.files import read
from keras_vit.weights.formats import eva
from keras_vit.weights.formats.format import Checkpoint
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.format import Reference
from keras_vit.weights.formats.format import ReferenceUnavailable
from keras_vit.weights.formats.format import Values
from keras_vit.weights.formats.rotary import BASE
from keras_vit.weights.formats.rotary import GATED
from keras_vit.weights.formats.rotary import PERIODS
from keras_vit.weights.formats.rotary import PUBLISHED_HEADS
from keras_vit.weights.formats.rotary import add_mask_token
from keras_vit.weights.weight_map import TORCH
from keras_vit.weights.weight_map import WeightMap

_QKV = tuple(f"block_{{i}}/attention/{n}/*" for n in ("query", "key", "value"))
_BIAS_MASK = "bias_mask"


def _map(variant: str, first: tuple[str, ...], second: str) -> WeightMap:
    path, block = "block_{i}", "blocks.{i}"
    attention, mask = f"{path}/attention", f"{block}.attn.qkv.bias_mask"
    keys = tuple(f"{block}.mlp.{name}.*" for name in first)
    layers = (
        ("patch_embedding/*", "patch_embed.proj.*", "conv"),
        ("class_token/tokens", "cls_token", "array"),
        ("register_tokens/tokens", "storage_tokens", "array"),
        ("mask_token/tokens", "mask_token", "vector"),
        (PERIODS, "rope_embed.periods", "array"),
        (f"{path}/norm_1/*", f"{block}.norm1.*", "norm"),
        (_QKV, f"{block}.attn.qkv.*", "fused"),
        (f"{attention}/{_BIAS_MASK}", mask, "array"),
        (f"{attention}/attention_output/*", f"{block}.attn.proj.*", "merge"),
        (f"{path}/scale_1/gamma", f"{block}.ls1.gamma", "array"),
        (f"{path}/norm_2/*", f"{block}.norm2.*", "norm"),
        (f"{path}/mlp/dense_1/*", keys, "gated" if len(keys) > 1 else "linear"),
        (f"{path}/mlp/dense_2/*", f"{block}.mlp.{second}.*", "linear"),
        (f"{path}/scale_2/gamma", f"{block}.ls2.gamma", "array"),
        ("encoder_norm/*", "norm.*", "norm"),
        # Used in pre-training only, as a decoder is.
        ("decoder/local_norm/*", "local_cls_norm.*", "norm"),
    )
    types = {**TORCH, "gated": GATED}
    return WeightMap(variant, types, layers, published_heads=PUBLISHED_HEADS)


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
    return BASE  # other periods, which are kept


def _mask(size: int, dtype: np.dtype) -> Array:
    return np.repeat(np.array([1, 0, 1], dtype), size)


class Dinov3(Format):
    """facebookresearch/dinov3."""

    name = "dinov3"
    maps = (_map("", ("fc1",), "fc2"), _map("gated", ("w1", "w2"), "w3"))
    # Its models were trained with random scales, as its hub builds them.
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-5,
        "rope_rescale": 2.0,
    }
    marker = "rope_embed.periods"
    rotary_variants = ("", "gated")

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        return {"class_token": (True,), "activation": ("gelu", "swiglu")}

    def after_reading(
        self, weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        """Removes the biases of keys that a mask of zeros switches off."""
        weights, stored = dict(weights), dict(stored)
        for path in [path for path in weights if path.endswith(_BIAS_MASK)]:
            key = path.replace(_BIAS_MASK, "key/bias")
            mask, bias = weights.pop(path), weights.pop(key, None)
            if bias is None or not np.array_equal(
                mask, _mask(bias.size, mask.dtype)
            ):
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
        weights = add_mask_token(weights)
        for path in [path for path in weights if path.endswith("query/bias")]:
            key = path.replace("query/", "key/")
            if key not in weights:
                weights[key] = np.zeros_like(weights[path])
                weights[path.replace("query/bias", _BIAS_MASK)] = _mask(
                    weights[path].size, weights[path].dtype
                )
        return weights

    def reference(
        self, checkpoint: Checkpoint, arguments: Config, output: str
    ) -> Reference:
        """Runs timm, which reads these files. Meta's code is not on PyPI."""
        import torch
        from timm.models.eva import checkpoint_filter_fn

        model = eva.build(arguments)
        state = {
            key: torch.tensor(np.asarray(array, "float32"))
            for key, array in read(checkpoint.path).items()
        }
        periods = state["rope_embed.periods"].numpy()
        computed = rotary_periods(arguments["rope_base"], 4 * periods.size)
        if not np.allclose(periods, computed, rtol=1e-6):
            raise ReferenceUnavailable(
                "timm computes the periods of rotary positions, and the file "
                "has others"
            )
        if "storage_tokens" not in state:
            raise ReferenceUnavailable(
                "timm reads these files with registers only"
            )
        model.load_state_dict(checkpoint_filter_fn(state, model), strict=True)
        return eva.run_of(model.eval(), output)
