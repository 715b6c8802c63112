import random

import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.layers import MaskToken
from keras_vit.pretraining import _masks
from keras_vit.pretraining._masked_model import MaskedModel
from keras_vit.pretraining._parts import head_policy

MASKS = ("random", "block")


@keras.saving.register_keras_serializable("keras_vit")
class MaskedImageModeling(MaskedModel):
    """Masked patches are replaced by a token, and their pixels predicted.

    As in "SimMIM: A Simple Framework for Masked Image Modeling"
    (https://arxiv.org/abs/2111.09886) and transformers'
    `ViTForMaskedImageModeling`: one linear layer from a patch's token to its
    pixels (a 1 x 1 convolution and a pixel shuffle), and the mean absolute
    difference on masked patches as the loss.

    SimMIM is `mask_ratio=0.6, mask_patch_size=32` for patches of 16 pixels.
    Its ViT-B/16 has no absolute positions but a relative position bias, one
    table for all blocks, which `VisionTransformer` does not have. The encoder
    keeps the positions, activation and initial weights that it was built with.
    SimMIM's keys have no bias, which changes nothing: under the softmax it
    cancels.

    Args:
        encoder: A `VisionTransformer` for images of one size, whose output is
            all tokens: `include_top=False, pooling=None`. Its weights are
            shared, so that `model.encoder` is the trained one.
        mask_ratio: Float in (0, 1). Fraction of masked patches.
        masking: "random", or "block" (see `block_mask`).
        mask_patch_size: Integer or `(rows, columns)`, in pixels. Random masks
            consist of squares of this size, a multiple of the patch size
            that divides the image: 32 in SimMIM, whose patches have 16
            pixels. Of their number, `ceil(mask_ratio * number)` are masked.
            None is the patch size. "block" needs None.
        seed: Integer. Seed of the masks; None for any.
        **kwargs: `name`, `dtype`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
        masked: Tensor of shape `(batch, num_patches)`, 1 or True where a
            patch is masked; None samples one.
        training: Boolean. Whether the encoder's dropout and stochastic depth
            are on.

    Returns:
        A call gives a dict: `prediction`, `(batch, num_patches, rows *
        columns * channels)` of a patch, in this order; and `masked`.

    Raises:
        ValueError: if the encoder gives no tokens, or no patch is masked.

    Example:

    >>> encoder = keras_vit.ViTB16(include_top=False)
    >>> model = keras_vit.pretraining.MaskedImageModeling(encoder)
    >>> model.compile("adamw")
    >>> model.fit(images)
    >>> model.encoder.save("encoder.keras")
    """

    def __init__(
        self,
        encoder,
        mask_ratio=0.5,
        masking="random",
        seed=None,
        mask_patch_size=None,
        **kwargs,
    ):
        super().__init__(encoder, seed=seed, **kwargs)
        self.mask_ratio = mask_ratio
        self.masking = _checks.one_of("masking", masking, MASKS)
        self.mask_patch_size = mask_patch_size
        self._unit_patches = self._patches_per_unit()
        self._mask_units = tuple(
            n // of
            for n, of in zip(
                self.parts.grid_size, self._unit_patches, strict=True
            )
        )
        if masking == "block":
            _masks.num_kept(self.parts.num_patches, mask_ratio)
        else:
            rows, columns = self._mask_units
            _masks.num_kept_of_units(rows * columns, mask_ratio)
        width = self.parts.hidden_size
        self.mask_token = MaskToken(dtype=self.dtype_policy, name="mask_token")
        self.mask_token.build((None, None, width))
        self.mask_token.tokens.assign(_initial_token(width, seed))
        tokens = keras.Input((None, width), name="tokens")
        prediction = keras.layers.Dense(
            self.parts.patch_area,
            dtype=head_policy(self.dtype_policy),
            name="pixels",
        )(tokens)
        self.decoder = keras.Model(tokens, prediction, name="decoder")

    def _patches_per_unit(self):
        """Returns `(rows, columns)`: how many patches one unit covers."""
        patch, grid = self.parts.patch_size, self.parts.grid_size
        if self.mask_patch_size is None:
            return (1, 1)
        if self.masking == "block":
            raise ValueError(
                "`mask_patch_size` is the size of random masks. With "
                "`masking='block'` it must be None. Received: "
                f"mask_patch_size={self.mask_patch_size}"
            )
        size = _checks.positive_pair("mask_patch_size", self.mask_patch_size)
        units = tuple(s // p for s, p in zip(size, patch, strict=True))
        for s, p, n, unit in zip(size, patch, grid, units, strict=True):
            if s % p or n % unit:
                raise ValueError(
                    "`mask_patch_size` must be a multiple of the patch size "
                    f"{patch} that divides the image of {grid[0] * patch[0]} "
                    f"x {grid[1] * patch[1]} pixels. Received: "
                    f"mask_patch_size={self.mask_patch_size}"
                )
        return units

    def call(self, images, masked=None, training=None):
        parts = self.parts
        if masked is None:
            batch_size = ops.shape(images)[0]
            masked = self.sample_mask(batch_size, self.seed_generator)
        masked = ops.cast(masked, "float32")
        tokens = parts.embed(
            images, lambda x: self.mask_token(x, masked), training
        )
        tokens = parts.encode(tokens, training)
        x = self.decoder(tokens[:, parts.num_prefix :])
        # The convolution's channels are (channel, row, column) of a patch.
        x = ops.reshape(
            x, (-1, parts.num_patches, parts.channels, *parts.patch_size)
        )
        x = ops.transpose(x, (0, 1, 3, 4, 2))
        x = ops.reshape(x, (-1, parts.num_patches, parts.patch_area))
        return {"prediction": x, "masked": masked}

    def sample_mask(self, batch_size, seed=None):
        """Samples masks as training does.

        Args:
            batch_size: As in `random_mask`.
            seed: As in `random_mask`.

        Returns:
            Tensor of shape `(batch_size, num_patches)`, 1 where masked.
        """
        if self.masking == "block":
            return _masks.block_mask(
                batch_size, self.parts.grid_size, self.mask_ratio, seed
            )
        (rows, columns), (height, width) = self._mask_units, self._unit_patches
        kept = _masks.num_kept_of_units(rows * columns, self.mask_ratio)
        noise = keras.random.uniform((batch_size, rows * columns), seed=seed)
        masked = ops.reshape(
            _masks.lowest_stay(noise, kept), (-1, rows, columns)
        )
        masked = ops.repeat(ops.repeat(masked, height, axis=1), width, axis=2)
        return ops.reshape(masked, (-1, self.parts.num_patches))

    def patch_losses(self, images, outputs):
        difference = outputs["prediction"] - self.parts.cut(images)
        return ops.mean(ops.abs(difference), axis=-1)

    def pixels(self, prediction, patches):
        return prediction

    def get_config(self):
        return {
            **super().get_config(),
            "mask_ratio": self.mask_ratio,
            "masking": self.masking,
            "mask_patch_size": self.mask_patch_size,
        }


def _initial_token(width, seed):
    """Samples SimMIM's initial mask token: a normal distribution with a
    standard deviation of 0.02, truncated at one of them on both sides."""
    # As for other weights, `keras.utils.set_random_seed` decides without one.
    rng = np.random.default_rng(
        random.randint(1, 10**9) if seed is None else seed
    )
    x = rng.standard_normal((1, 1, width))
    while (far := np.abs(x) > 1).any():
        x[far] = rng.standard_normal(far.sum())
    return (0.02 * x).astype("float32")
