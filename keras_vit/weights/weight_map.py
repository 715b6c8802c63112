"""Maps between a checkpoint's arrays and keras_vit's weights.

Converting a checkpoint only transposes, reshapes, stacks or unstacks arrays,
and each of these is one einops pattern. A pattern is inverted by swapping its
two sides, so the same map is used for reading and writing.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from einops import EinopsError, rearrange

from keras_vit.utils.types import Array

# Parameter types: how a framework stores each type of layer. A type maps the
# name of a keras_vit array to the framework's name and to the einops pattern
# from the framework's array to that of keras_vit.
#
# Axes: i input channels, o output channels, h heads, d head size, c channels,
# y x kernel rows and columns, n arrays fused into one.
IDENTITY = "... -> ..."

FLAX = {
    "array": {"": ("", IDENTITY)},
    "norm": {"gamma": ("scale", IDENTITY), "beta": ("bias", IDENTITY)},
    # Group norms of Google's released files have arrays with four axes.
    "group_norm": {
        "gamma": ("scale", "1 1 1 c -> c"),
        "beta": ("bias", "1 1 1 c -> c"),
    },
    "flat_group_norm": {
        "gamma": ("scale", "c -> c"),
        "beta": ("bias", "c -> c"),
    },
    **dict.fromkeys(
        ("linear", "conv", "heads", "merge"),
        {"kernel": ("kernel", IDENTITY), "bias": ("bias", IDENTITY)},
    ),
}

TENSORFLOW = {
    "norm": {"gamma": ("gamma", IDENTITY), "beta": ("beta", IDENTITY)},
    "conv": {"kernel": ("kernel", IDENTITY)},
    "pointwise": {
        "kernel": ("kernel", "1 1 i o -> i o"),
        "bias": ("bias", IDENTITY),
    },
    "heads": {"kernel": ("kernel", IDENTITY)},
}

TORCH = {
    "array": {"": ("", IDENTITY)},
    "vector": {"": ("", "1 d -> 1 1 d")},
    "token": {"": ("", "d -> 1 1 d")},
    "embedding": {"": ("", "t d -> 1 t d")},
    "table": {"": ("", "1 t d -> t d")},
    "norm": {"gamma": ("weight", "c -> c"), "beta": ("bias", "c -> c")},
    "row": {"": ("", "1 d -> d")},
    "batch_norm": {
        "gamma": ("weight", "c -> c"),
        "beta": ("bias", "c -> c"),
        "moving_mean": ("running_mean", "c -> c"),
        "moving_variance": ("running_var", "c -> c"),
    },
    "weight_norm": {
        "kernel": ("weight_v", "o i -> i o"),
        "norm": ("weight_g", "o 1 -> o"),
    },
    "linear": {
        "kernel": ("weight", "o i -> i o"),
        "bias": ("bias", "o -> o"),
    },
    # A gate and a projection, which are one layer of keras_vit.
    "gated": {
        "kernel": ("weight", "n o i -> i (n o)"),
        "bias": ("bias", "n o -> (n o)"),
    },
    "conv": {
        "kernel": ("weight", "o i y x -> y x i o"),
        "bias": ("bias", "o -> o"),
    },
    "pointwise": {
        "kernel": ("weight", "o i 1 1 -> i o"),
        "bias": ("bias", "o -> o"),
    },
    "heads": {
        "kernel": ("weight", "(h d) i -> i h d"),
        "bias": ("bias", "(h d) -> h d"),
    },
    "fused": {
        "kernel": ("weight", "(n h d) i -> n i h d"),
        "bias": ("bias", "(n h d) -> n h d"),
    },
    "merge": {
        "kernel": ("weight", "o (h d) -> h d o"),
        "bias": ("bias", "o -> o"),
    },
}


# The number of heads of the encoder, or of the encoder and the decoder.
Heads: TypeAlias = int | tuple[int | None, int | None] | None
Names: TypeAlias = str | tuple[str, ...]
# keras_vit's names, the checkpoint's, and the type of their parameters.
Layer: TypeAlias = tuple[Names, Names, str]
Layers: TypeAlias = tuple[Layer, ...]


@dataclass(frozen=True)
class WeightMap:
    """The layers of a code base and how its framework stores them.

    Attributes:
        variant: String. Name of this map among the maps of a format; `""` for
            the first.
        parameter_types: Dict. `FLAX`, `TENSORFLOW` or `TORCH`.
        layers: Tuple of `(keras_vit layer, checkpoint layer, parameter type)`.
            In the names of layers, `*` stands for the name of an array, `{i}`
            for a block's number, and `{s}` and `{u}` for a ResNet's stage and
            unit. `{s-1}` counts from 0 where keras_vit counts from 1, and
            `{u:02}` has at least two digits. A tuple of names stands for
            several arrays that are one array on the other side. Layers that a
            model does not have are skipped.
        prefix: String. Prefix of all keys.
        required: Tuple of keys that a checkpoint must have for this map to be
            detected.
        published_heads: Dict of hidden sizes to the number of heads of
            published models, where it differs from that of `infer.py`.
    """

    variant: str
    parameter_types: dict
    layers: tuple
    prefix: str = ""
    required: tuple = ()
    published_heads: dict = field(default_factory=dict)

    @property
    def stores_heads(self) -> bool:
        """Whether arrays have an axis of heads, as those of Flax."""
        return self.parameter_types["heads"]["kernel"][1] == IDENTITY

    @functools.cached_property
    def entries(self) -> list[tuple[list[str], list[str], str]]:
        """`(path templates, key templates, pattern)` of each array."""
        return [
            (
                [name.replace("*", path_name) for name in _tuple(path_names)],
                [
                    self.prefix + name.replace("*", key_name)
                    for name in _tuple(key_names)
                ],
                pattern,
            )
            for path_names, key_names, parameter_type in self.layers
            for path_name, (key_name, pattern) in self.parameter_types[
                parameter_type
            ].items()
        ]

    def transfers(
        self, paths: Collection[str]
    ) -> Iterator[tuple[list[str], tuple[str, ...], str]]:
        """Yields `(paths, keys, pattern)` of each array of a model."""
        names = _group_by_template(paths)
        for path_names, key_names, pattern in self.entries:
            groups = {}  # blocks with the same key are stacked in order
            for index in _indices(path_names[0], names):
                keys = tuple(_fill(name, index) for name in key_names)
                group = groups.setdefault(keys, [])
                group += [_fill(name, index) for name in path_names]
            for keys, group in groups.items():
                yield group, keys, pattern

    def paths(self, arrays: dict[str, Array]) -> list[str]:
        """Lists the keras_vit paths of the weights in a checkpoint."""
        paths, names = [], _group_by_template(arrays)
        for path_names, key_names, _ in self.entries:
            indices = _indices(key_names[0], names)
            if indices and "{i}" in path_names[0] and "{i}" not in key_names[0]:
                shape = np.shape(arrays[key_names[0]])
                indices = [{"i": i} for i in range((*shape, 0)[0])]
            paths += [_fill(name, index) for index in indices for name in path_names]
        return paths

    def key(self, path: str, file_keys: Mapping[str, str] | None = None) -> str:
        """Returns the key of a keras_vit path, or the path if it has none."""
        for _, keys, _ in self.transfers([path]):
            file_keys = file_keys or {}
            return " + ".join(file_keys.get(key, key) for key in keys)
        return path

    def unmapped_paths(self, weights: Collection[str]) -> list[str]:
        """Lists the keras_vit paths of weights that have no key."""
        found = {p for paths, _, _ in self.transfers(weights) for p in paths}
        return sorted(set(weights) - found)

    def unmapped_keys(self, arrays: dict[str, Array]) -> list[str]:
        """Lists the keys of a checkpoint that have no keras_vit path."""
        found = {
            key for _, keys, _ in self.transfers(self.paths(arrays)) for key in keys
        }
        return sorted(set(arrays) - found)


def from_checkpoint(
    arrays: dict[str, Array],
    weight_map: WeightMap,
    heads: Heads = None,
    file_keys: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Converts a checkpoint's arrays to weights under keras_vit paths.

    The number of heads is needed by frameworks that store heads and the
    channels of a head in one axis. Error messages name keys as in the file, by
    `file_keys`; one error lists all that are unknown, missing or of the wrong
    shape.
    """
    file_keys = file_keys or {}
    missing, wrong_shape, weights = [], [], {}
    for paths, keys, pattern in weight_map.transfers(weight_map.paths(arrays)):
        absent = [key for key in keys if key not in arrays]
        if absent:
            missing += absent
            continue
        found = [arrays[key] for key in keys]
        try:
            found = _transform(found, pattern, len(paths), _heads(heads, paths))
        except (EinopsError, ValueError):
            wrong_shape += [
                f"{file_keys.get(key, key)}: {array.shape} does not fit "
                f"{pattern.split(' -> ')[0]}"
                for key, array in zip(keys, found, strict=True)
            ]
            continue
        weights.update(zip(paths, found, strict=True))
    raise_problems(
        {
            "Arrays that this format has no place for": [
                file_keys.get(key, key) for key in weight_map.unmapped_keys(arrays)
            ],
            "Arrays that are missing": missing,
            "Arrays of the wrong shape": wrong_shape,
        }
    )
    return weights


