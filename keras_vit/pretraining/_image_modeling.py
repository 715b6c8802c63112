import keras
from keras import ops

from keras_vit.layers import MaskToken
from keras_vit.layers import _checks
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

    Args:
        encoder: A `VisionTransformer` for images of one size, whose output is
            all tokens: `include_top=False, pooling=None`. Its weights are
            shared, so that `model.encoder` is the trained one.
        mask_ratio: Float in (0, 1). Share of masked patches.
        masking: "random", or "block" (see `block_mask`).
        seed: Integer. Seed of the masks; None for any.
        **kwargs: `name`, `dtype`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
        masked: Tensor of shape `(batch, num_patches)`, 1 or True where a
            patch is masked; None draws one.

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
        self, encoder, mask_ratio=0.5, masking="random", seed=None, **kwargs
    ):
        super().__init__(encoder, seed=seed, **kwargs)
        _masks.num_kept(self.parts.num_patches, mask_ratio)
        self.mask_ratio = mask_ratio
        self.masking = _checks.one_of("masking", masking, MASKS)
        width = self.parts.hidden_size
        self.mask_token = MaskToken(dtype=self.dtype_policy, name="mask_token")
        self.mask_token.build((None, None, width))
        tokens = keras.Input((None, width), name="tokens")
        prediction = keras.layers.Dense(
            self.parts.patch_area,
            dtype=head_policy(self.dtype_policy),
            name="pixels",
        )(tokens)
        self.decoder = keras.Model(tokens, prediction, name="decoder")

    def call(self, images, masked=None):
        parts = self.parts
        if masked is None:
            masked = self._draw(ops.shape(images)[0])
        masked = ops.cast(masked, "float32")
        tokens = parts.embed(images, lambda x: self.mask_token(x, masked))
        x = self.decoder(parts.encode(tokens)[:, parts.num_prefix :])
        # The convolution's channels are (channel, row, column) of a patch.
        x = ops.reshape(
            x, (-1, parts.num_patches, parts.channels, *parts.patch_size)
        )
        x = ops.transpose(x, (0, 1, 3, 4, 2))
        x = ops.reshape(x, (-1, parts.num_patches, parts.patch_area))
        return {"prediction": x, "masked": masked}

    def _draw(self, batch_size):
        seed, ratio = self.seed_generator, self.mask_ratio
        if self.masking == "block":
            return _masks.block_mask(
                batch_size, self.parts.grid_size, ratio, seed
            )
        return _masks.random_mask(
            batch_size, self.parts.num_patches, ratio, seed
        )

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
        }
