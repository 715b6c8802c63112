"""Random masks, with the same number of masked patches in every image."""

import math

import keras
from keras import ops

from keras_vit.utils import checks
from keras_vit.utils.types import Tensor

# A block of BEiT has at least 16 of 196 patches, and an aspect ratio between
# 0.3 and 1 / 0.3.
_MIN_BLOCK_FRACTION = 16 / 196
_MAX_ASPECT_RATIO = 1 / 0.3
# Blocks sampled per image. They nearly always cover the required number of
# patches; if not, single patches are added.
_NUM_BLOCKS = 24


def random_mask(
    batch_size: int | Tensor,
    num_patches: int,
    ratio: float,
    seed: int | keras.random.SeedGenerator | None = None,
) -> Tensor:
    """Samples masks of patches chosen uniformly at random.

    As in "Masked Autoencoders Are Scalable Vision Learners"
    (https://arxiv.org/abs/2111.06377), the first
    `int(num_patches * (1 - ratio))` patches of a random order are kept.

    Args:
        batch_size: Integer, or a scalar tensor if the batch size is dynamic.
        num_patches: Integer. Number of patches of an image.
        ratio: Float in (0, 1). Fraction of patches that are masked.
        seed: Integer for the same masks in every call, `keras.random.SeedGenerator` for
            new masks in each call, or None for Keras's global generator.

    Returns:
        Tensor of shape `(batch_size, num_patches)`, 1 where masked, otherwise 0.

    Raises:
        ValueError: if no patch would be masked, or all patches would be.
    """
    kept = num_kept(num_patches, ratio)
    shape = (batch_size, num_patches)
    noise = keras.random.uniform(shape, seed=seed)
    return mask_from_noise(noise, kept)


def block_mask(
    batch_size: int | Tensor,
    grid_size: int | tuple[int, int],
    ratio: float,
    seed: int | keras.random.SeedGenerator | None = None,
) -> Tensor:
    """Samples masks of rectangles of patches.

    From "BEiT: BERT Pre-Training of Image Transformers", Algorithm 1
    (https://arxiv.org/abs/2106.08254). Unlike in BEiT, only some patches of the last
    block are masked, so that every image has the same number of masked patches. Blocks
    lie inside the image, so that patches near the center are masked more often than
    those at the border.

    Args:
        batch_size: As in `random_mask`.
        grid_size: Integer or `(rows, columns)` of the image, in patches.
        ratio: As in `random_mask`.
        seed: As in `random_mask`.

    Returns:
        Tensor of shape `(batch_size, rows * columns)`, 1 where masked, otherwise 0.

    Raises:
        ValueError: if no patch would be masked, or all patches would be.
    """
    rows, columns = checks.positive_pair("grid_size", grid_size)
    length = rows * columns
    kept = num_kept(length, ratio)
    # Random numbers of each image: area, aspect ratio, top and left of each
    # block, and a tie breaker of each patch.
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

    # Patches are masked in the order of the first block that covers them;
    # uncovered patches are last.
    index = ops.arange(_NUM_BLOCKS, dtype="float32")[:, None, None]
    first = ops.min(ops.where(inside > 0, index, float(_NUM_BLOCKS)), axis=1)
    order = ops.reshape(first, (-1, length)) + noise[:, num_block_values:]
    return mask_from_noise(-order, kept)


def num_kept(num_patches: int, ratio: float) -> int:
    """Returns the number of patches per image that MAE keeps."""
    # As published, including the floating-point error: at a ratio of 0.9, 9
    # of 100 patches are kept.
    return _check_kept(num_patches, int(num_patches * (1 - ratio)), ratio)


def num_kept_units(num_units: int, ratio: float) -> int:
    """Returns the number of mask units per image that SimMIM keeps."""
    kept = num_units - math.ceil(num_units * ratio)
    return _check_kept(num_units, kept, ratio)


def _check_kept(num_patches: int, kept: int, ratio: float) -> int:
    if not 0 < kept < num_patches:
        raise ValueError(
            f"A ratio of {ratio} masks {num_patches - kept} of {num_patches} "
            "patches. At least one must be masked and one must stay: choose "
            "another ratio, or smaller patches."
        )
    return kept


def argsort_and_ranks(noise: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two permutations `(order, ranks)` of each row.

    `order` sorts the row; its inverse, `ranks`, is MAE's `ids_restore`.
    """
    order = ops.argsort(noise, axis=1)
    return order, ops.argsort(order, axis=1)


def mask_from_noise(noise: Tensor, num_kept: int) -> Tensor:
    """Returns 0 for the `num_kept` lowest values of each row, 1 for others."""
    return ops.cast(argsort_and_ranks(noise)[1] >= num_kept, "float32")


def _in_interval(count: int, start: Tensor, length: Tensor) -> Tensor:
    x = ops.arange(count, dtype="float32")
    start, length = start[..., None], length[..., None]
    return ops.cast(ops.logical_and(x >= start, x < start + length), "float32")
