"""Detection of the format of a file, and of the part of it that is the model.

A training program wraps a model: its keys have a prefix (`state_dict.model.`),
and the file has more than the model, such as a loss, a student or a projection
head. Each format names its patch embedding, so that what precedes this name in a
key of the file is the prefix of a model. What is inside of the model must fit the
format; what is outside is left out, but for a linear layer that is its head.
"""

import os
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from keras_vit.utils.types import Array, StrPath
from keras_vit.weights.files import check_arrays, read_all, read_config
from keras_vit.weights.files.arrays import MAX_REPORTED
from keras_vit.weights.formats import FORMATS, Format, split
from keras_vit.weights.formats.unsupported import REMEDY, family, refusal
from keras_vit.weights.weight_map import WeightMap, raise_problems

# A file of training has two or three models, each of more than ten arrays.
_MAX_PREFIXES, _MIN_ARRAYS = 16, 10
# Names that PyTorch inserts for what it wraps a module in.
_WRAPPED = re.compile(r"\b_(orig_mod|fsdp_wrapped_module|checkpoint_wrapped_module)\.")
# Names of averages of the weights of a model. DINOv3's gram_teacher is an older one.
_AVERAGE = re.compile(r"(?<![^._])(?<!gram_)(ema|teacher|averaged?|avg|swa)(?![^._])")


class _Several(ValueError):
    """Raised if a file holds several models, which each fit a format."""


class Match(NamedTuple):
    """The model that a file holds, and what its format has no place for.

    `file_keys` has the file's keys by those of the map, for all arrays that
    `Format.normalize` did not merge, and `own_keys` by those that the code base
    gives them. `prefix` precedes the model's keys in the file. Of its other keys,
    `unknown` are in the model, and `left_out` are not; of these, the code base
    knows the first `dropped`, such as a text tower. `head` is the file's key of
    the kernel of a head that has another name in the format.
    """

    code_base: Format
    weight_map: WeightMap
    arrays: dict[str, Array]
    file_keys: dict[str, str]
    own_keys: dict[str, str]
    prefix: str
    left_out: list[str]
    unknown: list[str]
    dropped: int
    head: str | None = None

    @property
    def name(self) -> str:
        """The format and its variant, such as "timm:naflex"."""
        names = (self.code_base.name, self.weight_map.variant)
        return ":".join(filter(None, names))

    @property
    def missing(self) -> list[str]:
        """Keys without which a file is not of this variant."""
        return [x for x in self.weight_map.required if x not in self.arrays]

    @property
    def patches(self) -> str | None:
        """The file's key of the patch embedding; each model has one."""
        return self.file_keys.get(_patches(self.weight_map, self.file_keys))

    @property
    def outer_head(self) -> str | None:
        """The file's key of a head that is outside of the model."""
        is_outer = self.head and not _plain(self.head).startswith(self.prefix)
        return self.head if is_outer else None

    @property
    def rank(self) -> tuple[int, bool, int]:
        """A key for sorting: the match with the lowest one leaves out the fewest
        arrays and removes the shortest prefix."""
        others = len(self.left_out) - self.dropped
        return others, self.head is not None, len(self.prefix)

    def modules(self, keys: Collection[str]) -> list[str]:
        """Lists keys of the file by modules, such as "dino_head (8 arrays)"."""
        return [
            keys[0] if len(keys) == 1 else f"{module} ({len(keys)} arrays)"
            for module, keys in _modules(keys, self.prefix).items()
        ]


