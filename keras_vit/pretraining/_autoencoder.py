import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import TransformerBlock
from keras_vit.pretraining import _masks
from keras_vit.pretraining._masked_model import MaskedModel
from keras_vit.pretraining._parts import head_policy
from keras_vit.pretraining._parts import sincos_positions
from keras_vit.pretraining._restore import RestoreTokens

POSITIONS = ("sincos2d", "learned")


@keras.saving.register_keras_serializable("keras_vit")
class MaskedAutoencoder(MaskedModel):
    """MAE: the encoder sees few patches, a light decoder predicts the others.

    From "Masked Autoencoders Are Scalable Vision Learners"
    (https://arxiv.org/abs/2111.06377) and its code, facebookresearch/mae.
    Masked patches are removed before the blocks, which therefore take a
    quarter of the time at a ratio of 0.75.

    The encoder keeps the initial weights and the activation that it was built
    with: those of google-research/vision_transformer. `recipes/
    pretrain_masked.py` builds it as facebookresearch/mae does, with the exact
    GELU and a class token of random initial values.

    Args:
        encoder: A `VisionTransformer` for images of one size, whose output is
            all tokens: `include_top=False, pooling=None`. Its weights are
            shared, so that `model.encoder` is the trained one.
        mask_ratio: Float in (0, 1). Fraction of patches that are removed:
            `int(num_patches * (1 - mask_ratio))` stay.
        decoder_hidden_size: Integer, a multiple of 4. 512 with 8 layers and
            16 heads is the published decoder of ViT-B/16, L/16 and H/14.
        decoder_num_layers: Integer.
        decoder_num_heads: Integer. It must divide `decoder_hidden_size`.
        decoder_mlp_dim: Integer; None for 4 times `decoder_hidden_size`.
        norm_pixels: Boolean. Whether the target is a patch's pixels with
            their mean taken away and divided by their deviation.
        positions: "sincos2d" puts sines and cosines in place of the encoder's
            learned positions, which then do not learn here, as published;
            "learned" leaves them as they are.
        seed: Integer. Seed of the masks; None for any.
        **kwargs: `name`, `dtype`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
        noise: Tensor of shape `(batch, num_patches)`: the patches with the
            lowest values stay. None draws it.
        training: Boolean. Whether the encoder's dropout and stochastic depth
            are on.

    Returns:
        A call gives a dict: `prediction`, `(batch, num_patches, rows *
        columns * channels)` of a patch, in this order; and `masked`,
        `(batch, num_patches)`, 1 for patches that were removed.

    Raises:
        ValueError: if the encoder gives no tokens, has no learned positions
            where "sincos2d" are to be put in, or no patch is removed.

    Example:

    >>> encoder = keras_vit.ViTB16(include_top=False)
    >>> model = keras_vit.pretraining.MaskedAutoencoder(encoder)
    >>> model.compile("adamw")
    >>> model.fit(images)
    >>> model.encoder.save("encoder.keras")
    """

    def __init__(
        self,
        encoder,
        mask_ratio=0.75,
        decoder_hidden_size=512,
        decoder_num_layers=8,
        decoder_num_heads=16,
        decoder_mlp_dim=None,
        norm_pixels=True,
        positions="sincos2d",
        seed=None,
        **kwargs,
    ):
        super().__init__(encoder, seed=seed, **kwargs)
        self.num_kept = _masks.num_kept(self.parts.num_patches, mask_ratio)
        self.mask_ratio = mask_ratio
        if decoder_hidden_size % 4:
            raise ValueError(
                "The decoder's positions are sines and cosines of rows and "
                "columns: `decoder_hidden_size` must be a multiple of 4. "
                f"Received: decoder_hidden_size={decoder_hidden_size}"
            )
        self.decoder_hidden_size = decoder_hidden_size
        self.decoder_num_layers = decoder_num_layers
        self.decoder_num_heads = decoder_num_heads
        self.decoder_mlp_dim = decoder_mlp_dim or 4 * decoder_hidden_size
        self.norm_pixels = norm_pixels
        if norm_pixels and self.parts.patch_area == 1:
            raise ValueError(
                "A patch of one value has no deviation to divide by: give "
                "`norm_pixels=False`, or larger patches."
            )
        self.positions = _checks.one_of("positions", positions, POSITIONS)
        if positions == "sincos2d":
            _put_positions(self.parts)
        self.decoder = self._decoder()

    def _decoder(self):
        parts, own = self.parts, {"dtype": self.dtype_policy}
        norm = {"epsilon": parts.norm_epsilon, **own}
        width = self.decoder_hidden_size
        tokens = keras.Input(
            (parts.num_prefix + self.num_kept, parts.hidden_size),
            name="tokens",
        )
        places = keras.Input((parts.num_patches,), dtype="int32", name="places")
        x = keras.layers.Dense(width, name="embedding", **own)(tokens)
        x = RestoreTokens(parts.num_prefix, name="mask_token", **own)(x, places)
        positions = AddPositionEmbs(
            grid_size=parts.grid_size,
            num_prefix_tokens=parts.num_prefix,
            trainable=False,
            name="position_embedding",
            **own,
        )
        x = positions(x)
        positions.embedding.assign(
            sincos_positions(parts.grid_size, width, parts.num_prefix)
        )
        for i in range(self.decoder_num_layers):
            x = TransformerBlock(
                self.decoder_num_heads,
                self.decoder_mlp_dim,
                activation=parts.activation,
                norm_epsilon=parts.norm_epsilon,
                name=f"block_{i}",
                **own,
            )(x)
        x = keras.layers.LayerNormalization(name="norm", **norm)(x)
        x = keras.layers.Dense(
            parts.patch_area,
            dtype=head_policy(self.dtype_policy),
            name="prediction",
        )(x)
        return keras.Model([tokens, places], x, name="decoder")

    def call(self, images, noise=None, training=None):
        latent, masked, places = self.encode(images, noise, training)
        x = self.decoder([latent, places], training=training)
        x = x[:, self.parts.num_prefix :]
        return {"prediction": x, "masked": masked}

    def encode(self, images, noise=None, training=None):
        """Runs the encoder on the patches that stay.

        Args:
            images: As in a call.
            noise: As in a call.
            training: As in a call.

        Returns:
            `(tokens, masked, places)`: the encoder's output for its prefix
            tokens and the kept patches, in the noise's order; 1 for patches
            that were removed; and the place of each patch in that order.
        """
        parts = self.parts
        if noise is None:
            shape = (ops.shape(images)[0], parts.num_patches)
            noise = keras.random.uniform(shape, seed=self.seed_generator)
        order, places = _masks.ranks(noise)
        tokens = parts.embed(images, training=training)
        kept = ops.take_along_axis(
            tokens[:, parts.num_prefix :],
            order[:, : self.num_kept, None],
            axis=1,
        )
        prefix = tokens[:, : parts.num_prefix]
        latent = ops.concatenate([prefix, kept], axis=1)
        latent = parts.encode(latent, training)
        masked = ops.cast(places >= self.num_kept, "float32")
        return latent, masked, ops.cast(places, "int32")

    def patch_losses(self, images, outputs):
        target = self.parts.cut(images)
        if self.norm_pixels:
            mean, deviation = _moments(target)
            target = (target - mean) / deviation
        return ops.mean((outputs["prediction"] - target) ** 2, axis=-1)

    def pixels(self, prediction, patches):
        if not self.norm_pixels:
            return prediction
        mean, deviation = _moments(patches)
        return prediction * deviation + mean

    def get_config(self):
        return {
            **super().get_config(),
            "mask_ratio": self.mask_ratio,
            "decoder_hidden_size": self.decoder_hidden_size,
            "decoder_num_layers": self.decoder_num_layers,
            "decoder_num_heads": self.decoder_num_heads,
            "decoder_mlp_dim": self.decoder_mlp_dim,
            "norm_pixels": self.norm_pixels,
            "positions": self.positions,
        }


def _put_positions(parts):
    layer = parts.positions
    if layer.embedding is None or layer.built_grid != parts.grid_size:
        raise ValueError(
            "`positions='sincos2d'` puts fixed values where the encoder keeps "
            f"learned ones, for a grid of {parts.grid_size}. It has "
            f"position_embedding={layer.kind!r} for {layer.built_grid}. Give "
            "`positions='learned'` to leave it as it is."
        )
    count = layer.num_prefix_tokens
    values = sincos_positions(parts.grid_size, parts.hidden_size, count)
    layer.embedding.assign(values)
    layer.trainable = False


def _moments(patches):
    """Mean and deviation of each patch, with the variance of a sample."""
    mean = ops.mean(patches, axis=-1, keepdims=True)
    count = patches.shape[-1]
    square = ops.sum((patches - mean) ** 2, axis=-1, keepdims=True)
    return mean, ops.sqrt(square / (count - 1) + 1e-6)
