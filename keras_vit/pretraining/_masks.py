"""Which patches are masked: as many in every image, drawn anew each time."""

import math

import keras
from keras import ops

from keras_vit import _checks

# BEiT's blocks: at least 16 of 196 patches, up to 1 : 0.3 long or high.
_SMALLEST = 16 / 196
_LONGEST = 1 / 0.3
# Blocks drawn for an image. Together they nearly always cover what is masked;
# what they lack is taken from single patches.
_BLOCKS = 24


def random_mask(batch_size, num_patches, ratio, seed=None):
    """Draws patches to mask, each as likely as any other.

    Every image has the same number of masked patches: as in "Masked
    Autoencoders Are Scalable Vision Learners"
    (https://arxiv.org/abs/2111.06377) the first
    `int(num_patches * (1 - ratio))` of a random order stay.

    Args:
        batch_size: Integer, or a tensor where it is known only while the
            graph runs.
        num_patches: Integer.
        ratio: Float in (0, 1). Share of patches that are masked.
        seed: Integer, which gives the same mask at every call, or
            `keras.random.SeedGenerator`, which gives a new one; None draws
            from Keras's global generator.

    Returns:
        Tensor of shape `(batch_size, num_patches)`, 1 where masked, else 0.

    Raises:
        ValueError: if no patch would be masked, or none would stay.
    """
    kept = num_kept(num_patches, ratio)
    noise = keras.random.uniform((batch_size, num_patches), seed=seed)
    return lowest_stay(noise, kept)


def block_mask(batch_size, grid_size, ratio, seed=None):
    """Draws rectangles of patches to mask, until the ratio is exact.

    From "BEiT: BERT Pre-Training of Image Transformers", Algorithm 1
    (https://arxiv.org/abs/2106.08254), with another end: the last block loses
    single patches, so that every image has as many masked. Blocks lie inside
    the image; patches of the middle are therefore masked more often than
    those of the border.

    Args:
        batch_size: As in `random_mask`.
        grid_size: `(rows, columns)` of the patches.
        ratio: As in `random_mask`.
        seed: As in `random_mask`.

    Returns:
        Tensor of shape `(batch_size, rows * columns)`, 1 where masked, else 0.

    Raises:
        ValueError: if no patch would be masked, or none would stay.
    """
    rows, columns = _checks.positive_pair("grid_size", grid_size)
    length = rows * columns
    kept = num_kept(length, ratio)
    # Everything of an image from one draw: areas, shapes and places of its
    # blocks, and a number for each patch that decides among equals.
    draws = 4 * _BLOCKS
    noise = keras.random.uniform((batch_size, draws + length), seed=seed)
    parts = ops.reshape(noise[:, :draws], (-1, _BLOCKS, 4))
    area, shape, top, left = (parts[..., i] for i in range(4))

    smallest = min(max(1.0, _SMALLEST * length), length - kept)
    area = smallest + (length - kept - smallest) * area
    shape = ops.exp((2 * shape - 1) * math.log(_LONGEST))
    height = ops.clip(ops.round(ops.sqrt(area * shape)), 1, rows)
    width = ops.clip(ops.round(ops.sqrt(area / shape)), 1, columns)
    top = ops.floor(top * (rows - height + 1))
    left = ops.floor(left * (columns - width + 1))
    inside_rows = _between(rows, top, height)  # (B, blocks, rows)
    inside_columns = _between(columns, left, width)
    inside = inside_rows[..., None] * inside_columns[..., None, :]

    # The number of the first block that a patch is in; none comes last.
    number = ops.arange(_BLOCKS, dtype="float32")[:, None, None]
    first = ops.min(ops.where(inside > 0, number, float(_BLOCKS)), axis=1)
    order = ops.reshape(first, (-1, length)) + noise[:, draws:]
    return lowest_stay(-order, kept)


def num_kept(num_patches, ratio):
    """Returns how many patches of an image stay."""
    # The published expression, in the same floating-point numbers: at a ratio
    # of 0.9, 9 of 100 patches stay.
    return _checked(num_patches, int(num_patches * (1 - ratio)), ratio)


def num_kept_of_units(num_units, ratio):
    """Returns how many of SimMIM's mask units stay (its `MaskGenerator`)."""
    return _checked(num_units, num_units - math.ceil(num_units * ratio), ratio)


def _checked(num_patches, kept, ratio):
    if not 0 < kept < num_patches:
        raise ValueError(
            f"A ratio of {ratio} masks {num_patches - kept} of {num_patches} "
            "patches. At least one must be masked and one must stay: choose "
            "another ratio, or smaller patches."
        )
    return kept


def ranks(noise):
    """Returns `(order, ranks)` of rows: which patch comes at which place, and
    at which place each patch comes."""
    order = ops.argsort(noise, axis=1)
    return order, ops.argsort(order, axis=1)


def lowest_stay(noise, kept):
    return ops.cast(ranks(noise)[1] >= kept, "float32")


def _between(count, start, length):
    place = ops.arange(count, dtype="float32")
    start, length = start[..., None], length[..., None]
    return ops.cast(
        ops.logical_and(place >= start, place < start + length), "float32"
    )