def find_model(
    path: StrPath,
    format: str | None,
    finite: bool = True,
    arrays: dict[str, Array] | None = None,
) -> tuple[Match, dict[str, Array]]:
    """Reads a file, or takes the arrays to read in its place, and returns the model
    in it, whose arrays are checked as by `files.read`, and the weights that are left
    out, by the file's keys."""
    arrays, problems = (arrays, {}) if arrays else read_all(path)
    try:
        match = detect_format(arrays, format)
    except ValueError as error:
        fits = isinstance(error, _Several)
        name = None if fits else family(arrays, read_config(path))
        if name is None and not fits:
            check_arrays(path, arrays, problems, finite)
        wanted = f" the format {format!r}" if format else " a known format"
        reason = refusal(name) if name else error
        raise ValueError(
            f"{str(path)!r} cannot be read as{wanted}. {reason}"
        ) from error
    patches = match.arrays.get(_patches(match.weight_map, match.arrays))
    if patches is not None and patches.ndim == 5:  # of several images
        reason = refusal("a model of videos")
        raise ValueError(f"{str(path)!r} cannot be read as a known format. {reason}")
    left_out = {*match.left_out}
    inside = {key: array for key, array in arrays.items() if key not in left_out}
    problems = {k: x for k, x in problems.items() if _plain(k).startswith(match.prefix)}
    check_arrays(path, inside, problems, finite)
    # Others than bfloat16, V, and floats are counters and random states.
    others = {key: arrays[key] for key in match.left_out}
    return match, {key: x for key, x in others.items() if x.dtype.kind in "fV"}


def detect_format(arrays: dict[str, Array], format: str | None = None) -> Match:
    """Returns the model in a file's arrays; a given format is the only candidate.

    A `ValueError` is raised if there is none, or if there are several and none is the
    average of the others.
    """
    code_base, variant = split(format) if format else (None, "")
    code_bases = [code_base] if code_base else list(FORMATS.values())
    keys = {_plain(key): key for key in arrays}
    if len(keys) < len(arrays):
        keys = {key: key for key in arrays}
    fitting, others = [], []
    for prefix in _prefixes(keys, code_bases):
        for code_base in code_bases:
            for match in _matches(code_base, format, arrays, keys, prefix):
                fits = not match.unknown and (variant or not match.missing)
                (fitting if fits else others).append(match)
        if any(match.rank == (0, False, 0) for match in fitting):
            break
    if fitting:
        return _only_model(fitting)
    match = min(others, key=lambda match: len(match.unknown))
    if format and match.unknown:
        return match  # the reader lists what does not fit
    if len(match.unknown) >= len(arrays):
        raise ValueError(
            f"The keys fit no format. {REMEDY} The first keys are: "
            f"{', '.join(sorted(arrays)[:5])}. Known formats: "
            f"{', '.join(FORMATS)}."
        )
    problem = "it has no place for" if match.unknown else "are missing"
    raise_problems(
        {f"Arrays that {problem}": match.unknown or match.missing},
        f"The keys fit no format. The nearest is {match.name!r}. {REMEDY}",
        MAX_REPORTED,
    )
    return match


def _plain(key: str) -> str:
    return _WRAPPED.sub("", key)


def _modules(keys: Collection[str], prefix: str) -> dict[str, list[str]]:
    """Groups keys of a file by the largest modules that the model, whose keys
    begin with a prefix, is no part of."""
    modules: dict[str, list[str]] = {}
    inside = prefix.split(".")[:-1]
    for key in keys:
        names = _plain(key).split(".")
        count = len(os.path.commonprefix([names, inside]))
        modules.setdefault(".".join(names[: count + 1]), []).append(key)
    return modules


def _patches(weight_map: WeightMap, keys: Collection[str] = ()) -> str:
    """Returns the key of the patch embedding, or of the root of a ResNet if it
    has none in a map or among the keys of a model."""
    patches, root = map(weight_map.key, ("patch_embedding/kernel", "root_conv/kernel"))
    is_resnet = patches == "patch_embedding/kernel" or root in keys
    return root if is_resnet and patches not in keys else patches


def _root(weight_map: WeightMap) -> str:
    """Returns what all keys of the encoder begin with in a format, as "vit."."""
    keys = [_patches(weight_map), weight_map.key("block_0/norm_1/gamma")]
    start = os.path.commonprefix(keys)
    return start[: start.rfind(".") + 1]


