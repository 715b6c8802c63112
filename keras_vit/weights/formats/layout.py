"""The `Layout` class, which describes the checkpoints of one code base."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import TypeAlias

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import Tensor
from keras_vit.weights.infer import POSITION_PREFIXES
from keras_vit.weights.weight_map import Layers
from keras_vit.weights.weight_map import Names

# A `keras_vit.weights.Checkpoint`, whose module imports the layouts.
Checkpoint: TypeAlias = Any
# Name of a library with its version, and a function of a batch for PyTorch.
Reference: TypeAlias = tuple[str, Callable[[Tensor], Tensor]]


def _no_arguments(variant: str, paths: Collection[str]) -> Config:
    return {}


def _as_read(
    weights: dict[str, Array], stored: Config, variant: str
) -> tuple[dict[str, Array], Config]:
    return weights, stored


def _as_written(
    weights: dict[str, Array], arguments: Config, variant: str
) -> dict[str, Array]:
    return weights


def _no_keys(arrays: dict[str, Array]) -> list[str]:
    return []


def _no_reasons(arguments: Config, variant: str) -> list[str]:
    return []


@dataclass(frozen=True)
class Layout:
    """Array names of a code base, and properties of its models.

    Attributes:
        name: String. The value of the `layout` argument of public functions.
        maps: Tuple of `WeightMap`s with different `variant`s. The first that
            has a key for every weight is used for writing, unless a variant is
            chosen with `layout="name:variant"`.
        arguments: Dict of the arguments that are the same for all its models:
            `activation`, `norm_epsilon`, `resampling`.
        normalize: Function from a file's arrays to the same arrays under the
            names and with the axes of `maps`, for files of older versions. It
            never raises, leaves unknown arrays unchanged, and keeps the order
            of the arrays unless it merges some.
        left_out: Function from a file's arrays to the keys of those that
            `normalize` leaves out, since they are no part of the model, such
            as a text tower. Reading a file with any warns.
        to_file: Function from the arrays that `maps` write to those of a
            file, without what `normalize` adds and with what it leaves out.
            It raises a `ValueError` if a file cannot hold them.
        marker: String. A key that a file must have for this layout to be
            detected; None if there is none. Not required if the layout is
            explicit.
        position_prefixes: Dict of variants to tuples of the possible values of
            `position_prefix`, the most likely first. The key "" is for all
            other variants.
        implied: Function from a variant and keras_vit paths to a dict of
            further arguments that they imply.
        rotary_variants: Tuple of the two variants of models with rotary
            positions: with an MLP of two layers, and with a gated MLP
            ("swiglu"). Empty if the code base has no such models.
        after_reading: Function from weights by keras_vit path, the arguments
            in config.json and a variant to both of them, which adds what the
            code base computes and removes what has no effect.
        before_writing: Function from weights by keras_vit path, arguments and a
            variant to the weights to write, the inverse of `after_reading`.
        stem: Dict of the constants of a hybrid's ResNet.
        resnets: Dict of variants to `(preactivation, constants)`, for
            ResNets without a Vision Transformer (BiT).
        poolings: Dict of the supported values of `pooling` to whether the
            model then has a class token; None if both are possible.
        needs_class_token: Boolean. Whether all its models have a class token.
        fixed_positions: Boolean. Whether its models may have fixed position
            embeddings (`"sincos2d"`).
        unsupported: Function from arguments and a variant to a list of
            reasons why its code cannot represent the model. They are about
            properties that the arrays do not show.
        patch_resampling: String. Method of `layers/resampling.py` by which
            the kernel of the patch embedding is resized.
        num_heads: Integer. Number of attention heads of all its models, which
            its files do not store; None if they differ.
        nearest_variant: Function from arguments to the variant that is
            written if none is chosen; None for the first that has a key for
            every weight.
        preprocess_mode: String. The `mode` of `preprocess_input` of all its
            models; None if they differ.
        config_files: Tuple of the names of JSON files with the model's
            config; the first that exists is read.
        config_key: String. The key that identifies the code base's
            config.json; None if it has none.
        read_config: Function from a config.json's contents to arguments.
        check_config: Function of a config.json's contents and of the weights
            that raises a `ValueError` if they are not those of one model.
        reference: Function that runs a checkpoint in the original library
            (see `reference.py`), or a string, the reason why there is none.
    """

    name: str
    maps: tuple
    arguments: dict = field(default_factory=dict)
    normalize: Callable = dict
    left_out: Callable = _no_keys
    to_file: Callable = dict
    marker: str | None = None
    position_prefixes: dict = field(
        default_factory=lambda: {"": POSITION_PREFIXES}
    )
    implied: Callable = _no_arguments
    rotary_variants: tuple = ()
    after_reading: Callable = _as_read
    before_writing: Callable = _as_written
    stem: dict = field(default_factory=dict)
    resnets: dict = field(default_factory=dict)
    poolings: dict = field(
        default_factory=lambda: dict.fromkeys(
            ("token", "token_gap", "gap", "map")
        )
    )
    needs_class_token: bool = False
    fixed_positions: bool = False
    unsupported: Callable = _no_reasons
    patch_resampling: str = "bicubic_antialias"
    num_heads: int | None = None
    nearest_variant: Callable | None = None
    preprocess_mode: str | None = None
    config_files: tuple = ("config.json",)
    config_key: str | None = None
    read_config: Callable = dict
    check_config: Callable | None = None
    reference: Callable | str = "no library of its own"

    def possible_prefixes(self, variant: str) -> tuple[str, ...]:
        """Returns the possible values of a variant's `position_prefix`."""
        prefixes = self.position_prefixes
        return prefixes.get(variant, prefixes[""])


def replace_prefix(
    arrays: dict[str, Array], old: str, new: str = ""
) -> dict[str, Array]:
    """Replaces a prefix of keys, if all of them have it."""
    if not all(key.startswith(old) for key in arrays):
        return arrays
    return {new + k.removeprefix(old): array for k, array in arrays.items()}


def replace_layers(
    layers: Layers,
    renamed: Mapping[Names, str] | None = None,
    without: tuple[str, ...] = (),
) -> Layers:
    """Returns the layers of a `WeightMap` with some renamed or left out."""
    renamed = renamed or {}
    return tuple(
        (path, renamed[key] if key in renamed else key, parameter_type)
        for path, key, parameter_type in layers
        if not "".join(path).startswith(tuple(without))
    )
