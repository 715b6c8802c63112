"""Masked patch prediction, the self-supervised task of the ViT paper."""

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

TARGETS = ("mean_color", "downsized", "pixels")
_LEVELS = 2**3  # color levels of a channel
# Fractions of corrupted patches; the remaining ones keep their embedding.
_MASK_FRACTION, _SWAP_FRACTION = 0.8, 0.1


@keras.saving.register_keras_serializable("keras_vit")
class MaskedPatchPrediction(MaskedModel):
    """Predicts the colors of corrupted patches.

    From "An Image is Worth 16x16 Words", Appendix B.1.2
    (https://arxiv.org/abs/2010.11929), whose code for this task was not released. Half
    of the patch embeddings are corrupted: of these, 80% are replaced by a learned
    vector, 10% by the embedding of another patch of the image, and 10% are kept. The
    paper compares three targets and uses "mean_color".

    Args:
        encoder: A `VisionTransformer` for images of one size that outputs all
            tokens: `include_top=False, pooling=None`. Its weights are shared:
            `model.encoder` is the trained encoder.
        target: "mean_color", the patch's mean color with 3 bits per channel
            (512 classes for RGB); "downsized", the colors of the patch
            downsized to 4 x 4 pixels (16 predictions); or "pixels", all
            pixels (regression with the squared error).
        mask_ratio: Float in (0, 1). Fraction of corrupted patches.
        value_range: `(lowest, highest)` pixel value, each a number or one
            per channel. The 8 levels of a color divide this range evenly.
        seed: Integer. Seed of the corruption; None for a random one.
        **kwargs: `name`, `dtype`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
        masked: Tensor of shape `(batch, num_patches)`, 1 or True where a
            patch is corrupted; None samples a mask.
        training: Boolean. Whether to apply the encoder's dropout and
            stochastic depth.

    Returns:
        A call returns a dict of `prediction`, logits of shape `(batch,
        num_patches, predictions, classes)` or pixels of shape `(batch,
        num_patches, rows * columns * channels)`, and `masked`, of shape
        `(batch, num_patches)`, 1 for the corrupted patches, which count in
        the loss.

    Raises:
        ValueError: if the encoder does not output all tokens, if no patch
            would be corrupted, if an argument is out of range, or if the
            target is "downsized" and patches are smaller than 4 x 4 pixels.

    Example:

    >>> encoder = keras_vit.ViTB16(include_top=False)
    >>> model = keras_vit.pretraining.MaskedPatchPrediction(encoder)
    >>> model.compile("adam")
    >>> model.fit(images)
    """

    def __init__(
        self,
        encoder: keras.Model,
        target: str = "mean_color",
        mask_ratio: float = 0.5,
        value_range: tuple[Any, Any] = (-1.0, 1.0),
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, seed=seed, **kwargs)
        stages = self.stages
        masks.num_kept(stages.num_patches, mask_ratio)
        self.mask_ratio = mask_ratio
        self.target = checks.one_of("target", target, TARGETS)
        self.value_range = value_range
        self._lowest, highest = (np.asarray(x, "float32") for x in value_range)
        fits = bool(np.all(self._lowest < highest))
        checks.require(fits, "value_range", value_range, "(lowest, highest)")
        self._span = highest - self._lowest
        # A class index has the channels' levels as digits, red first.
        self._class_weights = _LEVELS ** np.arange(stages.channels)[::-1]
        side = 4 if target == "downsized" else 1
        if side > min(stages.patch_size):
            raise ValueError(
                "`target='downsized'` needs patches of 4 x 4 pixels or more. "
                f"Received: patches of {stages.patch_size} pixels"
            )
        self._pooling = [area_pooling_matrix(size, side) for size in stages.patch_size]
        self._num_classes = _LEVELS**stages.channels
        outputs = side * side * self._num_classes
        self.mask_token = MaskToken(dtype=self.dtype_policy, name="mask_token")
        self.mask_token.build((None, None, stages.hidden_size))
        self.predictor = keras.layers.Dense(
            stages.patch_area if target == "pixels" else outputs,
            dtype=float32_output_policy(self.dtype_policy),
            name="predictor",
        )
        self.predictor.build((None, None, stages.hidden_size))

    def call(
        self,
        images: Tensor,
        masked: Tensor | None = None,
        training: bool | None = None,
    ) -> dict[str, Tensor]:
        stages = self.stages
        batch = ops.shape(images)[0]
        if masked is None:
            masked = masks.random_mask(
                batch, stages.num_patches, self.mask_ratio, self.seed_generator
            )
        masked = ops.cast(masked, "float32")
        noise = keras.random.uniform(
            (batch, stages.num_patches, 2),
            seed=self.seed_generator,
        )
        tokens = stages.embed(
            images, lambda x: self.corrupt(x, masked, noise), training
        )
        tokens = stages.encode(tokens, training)
        x = self.predictor(tokens[:, stages.num_prefix :])
        if self.target != "pixels":
            predictions = x.shape[-1] // self._num_classes
            shape = (stages.num_patches, predictions, self._num_classes)
            x = ops.reshape(x, (-1, *shape))
        return {"prediction": x, "masked": masked}

    def corrupt(self, embeddings: Tensor, masked: Tensor, noise: Tensor) -> Tensor:
        """Corrupts patch embeddings.

        Args:
            embeddings: Tensor of shape `(batch, num_patches, hidden_size)`.
            masked: Tensor of shape `(batch, num_patches)`, 1 for patches to
                corrupt.
            noise: Tensor of shape `(batch, num_patches, 2)`, values in
                [0, 1). If the first value is below 0.8, the learned vector
                replaces the embedding; from 0.8 to 0.9, the embedding of another patch,
                which the second value selects, replaces it; otherwise the embedding is
                kept.

        Returns:
            Tensor of the shape of `embeddings`.
        """
        count = self.stages.num_patches
        mode, choice = noise[..., 0], noise[..., 1]
        to_mask = masked * ops.cast(mode < _MASK_FRACTION, "float32")
        to_mask_or_swap = masked * ops.cast(
            mode < _MASK_FRACTION + _SWAP_FRACTION, "float32"
        )
        to_swap = ops.cast(to_mask_or_swap - to_mask, embeddings.dtype)
        # An offset from 1 to count - 1, so that no patch replaces itself.
        offset = 1 + ops.minimum(ops.floor(choice * (count - 1)), count - 2)
        index = (ops.arange(count) + ops.cast(offset, "int32")) % count
        others = ops.take_along_axis(embeddings, index[..., None], axis=1)
        to_swap = to_swap[..., None]
        x = embeddings * (1 - to_swap) + others * to_swap
        return self.mask_token(x, to_mask)

    def patch_losses(self, images: Tensor, outputs: dict[str, Tensor]) -> Tensor:
        patches = self.stages.patchify(images)
        prediction = outputs["prediction"]
        if self.target == "pixels":
            return ops.mean((prediction - patches) ** 2, axis=-1)
        losses = keras.losses.sparse_categorical_crossentropy(
            self.color_classes(patches), prediction, from_logits=True
        )
        return ops.mean(losses, axis=-1)

    def color_classes(self, patches: Tensor) -> Tensor:
        """Returns the target classes: the quantized colors of patches.

        Args:
            patches: Tensor of shape `(batch, num_patches, rows * columns *
                channels)`.

        Returns:
            Integers of shape `(batch, num_patches, predictions)`, 1
            prediction for "mean_color" and 16 for "downsized".
        """
        stages = self.stages
        x = ops.reshape(
            patches,
            (-1, stages.num_patches, *stages.patch_size, stages.channels),
        )
        x = ops.einsum("ip,jq,bnpqc->bnijc", *self._pooling, x)
        lowest, span = map(ops.convert_to_tensor, (self._lowest, self._span))
        x = (x - lowest) / span
        levels = ops.clip(ops.floor(x * _LEVELS), 0, _LEVELS - 1)
        weights = ops.convert_to_tensor(self._class_weights.astype("float32"))
        classes = ops.cast(ops.sum(levels * weights, axis=-1), "int32")
        return ops.reshape(classes, (-1, stages.num_patches, x.shape[2] * x.shape[3]))

    def prediction_to_pixels(self, prediction: Tensor, patches: Tensor) -> Tensor:
        if self.target == "pixels":
            return prediction
        stages = self.stages
        classes = ops.argmax(prediction, axis=-1)[..., None]
        weights = ops.convert_to_tensor(self._class_weights.astype("int32"))
        classes = ops.cast(classes, "int32")
        levels = ops.cast(classes // weights % _LEVELS, "float32")
        lowest, span = map(ops.convert_to_tensor, (self._lowest, self._span))
        x = (levels + 0.5) / _LEVELS * span + lowest
        side = len(self._pooling[0])
        x = ops.reshape(x, (-1, stages.num_patches, side, side, stages.channels))
        upsampling = [(pool > 0).astype("float32") for pool in self._pooling]
        upsampling = [matrix / matrix.sum(0) for matrix in upsampling]
        x = ops.einsum("ip,jq,bnijc->bnpqc", *upsampling, x)
        return ops.reshape(x, (-1, stages.num_patches, stages.patch_area))


def area_pooling_matrix(size: int, num_cells: int) -> Array:
    """Returns the mean pooling of `size` pixels as a matrix `(num_cells,
    size)`; a pixel that overlaps two cells contributes to both in proportion.
    """
    edges = np.linspace(0, size, num_cells + 1)
    pixel = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(
        edges[:-1, None], pixel
    )
    return (np.clip(overlap, 0, 1) * num_cells / size).astype("float32")