def to_checkpoint(
    weights: dict[str, Array], weight_map: WeightMap, heads: Heads = None
) -> dict[str, Array]:
    """Converts weights under keras_vit paths to a checkpoint's arrays."""
    unmapped = weight_map.unmapped_paths(weights)
    raise_problems({"Weights that this format has no place for": unmapped})
    arrays = {}
    for paths, keys, pattern in weight_map.transfers(weights):
        back = " -> ".join(reversed(pattern.split(" -> ")))
        found = [weights[path] for path in paths]
        found = _transform(found, back, len(keys), _heads(heads, paths))
        arrays.update(zip(keys, found, strict=True))
    return arrays


def raise_problems(
    problems: Mapping[str, Collection[str]],
    intro: str = "The checkpoint does not fit.",
    most: int | None = None,
) -> None:
    """Raises one `ValueError` that lists the problems under their titles, at
    most `most` of each, if there are any."""
    sections = []
    for title, lines in problems.items():
        shown = [f"  {line}" for line in sorted(lines)[:most]]
        if len(lines) > len(shown):
            shown.append(f"  and {len(lines) - len(shown)} more")
        if lines:
            sections.append("\n".join([f"{title}:", *shown]))
    if sections:
        raise ValueError("\n".join([intro, *sections]))


def assign_all(
    variables: Mapping[str, Any],
    weights: Mapping[str, Array],
    intro: Callable[[], str],
    key: Callable[[str], str] = str,
    kept: Collection[str] = (),
    unfitting: Mapping[str, str] | None = None,
) -> None:
    """Assigns weights to variables of the same paths, all of them or none.

    One `ValueError`, which begins with `intro`, lists by their `key` all that
    are missing, unknown or of another shape. Variables in `kept` may be
    missing, and `unfitting` are further reasons by path.
    """
    shapes = {path: tuple(v.shape) for path, v in variables.items()}
    unfitting = unfitting or {}
    problems = {
        "Arrays that are missing from the file": [
            key(path) for path in shapes.keys() - weights.keys() - set(kept)
        ],
        "Arrays that the model has no place for": [
            key(path) for path in weights.keys() - shapes.keys()
        ],
        "Arrays of another shape than the model's": [
            f"{key(path)}: {weights[path].shape} in the file, "
            f"{shapes[path]} in the model"
            for path in weights.keys() & shapes.keys() - unfitting.keys()
            if weights[path].shape != shapes[path]
        ],
        # Listed separately, as their shapes may match.
        "Position embeddings that cannot be fitted to the model": [
            f"{key(path)}: {reason}" for path, reason in unfitting.items()
        ],
    }
    if any(problems.values()):
        raise_problems(problems, intro(), most=8)
    for path, array in weights.items():
        variables[path].assign(array)


