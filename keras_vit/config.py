"""The architectures of models as data, and the sizes of the named variants."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypedDict, TypeVar

from keras_vit.utils import checks
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.types import Config

__all__ = [
    "BIT_VARIANTS", "BiTConfig", "HybridConfig", "ResNetConfig", "TextConfig",
    "Variant", "VARIANTS", "ViTConfig",
]  # fmt: skip

POOLINGS = ("token", "gap", "token_gap", "first_patch", "map", None)
FINAL_NORMS = ("before_pooling", "after_pooling", "none")
POSITION_EMBEDDINGS = (
    "learned",
    "learned_1d",
    "learned_2d",
    "factorized",
    "relative",
    "rope",
    "sincos2d",
    "none",
)
TEXT_POOLINGS = ("highest_id", "first_end", "last")
POSITION_PLACEMENTS = ("stem", "every_layer", "every_layer_shared")
POSITION_PREFIXES = ("all", "class", "none")
# The placements of position embeddings that have not all of them, the default
# first: relative and rotary positions are part of every block's attention.
_PLACEMENTS = {
    "relative": ("every_layer", "every_layer_shared"),
    "rope": ("every_layer_shared",),
}
# vit-keras and keras-hub call the head's activation `activation`.
_OUTPUT_ACTIVATIONS = ("linear", "log_softmax", "sigmoid", "softmax")
GROUPS = 32  # of the ResNets' norms
# Fields that are arguments of every block, the same for all.
_OF_BLOCKS = (
    *("num_heads", "mlp_dim", "activation", "norm_epsilon"),
    *("qkv_bias", "key_bias", "qk_norm", "layer_scale"),
    *("dropout", "attention_dropout", "remat"),
)
_DERIVED: Any = None  # the default of a field that follows from others

# A field that no other code base has, so that all formats refuse other values.
_own = functools.partial(dataclasses.field, metadata={"own": True})

_ModelConfig = TypeVar("_ModelConfig", bound="ViTConfig | ResNetConfig")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Architecture of a Vision Transformer.

    The fields are arguments of `keras_vit.VisionTransformer`. The defaults are
    those of google-research/vision_transformer; the other values are for models
    of timm, Hugging Face, torchvision and big_vision.

    Args:
        patch_size: Integer or `(rows, columns)`, in pixels, or in positions of a
            hybrid's feature map.
        hidden_size: Integer. Number of channels of a token, D in the paper.
        num_layers: Integer. Number of encoder blocks.
        num_heads: Integer. Number of attention heads, which must divide `hidden_size`.
        mlp_dim: Integer. Width of the MLPs' hidden layers; None for 4 times
            `hidden_size`.
        pooling: String. "token" (the class token), "gap" (mean of the patches),
            "token_gap" (both, concatenated: DINOv2's classifier), "first_patch" (the
            token of the top left patch: big_vision's `pool_type="0"`, whose checkpoints
            have the same arrays as for "gap"), "map" (attention pooling), or None. With
            `include_top`, None means "token", or "gap" without a class token; otherwise
            it means no pooling.
        representation_size: Integer. Width of the tanh layer `pre_logits` before the
            head, which the paper uses in pre-training; None for no such layer.
        unit_norm: Boolean. Whether the head reads features scaled to length 1, as in
            comparisons with features of texts (see `keras_vit.zero_shot`). `pre_logits`
            is then linear.
        class_token: Boolean. Whether to have a class token. None means True, unless
            `pooling` is "gap", "first_patch" or "map", which do not use it.
        num_registers: Integer. Number of register tokens after the class token.
        distillation: Boolean. Whether to have DeiT's distillation token. With a head,
            the output is then the mean of the outputs of both tokens' heads.
        mask_token: Boolean. Whether to store the vector for masked patches that
            DINOv2's checkpoints contain. It does not affect the output.
        position_embedding: String. "learned" (also called "learned_1d"), "learned_2d",
            "relative" or "none" (the paper's Appendix D.4), "sincos2d" (big_vision's
            fixed embeddings), "factorized" (NaViT) or "rope" (DINOv3's rotary
            positions). See `AddPositionEmbs`, `RelativePositionEmbs` and
            `RotaryPositionEmbs`.
        position_placement: String. Where position embeddings are added: "stem" (once
            before the blocks), "every_layer" (before every block, separate embeddings)
            or "every_layer_shared" (before every block, the same embeddings). None
            means "stem", or "every_layer" for relative positions, which are part of
            every block's attention, and "every_layer_shared" for rotary ones. Ignored
            if `position_embedding` is "none".
        position_prefix: String. Which tokens before the patches have a position
            embedding: "all", "class" (registers have none: DINOv2) or "none"
            (big_vision and timm's `no_embed_class`). Only patches have relative
            positions.
        grid_size: `(rows, columns)` of patches for which position embeddings are
            learned. None means the grid of `input_shape`; if its height and width are
            None, the grid of `weights`, or without weights that of 224 x 224 pixels.
        resampling: String. Method to resample position embeddings to another grid; see
            `AddPositionEmbs`.
        rope_base: Float above 0. The periods of rotary positions are powers of it, up
            to nearly `rope_base` itself; see `RotaryPositionEmbs`.
        rope_shift: Float. In training, rotary positions are shifted by random numbers
            in [-rope_shift, rope_shift]; 0 for none.
        rope_jitter: Float, 1 or more. In training, rotary positions of rows and of
            columns are multiplied by random numbers in [1 / rope_jitter, rope_jitter];
            1 for none.
        rope_rescale: Float, 1 or more. In training, all rotary positions are multiplied
            by one random number in [1 / rope_rescale, rope_rescale]; 1 for none.
        patch_bias: Boolean. Whether the patch embedding has a bias.
        pre_norm: Boolean. Whether to normalize tokens before the first block.
        qkv_bias: Boolean. Whether the query, key and value projections have a bias.
        key_bias: Boolean. Whether the key projection has a bias, if `qkv_bias`.
            DINOv3 has none.
        qk_norm: Boolean. Whether to normalize queries and keys.
        layer_scale: Float above 0. Initial value of the factors of `LayerScale`; None
            for no `LayerScale`.
        activation: String. "gelu_tanh" (Google's weights), "gelu" (exact: PyTorch's
            weights), "quick_gelu", "swiglu", or the name of a Keras activation; see
            `MlpBlock`.
        norm_epsilon: Float above 0. Epsilon of every layer norm; 1e-12 in some of
            Hugging Face's weights.
        final_norm: String. Where the last layer norm is: "before_pooling" (layer
            `encoder_norm`, on all tokens), "after_pooling" (layer `head_norm`, as in
            timm's average pooling) or "none".
        dropout: Float in [0, 1). Dropout rate after the position embeddings, after the
            attention and after both dense layers of the MLP.
        attention_dropout: Float in [0, 1). Dropout rate of the attention probabilities.
        drop_path: Float in [0, 1). Stochastic depth rate of the last block. With
            several blocks, the rate grows linearly from 0 in the first block.
        block: Class of the encoder blocks: `TransformerBlock` or a subclass; or a
            function that returns such a block. It is called with keyword arguments of
            `TransformerBlock`, such as `name="block_{i}"`. For example, this function
            gives one block another activation: `lambda **a: TransformerBlock(**a |
            ({"activation": "relu"} if a["name"] == "block_3" else {}))`.
        remat: Boolean. Whether training recomputes the blocks' activations for the
            gradients instead of storing them.
        pad_to_patch: Boolean. Whether to pad images whose size is not a multiple of the
            patch size with zeros at the bottom and at the right.

    Raises:
        ValueError: if a value is wrong, or contradicts another.

    Example:

    >>> config = keras_vit.config.ViTConfig(
    ...     patch_size=4, hidden_size=192, num_layers=6, num_heads=3)
    >>> model = keras_vit.VisionTransformer(config, classes=10)
    """

    patch_size: tuple[int, int]
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int = _DERIVED
    pooling: str | None = None
    representation_size: int | None = None
    unit_norm: bool = _own(default=False)
    class_token: bool = _DERIVED
    num_registers: int = 0
    distillation: bool = False
    mask_token: bool = False
    position_embedding: str = "learned"
    position_placement: str = _DERIVED
    position_prefix: str = "all"
    grid_size: tuple[int, int] | None = None
    resampling: str = "bilinear_align_corners"
    rope_base: float = 100.0
    rope_shift: float = 0.0
    rope_jitter: float = 1.0
    rope_rescale: float = 1.0
    patch_bias: bool = True
    pre_norm: bool = False
    qkv_bias: bool = True
    key_bias: bool = True
    qk_norm: bool = False
    layer_scale: float | None = None
    activation: str = "gelu_tanh"
    norm_epsilon: float = 1e-6
    final_norm: str = "before_pooling"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    block: Callable[..., Any] | None = _own(default=None)
    remat: bool = False
    pad_to_patch: bool = False

    def __post_init__(self) -> None:
        _convert_fields(self)
        for name, choices in (
            ("pooling", POOLINGS),
            ("final_norm", FINAL_NORMS),
            ("position_prefix", POSITION_PREFIXES),
            ("position_embedding", POSITION_EMBEDDINGS),
        ):
            checks.one_of(name, getattr(self, name), choices)
        if self.activation in _OUTPUT_ACTIVATIONS:
            raise ValueError(
                "`activation` sets the activation of the encoder's MLPs. Received: "
                f"activation={self.activation!r}. Give "
                f"`classifier_activation={self.activation!r}` for the head, or a "
                "`block` whose `make_mlp` uses it."
            )
        if self.mlp_dim is None:
            _set(self, "mlp_dim", 4 * self.hidden_size)
        self._resolve_positions()
        self._resolve_tokens()

    def _resolve_positions(self) -> None:
        if self.position_embedding == "learned_1d":
            _set(self, "position_embedding", "learned")
        kind = self.position_embedding
        # Rotary positions are computed for any grid, so that nothing is resampled.
        if kind == "rope":
            _set(self, "resampling", type(self).resampling)
        allowed = _PLACEMENTS.get(kind, POSITION_PLACEMENTS)
        placement = self.position_placement or allowed[0]
        checks.one_of("position_placement", placement, allowed)
        placement = "stem" if kind == "none" else placement
        _set(self, "position_placement", placement)

    def _resolve_tokens(self) -> None:
        uses_token = self.pooling in ("token", "token_gap")
        if self.class_token is None:
            _set(self, "class_token", uses_token or self.pooling is None)
        if uses_token and not self.class_token:
            raise ValueError(
                f"`pooling={self.pooling!r}` uses the class token, and this "
                "model has none. Set `class_token=True`, or choose "
                "`pooling='gap'`, 'first_patch' or 'map'."
            )
        has_late_norm = self.final_norm == "after_pooling"
        if self.pooling is None and (self.representation_size or has_late_norm):
            raise ValueError(
                "`representation_size`, like `final_norm='after_pooling'`, "
                "needs a `pooling`. Received: pooling=None, "
                f"representation_size={self.representation_size}, "
                f"final_norm={self.final_norm!r}"
            )
        if self.distillation and (
            not self.class_token or self.representation_size or has_late_norm
        ):
            raise ValueError(
                "`distillation=True` needs `class_token=True`, no "
                "`representation_size` and no norm after the pooling. "
                f"Received: class_token={self.class_token}, "
                f"pooling={self.pooling!r}, "
                f"representation_size={self.representation_size}, "
                f"final_norm={self.final_norm!r}"
            )

    @property
    def prefix_tokens(self) -> dict[str, tuple[int, bool]]:
        """Tokens before the patches, in order: `{layer name: (number of tokens,
        whether they have a position embedding)}`."""
        counts = {
            "class_token": int(self.class_token),
            "distillation_token": int(self.distillation),
            "register_tokens": self.num_registers,
        }
        embedded = {
            "all": tuple(counts),
            "class": ("class_token", "distillation_token"),
            "none": (),
        }[self.position_prefix]
        return {
            name: (count, name in embedded) for name, count in counts.items() if count
        }

    @property
    def stride(self) -> int:
        """Pixels per position of the image or feature map that is cut into patches,
        along an axis."""
        return 1

    def block_arguments(self, index: int) -> Config:
        """Returns the arguments that the block of an index is made with."""
        # The rates grow linearly to that of the last block, or the only one.
        rate = index * (self.drop_path / max(self.num_layers - 1, 1))
        return {
            **{name: getattr(self, name) for name in _OF_BLOCKS},
            "drop_path": self.drop_path if index == self.num_layers - 1 else rate,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Architecture of the hybrids' ResNet, a ResNet of version 1.

    The fields are arguments of `keras_vit.HybridVisionTransformer`. The defaults
    are those of google-research/vision_transformer.

    Args:
        resnet_layers: Tuple of integers. Number of units in each stage: (3, 4, 6, 3)
            for a ResNet-50, () for the root alone. The root reduces height and width to
            a quarter, and each stage except the first halves them.
        width_factor: Float. The root has `64 * width_factor` channels, which must be a
            multiple of the 32 groups of a norm.
        group_norm_epsilon: Float above 0. Epsilon of the group norms.
        std_epsilon: Float above 0. Epsilon of the weight standardization.
        std_epsilon_place: String. "variance" or "std": where `std_epsilon` is added;
            see `StdConv2D`.
        conv_padding: String. "symmetric" or "same": padding of the convolutions; see
            `StdConv2D`.
        pool_padding: String. "zeros", "symmetric" or "same": padding of the root's max
            pooling; see `MaxPool2D`.

    Raises:
        ValueError: if a value is wrong.
    """

    # Whether norm and ReLU come before each convolution (version 2).
    preactivation: ClassVar[bool] = False

    resnet_layers: tuple[int, ...]
    width_factor: float = 1.0
    group_norm_epsilon: float = 1e-6
    std_epsilon: float = 1e-5
    std_epsilon_place: str = "std"
    conv_padding: str = "same"
    pool_padding: str = "same"

    def __post_init__(self) -> None:
        units = (checks.positive_int("resnet_layers", n) for n in self.resnet_layers)
        _set(self, "resnet_layers", tuple(units))
        for name in ("width_factor", "group_norm_epsilon", "std_epsilon"):
            checks.positive_float(name, getattr(self, name))
        for name, choices in (
            ("std_epsilon_place", ("std", "variance")),
            ("conv_padding", ("same", "symmetric")),
            ("pool_padding", ("same", "symmetric", "zeros")),
        ):
            checks.one_of(name, getattr(self, name), choices)

    @property
    def width(self) -> int:
        """Number of channels of the root."""
        return int(64 * self.width_factor)

    @property
    def stride(self) -> int:
        """Pixels per position of the feature map, along an axis."""
        return stride(self.resnet_layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ResNetConfig):
    """Architecture of a BiT, a ResNet of version 2.

    The fields are those of `ResNetConfig`, and arguments of `keras_vit.BiT`. The
    defaults are those of google-research/big_transfer.
    """

    preactivation: ClassVar[bool] = True

    group_norm_epsilon: float = 1e-5
    std_epsilon: float = 1e-10
    std_epsilon_place: str = "variance"
    conv_padding: str = "symmetric"
    pool_padding: str = "zeros"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridConfig(ResNetConfig, ViTConfig):
    """Architecture of a Vision Transformer on the feature map of a ResNet.

    The fields are those of `ResNetConfig` and of `ViTConfig`, and arguments of
    `keras_vit.HybridVisionTransformer`.
    """

    def __post_init__(self) -> None:
        ResNetConfig.__post_init__(self)
        ViTConfig.__post_init__(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Architecture of the text tower of a `keras_vit.DualEncoder`.

    The defaults are those of CLIP's ViT-B towers (https://arxiv.org/abs/2103.00020).

    Args:
        vocabulary_size: Integer. Number of tokens in the vocabulary.
        context_length: Integer. Maximum number of tokens in a text.
        hidden_size: Integer. Number of channels of a token.
        num_layers: Integer. Number of encoder blocks.
        num_heads: Integer. Number of attention heads, which must divide `hidden_size`.
        mlp_dim: Integer. Width of the MLPs' hidden layers; None for 4 times
            `hidden_size`.
        projection_size: Integer. Number of channels of a text's embedding; None for no
            projection.
        projection_bias: Boolean. Whether the projection has a bias, as in SigLIP.
        causal: Boolean. Whether a token attends only to itself and those before it.
        pooling: String. The token whose output is the embedding: "highest_id", the
            first token with the highest id, which is the end of the text in OpenAI's
            code; "first_end", the first token with the id `end_id`; or "last", the last
            token, as in SigLIP.
        end_id: Integer. Id of the end of a text, for "first_end".
        activation: String. As in `ViTConfig`.
        norm_epsilon: Float above 0. Epsilon of every layer norm.

    Raises:
        ValueError: if a value is wrong.

    Example:

    >>> config = keras_vit.config.TextConfig(hidden_size=768, num_heads=12)
    >>> tower = keras_vit.text.TextEncoder(config)
    """

    vocabulary_size: int = 49408
    context_length: int = 77
    hidden_size: int = 512
    num_layers: int = 12
    num_heads: int = 8
    mlp_dim: int = _DERIVED
    projection_size: int | None = 512
    projection_bias: bool = False
    causal: bool = True
    pooling: str = "highest_id"
    end_id: int | None = None
    activation: str = "quick_gelu"
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        checks.one_of("pooling", self.pooling, TEXT_POOLINGS)
        checks.require(
            self.pooling != "first_end" or self.end_id is not None,
            "end_id",
            self.end_id,
            "the id of the end of a text with pooling='first_end'",
        )
        if self.mlp_dim is None:
            object.__setattr__(self, "mlp_dim", 4 * self.hidden_size)

    def block_arguments(self, index: int) -> Config:
        """Returns the arguments that the block of an index is made with."""
        names = ("num_heads", "mlp_dim", "activation", "norm_epsilon")
        return {name: getattr(self, name) for name in names}


# Type checkers know no function of a dataclass's fields, so these classes list them
# again, grouped by the functions that pass them on; a test compares both.
class _ViTFields(TypedDict, total=False):
    patch_size: int | tuple[int, int] | None
    hidden_size: int | None
    num_layers: int | None
    mlp_dim: int | None
    representation_size: int | None
    unit_norm: bool | None
    class_token: bool | None
    num_registers: int | None
    distillation: bool | None
    mask_token: bool | None
    position_embedding: str | None
    position_placement: str | None
    position_prefix: str | None
    grid_size: int | tuple[int, int] | None
    resampling: str | None
    rope_base: float | None
    rope_shift: float | None
    rope_jitter: float | None
    rope_rescale: float | None
    patch_bias: bool | None
    pre_norm: bool | None
    qkv_bias: bool | None
    key_bias: bool | None
    qk_norm: bool | None
    layer_scale: float | None
    activation: str | None
    norm_epsilon: float | None
    final_norm: str | None
    dropout: float | None
    attention_dropout: float | None
    drop_path: float | None
    block: Callable[..., Any] | None
    remat: bool | None
    pad_to_patch: bool | None


class ViTArguments(_ViTFields, total=False):
    """Fields of `ViTConfig`."""

    num_heads: int | None
    pooling: str | None


class ResNetArguments(TypedDict, total=False):
    """Fields of `ResNetConfig`."""

    resnet_layers: tuple[int, ...] | None
    width_factor: float | None
    group_norm_epsilon: float | None
    std_epsilon: float | None
    std_epsilon_place: str | None
    conv_padding: str | None
    pool_padding: str | None


class HybridArguments(ViTArguments, ResNetArguments, total=False):
    """Fields of `HybridConfig`."""


class _FunctionArguments(_ViTFields, ResNetArguments, total=False):
    preprocessing: bool | ModeLike
    move_stage_4: bool
    preactivation: bool | None


class VariantArguments(_FunctionArguments, total=False):
    """Arguments of named variants that their signatures do not write out."""

    num_heads: int | None


class ModelArguments(_FunctionArguments, total=False):
    """Arguments of `VisionTransformer`, `HybridVisionTransformer` and `BiT`, for
    functions that pass them on and have their own argument `num_heads`."""

    include_top: bool
    input_tensor: Any | None
    input_shape: tuple[int | None, ...] | None
    pooling: str | None
    classes: int | None
    classifier_activation: str | Callable[[Any], Any] | None
    name: str | None


def own_values() -> dict[str, tuple[Any]]:
    """Returns the fields that only this package has, by name, with the values that
    formats of other code bases can store."""
    own = (x for x in dataclasses.fields(ViTConfig) if x.metadata.get("own"))
    return {field.name: (field.default,) for field in own}


def field_names(config_class: type) -> list[str]:
    """Returns the names of a config's fields."""
    return [field.name for field in dataclasses.fields(config_class)]


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Returns whether a field of a config has no default."""
    return field.default is dataclasses.MISSING


def known(values: Config) -> Config:
    """Returns the arguments that are not None."""
    return {name: x for name, x in values.items() if x is not None}


def resolve(config_class: type[_ModelConfig], arguments: Config) -> _ModelConfig:
    """Builds a config from arguments. None stands for the default, and arguments that
    are not fields are ignored."""
    fields, given = dataclasses.fields(config_class), known(arguments)
    values = {f.name: given[f.name] for f in fields if f.name in given}
    missing = [
        field.name
        for field in fields
        if is_required(field) and field.name not in values
    ]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} must be given if there are no `weights` to take "
            f"them from. Received: {', '.join(f'{name}=None' for name in missing)}"
        )
    return config_class(**values)


def config_from(arguments: Config) -> ViTConfig | ResNetConfig:
    """Returns the config of the model that arguments describe, as `resolve` does."""
    if "resnet_layers" not in arguments:
        return resolve(ViTConfig, arguments)
    if "hidden_size" in arguments:
        return resolve(HybridConfig, arguments)
    version_2 = arguments["preactivation"]
    return resolve(BiTConfig if version_2 else ResNetConfig, arguments)


def to_json(config: ViTConfig | ResNetConfig | TextConfig) -> Config:
    """Returns a config as a file stores it, with the name of its class."""
    fields = {
        k: list(v) if isinstance(v, tuple) else v for k, v in vars(config).items()
    }
    return {"class": type(config).__name__, **fields}


def from_json(values: Config) -> ViTConfig | ResNetConfig | TextConfig:
    """Returns the config that `to_json` was given."""
    fields = dict(values)
    kinds = (ViTConfig, HybridConfig, BiTConfig, ResNetConfig, TextConfig)
    return {x.__name__: x for x in kinds}[fields.pop("class")](**fields)


def stride(resnet_layers: tuple[int, ...]) -> int:
    """Returns the downsampling factor of a ResNet."""
    return 4 * 2 ** max(len(resnet_layers) - 1, 0)


def _set(config: ViTConfig | ResNetConfig, name: str, value: object) -> None:
    object.__setattr__(config, name, value)


def _convert_fields(config: ViTConfig) -> None:
    """Replaces numbers by Python's, and lists and integers by pairs."""
    flags = [f.name for f in dataclasses.fields(config) if f.type is bool]
    sizes = ("hidden_size", "num_layers", "num_heads", "mlp_dim")
    for check, names in (
        (checks.positive_int, (*sizes, "representation_size")),
        (checks.non_negative_int, ("num_registers",)),
        (checks.positive_pair, ("patch_size", "grid_size")),
        (checks.rate, ("dropout", "attention_dropout", "drop_path")),
        (checks.positive_float, ("norm_epsilon", "layer_scale", "rope_base")),
        (checks.boolean, flags),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None:
                _set(config, name, check(name, value))


@dataclasses.dataclass(frozen=True)
class Variant:
    """Sizes of a named model; see `VARIANTS`."""

    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    patch_size: int
    resnet_layers: tuple[int, ...] | None = None  # None: no hybrid

    def sizes(self) -> Config:
        """Returns the arguments of the function that builds the model."""
        values = dataclasses.asdict(self)
        return {name: v for name, v in values.items() if v is not None}


# Ti, S: https://arxiv.org/abs/2106.10270, Table 2.
# B, L, H: https://arxiv.org/abs/2010.11929, Table 1.
# g, G: https://arxiv.org/abs/2106.04560, Table 2 (there with `pooling="map"`).
# S, B, L with patches of 14: https://arxiv.org/abs/2304.07193 (DINOv2).
#                   hidden layers heads   mlp patch
VARIANTS = {
    "ViTTi16": Variant(192, 12, 3, 768, 16),
    "ViTS16": Variant(384, 12, 6, 1536, 16),
    "ViTS32": Variant(384, 12, 6, 1536, 32),
    "ViTB8": Variant(768, 12, 12, 3072, 8),
    "ViTB16": Variant(768, 12, 12, 3072, 16),
    "ViTB32": Variant(768, 12, 12, 3072, 32),
    "ViTL16": Variant(1024, 24, 16, 4096, 16),
    "ViTL32": Variant(1024, 24, 16, 4096, 32),
    "ViTH14": Variant(1280, 32, 16, 5120, 14),
    "ViTS14": Variant(384, 12, 6, 1536, 14),
    "ViTB14": Variant(768, 12, 12, 3072, 14),
    "ViTL14": Variant(1024, 24, 16, 4096, 14),
    "ViTg14": Variant(1408, 40, 16, 6144, 14),
    "ViTG14": Variant(1664, 48, 16, 8192, 14),
    # google-research/vision_transformer, configs/models.py. Patch sizes are in
    # positions of the feature map; one position after the root is 4 x 4 pixels.
    "R_ViTTi16": Variant(192, 12, 3, 768, 8, ()),
    "R26ViTS32": Variant(384, 12, 6, 1536, 1, (2, 2, 2, 2)),
    "R26ViTB32": Variant(768, 12, 12, 3072, 1, (2, 2, 2, 2)),
    "R50ViTB16": Variant(768, 12, 12, 3072, 1, (3, 4, 9)),
    "R50ViTL32": Variant(1024, 24, 16, 4096, 1, (3, 4, 6, 3)),
}

# https://arxiv.org/abs/1912.11370: (number of units of each stage, width
# factor).
BIT_VARIANTS = {
    "BiT_R50x1": ((3, 4, 6, 3), 1),
    "BiT_R50x3": ((3, 4, 6, 3), 3),
    "BiT_R101x1": ((3, 4, 23, 3), 1),
    "BiT_R101x3": ((3, 4, 23, 3), 3),
    "BiT_R152x2": ((3, 8, 36, 3), 2),
    "BiT_R152x4": ((3, 8, 36, 3), 4),
}


def variant_sizes(name: str) -> Config:
    """Returns the arguments of a model's function that the model's name implies."""
    if name in BIT_VARIANTS:
        layers, width = BIT_VARIANTS[name]
        return {"resnet_layers": layers, "width_factor": width}
    return VARIANTS[name].sizes()
