"""Masked autoencoders (MAE)."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers import AddPositionEmbs, TransformerBlock
from keras_vit.layers.composite import Layer
from keras_vit.layers.positions import sincos_positions
from keras_vit.pretraining import masks
from keras_vit.pretraining.base import float32_output_policy
from keras_vit.pretraining.masked_model import MaskedModel
from keras_vit.utils import checks
from keras_vit.utils.types import Array, Shape, Tensor

POSITIONS = ("sincos2d", "learned")


@keras.saving.register_keras_serializable("keras_vit")
class MaskedAutoencoder(MaskedModel):
    """Masked autoencoder: encodes visible patches and predicts masked ones.

    From "Masked Autoencoders Are Scalable Vision Learners"
    (https://arxiv.org/abs/2111.06377) and its code, facebookresearch/mae.
    Masked patches are removed before the encoder's blocks: at a mask ratio of
    0.75, these process a quarter of the patches.

    The encoder's activation and initial weights are not changed; by default
    they are those of google-research/vision_transformer.
    `recipes/pretrain_masked.py` builds the encoder as facebookresearch/mae
    does, with the exact GELU and a randomly initialized class token.

    Args:
        encoder: A `VisionTransformer` for images of one size that outputs all
            tokens: `include_top=False, pooling=None`. Its weights are shared:
            `model.encoder` is the trained encoder.
        mask_ratio: Float in (0, 1). Fraction of patches that are removed:
            `int(num_patches * (1 - mask_ratio))` are kept.
        decoder_hidden_size: Integer, a multiple of 4. Width of the decoder.
            The defaults (512, 8 layers, 16 heads) are those of the published
            decoder of ViT-B/16, L/16 and H/14.
        decoder_num_layers: Integer. Number of the decoder's blocks.
        decoder_num_heads: Integer. Number of the decoder's attention heads,
            which must divide `decoder_hidden_size`.
        decoder_mlp_dim: Integer. Width of the decoder's MLPs; None for 4
            times `decoder_hidden_size`.
        norm_pixels: Boolean. Whether to standardize the target pixels of
            each patch by their mean and standard deviation.
        positions: "sincos2d" replaces the encoder's learned position
            embeddings by fixed sines and cosines, as published; "learned"
            trains them.
        seed: Integer. Seed of the masks; None for a random one.
        **kwargs: `name`, `dtype`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
        noise: Tensor of shape `(batch, num_patches)`. The patches with the
            lowest values are kept. None samples the noise from a uniform distribution.
        training: Boolean. Whether to apply the encoder's dropout and
            stochastic depth.

    Returns:
        A call returns a dict of `prediction`, of shape `(batch, num_patches,
        rows * columns * channels)`, and `masked`, of shape `(batch,
        num_patches)`, 1 for removed patches and 0 for the others.

    Raises:
        ValueError: if the encoder does not output all tokens, if it has no
            learned positions for "sincos2d" to replace, if an argument is
            out of range, or if no patch would be removed.

    Example:

    >>> encoder = keras_vit.ViTB16(include_top=False)
    >>> model = keras_vit.pretraining.MaskedAutoencoder(encoder)
    >>> model.compile("adamw")
    >>> model.fit(images)
    >>> model.encoder.save("encoder.keras")
    """

    def __init__(
        self,
        encoder: keras.Model,
        mask_ratio: float = 0.75,
        decoder_hidden_size: int = 512,
        decoder_num_layers: int = 8,
        decoder_num_heads: int = 16,
        decoder_mlp_dim: int | None = None,
        norm_pixels: bool = True,
        positions: str = "sincos2d",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, seed=seed, **kwargs)
        self.num_kept = masks.num_kept(self.stages.num_patches, mask_ratio)
        self.mask_ratio = mask_ratio
        self.decoder_hidden_size = decoder_hidden_size
        self.decoder_num_layers = decoder_num_layers
        self.decoder_num_heads = decoder_num_heads
        self.decoder_mlp_dim = decoder_mlp_dim or 4 * decoder_hidden_size
        self.norm_pixels = norm_pixels
        self.positions = checks.one_of("positions", positions, POSITIONS)
        if positions == "sincos2d":
            self.stages.freeze_positions(
                _mae_positions(self.stages.grid_size, self.stages.hidden_size)
            )
        self.decoder = self._build_decoder()

    def _build_decoder(self) -> keras.Model:
        stages, dtype = self.stages, self.dtype_policy
        hidden_size = self.decoder_hidden_size
        num_tokens = stages.num_prefix + self.num_kept
        tokens = keras.Input((num_tokens, stages.hidden_size), name="tokens")
        ids_restore = keras.Input(
            (stages.num_patches,), dtype="int32", name="ids_restore"
        )
        x = keras.layers.Dense(hidden_size, dtype=dtype, name="embedding")(tokens)
        x = RestoreTokens(stages.num_prefix, dtype=dtype, name="mask_token")(
            x, ids_restore
        )
        positions = AddPositionEmbs(
            grid_size=stages.grid_size,
            num_prefix_tokens=stages.num_prefix,
            trainable=False,
            dtype=dtype,
            name="position_embedding",
        )
        x = positions(x)
        positions.embedding_variables()["embedding"].assign(
            _mae_positions(stages.grid_size, hidden_size, stages.num_prefix)
        )
        for i in range(self.decoder_num_layers):
            x = TransformerBlock(
                self.decoder_num_heads,
                self.decoder_mlp_dim,
                activation=stages.activation,
                norm_epsilon=stages.norm_epsilon,
                dtype=dtype,
                name=f"block_{i}",
            )(x)
        x = keras.layers.LayerNormalization(
            epsilon=stages.norm_epsilon, dtype=dtype, name="norm"
        )(x)
        x = keras.layers.Dense(
            stages.patch_area,
            dtype=float32_output_policy(dtype),
            name="prediction",
        )(x)
        return keras.Model([tokens, ids_restore], x, name="decoder")

    def call(
        self,
        images: Tensor,
        noise: Tensor | None = None,
        training: bool | None = None,
    ) -> dict[str, Tensor]:
        latent, masked, ids_restore = self.encode(images, noise, training)
        x = self.decoder([latent, ids_restore], training=training)
        x = x[:, self.stages.num_prefix :]
        return {"prediction": x, "masked": masked}

    def encode(
        self,
        images: Tensor,
        noise: Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Encodes the kept patches.

        Args:
            images: As in a call.
            noise: As in a call.
            training: As in a call.

        Returns:
            A tuple `(latent, masked, ids_restore)`:

            - `latent`: the encoded prefix tokens, followed by the kept
              patches in the order of their noise;
            - `masked`: `(batch, num_patches)`, 1 for removed patches;
            - `ids_restore`: integers `(batch, num_patches)`, the rank of each
              patch's noise, by which `RestoreTokens` moves the patches back.
        """
        stages = self.stages
        if noise is None:
            shape = (ops.shape(images)[0], stages.num_patches)
            noise = keras.random.uniform(shape, seed=self.seed_generator)
        order, ids_restore = masks.argsort_and_ranks(noise)
        tokens = stages.embed(images, training=training)
        prefix = tokens[:, : stages.num_prefix]
        patches = tokens[:, stages.num_prefix :]
        kept = order[:, : self.num_kept, None]
        kept = ops.take_along_axis(patches, kept, axis=1)
        latent = ops.concatenate([prefix, kept], axis=1)
        latent = stages.encode(latent, training)
        masked = ops.cast(ids_restore >= self.num_kept, "float32")
        return latent, masked, ops.cast(ids_restore, "int32")

    def patch_losses(self, images: Tensor, outputs: dict[str, Tensor]) -> Tensor:
        target = self.stages.patchify(images)
        if self.norm_pixels:
            mean, std = _mean_and_std(target)
            target = (target - mean) / std
        return ops.mean((outputs["prediction"] - target) ** 2, axis=-1)

    def prediction_to_pixels(self, prediction: Tensor, patches: Tensor) -> Tensor:
        if not self.norm_pixels:
            return prediction
        mean, std = _mean_and_std(patches)
        return prediction * std + mean


def _mae_positions(
    grid_size: tuple[int, int], hidden_size: int, num_prefix_tokens: int = 0
) -> Array:
    """Returns MAE's fixed sine-cosine positions.

    Unlike big_vision's, they do not include the lowest frequency, 1e-4.
    """
    return sincos_positions(grid_size, hidden_size, num_prefix_tokens, endpoint=False)


def _mean_and_std(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean and the unbiased standard deviation of each patch."""
    mean = ops.mean(patches, axis=-1, keepdims=True)
    count = patches.shape[-1]
    square = ops.sum((patches - mean) ** 2, axis=-1, keepdims=True)
    return mean, ops.sqrt(square / (count - 1) + 1e-6)


@keras.saving.register_keras_serializable("keras_vit")
class RestoreTokens(Layer):
    """Moves kept patches to their positions and fills in mask tokens, all of
    which are the same learned vector.

    `ids_restore`, `(batch, num_patches)`, is the index of each patch among the
    kept ones; an index of `num_kept` or more marks a masked patch. From "Masked
    Autoencoders Are Scalable Vision Learners", Section 3
    (https://arxiv.org/abs/2111.06377).
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def build(
        self, inputs_shape: Shape, ids_restore_shape: Shape | None = None
    ) -> None:
        self.tokens = self.add_weight(
            shape=(1, 1, inputs_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="tokens",
        )

    def call(self, inputs: Tensor, ids_restore: Tensor) -> Tensor:
        prefix = inputs[:, : self.num_prefix_tokens]
        kept = inputs[:, self.num_prefix_tokens :]
        batch, length = ops.shape(ids_restore)[0], ids_restore.shape[1]
        masked = ops.broadcast_to(
            ops.cast(self.tokens, inputs.dtype),
            (batch, length - kept.shape[1], kept.shape[2]),
        )
        patches = ops.take_along_axis(
            ops.concatenate([kept, masked], axis=1),
            ids_restore[..., None],
            axis=1,
        )
        return ops.concatenate([prefix, patches], axis=1)

    def compute_output_shape(
        self, inputs_shape: Shape, ids_restore_shape: Shape
    ) -> Shape:
        length = self.num_prefix_tokens + ids_restore_shape[1]
        return (inputs_shape[0], length, inputs_shape[2])
