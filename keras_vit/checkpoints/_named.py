"""Weights by name: from the table, downloaded once and checked."""

import difflib
import pathlib
from dataclasses import replace

import numpy as np

from keras_vit import downloads
from keras_vit.checkpoints._checkpoint import open_checkpoint
from keras_vit.checkpoints._table import ALIASES
from keras_vit.checkpoints._table import TABLE
from keras_vit.checkpoints._table import tags_of


def named(weights, variant=None, sizes=None):
    """Returns the `Checkpoint` of weights in the table; what is not the name
    of one (a path, an address, a `Checkpoint`, None) comes back as it is.

    Args:
        weights: String such as "imagenet21k", or anything else.
        variant: String. Name of the model function; None if there is none.
        sizes: Dict of arguments of the variant, that a file must agree with.

    Raises:
        ValueError: if there is no such variant, or it has no such weights.
        FileNotFoundError: if it can be no path and no name either.
        OSError: if no source gives the file.
    """
    if not isinstance(weights, str):
        return weights
    tag = ALIASES.get(weights, weights)
    variants = [name for name, known in TABLE if known == tag]
    if not variants:
        _raise_if_misspelt(weights, variant)
        return weights
    if variant is None:
        raise ValueError(
            f"The weights {weights!r} are of one of: {', '.join(variants)}. "
            f"Build it by name, keras_vit.{variants[0]}(weights={weights!r}), "
            "or in a recipe with `--model`."
        )
    if variant not in variants:
        raise ValueError(
            f"{variant} has no weights {weights!r}. It has: "
            f"{', '.join(map(repr, tags_of(variant))) or 'none'}. See "
            "keras_vit.list_weights()."
        )
    return _released(variant, tag, TABLE[variant, tag], sizes or {})


def _raise_if_misspelt(weights, variant):
    """A bare word that is no file was meant to be a name."""
    path = pathlib.Path(weights)
    if weights and (path.suffix or path.name != weights or path.exists()):
        return
    tags = tags_of(variant) or dict.fromkeys(tag for _, tag in TABLE)
    names, lower = [*tags, *ALIASES], weights.lower()
    close = difflib.get_close_matches(lower, names, 1 if lower in names else 2)
    hint = " or ".join(map(repr, close))
    hint = f" Did you mean {hint}?" if close else ""
    raise FileNotFoundError(
        f"There is no file {weights!r}, and no weights have that name.{hint} "
        f"Names: {', '.join(map(repr, tags))}; see keras_vit.list_weights()."
    )


def folder_of(variant, tag):
    """Returns where the file of a row of the table is kept."""
    return downloads.cache_dir() / "weights" / tag / variant


def _released(variant, tag, row, sizes):
    layouts = dict(row.files)

    def read(path, source):
        return open_checkpoint(path, layouts[source], sizes.get("num_heads"))

    checked = {}  # the first use reads the file to check it

    def check(path, source):
        checkpoint = read(path, source)
        _raise_unless_whole(checkpoint, row, sizes)
        checked[source] = checkpoint

    path, source = downloads.fetch(
        folder_of(variant, tag),
        tuple(layouts),
        check,
        label=f"{variant}(weights={tag!r})",
    )
    checkpoint = checked.get(source) or read(path, source)
    checkpoint = replace(checkpoint, path=str(path))  # it was elsewhere
    weights = dict(checkpoint.weights)
    if row.zero_head and "head/kernel" not in weights:
        width = len(
            weights.get("pre_logits/bias", weights["encoder_norm/beta"])
        )
        weights["head/kernel"] = np.zeros((width, row.classes), np.float32)
        weights["head/bias"] = np.zeros(row.classes, np.float32)
    config = {**checkpoint.config, **row.arguments}
    return replace(checkpoint, weights=weights, config=config)


def _raise_unless_whole(checkpoint, row, sizes):
    """Refuses a file that is not what the table says, or is not whole.

    Where no digest is known, this is what can be held a download to: every
    name and every shape. That all values are finite, reading has seen to.
    """
    told = checkpoint.arguments()
    expected = {name: sizes[name] for name in sizes if name in told}
    expected["classes"] = row.classes
    if "patch_size" in sizes:
        expected["patch_size"] = (sizes["patch_size"],) * 2
    if told.get("num_positions"):  # fixed ones are not in a file
        pixels = [size * checkpoint.stride for size in told["patch_size"]]
        grid = tuple(row.image_size // size for size in pixels)
        expected["grid_size"] = grid
    if row.zero_head and told["classes"] is None:
        del expected["classes"]  # its copies leave the zeros out
    problems = [
        f"{name} is {told[name]}, expected {value}"
        for name, value in expected.items()
        if told[name] != value
    ]
    shapes = {path: array.shape for path, array in checkpoint.weights.items()}
    first = _block(shapes, 0)
    problems += [
        f"block {i} is not like block 0"
        for i in range(1, told.get("num_layers", 1))
        if _block(shapes, i) != first
    ]
    if problems:
        raise ValueError(f"it is not the file expected: {'; '.join(problems)}")


def _block(shapes, i):
    start = f"block_{i}/"
    return {
        path.removeprefix(start): shape
        for path, shape in shapes.items()
        if path.startswith(start)
    }
