"""Released weights, which can be loaded by name, from `released.toml`."""

import difflib
import importlib.resources
import pathlib
import tomllib
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from keras_vit.utils import checks, downloads
from keras_vit.utils.downloads import Source
from keras_vit.utils.types import Config
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.formats import RESNET_CONSTANTS

Weights = TypeVar("Weights")

ALIASES = {"imagenet": "imagenet21k+imagenet2012"}


@dataclass(frozen=True)
class ReleasedWeights:
    """One set of weights and the files that contain it.

    Attributes:
        files: Tuple of `(Source, format)`, in the order in which they are
            tried.
        image_size: Integer. Side of the images in pixels.
        classes: Integer. Number of classes; None without a head.
        preprocess_mode: String. The `mode` of `preprocess_input`.
        arguments: Dict of model arguments that follow from the training, and
            are the same for all files.
        zero_init_head: Boolean. Whether the released head is all zeros. Some
            mirrors leave it out.
    """

    files: tuple[tuple[Source, str], ...]
    image_size: int
    classes: int | None
    preprocess_mode: str
    arguments: Config = field(default_factory=dict)
    zero_init_head: bool = False


def resolve_weights(
    weights: Weights, variant: str | None = None, sizes: Config | None = None
) -> Weights | Checkpoint:
    """Returns the `Checkpoint` of released weights by their name, downloaded
    unless it is cached.

    Anything other than a name in the table (a path, a URL, a `Checkpoint`, None) is
    returned unchanged. `sizes` are arguments of the variant; the file must agree with
    them.
    """
    expected = "a name of keras_vit.list_weights(), a path, a URL or None"
    checks.require(not isinstance(weights, bool), "weights", weights, expected)
    if not isinstance(weights, str):
        return weights
    tag, path = ALIASES.get(weights, weights), pathlib.Path(weights)
    alone = weights.removeprefix(f"{variant}/")
    if variant and (variant, alone) in RELEASED:
        tag = alone  # of a name that `list_weights` returns and `load` takes
    variants = [name for name, known in RELEASED if known == tag]
    may_be_path = path.suffix or path.name != weights or path.exists()
    if not variants and weights and may_be_path:
        return weights
    if not variants:
        tags = tags_of(variant) or dict.fromkeys(tag for _, tag in RELEASED)
        names, lower = [*tags, *ALIASES], weights.lower()
        most = 1 if lower in names else 2
        close = difflib.get_close_matches(lower, names, most)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise FileNotFoundError(
            f"There is no file {weights!r}, and no weights have that name."
            f"{hint} Names: {', '.join(map(repr, tags))}; see "
            "keras_vit.list_weights()."
        )
    if variant is None:
        raise ValueError(
            f"The weights {weights!r} belong to one of: {', '.join(variants)}. Build "
            f"it by name, keras_vit.{variants[0]}(weights={weights!r}), or pass "
            f"`model={variants[0]!r}` to a program."
        )
    if variant not in variants:
        raise ValueError(
            f"{variant} has no weights {weights!r}. It has: "
            f"{', '.join(map(repr, tags_of(variant))) or 'none'}. These models have "
            f"it: {', '.join(variants)}."
        )
    released = RELEASED[variant, tag]
    formats = dict(released.files)
    # MoCo v3's number of heads, for example, is not that of the variant.
    sizes = {
        name: released.arguments.get(name, size) for name, size in (sizes or {}).items()
    }
    checked = {}  # a file is read once: to check it, and for its weights

    def check(path: pathlib.Path, source: Source) -> None:
        checkpoint = open_checkpoint(path, formats[source], sizes.get("num_heads"))
        _check_complete(checkpoint, released, sizes)
        checked[source] = checkpoint

    path, source = downloads.fetch(
        _folder(variant, tag),
        tuple(formats),
        check,
        label=f"{variant}(weights={tag!r})",
    )
    checkpoint = checked[source]
    arrays = dict(checkpoint.weights)
    if released.zero_init_head and "head/kernel" not in arrays:
        norm = arrays["encoder_norm/beta"]
        width = len(arrays.get("pre_logits/bias", norm))
        classes = released.classes or 0
        arrays["head/kernel"] = np.zeros((width, classes), np.float32)
        arrays["head/bias"] = np.zeros(classes, np.float32)
    return replace(
        checkpoint,
        path=str(path),  # a download is checked before it is moved here
        weights=arrays,
        stored={**checkpoint.stored, **released.arguments},
        released_mode=released.preprocess_mode,
    )


