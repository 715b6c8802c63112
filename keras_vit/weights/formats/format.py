"""The `Format` class: how one code base stores its models."""

import json
import pathlib
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, TypeAlias

import numpy as np

from keras_vit.config import own_values
from keras_vit.utils.scaling import Mode
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights import infer
from keras_vit.weights.files import (
    atomic_write,
    check_new_files,
    write,
)
from keras_vit.weights.infer import POSITION_PREFIXES
from keras_vit.weights.weight_map import Layer, Layers, Names, WeightMap

# A `keras_vit.weights.Checkpoint`, whose module imports the formats.
Checkpoint: TypeAlias = Any
# The values of an argument that a code base has; `Format.values`.
Values: TypeAlias = dict[str, tuple[object, ...]]
_MASK_TOKEN = "mask_token/tokens"
_VALUES: Values = {
    **own_values(),
    "position_embedding": ("learned", "none"),
    "position_placement": ("stem",),
    "key_bias": (True,),
}


class Format:
    """The names of a code base's arrays, and the properties of its models.

    A code base is a subclass, which has a name and maps, and overrides what is
    different. A variant is the name of one of the maps.
    """

    # The value of the `format` argument of public functions.
    name: ClassVar[str]
    # The first that has a key for every weight is used for writing, unless a
    # variant is chosen with `format="name:variant"`.
    maps: ClassVar[tuple[WeightMap, ...]]
    # A key that a file must have for this format to be detected.
    marker: ClassVar[str | None] = None
    # Arguments that are the same for all of its models, and the constants of
    # the ResNets of its hybrids and, by variant, of its ResNets alone:
    # `(preactivation, constants)`.
    arguments: ClassVar[Config] = {}
    stem: ClassVar[Config] = {}
    resnets: ClassVar[dict[str, tuple[bool, Config]]] = {}
    # The possible values of `position_prefix`, the most likely first, of a
    # variant, or of all others ("").
    position_prefixes: ClassVar[dict[str, tuple[str, ...]]]
    position_prefixes = {"": POSITION_PREFIXES}
    # The variants with rotary positions: with an MLP of two layers, and with a
    # gated one. A code base without such models has none.
    rotary_variants: ClassVar[tuple[str, ...]] = ()
    poolings: ClassVar[tuple[str, ...]] = ("token", "token_gap", "gap", "map")
    # Whether a head reads `pre_logits` if there are any; else it is not known.
    head_reads_pooler: ClassVar[bool] = True
    # How the kernel of the patch embedding is resized; `layers.resampling`.
    patch_resampling: ClassVar[str] = "bicubic_antialias"
    # All of its models have this number of heads; None if they differ.
    num_heads: ClassVar[int | None] = None
    preprocess_mode: ClassVar[str | None] = None
    # JSON files with a model's config, of which the first that exists is read,
    # and a key by which it is recognized; None if the code base has none.
    config_files: ClassVar[tuple[str, ...]] = ("config.json",)
    config_key: ClassVar[str | None] = None
    # The files of a folder; () if the code base has only files.
    folder_files: ClassVar[tuple[str, ...]] = ()

    def weight_map(self, variant: str = "", weights: Collection[str] = ()) -> WeightMap:
        """Returns the map of a variant; without one, the first that has a key
        for every weight, or else the first."""
        if not variant:
            complete = (m for m in self.maps if not m.unmapped_paths(weights))
            return next(complete, self.maps[0])
        maps = {weight_map.variant: weight_map for weight_map in self.maps}
        if variant not in maps:
            variants = ", ".join(repr(name) for name in maps if name)
            raise ValueError(
                f"The variants of the format {self.name!r} are "
                f"{variants or 'none'}. Received: variant {variant!r}"
            )
        return maps[variant]

    def possible_prefixes(self, variant: str) -> tuple[str, ...]:
        """Returns the possible values of a variant's `position_prefix`."""
        return self.position_prefixes.get(variant, self.position_prefixes[""])

    def implied(self, variant: str, paths: Collection[str]) -> Config:
        """Returns the arguments that are constants of the code base, for a
        variant with weights of these paths."""
        return self.arguments

    # Reading.

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Returns a file's arrays with the names and axes of `maps`, for files
        of older versions.

        It never raises, leaves unknown arrays unchanged, and keeps the order of
        the arrays unless it merges some.
        """
        return dict(arrays)

    @staticmethod
    def left_out(arrays: dict[str, Array]) -> list[str]:
        """Lists the keys that `normalize` leaves out, since they are not part of the
        model, such as a text tower."""
        return []

    @staticmethod
    def read_keys(arrays: Collection[str]) -> Config:
        """Returns the arguments that the keys of a file imply, if its config
        does not contain them."""
        return {}

    @staticmethod
    def read_config(config: Config) -> Config:
        """Returns the arguments that a config.json contains."""
        return {}

    @staticmethod
    def training_config(path: StrPath) -> Config:
        """Returns what a file without a config.json says of its training, as a
        config.json; {} if it says nothing."""
        return {}

    @staticmethod
    def check_config(config: Config, weights: dict[str, Array]) -> None:
        """Raises a `ValueError` if a config.json is not that of the weights."""

    @staticmethod
    def after_reading(
        weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        """Adds what the code base computes, and removes what has no effect."""
        return weights, stored

    @staticmethod
    def look_alikes(variant: str, paths: Collection[str]) -> str | None:
        """Returns the names of models that this package does not have and that have
        arrays of these paths, too; None if there are none."""

    @staticmethod
    def unstored(variant: str, weights: dict[str, Array]) -> dict[str, str]:
        """Returns arguments that a file without a config.json does not show, with
        what is assumed."""
        return {}

    def assumptions(self, variant: str, keys: Collection[str]) -> dict[str, str]:
        """Returns arguments that a file of a variant and with these keys does not
        store and whose values differ among its models, with what is assumed."""
        return {}

    # Writing.

    def nearest_variant(self, arguments: Config) -> str:
        """Returns the variant of a model to write if none is chosen; "" for the
        first that has a key for every weight."""
        if arguments.get("position_embedding") == "rope":
            gated = arguments["activation"] == "swiglu"
            return self.rotary_variants[gated] if self.rotary_variants else ""
        return ""

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        """Returns the values of arguments that its models may have, of those
        whose arrays do not show that it has no others."""
        return {}

    def refusals(self, arguments: Config, variant: str, folder: bool) -> list[str]:
        """Lists why its code would compute other outputs than a model."""
        a, values = arguments, dict(_VALUES)
        if variant in self.rotary_variants:
            values = {"position_embedding": ("rope",), **own_values()}
        elif a["position_embedding"] == "learned":
            possible = self.possible_prefixes(variant)
            counts = [infer.num_positioned(p, a) for p in possible]
            if infer.num_positioned(a["position_prefix"], a) not in counts:
                values["position_prefix"] = possible
        if a["classes"]:
            values["pooling"] = self.poolings
        values |= self.values(a, variant, folder)
        if variant in self.rotary_variants and variant != self.nearest_variant(a):
            values["activation"] = (f"another in {variant!r}",)
        return mismatches(a, values)

    def before_writing(
        self, weights: dict[str, Array], arguments: Config, variant: str
    ) -> dict[str, Array]:
        """Returns the weights to write, the inverse of `after_reading`."""
        return weights

    def map_to_write(
        self, variant: str, weights: dict[str, Array]
    ) -> tuple[dict[str, Array], WeightMap]:
        """Returns weights and the map that writes them.

        A mask token that has no place is left out with a warning: it replaces
        patches in pre-training only, and code bases without it drop it, too.
        """
        weight_map = self.weight_map(variant, weights)
        if _MASK_TOKEN in weight_map.unmapped_paths(weights):
            warn(
                f"The format {self.name!r} has no mask token, which has no "
                "effect on outputs: it is left out."
            )
            weights = {k: v for k, v in weights.items() if k != _MASK_TOKEN}
            weight_map = self.weight_map(variant, weights)
        return weights, weight_map

    @staticmethod
    def to_file(arrays: dict[str, Array]) -> dict[str, Array]:
        """Returns the arrays of a file, the inverse of what `normalize` adds
        and leaves out, or raises a `ValueError` if a file cannot hold them."""
        return arrays

    @staticmethod
    def with_text(arrays: dict[str, Array]) -> dict[str, Array]:
        """Returns the arrays of an image tower as a file of both towers has them."""
        return arrays

    def folder_configs(
        self,
        arguments: Config,
        variant: str,
        dtype: str,
        source: Checkpoint | None = None,
        preprocess_mode: Mode | None = None,
    ) -> dict[str, Config]:
        """Returns the contents of a folder's JSON files."""
        raise NotImplementedError

    def weight_files(self, arrays: dict[str, Array]) -> dict[str, dict[str, Array]]:
        """Returns the arrays of each file of a folder."""
        return {self.folder_files[0]: arrays}