def _prefixes(keys: Collection[str], code_bases: Collection[Format]) -> list[str]:
    """Lists what may precede the keys of a model in a file, the shortest first:
    nothing, and what precedes the name of a patch embedding."""
    names = {_patches(x) for code_base in code_bases for x in code_base.maps}
    ends = [f".{name}" for name in names]
    found = {key[: 1 - len(x)] for key in keys for x in ends if key.endswith(x)}
    likely = sorted(sorted(found), key=len)[:_MAX_PREFIXES]
    counts = {x: sum(key.startswith(x) for key in keys) for x in likely}
    return ["", *(x for x, count in counts.items() if count > _MIN_ARRAYS)]


def _matches(
    code_base: Format,
    format: str | None,
    arrays: dict[str, Array],
    keys: dict[str, str],
    prefix: str,
) -> Iterator[Match]:
    """Yields how the maps of a code base fit the model with a prefix, given the
    file's keys by those without PyTorch's wrappers."""
    own = {k.removeprefix(prefix): x for k, x in keys.items() if k.startswith(prefix)}
    outside = {k: x for k, x in keys.items() if not k.startswith(prefix)}
    plain, variant = _normalized(code_base, arrays, own), ""
    if format:
        _, variant = split(format)
    elif code_base.marker not in (None, *plain[0]):
        return
    for weight_map in [code_base.weight_map(variant)] if variant else code_base.maps:
        match = _fit(code_base, weight_map, own, prefix, *plain)
        match.left_out.extend(outside.values())
        if head := _find_head(match, arrays):
            taken = {*head.values()}
            usual = {k: x for k, x in own.items() if x not in taken} | head
            renamed = _normalized(code_base, arrays, usual)
            match = _fit(code_base, weight_map, usual, prefix, *renamed)
            match.left_out.extend(x for x in outside.values() if x not in taken)
            match = match._replace(head=usual[next(iter(head))])
        yield match


def _normalized(
    code_base: Format, arrays: dict[str, Array], own: dict[str, str]
) -> tuple[dict[str, Array], dict[str, str], list[str]]:
    """Returns arrays under the keys of maps, the file's keys by these, and those
    that the code base leaves out."""
    inside = {key: arrays[file_key] for key, file_key in own.items()}
    normalized = code_base.normalize(inside)
    known = {id(array): own[key] for key, array in inside.items()}
    file_keys = {k: known[id(a)] for k, a in normalized.items() if id(a) in known}
    if len(normalized) == len(inside):  # those of a group norm have other axes
        file_keys = dict(zip(normalized, own.values(), strict=True)) | file_keys
    return normalized, file_keys, [own[key] for key in code_base.left_out(inside)]


def _fit(
    code_base: Format,
    weight_map: WeightMap,
    own: dict[str, str],
    prefix: str,
    normalized: dict[str, Array],
    file_keys: dict[str, str],
    dropped: list[str],
) -> Match:
    """Returns how a map fits arrays. Those outside of the encoder are left out,
    and so is a head that is not linear, or that may read one of two features."""
    unmapped = weight_map.unmapped_keys(normalized)
    kernel, pooler = map(weight_map.key, ("head/kernel", "pre_logits/kernel"))
    spare: list[str] = []
    if _patches(weight_map, normalized) in normalized:
        root = _root(weight_map)
        head = next(iter(_modules([kernel], root))) + "."
        linear = kernel in normalized
        spare = [
            key
            for key in unmapped
            if not key.startswith(root) or (key.startswith(head) and not linear)
        ]
        if not code_base.head_reads_pooler and pooler in normalized:
            spare += [key for key in normalized if key.startswith(head)]
    keys = {x: file_keys.get(x, prefix + x) for x in (*unmapped, *spare)}
    return Match(
        code_base,
        weight_map,
        {key: array for key, array in normalized.items() if key not in spare},
        file_keys,
        own,
        prefix,
        dropped + [keys[key] for key in spare],
        [keys[key] for key in unmapped if key not in spare],
        len(dropped),
    )