def tags_of(variant: str | None) -> list[str]:
    """Lists the names (`weights=`) of the released weights of a variant."""
    return [tag for name, tag in RELEASED if name == variant]


def list_weights(model: str | None = None) -> list[str]:
    """Returns the names of released weights, for `weights` and `keras_vit.load`.

    Args:
        model: String. Name of a model function, to list only its weights; None lists
            the weights of all models.

    Returns:
        List of strings: values of the model's argument `weights`, such as
        "imagenet21k"; without `model`, names for `keras_vit.load`, such as
        "ViTB16/imagenet21k".

    Raises:
        ValueError: if there are no weights for such a model.

    Example:

    >>> keras_vit.list_weights("ViTH14")
    ['imagenet21k', 'mae', 'mae+imagenet2012']
    """
    checks.one_of("model", model, (None, *dict.fromkeys(name for name, _ in RELEASED)))
    if model is None:
        return [f"{name}/{tag}" for name, tag in RELEASED]
    return [tag for name, tag in RELEASED if name == model]


def _folder(variant: str, tag: str) -> pathlib.Path:
    """Returns the cache folder of released weights."""
    return downloads.cache_dir() / "weights" / tag / variant


def _check_complete(
    checkpoint: Checkpoint, released: ReleasedWeights, sizes: Config
) -> None:
    """Checks that a file is complete and agrees with the table.

    This verifies downloads whose digest is not known, by every name and every
    shape. That values are finite was checked when the file was read.
    """
    found = checkpoint.arguments()
    expected = {name: sizes[name] for name in sizes if name in found}
    expected["classes"] = released.classes
    if "patch_size" in sizes:
        expected["patch_size"] = (sizes["patch_size"],) * 2
    if found.get("num_positions"):  # not those of fixed embeddings
        pixels = [size * checkpoint.stride for size in found["patch_size"]]
        grid = tuple(released.image_size // size for size in pixels)
        expected["grid_size"] = grid
    if released.zero_init_head and found["classes"] is None:
        del expected["classes"]  # mirrors omit the zeros
    problems = [
        f"{name} is {found[name]}, expected {value}"
        for name, value in expected.items()
        if found[name] != value
    ]
    blocks: dict[str, set[object]] = {}
    for path, array in checkpoint.weights.items():
        block, _, name = path.partition("/")
        if block.startswith("block_"):
            blocks.setdefault(block, set()).add((name, array.shape))
    first = blocks.get("block_0")
    problems += [f"{x} is not like block_0" for x in blocks if blocks[x] != first]
    if problems:
        raise ValueError(f"it is not the file expected: {'; '.join(problems)}")


def _read_table() -> dict[tuple[str, str], ReleasedWeights]:
    """Returns the released weights by the names of their model's function and
    their own."""
    folder = importlib.resources.files("keras_vit.weights")
    text = (folder / "released.toml").read_text(encoding="utf-8")
    found = {}
    for group in tomllib.loads(text)["groups"]:
        constants = RESNET_CONSTANTS.get(group.get("resnet"), {})
        arguments = {**group["arguments"], **constants}
        for row in group["weights"]:
            files = []
            for file in row["files"]:
                format, _, address = file.partition(" ")
                address, _, digest = address.partition("#")
                files.append((Source(address, digest), format))
            found[row["model"], row["name"]] = ReleasedWeights(
                tuple(files),
                row["pixels"],
                row.get("classes"),
                group["mode"],
                {**arguments, **row.get("arguments", {})},
                row.get("zero_init_head", False),
            )
    return found


RELEASED = _read_table()
