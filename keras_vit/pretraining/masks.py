"""Random masks of patches, with the same number of patches in every image."""

import math

import keras
from keras import ops

from keras_vit import _checks

# BEiT's blocks: at least 16 of 196 patches, with an aspect ratio between 0.3
# and 1 / 0.3.
_MIN_BLOCK_FRACTION = 16 / 196
_MAX_ASPECT_RATIO = 1 / 0.3
# Blocks sampled per image. They nearly always cover the wanted number of
# patches; single patches make up for the rest.
_NUM_BLOCKS = 24


def random_mask(batch_size, num_patches, ratio, seed=None):
    """Sample masks in which each patch is equally likely.

    As in "Masked Autoencoders Are Scalable Vision Learners"
    (https://arxiv.org/abs/2111.06377), the first
    `int(num_patches * (1 - ratio))` patches of a random order are kept.

    Args:
        batch_size: Integer, or a scalar tensor in a graph of dynamic shape.
        num_patches: Integer.
        ratio: Float in (0, 1). Fraction of patches that are masked.
        seed: Integer for the same mask at every call, or
            `keras.random.SeedGenerator` for a new one at each; None uses
            Keras's global generator.

    Returns:
        Tensor of shape `(batch_size, num_patches)`, 1 where masked, else 0.

    Raises:
        ValueError: if no patch would be masked, or none kept.
    """
    kept = num_kept(num_patches, ratio)
    noise = keras.random.uniform((batch_size, num_patches), seed=seed)
    return mask_from_noise(noise, kept)


def block_mask(batch_size, grid_size, ratio, seed=None):
    """Sample masks of rectangles of patches.

    From "BEiT: BERT Pre-Training of Image Transformers", Algorithm 1
    (https://arxiv.org/abs/2106.08254), with another end: single patches of the
    last block are kept, so that every image has the same number of masked
    patches. Blocks lie inside the image, so that patches of the centre are
    masked more often than those of the border.

    Args:
        batch_size: As in `random_mask`.
        grid_size: `(rows, columns)` of the patches.
        ratio: As in `random_mask`.
        seed: As in `random_mask`.

    Returns:
        Tensor of shape `(batch_size, rows * columns)`, 1 where masked, else 0.

    Raises:
        ValueError: if no patch would be masked, or none kept.
    """
    rows, columns = _checks.positive_pair("grid_size", grid_size)
    length = rows * columns
    kept = num_kept(length, ratio)
    # One sample per image: area, aspect ratio, top and left of each block, and
    # a tie breaker for each patch.
    num_block_values = 4 * _NUM_BLOCKS
    shape = (batch_size, num_block_values + length)
    noise = keras.random.uniform(shape, seed=seed)
    blocks = ops.reshape(noise[:, :num_block_values], (-1, _NUM_BLOCKS, 4))
    area, aspect, top, left = (blocks[..., i] for i in range(4))

    smallest = min(max(1.0, _MIN_BLOCK_FRACTION * length), length - kept)
    area = smallest + (length - kept - smallest) * area
    aspect = ops.exp((2 * aspect - 1) * math.log(_MAX_ASPECT_RATIO))
    height = ops.clip(ops.round(ops.sqrt(area * aspect)), 1, rows)
    width = ops.clip(ops.round(ops.sqrt(area / aspect)), 1, columns)
    top = ops.floor(top * (rows - height + 1))
    left = ops.floor(left * (columns - width + 1))
    in_rows = _in_interval(rows, top, height)  # (B, blocks, rows)
    in_columns = _in_interval(columns, left, width)
    inside = in_rows[..., None] * in_columns[..., None, :]

    # Index of the first block that covers a patch; uncovered patches are last.
    index = ops.arange(_NUM_BLOCKS, dtype="float32")[:, None, None]
    first = ops.min(ops.where(inside > 0, index, float(_NUM_BLOCKS)), axis=1)
    order = ops.reshape(first, (-1, length)) + noise[:, num_block_values:]
    return mask_from_noise(-order, kept)


def num_kept(num_patches, ratio):
    """Return how many patches of an image MAE keeps."""
    # The published expression, with its floating-point rounding: at a ratio
    # of 0.9, 9 of 100 patches are kept.
    return _check_kept(num_patches, int(num_patches * (1 - ratio)), ratio)


def num_kept_units(num_units, ratio):
    """Return how many mask units of an image SimMIM's `MaskGenerator` keeps."""
    kept = num_units - math.ceil(num_units * ratio)
    return _check_kept(num_units, kept, ratio)


def _check_kept(num_patches, kept, ratio):
    if not 0 < kept < num_patches:
        raise ValueError(
            f"A ratio of {ratio} masks {num_patches - kept} of {num_patches} "
            "patches. At least one must be masked and one must stay: choose "
            "another ratio, or smaller patches."
        )
    return kept


def argsort_and_ranks(noise):
    """Return `(order, ranks)` of each row.

    `order` sorts the row; `ranks`, MAE's `ids_restore`, is its inverse.
    """
    order = ops.argsort(noise, axis=1)
    return order, ops.argsort(order, axis=1)


def mask_from_noise(noise, num_kept):
    """Mask all but the `num_kept` lowest values of each row."""
    return ops.cast(argsort_and_ranks(noise)[1] >= num_kept, "float32")


def _in_interval(count, start, length):
    x = ops.arange(count, dtype="float32")
    start, length = start[..., None], length[..., None]
    return ops.cast(ops.logical_and(x >= start, x < start + length), "float32")