def _find_head(match: Match, arrays: dict[str, Array]) -> dict[str, str]:
    """Returns the file's keys by the format's of the only linear layer of a
    file that may be the head of a model without one; {} if there is none.

    It may be in the model, or in a module that has the model as a part; then
    the model is an encoder whose output the head reads.
    """
    weight_map = match.weight_map
    kernel, bias = (weight_map.key(f"head/{name}") for name in ("kernel", "bias"))
    patches, pooler = (
        match.arrays.get(key)
        for key in (_patches(weight_map), weight_map.key("pre_logits/bias"))
    )
    if patches is None or "." not in kernel or kernel in match.arrays:
        return {}
    (width,) = np.shape(patches if pooler is None else pooler)[:1] or (0,)
    # In DINOv2 and DINOv3, it may read the mean of the patches, too.
    widths = (width, 2 * width) if "dinov" in match.name else (width,)
    inside = {*match.own_keys.values()}
    strange = [*match.unknown, *match.left_out]
    if _root(weight_map) or pooler is not None:
        strange = [key for key in strange if key in inside]
    found = []
    for keys in _modules(strange, match.prefix).values():
        first, *more = sorted(keys, reverse=True)  # "weight", "bias"
        layer, _, name = first.rpartition(".")
        shape = np.shape(arrays.get(first, ()))  # there is none of merged arrays
        if (
            name == "weight"
            and more in ([], [f"{layer}.bias"])
            and len(shape) == 2
            and shape[1] in widths
        ):
            found.append(dict(zip((kernel, bias), (first, *more), strict=False)))
    return found[0] if len(found) == 1 else {}


def _only_model(matches: list[Match]) -> Match:
    """Returns the match of the only model of a file, or of the average of its
    models; a `ValueError` names them if there are others."""
    models: dict[str | None, list[Match]] = {}
    for match in sorted(matches, key=lambda match: match.rank):
        best = models.setdefault(match.patches, [match])
        if match.rank == best[0].rank:
            best.append(match)
    alone: list[Match] = []
    for best in models.values():
        # The training of MoCo v3 has two models, which are one match.
        if all(best[0].patches in other.left_out for other in alone):
            alone.append(_only_format(best))
    averages = [match for match in alone if _AVERAGE.search(match.prefix)]
    if all(_same(match, averages[0]) for match in averages[1:]):
        averages = averages[:1]  # DINOv3 saves its average under two names.
    shapes = [{k: np.shape(a) for k, a in x.arrays.items()} for x in alone]
    if len(alone) > 1 and len(averages) == 1 and shapes.count(shapes[0]) == len(shapes):
        alone = averages
    if len(alone) != 1:
        raise _Several(
            f"There are {len(alone)} models, whose keys begin with "
            f"{' and '.join(repr(match.prefix) for match in alone)}, and none is "
            "known to be the average of the others. Save one of them alone: "
            "torch.save(model.state_dict(), PATH)."
        )
    return alone[0]


def _same(one: Match, other: Match) -> bool:
    """Returns whether two models have the same arrays."""
    return one.arrays.keys() == other.arrays.keys() and all(
        np.array_equal(array, other.arrays[key]) for key, array in one.arrays.items()
    )


def _only_format(matches: list[Match]) -> Match:
    """Returns the first of several matches, which must belong to one format."""
    formats = {match.code_base.name: match for match in reversed(matches)}
    if "bit" in formats:
        # Also fits "vit_jax", as a hybrid without a Vision Transformer.
        formats.pop("vit_jax", None)
    # Keys that both of Google's formats have mean the same in both.
    if len(formats) > 1 and formats.keys() != {"vit_jax", "big_vision"}:
        raise ValueError(
            f"The keys fit several formats: {', '.join(reversed(formats))}. Give "
            "one as `format`."
        )
    return [*formats.values()][-1]