def rename_keys(
    arrays: dict[str, Array], rename: Callable[[str], str]
) -> dict[str, Array]:
    """Returns arrays under new keys.

    If a new key is already in use, the old key is kept, and is reported as
    unknown when the arrays are converted.
    """
    renamed = {}
    for key, array in arrays.items():
        new = rename(key)
        renamed[key if new in renamed or new in arrays else new] = array
    return renamed


def _heads(heads: Heads, paths: list[str]) -> int | None:
    if not isinstance(heads, tuple):
        return heads
    return heads[paths[0].startswith("decoder/")]


def _transform(
    arrays: list[Array], pattern: str, count: int, heads: int | None
) -> list[Array]:
    """Stacks arrays, rearranges the result by a pattern, and unstacks it."""
    # Without `n` in the pattern, several arrays are blocks that share a key.
    sizes = {"h": heads, "n": max(count, len(arrays))}
    sizes = {
        axis: size for axis, size in sizes.items() if re.search(rf"\b{axis}\b", pattern)
    }
    array = np.stack(arrays) if len(arrays) > 1 else arrays[0]
    array = rearrange(array, pattern, **sizes)
    return list(array) if count > 1 else [array]


# A number in a template: its letter, whether the checkpoint counts from 0
# where keras_vit counts from 1, and whether the number has at least two digits.
_NUMBER = re.compile(r"\{(\w)(-1)?(:02)?\}")


