"""The engine: reads a table of `_formats.py` in either direction."""

import functools
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from einops import EinopsError
from einops import rearrange


@dataclass(frozen=True)
class Format:
    """A table of rows and how its framework stores each kind of layer."""

    name: str  # of the spelling; "" for the one that is written
    kinds: dict
    rows: tuple
    prefix: str = ""  # before every key
    signs: tuple = ()  # keys of which a file has one, if it is to be guessed
    ignore: tuple = ()  # patterns of keys that are theirs alone
    required: tuple = ()  # keys of which a file has all, if it is guessed

    def pairs(self):
        """Yields `(our templates, their templates, pattern)` of each array."""
        for ours, theirs, kind in self.rows:
            for mine, (yours, pattern) in self.kinds[kind].items():
                yield (
                    [name.replace("*", mine) for name in _names(ours)],
                    [
                        self.prefix + name.replace("*", yours)
                        for name in _names(theirs)
                    ],
                    pattern,
                )

    def moves(self, paths):
        """Yields `(our paths, their keys, pattern)` of each array that a
        model with these paths has."""
        alike = _alike(paths)
        for ours, theirs, pattern in self.pairs():
            groups = {}  # blocks that share a key are stacked in it, in order
            for index in _indices(ours[0], alike):
                keys = tuple(_fill(name, index) for name in theirs)
                group = groups.setdefault(keys, [])
                group += [_fill(name, index) for name in ours]
            for keys, group in groups.items():
                yield group, keys, pattern

    def paths(self, arrays):
        """Lists our paths of the arrays that a checkpoint holds."""
        paths, alike = [], _alike(arrays)
        for ours, theirs, _ in self.pairs():
            indices = _indices(theirs[0], alike)
            if indices and "{i}" in ours[0] and "{i}" not in theirs[0]:
                shape = np.shape(arrays[theirs[0]])
                indices = [{"i": i} for i in range((*shape, 0)[0])]
            paths += [_fill(name, index) for index in indices for name in ours]
        return paths

    def homeless(self, weights):
        """Lists our paths that no row has a place for."""
        moved = {path for paths, _, _ in self.moves(weights) for path in paths}
        return sorted(set(weights) - moved)

    def misshaped(self, arrays):
        """Lists the keys whose arrays have other axes than their kind's."""
        return sorted(
            key
            for _, keys, pattern in self.moves(self.paths(arrays))
            for key in keys
            if key in arrays and not _has_axes(arrays[key], pattern)
        )

    def unknown(self, arrays):
        """Lists the keys that no row has a place for."""
        known = {
            key for _, keys, _ in self.moves(self.paths(arrays)) for key in keys
        }
        return sorted(
            key
            for key in set(arrays) - known
            if not any(fnmatchcase(key, pattern) for pattern in self.ignore)
        )

    def key(self, path):
        """Returns the name that the checkpoint has, or would have, for one of
        our paths; the path itself if no row has it."""
        for _, keys, _ in self.moves([path]):
            return " + ".join(keys)
        return path


def from_checkpoint(arrays, format, heads=None):
    """Returns our weights from a checkpoint's arrays, exactly.

    Args:
        arrays: Dict of a checkpoint's keys to arrays.
        format: A `Format`.
        heads: Integer. The number of heads, for layouts that fuse them with
            the head's channels; or a pair, the second a decoder's.

    Returns:
        Dict of our paths to arrays.

    Raises:
        ValueError: if arrays have no place in the format, are missing from a
            group or have the wrong number of axes. One error lists them all.
    """
    problems = {"Arrays that this layout has no place for": []}
    problems["Arrays that this layout has no place for"] += format.unknown(
        arrays
    )
    missing = problems["Arrays that are missing"] = []
    misshaped = problems["Arrays of the wrong shape"] = []
    weights = {}
    for paths, keys, pattern in format.moves(format.paths(arrays)):
        absent = [key for key in keys if key not in arrays]
        if absent:
            missing += absent
            continue
        found = [arrays[key] for key in keys]
        try:
            moved = _move(found, pattern, len(paths), _of(heads, paths))
        except (EinopsError, ValueError):
            misshaped += [
                f"{key}: {array.shape} does not fit {pattern.split(' -> ')[0]}"
                for key, array in zip(keys, found, strict=True)
            ]
            continue
        weights.update(zip(paths, moved, strict=True))
    raise_if(problems)
    return weights