def pair(size: Any) -> tuple[int, int] | None:
    """Returns a size of a config.json as `(rows, columns)`, or None."""
    found = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if len(found) == 2 and all(type(n) is int and 0 < n < 2**31 for n in found):
        return found
    return None


def check_option(
    fits: bool, name: str, value: object, expected: str, file: str = "config.json"
) -> None:
    """Raises a `ValueError` if an option in a config is of a model that this
    package does not have."""
    if not fits:
        raise ValueError(
            f"{name!r} in its {file} must be {expected}, since this package has no "
            f"other. Received: {value!r:.100}"
        )


def mismatches(arguments: Config, values: Values) -> list[str]:
    """Lists the arguments whose values are not allowed."""
    return [
        f"{name}={arguments[name]!r} (it has {' or '.join(map(repr, allowed))})"
        for name, allowed in values.items()
        if name in arguments and arguments[name] not in allowed
    ]


def refuse_others(library: str, arguments: Config, values: Values) -> None:
    """Raises a `ValueError` if a library builds no model with these arguments."""
    if found := mismatches(arguments, values):
        raise ValueError(f"{library} builds no model of {found[0]}")


def write_folder(
    folder: pathlib.Path,
    files: dict[str, dict[str, Array]],
    configs: dict[str, Config],
    overwrite: bool = False,
    dtype: np.dtype | None = None,
    names: tuple[str, ...] = (),
) -> None:
    """Writes files of arrays and of JSON to a folder, and removes those of
    `names` that it replaces; a `FileExistsError` is raised before."""
    others = set(names) - files.keys() - configs.keys()
    check_new_files(folder, (*files, *configs, *others), overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in files.items():
        write(part, folder / name, overwrite, dtype)
    for name, content in configs.items():
        with atomic_write(folder / name, overwrite) as temporary:
            pathlib.Path(temporary).write_text(json.dumps(content, indent=2))
    for name in others:
        (folder / name).unlink(missing_ok=True)


def square(arguments: Config) -> Values:
    """Returns values of a model with square patches and images, for `values`;
    its grid must be known."""
    rows, _ = arguments["patch_size"]
    side, _ = arguments["grid_size"] or (1, 1)
    return {"patch_size": ((rows, rows),), "grid_size": ((side, side),)}


QKV = ("query", "key", "value")


def block_layers(
    block: str,
    qkv: Names,
    output: str,
    mlp: tuple[Names, str] = ("mlp.fc1.*", "mlp.fc2.*"),
    norms: tuple[str, str] = ("norm1.*", "norm2.*"),
    scales: tuple[str, ...] = (),
    fused: str = "fused",
) -> Layers:
    """Returns the layers of a block, as in `WeightMap`, from names below
    `block`: of three layers of queries, keys and values, or one of the type
    `fused`, and of an MLP whose first layer may be a gate and a projection."""
    path, attention = "block_{i}", "block_{i}/attention"
    paths = tuple(f"{attention}/{name}/*" for name in QKV)
    heads: Layers = ((paths, f"{block}{qkv}", fused),)
    if isinstance(qkv, tuple):
        pairs = zip(paths, qkv, strict=True)
        heads = tuple((one, block + key, "heads") for one, key in pairs)
    first: Layer = (f"{path}/mlp/dense_1/*", f"{block}{mlp[0]}", "linear")
    if isinstance(mlp[0], tuple):
        first = (first[0], tuple(block + key for key in mlp[0]), "gated")
    return (
        (f"{path}/norm_1/*", block + norms[0], "norm"),
        *heads,
        (f"{attention}/attention_output/*", block + output, "merge"),
        (f"{path}/norm_2/*", block + norms[1], "norm"),
        first,
        (f"{path}/mlp/dense_2/*", block + mlp[1], "linear"),
        *(
            (f"{path}/scale_{number}/gamma", block + key, "array")
            for number, key in enumerate(scales, start=1)
        ),
    )


def replace_prefix(
    arrays: dict[str, Array], old: str, new: str = ""
) -> dict[str, Array]:
    """Replaces a prefix of keys, if all of them have it."""
    if not all(key.startswith(old) for key in arrays):
        return arrays
    return {new + k.removeprefix(old): array for k, array in arrays.items()}


def resnet_layers(
    root: str,
    unit: str,
    convs: Iterable[str],
    norms: Iterable[str],
    norm_type: str = "norm",
) -> Layers:
    """Returns the layers of a ResNet, as in `WeightMap`, from names below
    `unit`: those of the three convolutions and norms of a unit, and of the
    projection's, if it has them."""
    path, names = "stage_{s}_unit_{u}", ("1", "2", "3", "proj")
    return (
        ("root_conv/*", root, "conv"),
        *(
            (f"{path}/conv_{name}/*", unit + key, "conv")
            for name, key in zip(names, convs, strict=False)
        ),
        *(
            (f"{path}/norm_{name}/*", unit + key, norm_type)
            for name, key in zip(names, norms, strict=False)
        ),
    )


def image_size(arguments: Config) -> tuple[int, int]:
    """Returns the `(height, width)` in pixels that the position grid covers."""
    (rows, columns), (height, width) = (
        arguments["grid_size"],
        arguments["patch_size"],
    )
    return rows * height, columns * width
