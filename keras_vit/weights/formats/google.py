"""Google's code bases: vit_jax, big_vision and big_transfer.

https://github.com/google-research/vision_transformer (format "vit_jax"),
https://github.com/google-research/big_vision ("big_vision") and
https://github.com/google-research/big_transfer ("bit").
"""

import re

from keras_vit.utils.types import Array, Config
from keras_vit.weights.formats.format import (
    QKV,
    Format,
    Values,
    block_layers,
    replace_prefix,
    resnet_layers,
)
from keras_vit.weights.weight_map import (
    FLAX,
    TENSORFLOW,
    Layers,
    WeightMap,
    rename_keys,
)

_ARGUMENTS = {
    "activation": "gelu_tanh",
    "norm_epsilon": 1e-6,
    "resampling": "bilinear_align_corners",
}
# vit_jax, models_resnet.py; big_vision, bit.py
VIT_JAX_CONSTANTS = {
    "group_norm_epsilon": 1e-6,
    "std_epsilon": 1e-5,
    "std_epsilon_place": "std",
    "conv_padding": "same",
    "pool_padding": "same",
}
# big_transfer
BIT_CONSTANTS = {
    "group_norm_epsilon": 1e-5,
    "std_epsilon": 1e-10,
    "std_epsilon_place": "variance",
    "conv_padding": "symmetric",
    "pool_padding": "zeros",
}
# big_vision, bit_paper.py
BIT_PAPER_CONSTANTS = {**BIT_CONSTANTS, "pool_padding": "symmetric"}

_INPUT_POSITIONS = "Transformer/posembed_input/pos_embedding"


def _encoder(positions: str, block: str, names: tuple[str, ...]) -> Layers:
    """Returns the layers of a Vision Transformer."""
    attention, norm_2, mlp = names
    return (
        ("patch_embedding/*", "embedding/*", "conv"),
        ("class_token/tokens", "cls", "array"),
        ("position_embedding/embedding", positions, "array"),
        *block_layers(
            f"Transformer/{block}/",
            tuple(f"{attention}/{name}/*" for name in QKV),
            f"{attention}/out/*",
            (f"{mlp}/Dense_0/*", f"{mlp}/Dense_1/*"),
            ("LayerNorm_0/*", f"{norm_2}/*"),
        ),
        ("encoder_norm/*", "Transformer/encoder_norm/*", "norm"),
        ("pre_logits/*", "pre_logits/*", "linear"),
        ("head/*", "head/*", "linear"),
    )


# In the files released in 2020, the submodules of a block are numbered
# consecutively; Flax now numbers those of each class separately. vit_jax reads
# both.
_NAMES_2020 = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
_NAMES = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


def _resnet_v1(group_norm: str) -> Layers:
    """Returns the layers of vit_jax's hybrid ResNet and big_vision's bit.py."""
    names = ("1", "2", "3", "_proj")
    return (
        *resnet_layers(
            "conv_root/*",
            "block{s}/unit{u}/",
            [f"conv{name}/*" for name in names],
            [f"gn{name}/*" for name in names],
            group_norm,
        ),
        ("root_norm/*", "gn_root/*", group_norm),
    )


_GROUP_NORM = re.compile(r"(.*/)?gn(_root|_proj|\d)/(scale|bias)")


def _reshape_group_norms(
    arrays: dict[str, Array], shape: tuple[int, ...]
) -> dict[str, Array]:
    """Reshapes the arrays of group norms to `shape`.

    They have four axes in released files and one in current Flax.
    """
    return {
        key: array.reshape(shape)
        if _GROUP_NORM.fullmatch(key)
        and array.ndim in (1, 4)
        and array.size == array.shape[-1]
        else array
        for key, array in arrays.items()
    }


def _big_vision(variant: str, block: str) -> WeightMap:
    head = "MAPHead_0"
    ours, theirs = "pooling/attention", f"{head}/{_NAMES[0]}"
    return WeightMap(
        variant,
        FLAX,
        (
            *_encoder("pos_embedding", block, _NAMES),
            ("pooling/probe", f"{head}/probe", "array"),
            *((f"{ours}/{name}/*", f"{theirs}/{name}/*", "heads") for name in QKV),
            (f"{ours}/attention_output/*", f"{theirs}/out/*", "merge"),
            ("pooling/norm/*", f"{head}/LayerNorm_0/*", "norm"),
            *(
                (
                    f"pooling/mlp/dense_{number + 1}/*",
                    f"{head}/MlpBlock_0/Dense_{number}/*",
                    "linear",
                )
                for number in (0, 1)
            ),
        ),
        prefix="params/",
    )


