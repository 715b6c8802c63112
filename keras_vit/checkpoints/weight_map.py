"""Maps between a checkpoint's arrays and keras_vit's weights.

Converting a checkpoint only transposes, reshapes, stacks or unstacks arrays,
and each of these is one einops pattern. A pattern is inverted by swapping its
two sides, so the same map is used for reading and writing.
"""

import functools
import re
from dataclasses import dataclass
from dataclasses import field

import numpy as np
from einops import EinopsError
from einops import rearrange

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


@dataclass(frozen=True)
class WeightMap:
    """The layers of a code base and how its framework stores them.

    Attributes:
        variant: String. Name of this map among the maps of a layout; `""` for
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

    def entries(self):
        """Yields `(path templates, key templates, pattern)` of each array."""
        for path_names, key_names, parameter_type in self.layers:
            arrays = self.parameter_types[parameter_type]
            for path_name, (key_name, pattern) in arrays.items():
                yield (
                    [
                        name.replace("*", path_name)
                        for name in _tuple(path_names)
                    ],
                    [
                        self.prefix + name.replace("*", key_name)
                        for name in _tuple(key_names)
                    ],
                    pattern,
                )

    def transfers(self, paths):
        """Yields `(paths, keys, pattern)` of each array of a model.

        Args:
            paths: Collection of the keras_vit paths of the model's weights.
        """
        names = _group_by_template(paths)
        for path_names, key_names, pattern in self.entries():
            groups = {}  # blocks with the same key are stacked in order
            for index in _indices(path_names[0], names):
                keys = tuple(_fill(name, index) for name in key_names)
                group = groups.setdefault(keys, [])
                group += [_fill(name, index) for name in path_names]
            for keys, group in groups.items():
                yield group, keys, pattern

    def paths(self, arrays):
        """Lists the keras_vit paths of the weights in a checkpoint.

        Args:
            arrays: Dict of the checkpoint's keys to arrays.
        """
        paths, names = [], _group_by_template(arrays)
        for path_names, key_names, _ in self.entries():
            indices = _indices(key_names[0], names)
            if indices and "{i}" in path_names[0] and "{i}" not in key_names[0]:
                shape = np.shape(arrays[key_names[0]])
                indices = [{"i": i} for i in range((*shape, 0)[0])]
            paths += [
                _fill(name, index) for index in indices for name in path_names
            ]
        return paths

    def key(self, path, file_keys=()):
        """Returns the key of a keras_vit path, or the path if it has none.

        Args:
            path: String.
            file_keys: As in `from_checkpoint`.
        """
        for _, keys, _ in self.transfers([path]):
            file_keys = dict(file_keys)
            return " + ".join(file_keys.get(key, key) for key in keys)
        return path

    def unmapped_paths(self, weights):
        """Lists the keras_vit paths of weights that have no key."""
        found = {p for paths, _, _ in self.transfers(weights) for p in paths}
        return sorted(set(weights) - found)

    def unmapped_keys(self, arrays):
        """Lists the keys of a checkpoint that have no keras_vit path."""
        found = {
            key
            for _, keys, _ in self.transfers(self.paths(arrays))
            for key in keys
        }
        return sorted(set(arrays) - found)


def from_checkpoint(arrays, weight_map, heads=None, file_keys=()):
    """Converts a checkpoint's arrays to weights under keras_vit paths.

    Args:
        arrays: Dict of a checkpoint's keys to arrays.
        weight_map: The checkpoint's `WeightMap`.
        heads: Integer. The number of heads, for frameworks that store heads
            and the channels of a head in one axis; or a pair of integers, for
            the encoder and the decoder.
        file_keys: Dict of keys of `arrays` to the keys of the file that they
            are from, for error messages. Keys that are not in it are the same
            in the file.

    Returns:
        Dict of keras_vit paths to arrays.

    Raises:
        ValueError: if keys are unknown, or arrays are missing or of the wrong
            shape. One error lists them all.
    """
    file_keys = dict(file_keys)
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
            "Arrays that this layout has no place for": [
                file_keys.get(key, key)
                for key in weight_map.unmapped_keys(arrays)
            ],
            "Arrays that are missing": missing,
            "Arrays of the wrong shape": wrong_shape,
        }
    )
    return weights


def to_checkpoint(weights, weight_map, heads=None):
    """Converts weights under keras_vit paths to a checkpoint's arrays.

    Args:
        weights: Dict of keras_vit paths to arrays.
        weight_map: The `WeightMap` of the layout to write.
        heads: As in `from_checkpoint`.

    Returns:
        Dict of the checkpoint's keys to arrays.

    Raises:
        ValueError: if the map has no key for a weight.
    """
    unmapped = weight_map.unmapped_paths(weights)
    raise_problems({"Weights that this layout has no place for": unmapped})
    arrays = {}
    for paths, keys, pattern in weight_map.transfers(weights):
        back = " -> ".join(reversed(pattern.split(" -> ")))
        found = [weights[path] for path in paths]
        found = _transform(found, back, len(keys), _heads(heads, paths))
        arrays.update(zip(keys, found, strict=True))
    return arrays


def raise_problems(problems, intro="The checkpoint does not fit.", most=None):
    """Raises one `ValueError` that lists all problems, if there are any.

    Args:
        problems: Dict of titles to collections of lines. Titles without lines
            are omitted.
        intro: String. The first line of the message.
        most: Integer. Maximum number of lines below each title; None for all.
    """
    sections = []
    for title, lines in problems.items():
        shown = [f"  {line}" for line in sorted(lines)[:most]]
        if len(lines) > len(shown):
            shown.append(f"  and {len(lines) - len(shown)} more")
        if lines:
            sections.append("\n".join([f"{title}:", *shown]))
    if sections:
        raise ValueError("\n".join([intro, *sections]))


def rename_keys(arrays, rename):
    """Returns arrays under new keys.

    If a new key is already in use, the old key is kept, and is reported as
    unknown when the arrays are converted.

    Args:
        arrays: Dict of keys to arrays.
        rename: Function from an old key to a new one.
    """
    renamed = {}
    for key, array in arrays.items():
        new = rename(key)
        renamed[key if new in renamed or new in arrays else new] = array
    return renamed


def _heads(heads, paths):
    if not isinstance(heads, tuple):
        return heads
    return heads[paths[0].startswith("decoder/")]


def _transform(arrays, pattern, count, heads):
    """Stacks arrays, rearranges the result by a pattern, and unstacks it."""
    # Without `n` in the pattern, several arrays are blocks that share a key.
    sizes = {"h": heads, "n": max(count, len(arrays))}
    sizes = {
        axis: size
        for axis, size in sizes.items()
        if re.search(rf"\b{axis}\b", pattern)
    }
    array = np.stack(arrays) if len(arrays) > 1 else arrays[0]
    array = rearrange(array, pattern, **sizes)
    return list(array) if count > 1 else [array]


# A number in a template: its letter, whether the checkpoint counts from 0
# where keras_vit counts from 1, and whether the number has at least two digits.
_NUMBER = re.compile(r"\{(\w)(-1)?(:02)?\}")


def _fill(template, index):
    """Returns a template with its numbers filled in.

    Args:
        template: String, such as `"block_{i}/norm_1/gamma"`.
        index: Dict of letters to numbers, such as `{"i": 0}`.
    """

    def digits(match):
        letter, less, wide = match.groups()
        number = index[letter] - bool(less)
        return f"{number:02}" if wide else f"{number}"

    return _NUMBER.sub(digits, template)


@functools.lru_cache(2**14)
def _strip_numbers(name):
    return re.sub(r"\d+", "#", name)


def _group_by_template(names):
    """Groups names that only differ in numbers."""
    groups = {}
    for name in names:
        groups.setdefault(_strip_numbers(name), []).append(name)
    return groups


@functools.cache
def _compile_template(template):
    """Compiles a template to a regular expression.

    Returns:
        Tuple of the expression, which has a group for each number, and a list
        of `(letter, offset)` of each number; the offset is to be added to the
        matched number.
    """
    pattern, end, letters = "", 0, []
    for match in _NUMBER.finditer(template):
        letter, less, wide = match.groups()
        digits = r"\d\d|[1-9]\d\d+" if wide else r"0|[1-9]\d*"
        pattern += re.escape(template[end : match.start()]) + f"({digits})"
        end = match.end()
        letters.append((letter, bool(less)))
    return re.compile(pattern + re.escape(template[end:])), letters


def _indices(template, names):
    """Lists the numbers for which a template is one of the names, in order.

    Args:
        template: String, such as `"block_{i}/norm_1/gamma"`.
        names: Dict, as `_group_by_template` returns it.

    Returns:
        List of dicts of letters to numbers, such as `[{"i": 0}, {"i": 1}]`.
    """
    candidates = names.get(_strip_numbers(_NUMBER.sub("0", template)))
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


def _tuple(names):
    return (names,) if isinstance(names, str) else names
