"""Masked image modeling as in SimMIM."""

import math
import random
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers import MaskToken
from keras_vit.pretraining import masks
from keras_vit.pretraining.base import float32_output_policy
from keras_vit.pretraining.masked_model import MaskedModel
from keras_vit.utils import checks
from keras_vit.utils.types import Array, Tensor

MASKS = ("random", "block")


@keras.saving.register_keras_serializable("keras_vit")
class MaskedImageModeling(MaskedModel):
    """Replaces masked patches by a mask token and predicts their pixels.

    As in "SimMIM: A Simple Framework for Masked Image Modeling"
    (https://arxiv.org/abs/2111.09886) and transformers' `ViTForMaskedImageModeling`,
    one linear layer maps a patch's token to its pixels (in their code, a 1 x 1
    convolution and a pixel shuffle), and the loss is the mean absolute error on masked
    patches.

    SimMIM uses `mask_ratio=0.6, mask_patch_size=32` for patches of 16 pixels.
    Its ViT-B/16 has no absolute position embeddings but a relative position
    bias shared by all blocks, which `VisionTransformer` does not have. The
    encoder's positions, activation and initial weights are not changed.
    SimMIM's key projections have no bias, which makes no difference, since a
    key bias cancels in the softmax.

    Args:
        encoder: A `VisionTransformer` for images of one size that outputs all
            tokens: `include_top=False, pooling=None`. Its weights are shared:
            `model.encoder` is the trained encoder.
        mask_ratio: Float in (0, 1). Fraction of masked patches.
        masking: "random", or "block" (see `block_mask`).
        mask_patch_size: Integer or `(rows, columns)`, in pixels. Size of the
            units of random masks, a multiple of the patch size that divides
            the image size; `ceil(mask_ratio * num_units)` units are masked.
            None for the patch size. It must be None with "block".
        seed: Integer. Seed of the masks; None for a random one.
        **kwargs: `name`, `dtype`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
        masked: Tensor of shape `(batch, num_patches)`, 1 or True where a
            patch is masked; None samples a mask.
        training: Boolean. Whether to apply the encoder's dropout and
            stochastic depth.

    Returns:
        A call returns a dict of `prediction`, of shape `(batch, num_patches,
        rows * columns * channels)`, and `masked`, of shape `(batch,
        num_patches)`, 1 where masked.

    Raises:
        ValueError: if the encoder does not output all tokens, if an argument
            is out of range, or if no patch would be masked.

    Example:

    >>> encoder = keras_vit.ViTB16(include_top=False)
    >>> model = keras_vit.pretraining.MaskedImageModeling(encoder)
    >>> model.compile("adamw")
    >>> model.fit(images)
    >>> model.encoder.save("encoder.keras")
    """

    def __init__(
        self,
        encoder: keras.Model,
        mask_ratio: float = 0.5,
        masking: str = "random",
        seed: int | None = None,
        mask_patch_size: int | tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, seed=seed, **kwargs)
        self.mask_ratio = mask_ratio
        self.masking = checks.one_of("masking", masking, MASKS)
        self.mask_patch_size = mask_patch_size
        self._patches_per_unit = self._find_patches_per_unit()
        rows, columns = self.stages.grid_size
        height, width = self._patches_per_unit
        self._unit_grid = (rows // height, columns // width)
        if masking == "block":
            masks.num_kept(rows * columns, mask_ratio)
        else:
            masks.num_kept_units(math.prod(self._unit_grid), mask_ratio)
        hidden_size = self.stages.hidden_size
        self.mask_token = MaskToken(dtype=self.dtype_policy, name="mask_token")
        self.mask_token.build((None, None, hidden_size))
        self.mask_token.tokens.assign(_initial_token(hidden_size, seed))
        tokens = keras.Input((None, hidden_size), name="tokens")
        prediction = keras.layers.Dense(
            self.stages.patch_area,
            dtype=float32_output_policy(self.dtype_policy),
            name="pixels",
        )(tokens)
        self.decoder = keras.Model(tokens, prediction, name="decoder")

    def _find_patches_per_unit(self) -> tuple[int, int]:
        """Returns the size of a mask unit, `(rows, columns)` in patches."""
        patch, grid = self.stages.patch_size, self.stages.grid_size
        if self.mask_patch_size is None:
            return (1, 1)
        fits = self.masking == "random"
        none = "None with masking='block', whose unit is a patch"
        checks.require(fits, "mask_patch_size", self.mask_patch_size, none)
        size = checks.positive_pair("mask_patch_size", self.mask_patch_size)
        units = tuple(s // p for s, p in zip(size, patch, strict=True))
        sizes = zip(size, patch, grid, units, strict=True)
        if any(s % p or n % unit for s, p, n, unit in sizes):
            raise ValueError(
                "`mask_patch_size` must be a multiple of the patch size "
                f"{patch} that divides the image of {grid[0] * patch[0]} x "
                f"{grid[1] * patch[1]} pixels. Received: "
                f"mask_patch_size={self.mask_patch_size}"
            )
        return units

    def call(
        self,
        images: Tensor,
        masked: Tensor | None = None,
        training: bool | None = None,
    ) -> dict[str, Tensor]:
        stages = self.stages
        if masked is None:
            batch_size = ops.shape(images)[0]
            masked = self.sample_mask(batch_size, self.seed_generator)
        masked = ops.cast(masked, "float32")
        tokens = stages.embed(images, lambda x: self.mask_token(x, masked), training)
        tokens = stages.encode(tokens, training)
        x = self.decoder(tokens[:, stages.num_prefix :])
        # As in SimMIM's pixel shuffle, a patch is ordered (channel, row,
        # column).
        x = ops.reshape(
            x, (-1, stages.num_patches, stages.channels, *stages.patch_size)
        )
        x = ops.transpose(x, (0, 1, 3, 4, 2))
        x = ops.reshape(x, (-1, stages.num_patches, stages.patch_area))
        return {"prediction": x, "masked": masked}

    def sample_mask(
        self,
        batch_size: int | Tensor,
        seed: int | keras.random.SeedGenerator | None = None,
    ) -> Tensor:
        """Samples masks, as a call without `masked` does.

        Args:
            batch_size: As in `random_mask`.
            seed: As in `random_mask`.

        Returns:
            Tensor of shape `(batch_size, num_patches)`, 1 where masked.
        """
        if self.masking == "block":
            return masks.block_mask(
                batch_size, self.stages.grid_size, self.mask_ratio, seed
            )
        (rows, columns), (height, width) = (
            self._unit_grid,
            self._patches_per_unit,
        )
        kept = masks.num_kept_units(rows * columns, self.mask_ratio)
        noise = keras.random.uniform((batch_size, rows * columns), seed=seed)
        masked = ops.reshape(masks.mask_from_noise(noise, kept), (-1, rows, columns))
        masked = ops.repeat(ops.repeat(masked, height, axis=1), width, axis=2)
        return ops.reshape(masked, (-1, self.stages.num_patches))

    def patch_losses(self, images: Tensor, outputs: dict[str, Tensor]) -> Tensor:
        difference = outputs["prediction"] - self.stages.patchify(images)
        return ops.mean(ops.abs(difference), axis=-1)

    def prediction_to_pixels(self, prediction: Tensor, patches: Tensor) -> Tensor:
        return prediction


def _initial_token(hidden_size: int, seed: int | None) -> Array:
    """Samples the initial mask token as SimMIM does.

    The distribution is normal with a standard deviation of 0.02, truncated at
    one standard deviation.
    """
    # Without a seed, `random` is used, so that `keras.utils.set_random_seed`
    # determines the token as it does the weights of layers.
    rng = np.random.default_rng(random.randint(1, 10**9) if seed is None else seed)
    x = rng.standard_normal((1, 1, hidden_size))
    while (outliers := np.abs(x) > 1).any():
        x[outliers] = rng.standard_normal(outliers.sum())
    return (0.02 * x).astype("float32")