# The released files, written by TensorFlow.
_CONV = "standardized_conv2d/*"
_BIG_TRANSFER = WeightMap(
    "",
    TENSORFLOW,
    (
        *resnet_layers(
            f"root_block/{_CONV}",
            "block{s}/unit{u:02}/",
            [f"{name}/{_CONV}" for name in ("a", "b", "c", "a/proj")],
            [f"{name}/group_norm/*" for name in "abc"],
        ),
        ("final_norm/*", "group_norm/*", "norm"),
        ("head/*", "head/conv2d/*", "pointwise"),
    ),
    prefix="resnet/",
)
# big_vision's bit_paper.py, which converts the released files to these names.
_BIT_PAPER = WeightMap(
    "bit_paper",
    FLAX,
    (
        *resnet_layers(
            "root_block/conv_root/*",
            "block{s}/unit{u:02}/",
            [f"conv{name}/*" for name in ("1", "2", "3", "_proj")],
            [f"gn{name}/*" for name in "123"],
            "group_norm",
        ),
        ("final_norm/*", "norm-pre-head/*", "group_norm"),
        ("head/*", "head/*", "linear"),
    ),
    prefix="params/",
    required=("params/root_block/conv_root/kernel",),
)


class VitJax(Format):
    """google-research/vision_transformer."""

    name = "vit_jax"
    maps = tuple(
        WeightMap(
            variant,
            FLAX,
            (
                *_resnet_v1("group_norm"),
                *_encoder(_INPUT_POSITIONS, "encoderblock_{i}", names),
            ),
        )
        for variant, names in (("", _NAMES_2020), ("current", _NAMES))
    )
    arguments = _ARGUMENTS
    stem = VIT_JAX_CONSTANTS
    position_prefixes = {"": ("all",)}
    preprocess_mode = "tf"

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        arrays = replace_prefix(arrays, "opt/target/")
        return _reshape_group_norms(arrays, (1, 1, 1, -1))

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        token = arguments["class_token"]
        return {"pooling": ("token",) if token else ("gap",)}


class BigVision(Format):
    """google-research/big_vision."""

    name = "big_vision"
    maps = (
        _big_vision("", "encoderblock_{i}"),
        _big_vision("scan", "encoderblock"),
    )
    arguments = _ARGUMENTS
    # In old files, the class token has a position embedding.
    position_prefixes = {"": ("none", "all")}
    poolings = ("token", "gap", "first_patch", "map")
    patch_resampling = "bilinear"  # models/proj/flexi/vit.py
    preprocess_mode = "tf"

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Renames keys as big_vision's `fix_old_checkpoints` does.

        Also removes the prefixes of an optimizer's target and of SigLIP's image
        tower, and its text tower.
        """
        dropped = set(self.left_out(arrays))
        arrays = {key: a for key, a in arrays.items() if key not in dropped}
        for prefix in ("opt/target/", "params/img/", "params/"):
            stripped = replace_prefix(arrays, prefix)
            if stripped is not arrays:
                arrays = stripped
                break

        pooling = "probe$|(MultiHeadDotProductAttention|LayerNorm|MlpBlock)_0/"

        def rename(key: str) -> str:
            if key in (_INPUT_POSITIONS, "Transformer/pos_embedding"):
                return "pos_embedding"
            return f"MAPHead_0/{key}" if re.match(pooling, key) else key

        return replace_prefix(rename_keys(arrays, rename), "", "params/")

    @staticmethod
    def left_out(arrays: dict[str, Array]) -> list[str]:
        """Lists the keys of the text tower and the loss of SigLIP's files."""
        if not any(key.startswith("params/img/") for key in arrays):
            return []
        text = ("params/txt/", "params/t", "params/b")
        return [k for k in arrays if k in text[1:] or k.startswith(text[0])]

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        token = arguments["class_token"]
        return {
            "pooling": ("token",) if token else self.poolings[1:],
            "position_embedding": ("learned", "none", "sincos2d"),
        }


class Bit(Format):
    """google-research/big_transfer, and big_vision's ResNets."""

    name = "bit"
    maps = (
        _BIG_TRANSFER,  # ResNet v2
        WeightMap(  # ResNet v1
            "v1",
            FLAX,
            (*_resnet_v1("flat_group_norm"), ("head/*", "head/*", "linear")),
            prefix="params/",
            required=("params/conv_root/kernel",),
        ),
        _BIT_PAPER,  # ResNet v2
    )
    resnets = {
        "": (True, BIT_CONSTANTS),
        "v1": (False, VIT_JAX_CONSTANTS),
        "bit_paper": (True, BIT_PAPER_CONSTANTS),
    }
    preprocess_mode = "tf"

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        if "conv_root/kernel" in arrays or "root_block/conv_root/kernel" in arrays:
            arrays = replace_prefix(arrays, "", "params/")
        if "params/conv_root/kernel" in arrays:
            arrays = _reshape_group_norms(arrays, (-1,))
        # In some files, TensorFlow has numbered the convolutions' names.
        pattern = re.compile(r"(resnet/.*/standardized_conv2d)_\d+(?=/)")
        return rename_keys(arrays, lambda key: pattern.sub(r"\1", key))