def to_checkpoint(weights, format, heads=None):
    """Returns a checkpoint's arrays from our weights, exactly.

    Args:
        weights: Dict of our paths to arrays.
        format: A `Format`.
        heads: As in `from_checkpoint`.

    Raises:
        ValueError: if the format has no place for a weight.
    """
    raise_if(
        {"Weights that this layout has no place for": format.homeless(weights)}
    )
    arrays = {}
    for paths, keys, pattern in format.moves(weights):
        back = " -> ".join(reversed(pattern.split(" -> ")))
        found = [weights[path] for path in paths]
        found = _move(found, back, len(keys), _of(heads, paths))
        arrays.update(zip(keys, found, strict=True))
    return arrays


def raise_if(problems, intro="The checkpoint does not fit.", most=None):
    """Raises one ValueError that lists everything wrong.

    Args:
        problems: Dict of titles to collections of lines; empty ones are left
            out.
        intro: String. The error's first line.
        most: Integer. Lines of each to show; None for all.
    """
    parts = []
    for title, lines in problems.items():
        shown = [f"  {line}" for line in sorted(lines)[:most]]
        if len(lines) > len(shown):
            shown.append(f"  and {len(lines) - len(shown)} more")
        if lines:
            parts.append("\n".join([f"{title}:", *shown]))
    if parts:
        raise ValueError("\n".join([intro, *parts]))


def _of(heads, paths):
    if not isinstance(heads, tuple):
        return heads
    return heads[paths[0].startswith("decoder/")]


def _move(arrays, pattern, count, heads):
    """Stacks, rearranges and unstacks: all the arithmetic of a conversion."""
    # A pattern without `n` and several arrays on our side: stacked blocks.
    sizes = {"h": heads, "n": max(count, len(arrays))}
    sizes = {
        axis: size
        for axis, size in sizes.items()
        if re.search(rf"\b{axis}\b", pattern)
    }
    array = np.stack(arrays) if len(arrays) > 1 else arrays[0]
    array = rearrange(array, pattern, **sizes)
    return list(array) if count > 1 else [array]


# A number in a name: its letter, whether theirs is one less than ours, and
# whether it has two digits at least.
_NUMBER = re.compile(r"\{(\w)(-1)?(:02)?\}")


def _fill(template, index):
    """Returns the name with its numbers in it."""

    def text(match):
        letter, less, wide = match.groups()
        number = index[letter] - bool(less)
        return f"{number:02}" if wide else f"{number}"

    return _NUMBER.sub(text, template)


@functools.lru_cache(2**14)
def _text(name):
    """Returns a name without its numbers."""
    return re.sub(r"\d+", "#", name)


def _alike(names):
    """Groups names that differ in numbers only."""
    groups = {}
    for name in names:
        groups.setdefault(_text(name), []).append(name)
    return groups


@functools.cache
def _matcher(template):
    """Returns a regular expression, and the letters of the template's numbers
    with what to add to each."""
    pattern, end, letters = "", 0, []
    for match in _NUMBER.finditer(template):
        letter, less, wide = match.groups()
        digits = r"\d\d|[1-9]\d\d+" if wide else r"0|[1-9]\d*"
        pattern += re.escape(template[end : match.start()]) + f"({digits})"
        end = match.end()
        letters.append((letter, bool(less)))
    return re.compile(pattern + re.escape(template[end:])), letters


def _indices(template, alike):
    """Lists the numbers for which the template is one of the names that
    `_alike` has grouped, in their order."""
    names = alike.get(_text(_NUMBER.sub("0", template)))
    if names is None:
        return []
    pattern, letters = _matcher(template)
    found = (pattern.fullmatch(name) for name in names)
    numbers = sorted(
        [int(number) for number in match.groups()] for match in found if match
    )
    return [
        {
            letter: number + more
            for number, (letter, more) in zip(row, letters, strict=True)
        }
        for row in numbers
    ]


def _has_axes(array, pattern):
    axes = re.sub(r"\(.*?\)", "x", pattern.split(" -> ")[0]).split()
    return "..." in axes or len(axes) == np.ndim(array)


def _names(names):
    return (names,) if isinstance(names, str) else names