def _fill(template: str, index: dict[str, int]) -> str:
    """Returns a template, such as "block_{i}/norm_1/gamma", with its
    numbers."""

    def digits(match: re.Match[str]) -> str:
        letter, less, wide = match.groups()
        number = index[letter] - bool(less)
        return f"{number:02}" if wide else f"{number}"

    return _NUMBER.sub(digits, template)


@functools.lru_cache(2**14)
def _strip_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _group_by_template(names: Iterable[str]) -> dict[str, list[str]]:
    """Groups names that only differ in numbers."""
    groups = {}
    for name in names:
        groups.setdefault(_strip_numbers(name), []).append(name)
    return groups


@functools.cache
def _compile_template(
    template: str,
) -> tuple[re.Pattern[str], list[tuple[str, bool]]]:
    """Compiles a template to a regular expression with a group for each number,
    and lists the numbers' letters and whether 1 is to be added to them."""
    pattern, end, letters = "", 0, []
    for match in _NUMBER.finditer(template):
        letter, less, wide = match.groups()
        digits = r"\d\d|[1-9]\d\d+" if wide else r"0|[1-9]\d*"
        pattern += re.escape(template[end : match.start()]) + f"({digits})"
        end = match.end()
        letters.append((letter, bool(less)))
    return re.compile(pattern + re.escape(template[end:])), letters


@functools.cache
def _template_group(template: str) -> str:
    """Returns a template as a key of `_group_by_template`."""
    return _strip_numbers(_NUMBER.sub("0", template))


def _indices(template: str, names: dict[str, list[str]]) -> list[dict[str, int]]:
    """Lists the numbers for which a template is one of the names, in order,
    such as `[{"i": 0}, {"i": 1}]`."""
    candidates = names.get(_template_group(template))
    if candidates is None:
        return []
    pattern, letters = _compile_template(template)
    matches = (pattern.fullmatch(name) for name in candidates)
    numbers = sorted(
        [int(number) for number in match.groups()] for match in matches if match
    )
    return [
        {
            letter: number + more
            for number, (letter, more) in zip(found, letters, strict=True)
        }
        for found in numbers
    ]


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
